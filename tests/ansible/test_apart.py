"""The service on one machine, nginx on another, and TLS between them. `make ansible-test`."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.apart import Authority
from tests.harness.client import Client, chat_body
from tests.harness.machine import Machine
from tests.harness.node import Engine, wait_for
from tests.harness.playbook import Site

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("WEIR_ANSIBLE") != "all", reason="only `make ansible-test`"),
]
QA = {"X-Medical-Scene": "QA"}
TLS = "/etc/weir/tls"


def test_a_node_apart_is_admitted_by_its_token_and_follows_a_new_one(
    start_machine: Callable[[str], Machine],
    start_engine_at: Callable[[str], Engine],
    make_site: Callable[..., Site],
    tmp_path: Path,
) -> None:
    control, node = start_machine("control-1"), start_machine("node-1")
    engine = start_engine_at(node.gateway)
    authority = Authority(tmp_path / "ca")
    pair = authority.issue("service", control.address)

    def site(token: str) -> Site:
        backend = {"name": "gpu-0", "url": engine.url, "max_streams": 2}
        made = make_site(
            weir_pools={"default": {"backends": [backend]}}, weir_tokens={"node-1": token}
        )
        made.add(
            "control-1", control, ("weir_admission",),
            weir_admission={
                "listen": f"{control.address}:8443",
                "tls": {"certificate": f"{TLS}/service.pem", "key": f"{TLS}/service.key"},
                "tokens": [{"name": "node-1"}],
            },
            weir_tls_files={"service.pem": pair["certificate"], "service.key": pair["key"]},
        )  # fmt: skip
        made.add(
            "node-1", node, ("weir_nodes",), weir_listen="0.0.0.0:8080",
            weir_admission={
                "url": f"https://{control.address}:8443",
                "ca": f"{TLS}/ca.pem",
                "token": {"file": "/etc/weir/tokens/node-1"},
            },
            weir_tls_files={"ca.pem": str(authority.file)},
        )  # fmt: skip
        return made

    def told() -> list[tuple[str, bool]]:
        nodes = json.loads(control.text("weir nodes --json"))["nodes"]
        return [(each["name"], each["silent"]) for each in nodes if "agent" in each]

    play = site("a-first-token-of-node-1").play()
    assert play.code == 0, play.said
    wait_for(lambda: told() == [("node-1", False)], 10)
    with (
        Client(8080, host=node.address) as one,
        Client(8080, host=node.address) as two,
        Client(8080, host=node.address) as three,
    ):
        for client in (one, two):
            assert client.post(chat_body(20_000, gap_ms=300), headers=QA).head().status == 200
        assert three.request(chat_body(1), headers=QA)[0].status == 429
        again = site("a-first-token-of-node-1").play()
        assert again.code == 0 and again.count("changed") == 0, (again.changed_tasks, again.said)

        # Both sides learn of it; the streams know nothing of tokens.
        exchanged = site("a-second-token-of-node-1").play()
        assert exchanged.code == 0, exchanged.said
        assert one.events(2) and two.events(2)
        wait_for(lambda: told() == [("node-1", False)], 10)
        assert engine.stats()["active"] == 2
    with Client(8080, host=node.address) as client:
        wait_for(lambda: json.loads(control.text("weir leases --json"))["leases"] == [], 10)
        response, body = client.request(chat_body(3), headers=QA)
        assert response.status == 200 and body.endswith(b"data: [DONE]\n\n")
    assert node.run("systemctl cat weir-admission", check=False).returncode != 0
    assert control.run("systemctl cat weir-nginx", check=False).returncode != 0
