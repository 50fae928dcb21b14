"""A bare Debian 12 under systemd, the playbook, and what is then live. Casebook 43.

The tests are steps of one machine's life, in this order.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import openai
import pytest

from tests.harness.client import Client, chat_body
from tests.harness.machine import Machine
from tests.harness.node import Engine, wait_for
from tests.harness.playbook import Site

pytestmark = pytest.mark.timeout(600)
QA = {"X-Medical-Scene": "QA"}
TOKEN = "a-token-of-the-operators"
TEMPLATE = "/opt/weir/releases/*/venv/share/weir/nginx/basics.conf.j2"


class Installed(NamedTuple):
    """A machine on which the playbook has run once."""

    machine: Machine
    site: Site
    engine: Engine
    pools: dict[str, Any]

    def weir(self, command: str) -> Any:
        """What the command says on the machine."""
        return json.loads(self.machine.text(f"weir {command} --json"))

    def limit(self) -> int:
        [pool] = self.weir("pools")["pools"]
        return int(pool["backends"][0]["max_streams"])

    def streams(self) -> int:
        [pool] = self.weir("pools")["pools"]
        return int(pool["streams"])

    def with_limit(self, max_streams: int) -> dict[str, Any]:
        [backend] = self.pools["default"]["backends"]
        return {"default": {"backends": [{**backend, "max_streams": max_streams}]}}

    def client(self) -> Client:
        return Client(8080, timeout_s=30, host=self.machine.address)

    def loaded(self) -> str:
        """What nginx itself says that it has loaded."""
        ask = "import http.client as h, socket as s; c = h.HTTPConnection('localhost'); "
        ask += "c.sock = s.socket(s.AF_UNIX); c.sock.connect('/var/lib/weir/run/reroute.sock'); "
        ask += "c.request('GET', '/_weir/loaded'); print(c.getresponse().read().decode())"
        return self.machine.text(f'python3 -c "{ask}"')

    def rendered(self) -> str:
        """What it would say of what stands in its files."""
        return self.machine.text("cat /var/lib/weir/nginx/stamp.conf").split('"')[1]


@pytest.fixture(scope="module")
def installed(
    start_machine: Callable[[str], Machine],
    start_engine_at: Callable[[str], Engine],
    make_site: Callable[..., Site],
) -> Installed:
    machine = start_machine("gpu-1")
    engine = start_engine_at(machine.gateway)
    pools = {
        "default": {
            "backends": [
                {"name": "gpu-0", "url": engine.url, "max_streams": 25, "max_tokens": 80_000}
            ]
        }
    }
    site = make_site(
        weir_listen="0.0.0.0:8080",
        weir_pools=pools,
        weir_tokens={"ops": TOKEN},
        weir_admin={"tokens": [{"name": "ops", "role": "admin"}]},
    )
    site.add("gpu-1", machine)
    play = site.play()
    assert play.code == 0, play.said
    assert TOKEN not in play.said
    return Installed(machine, site, engine, pools)


def test_a_bare_debian_becomes_a_node_that_admits_and_streams(installed: Installed) -> None:
    client = openai.OpenAI(
        base_url=f"http://{installed.machine.address}:8080/v1", api_key="none", max_retries=0
    )
    with client.chat.completions.create(
        model="sim",
        messages=[{"role": "user", "content": "发热三天"}],
        stream=True,
        extra_headers=QA,
        extra_body={"sim": {"frames": 20}},
    ) as stream:
        answer = [chunk.choices[0].delta.content for chunk in stream]
    assert len([text for text in answer if text]) == 20
    wait_for(lambda: installed.streams() == 0)
    [node] = installed.weir("nodes")["nodes"]
    roles = {process["role"] for process in node["memory"]["processes"]}
    assert not node["silent"] and {"nginx", "admission", "agent"} <= roles
    assert "memory_unreadable" not in installed.machine.text("journalctl -u weir-agent")


def test_its_parts_run_as_hardened_units_of_their_own_user(installed: Installed) -> None:
    machine = installed.machine
    assert machine.text("systemctl --failed --no-legend") == ""
    for unit in ("admission", "nginx", "agent"):
        pid = machine.text(f"systemctl show -P MainPID weir-{unit}")
        assert machine.text(f"stat -c %U /proc/{pid}") == "weir"
        assert TOKEN not in machine.text(
            f"cat /proc/{pid}/cmdline /proc/{pid}/environ | tr '\\0' ' '"
        )
        exposure = machine.text(f"systemd-analyze security weir-{unit} | tail -n 1")
        assert float(exposure.split(":")[1].split()[0]) < 2, exposure
    assert machine.run("systemd-analyze verify /etc/systemd/system/weir-*.service").stderr == ""
    assert machine.text("stat -c '%a %U %G' /etc/weir/tokens/ops") == "640 root weir"
    nginx = machine.text("systemctl show -P MainPID weir-nginx")
    hidden = machine.run(f"nsenter -t {nginx} -m cat /etc/weir/tokens/ops", check=False)
    assert hidden.returncode != 0 and TOKEN not in hidden.stdout
    assert machine.text("ls /var/lib/weir | grep journal").split() != []
    seen = machine.text(f"nsenter -t {nginx} -m ls /var/lib/weir").split()
    assert sorted(seen) == ["log", "nginx", "run", "tmp"]
    # Debian's own site was kept from starting.
    assert machine.run("systemctl is-active nginx", check=False).returncode != 0


def test_a_bug_report_has_the_units_logs(installed: Installed) -> None:
    machine = installed.machine
    said = machine.run("weir doctor -o /tmp/bug.tar.gz")
    assert "is not in it" not in said.stderr, said.stderr
    logs = machine.text(
        "tar -xzOf /tmp/bug.tar.gz --wildcards '*/log/admission.log' '*/log/agent.log'"
    )
    assert "agent_started" in logs and "journal_read" in logs, logs
    assert TOKEN not in machine.text("tar -xzOf /tmp/bug.tar.gz")


def test_a_second_run_changes_nothing(installed: Installed) -> None:
    play = installed.site.play()
    assert play.code == 0, play.said
    assert play.count("changed") == 0, play.changed_tasks


def test_a_limit_is_live_in_the_end_though_a_run_failed_in_between_and_no_stream_is_cut(
    installed: Installed,
) -> None:
    """Casebook 43 a and d."""
    engine_before = installed.engine.stats()["total"]
    clients = [
        installed.client().post(chat_body(20_000, gap_ms=500), headers=QA) for _ in range(20)
    ]
    for client in clients:
        assert client.head().status == 200

    wanted = installed.with_limit(21)
    failed = installed.site.play(weir_pools=wanted, nginx_unit="/no/such/folder/nginx.service")
    assert failed.code != 0
    assert "max_streams: 21" in installed.machine.text("cat /etc/weir/weir.yml")
    assert installed.limit() == 25, "the file says it, the service does not"
    assert installed.loaded() != installed.rendered(), "nor does nginx"

    play = installed.site.play(weir_pools=wanted)
    assert play.code == 0, play.said
    assert installed.limit() == 21
    assert installed.loaded() == installed.rendered()
    assert installed.streams() == 20
    assert all(client.events(2) for client in clients)
    stats = installed.engine.stats()
    assert (stats["active"], stats["total"] - engine_before) == (20, 20)
    with installed.client() as one_more, installed.client() as one_too_many:
        assert one_more.post(chat_body(100, gap_ms=500), headers=QA).head().status == 200
        assert one_too_many.request(chat_body(1), headers=QA)[0].status == 429
    for client in clients:
        client.fin()
    wait_for(lambda: installed.streams() == 0, 10)
    assert installed.weir("leases")["leases"] == []


def test_a_broken_template_stops_before_the_running_nginx(installed: Installed) -> None:
    """Casebook 43 b."""
    machine = installed.machine
    loaded, workers = installed.loaded(), machine.text("pgrep -u weir nginx")
    machine.run(f"cp {TEMPLATE} /tmp/sound; echo 'no_such_directive on;' >> {TEMPLATE}")
    try:
        play = installed.site.play(weir_pools=installed.with_limit(22))
    finally:
        machine.run(f"cp /tmp/sound {TEMPLATE}")
    assert play.code != 0 and "no_such_directive" in play.said, play.said
    assert installed.loaded() == loaded
    assert machine.text("pgrep -u weir nginx") == workers
    assert "max_streams: 22" not in machine.text("cat /etc/weir/weir.yml /var/lib/weir/nginx/*")
    with installed.client() as client:
        response, body = client.request(chat_body(3), headers=QA)
        assert response.status == 200 and body.endswith(b"data: [DONE]\n\n")


def test_logs_are_rotated_under_the_tailer(installed: Installed) -> None:
    machine = installed.machine

    def lines() -> int:
        [node] = installed.weir("nodes")["nodes"]
        return int(node["tailer"]["lines"])

    before = lines()
    # A log that has outgrown its size waits for no midnight.
    seconds = 'date +%s -d "$(systemctl show -P NextElapseUSecRealtime logrotate.timer)"'
    assert 0 < int(machine.text(seconds)) - int(machine.text("date +%s")) < 3800
    machine.run("systemctl stop logrotate.timer")  # and now it is us who look
    machine.run("sed -i 's/maxsize 1G/maxsize 10/' /etc/logrotate.d/weir")
    by_force = "logrotate --force /etc/logrotate.d/weir"
    for rotate in ("systemctl start logrotate.service", by_force, by_force):
        machine.run(rotate)
        with installed.client() as client:
            assert client.request(chat_body(2), headers=QA)[0].status == 200
    wait_for(lambda: lines() >= before + 3, 10)
    [node] = installed.weir("nodes")["nodes"]
    assert node["tailer"]["gaps"] == 0
    assert machine.text("ls /var/lib/weir/log | grep access | sort").split() == [
        "access.log", "access.log.1", "access.log.2.gz", "access.log.3.gz",
    ]  # fmt: skip
