"""What takes longer: check mode, two instances on a machine, a new release. `make ansible-test`.

The tests are steps of one machine's life, in this order.
"""

import json
import os
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.harness.client import Client, chat_body
from tests.harness.machine import Machine
from tests.harness.node import Engine, wait_for
from tests.harness.playbook import ANSIBLE, BUILD, Site

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("WEIR_ANSIBLE") != "all", reason="only `make ansible-test`"),
]
QA = {"X-Medical-Scene": "QA"}
TOKEN = "a-token-of-the-operators"
PARTS = ("admission", "nginx", "agent")


def pools(engine: Engine, **limits: int) -> dict[str, Any]:
    return {"default": {"backends": [{"name": "gpu-0", "url": engine.url, **limits}]}}


class Fleet(NamedTuple):
    machine: Machine
    site: Site
    engine: Engine

    def serves(self, port: int) -> bool:
        with Client(port, timeout_s=30, host=self.machine.address) as client:
            response, body = client.request(chat_body(3), headers=QA)
        return response.status == 200 and body.endswith(b"data: [DONE]\n\n")

    def ask(self, command: str) -> Any:
        return json.loads(self.machine.text(f"weir {command} --json"))

    def pid(self, unit: str) -> str:
        return self.machine.text(f"systemctl show -P MainPID {unit}")


@pytest.fixture(scope="module")
def fleet(
    start_machine: Callable[[str], Machine],
    start_engine_at: Callable[[str], Engine],
    make_site: Callable[..., Site],
) -> Fleet:
    machine = start_machine("gpu-1")
    engine = start_engine_at(machine.gateway)
    site = make_site(weir_pools=pools(engine), weir_listen="0.0.0.0:8080")
    site.add("gpu-1", machine)
    return Fleet(machine, site, engine)


def test_check_mode_on_a_bare_machine_changes_nothing(fleet: Fleet) -> None:
    before = fleet.machine.text(
        "find /etc /opt /usr/local /var/lib/dpkg -type f | sort | sha256sum"
    )
    play = fleet.site.play("--check", "--diff")
    assert play.code == 0, play.said
    assert play.count("changed") > 5
    after = fleet.machine.text("find /etc /opt /usr/local /var/lib/dpkg -type f | sort | sha256sum")
    assert before == after
    assert fleet.machine.run("getent passwd weir", check=False).returncode != 0


def test_after_a_run_check_mode_says_that_nothing_would_change(fleet: Fleet) -> None:
    play = fleet.site.play()
    assert play.code == 0, play.said
    play = fleet.site.play("--check", "--diff")
    assert play.code == 0 and play.count("changed") == 0, (play.changed_tasks, play.said)
    play = fleet.site.play("--check", "--diff", weir_pools=pools(fleet.engine, max_streams=7))
    assert play.code == 0 and "max_streams: 7" in play.said, play.said
    assert "max_streams" not in fleet.machine.text("cat /etc/weir/*.yml")


def test_tokens_are_in_force_when_they_are_new_and_when_they_are_exchanged(fleet: Fleet) -> None:
    admin = {"tokens": [{"name": "ops", "role": "admin"}]}
    for token in ("the-first-of-the-tokens", "the-second-of-the-tokens"):
        play = fleet.site.play(weir_tokens={"ops": token}, weir_admin=admin)
        assert play.code == 0 and token not in play.said, play.said
        asked = fleet.machine.text(f"WEIR_ADMIN_TOKEN={token} weir whoami --json")
        assert json.loads(asked)["name"] == "ops"
    known = "WEIR_ADMIN_TOKEN=the-first-of-the-tokens weir pools"
    assert fleet.machine.run(known, check=False).returncode == 1

    # One that nothing names any more is gone; one of the operator's own stays while it is named.
    own = {"name": "own", "role": "admin", "file": "/etc/weir/tokens/own"}
    fleet.machine.run(
        "cd /etc/weir/tokens; echo one-of-the-operators-own > own;"
        " chown root:weir own; chmod 640 own"
    )
    taken_out = {"weir_tokens": {}, "weir_admin": {"tokens": [own]}}
    play = fleet.site.play("--check", **taken_out)
    assert play.code == 0 and "Remove those that nothing names" in play.changed_tasks[-1], play.said
    assert fleet.machine.text("ls /etc/weir/tokens").split() == ["ops", "own"]
    play = fleet.site.play(**taken_out)
    assert play.code == 0, play.said
    assert fleet.machine.text("ls /etc/weir/tokens").split() == ["own"]
    assert fleet.site.play(**taken_out).count("changed") == 0
    assert fleet.site.play().code == 0
    assert fleet.machine.text("ls /etc/weir/tokens") == ""


def test_two_instances_under_one_user_share_nothing(fleet: Fleet) -> None:
    """Casebook 43 e."""
    other: dict[str, Any] = {
        "weir_instance": "weir-icu",
        "weir_admin": {"listen": "127.0.0.1:9081"},
    }
    fleet.site.add("gpu-1-icu", fleet.machine, weir_listen="0.0.0.0:8080", **other)
    play = fleet.site.play("--limit", "gpu-1-icu")
    assert play.code != 0 and "0.0.0.0:8080 cannot be listened on" in play.said, play.said
    assert fleet.machine.run("test -e /etc/weir-icu/weir.yml", check=False).returncode != 0

    fleet.site.add("gpu-1-icu", fleet.machine, weir_listen="0.0.0.0:9080", **other)
    play = fleet.site.play()
    assert play.code == 0, play.said
    assert fleet.serves(8080) and fleet.serves(9080)

    def written(instance: str) -> set[str]:
        """Files and sockets that an instance's processes have open, and where they listen."""
        found = set()
        for part in PARTS:
            group = f"/sys/fs/cgroup/systemd/system.slice/{instance}-{part}.service/cgroup.procs"
            group = f"$(ls {group} {group.replace('/systemd/system', '/system')} 2>/dev/null)"
            found |= set(
                fleet.machine.text(
                    f"for pid in $(cat {group}); do ls -l /proc/$pid/fd; done"
                    " | grep -o '/[^ ]*' | grep -v -e ^/dev -e ^/proc -e memfd -e '/#'; "
                    f"ss -Hlpn | grep -e '{instance}/run'; true"
                ).splitlines()
            )
        return found

    one, two = written("weir"), written("weir-icu")
    assert one and two
    assert not {line for line in one & two if not line.startswith(("/opt", "/usr", "/etc/ssl"))}
    assert fleet.site.play().count("changed") == 0

    # One that is stopped and gone does not trouble the other.
    fleet.machine.run("systemctl stop weir-icu-agent weir-icu-nginx weir-icu-admission")
    assert fleet.serves(8080)
    fleet.machine.run("systemctl start weir-icu-admission weir-icu-nginx weir-icu-agent")
    wait_for(lambda: fleet.serves(9080), 10)


def test_a_release_with_a_broken_template_stops_before_anything_that_runs(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Casebook 43 b and d."""
    with Client(8080, timeout_s=30, host=fleet.machine.address) as client:
        assert client.post(chat_body(20_000, gap_ms=200), headers=QA).head().status == 200
        before = [fleet.pid(f"weir-{part}") for part in PARTS]
        wheels, sound = unpacked(tmp_path / "broken"), unpacked(tmp_path / "sound")
        patch(wheels, "share/weir/nginx/basics.conf.j2", b"\n{{ no_such_variable }}\n")
        play = fleet.site.play("--limit", "gpu-1", weir_wheelhouse=str(wheels))
        assert play.code != 0 and "no_such_variable" in play.said, play.said
        assert [fleet.pid(f"weir-{part}") for part in PARTS] == before
        assert fleet.serves(8080)

        # The next one is sound: service and agent are replaced, nginx is not, no stream is cut.
        patch(sound, "share/weir/nginx/basics.conf.j2", b"\n# another\n")
        play = fleet.site.play("--limit", "gpu-1", weir_wheelhouse=str(sound))
        assert play.code == 0, play.said
        after = [fleet.pid(f"weir-{part}") for part in PARTS]
        assert [one == other for one, other in zip(before, after, strict=True)] == [
            False, True, False,
        ]  # fmt: skip
        assert "# another" in fleet.machine.text("cat /var/lib/weir/nginx/basics.conf")
        assert client.events(3)
        [lease] = fleet.ask("leases")["leases"]
        assert lease["state"] == "active"
    wait_for(lambda: fleet.ask("leases")["leases"] == [], 10)


def test_an_instance_is_uninstalled_as_the_guide_says_and_the_other_one_serves_on(
    fleet: Fleet,
) -> None:
    fleet.site.add(
        "gpu-1-icu", fleet.machine, weir_listen="0.0.0.0:9080", weir_instance="weir-icu",
        weir_admin={"listen": "127.0.0.1:9081"},
    )  # fmt: skip
    play = fleet.site.play()
    assert play.code == 0, play.said
    guide = (ANSIBLE.parent / "docs/installation.md").read_text()
    an_instance, the_last = re.findall(
        "```sh\n(.*?)```", guide.split("## Uninstall")[1].split("\n## ")[0], re.DOTALL
    )
    fleet.machine.run(f"set -e; {an_instance}")
    assert fleet.serves(9080)
    assert fleet.machine.text("weir pools -c /etc/weir-icu/weir.yml --json")
    fleet.machine.run("systemctl restart weir-icu-admission weir-icu-agent")
    wait_for(lambda: fleet.serves(9080), 10)

    fleet.machine.run(f"set -e; {an_instance.replace('weir', 'weir-icu')}")
    fleet.machine.run(f"set -e; {the_last}")
    left = "find /etc /opt /usr/local /var/lib -name '*weir*'"
    assert fleet.machine.text(left) == ""
    assert fleet.machine.run("getent passwd weir", check=False).returncode != 0


def unpacked(folder: Path) -> Path:
    """The wheels that the last run built."""
    newest = max(BUILD.glob("*.tar"), key=lambda file: file.stat().st_mtime)
    folder.mkdir()
    subprocess.run(["tar", "-xf", newest, "-C", folder], check=True)
    return folder


def patch(wheels: Path, name: str, more: bytes) -> None:
    """Append to a file in Weir's wheel."""
    [wheel] = wheels.glob("weir-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    assert any(entry.endswith(name) for entry in files)
    with zipfile.ZipFile(wheel, "w") as archive:
        for entry, content in files.items():
            archive.writestr(entry, content + (more if entry.endswith(name) else b""))
