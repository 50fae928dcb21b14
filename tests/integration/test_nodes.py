"""`/v1/nodes`: what agents say, and what the service makes of it."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from control.client import ServiceClient, ServiceError
from tests.harness.node import Node, wait_for

MB = 1 << 20
ROUTE = "/v1/chat/completions"


def report(state: str = "ok", **more: Any) -> dict[str, Any]:
    return {
        "agent": {"pid": 7, "started": 1.5},
        "tailer": {
            "file": "/var/log/a.log", "inode": 9, "offset": 120, "lag_bytes": 30,
            "lag_seconds": 0.25, "lines": 12, "released": 3, "broken": 1, "oversized": 0, "gaps": 0,
        },
        "memory": {
            "source": "machine", "limit_bytes": 100 * MB, "used_bytes": 93 * MB, "state": state,
            "per_stream_bytes": 2_048.5, "leak_suspected": False,
            "processes": [
                {"pid": 1, "role": "nginx", "uss_bytes": 5 * MB},
                {"pid": 2, "role": "nginx", "uss_bytes": 6 * MB},
            ],
        },
        **more,
    }  # fmt: skip


@pytest.fixture
def client(node: Node) -> Iterator[ServiceClient]:
    yield ServiceClient(f"unix:{node.state}/run/admission.sock", timeout_s=10)


def shown(node: Node, name: str) -> Any:
    return node.get(f"/v1/nodes/{name}")


def acquire(client: ServiceClient, session: str, lease_id: str) -> Any:
    [result] = client.batch(
        session, [{"op": "acquire", "id": lease_id, "route": ROUTE, "tokens": 1}]
    )
    return result


def test_a_report_is_shown_with_the_nodes_streams_and_answered_by_their_number(
    node: Node, client: ServiceClient
) -> None:
    acquire(client, "far/1/1", "far-lease")
    assert client.report_node("far", report()) == {"streams": 1}
    told = shown(node, "far")
    assert (told["name"], told["sessions"], told["streams"]) == ("far", 1, 1)
    agent = report()["agent"]
    client.batch(f"far/{agent['pid']}/{round(agent['started'] * 1000)}", [])
    assert shown(node, "far")["sessions"] == 1, "the agent is no worker"
    assert told["silent"] is False and told["silent_s"] < 5
    assert {key: told[key] for key in ("agent", "tailer", "memory")} == report()
    assert told in [
        {**each, "silent_s": told["silent_s"]} for each in node.get("/v1/nodes")["nodes"]
    ]
    assert node.metric("weir_node_memory_bytes", node="far", process="nginx") == 11 * MB
    assert node.metric("weir_tailer_lag_seconds", node="far") == 0.25
    client.batch("far/1/1", [{"op": "release", "id": "far-lease", "verdict": "completed"}])


def test_a_node_whose_memory_is_full_admits_nothing_new_and_others_do(
    node: Node, client: ServiceClient
) -> None:
    acquire(client, "hot/1/1", "before")
    client.report_node("hot", report("full"))
    refused = acquire(client, "hot/1/1", "after")
    assert (refused["decision"], refused["reason"], refused["status"]) == (
        "refused", "node_memory", 503,
    )  # fmt: skip
    told = {acquire(client, "hot/1/1", f"after-{n}")["retry_after_ms"] for n in range(10)}
    assert 1_000 <= min(told) < max(told) <= 60_000, "they do not return together"
    assert node.metric("weir_requests_total", outcome="node_memory") >= 1
    assert acquire(client, "cool/1/1", "elsewhere")["decision"] == "granted"
    client.report_node("hot", report("alarm"))
    assert acquire(client, "hot/1/1", "again")["decision"] == "granted"
    for session, lease in (("hot/1/1", "before"), ("hot/1/1", "again"), ("cool/1/1", "elsewhere")):
        client.batch(session, [{"op": "release", "id": lease, "verdict": "completed"}])


def test_a_silent_agent_is_said_to_be_silent_and_closes_no_node(
    node: Node, client: ServiceClient
) -> None:
    client.report_node("gone", report("full"))
    assert acquire(client, "gone/1/1", "x")["reason"] == "node_memory"
    wait_for(lambda: shown(node, "gone")["silent"], 10, every_s=0.2)
    assert node.metric("weir_node_silent", node="gone") == 1
    assert acquire(client, "gone/1/1", "x")["decision"] == "granted"
    client.batch("gone/1/1", [{"op": "release", "id": "x", "verdict": "completed"}])


def test_a_node_that_only_has_workers_is_shown_as_silent(node: Node, client: ServiceClient) -> None:
    client.batch("dumb/1/1", [])
    told = shown(node, "dumb")
    assert told["silent"] is True and told["agent"] is None and told["sessions"] == 1


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"agent": None}, "agent"), ({"memory": {"state": "hot"}}, "memory"),
        ({"memory": {**report()["memory"], "state": "hot"}}, "state"),
        ({"memory": {**report()["memory"], "used_bytes": -1}}, "used_bytes"),
        ({"memory": {**report()["memory"], "processes": [{}] * 2_000}}, "processes"),
        ({"tailer": {**report()["tailer"], "lag_seconds": "x"}}, "lag_seconds"),
    ],
)  # fmt: skip
def test_a_report_that_is_none_is_400_in_words(
    node: Node, client: ServiceClient, change: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ServiceError, match=fault) as caught:
        client.report_node("odd", report(**change))
    assert caught.value.status == 400
    assert "odd" not in {each["name"] for each in node.get("/v1/nodes")["nodes"]}


def test_a_name_that_is_none_is_400_and_an_unknown_node_404(
    node: Node, client: ServiceClient
) -> None:
    with pytest.raises(ServiceError):
        client.report_node("no spaces", report())
    assert requests.get(f"{node.admin}/v1/nodes/nobody", timeout=5).status_code == 404


def test_reports_are_for_the_nodes_own_socket_alone(node: Node) -> None:
    response = requests.put(f"{node.admin}/v1/nodes/vm", json=report(), timeout=5)
    assert response.status_code == 405


def test_sessions_are_listed_by_node_and_a_dead_one_is_ended(
    node: Node, client: ServiceClient
) -> None:
    acquire(client, "site/41/5", "held-41")
    acquire(client, "site/42/5", "held-42")
    assert {each["id"] for each in client.sessions("site")} == {"site/41/5", "site/42/5"}
    client.end_session("site/41/5")
    assert {each["id"] for each in client.sessions("site")} == {"site/42/5"}
    client.end_session("site/41/5")
    wait_for(lambda: node.metric("weir_leases_ended_total", verdict="lost", witness="session") == 1)
    client.batch("site/42/5", [{"op": "release", "id": "held-42", "verdict": "completed"}])
