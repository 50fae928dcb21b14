"""Both planes of the service as others than our nginx use them: over its socket and its port."""

import http.client
import itertools
import json
import multiprocessing
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

from tests.harness.node import Engine, Node, free_port, wait_for
from tests.harness.openapi import check_answer

ROUTE = "/v1/chat/completions"
numbers = itertools.count(1)


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Any


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("weir", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(self._path)


def call(path: str, method: str, target: str, body: Any = None, connection: Any = None) -> Answer:
    """One exchange; ``body`` is bytes, or what is sent as JSON."""
    given = connection or UnixConnection(path)
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    given.request(method, target, raw, {"Content-Type": "application/json"} if raw else {})
    response = given.getresponse()
    text = response.read()
    headers = {name.lower(): value for name, value in response.getheaders()}
    if connection is None:
        given.close()
    kind = headers.get("content-type", "")
    return Answer(response.status, headers, json.loads(text) if "json" in kind else text)


class Gateway:
    """A gateway that is not ours, with a session of its own."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.path = str(node.state / "run" / "admission.sock")
        self.session = f"test/{next(numbers)}/{time.time_ns()}"

    def __call__(self, method: str, target: str, body: Any = None) -> Answer:
        return call(self.path, method, target, body)

    def batch(self, *ops: Any) -> list[Any]:
        answer = self("POST", "/v1/admission", {"session": self.session, "ops": list(ops)})
        assert answer.status == 200, answer
        return list(answer.body["results"])

    def lease(self, lease_id: str, **fields: Any) -> Answer:
        asked = {"id": lease_id, "route": ROUTE, "session": self.session, **fields}
        return self("POST", "/v1/leases", asked)

    def release(self, lease_id: str, verdict: str = "completed") -> Answer:
        return self("DELETE", f"/v1/leases/{lease_id}?verdict={verdict}")


@pytest.fixture
def gateway(node: Node) -> Iterator[Gateway]:
    node.settled()
    yield Gateway(node)
    node.settled()


@pytest.fixture
def new_id() -> str:
    return f"lease-{next(numbers)}"


def is_problem(answer: Answer, status: int, code: str) -> bool:
    """Whether an answer is RFC 9457's, with all its members."""
    assert answer.headers["content-type"].startswith("application/problem+json"), answer
    assert {"type", "title", "status", "code", "detail"} <= set(answer.body), answer
    assert answer.body["status"] == answer.status and answer.body["detail"]
    return (answer.status, answer.body["code"]) == (status, code)


def acquire(lease_id: str, **fields: Any) -> dict[str, Any]:
    return {"op": "acquire", "id": lease_id, "route": ROUTE, **fields}


def release(lease_id: str, **fields: Any) -> dict[str, Any]:
    return {"op": "release", "id": lease_id, "verdict": "completed", **fields}


# -- batches -----------------------------------------------------------------------------------


def test_a_batch_is_answered_in_order_and_nonsense_in_its_place(
    gateway: Gateway, new_id: str
) -> None:
    results = gateway.batch(
        acquire(f"{new_id}.a", scene="QA", bytes=100),
        {"op": "acquire", "id": "../../etc", "route": ROUTE},
        7,
        acquire(f"{new_id}.b", tokens=9),
        {"op": "steal", "id": "x"},
        acquire(f"{new_id}.c", route="/nowhere"),
        release(f"{new_id}.a"),
        release(f"{new_id}.b"),
    )
    first, _, _, second, _, nowhere, *releases = results
    assert (first["decision"], first["tokens"], first["scene"]) == ("granted", 1_060, "QA")
    assert (second["decision"], second["tokens"]) == ("granted", 9)
    assert second["url"] == gateway.node.config["pools"]["default"]["backends"][0]["url"]
    assert second["grant"] > first["grant"]
    for n in (1, 2, 4, 5):
        assert results[n]["decision"] == "invalid" and results[n]["message"], results[n]
    assert "/nowhere" in nowhere["message"]
    assert releases == [{"outcome": "released"}] * 2


def test_an_empty_batch_is_a_heartbeat(gateway: Gateway) -> None:
    assert gateway.batch() == []

    def silence() -> float:
        sessions = gateway.node.get("/v1/sessions")["sessions"]
        [mine] = [s for s in sessions if s["id"] == gateway.session]
        assert mine["leases"] == 0
        return float(mine["silent_s"])

    wait_for(lambda: silence() > 1)
    wait_for(lambda: gateway.batch() == [] and silence() < 1)


def test_a_session_is_listed_with_its_leases(gateway: Gateway, new_id: str) -> None:
    gateway.batch(acquire(f"{new_id}.a"), acquire(f"{new_id}.b"))
    sessions = gateway.node.get("/v1/sessions")["sessions"]
    assert [s["leases"] for s in sessions if s["id"] == gateway.session] == [2]
    gateway.batch(release(f"{new_id}.a"), release(f"{new_id}.b"))


def test_a_sync_ends_what_the_session_does_not_hold_and_adopts_what_it_does(
    gateway: Gateway, new_id: str
) -> None:
    gateway.batch(acquire(f"{new_id}.kept"), acquire(f"{new_id}.lost"))
    held = {"id": f"{new_id}.held", "pool": "default", "backend": "gpu-0", "tokens": 11}
    [synced] = gateway.batch({"op": "sync", "ids": [f"{new_id}.kept", held]})
    assert synced == {"ended": [f"{new_id}.lost"], "adopted": [f"{new_id}.held"]}
    wait_for(lambda: gateway.node.in_use()[0] == 2)
    gateway.batch(release(f"{new_id}.kept"), release(f"{new_id}.held"))


def test_a_release_of_an_earlier_grant_leaves_the_lease_alone(
    gateway: Gateway, new_id: str
) -> None:
    """Casebook 15."""
    [granted] = gateway.batch(acquire(new_id))
    [stale] = gateway.batch(release(new_id, grant=granted["grant"] - 1 or 999))
    assert stale == {"outcome": "stale"}
    assert gateway.node.in_use()[0] == 1
    [done] = gateway.batch(release(new_id, grant=granted["grant"]))
    assert done == {"outcome": "released"}


def test_a_client_that_left_is_counted_once_however_often_it_is_told(
    gateway: Gateway, new_id: str
) -> None:
    """Also where it left while it asked, and where the log's word came first."""
    names = ("weir_client_aborts_total", "weir_abort_seconds_count")
    before = [gateway.node.metric(name) for name in names]
    gone = [
        release(f"{new_id}.{n}", verdict="client_abort", phase=phase)
        for n, phase in enumerate(("stream", "asking", "prefill"))
    ]
    gateway.batch(acquire(gone[0]["id"]), acquire(gone[2]["id"]))
    gateway.batch({**gone[2], "phase": None, "witness": "log"})
    for _ in range(2):
        gateway.batch(*gone, *gone)
    assert [gateway.node.metric(name) for name in names] == [count + 3 for count in before]
    assert gateway.node.metric("weir_client_aborts_total", phase="asking") >= 1


def test_a_release_that_waited_for_long_is_a_release(gateway: Gateway, new_id: str) -> None:
    """nginx's worker keeps it for as long as the service is away."""
    total = "weir_abort_seconds_sum"
    gateway.batch(acquire(new_id))
    before = gateway.node.metric(total)
    gone = release(new_id, verdict="client_abort", phase="stream", delay_ms=86_400_000.0)
    assert gateway.batch(gone) == [{"outcome": "released"}]
    assert 3_600 <= gateway.node.metric(total) - before < 3_700


def test_a_held_lease_with_a_number_that_lua_could_not_write_is_refused_in_its_place(
    gateway: Gateway, new_id: str
) -> None:
    held = {"id": f"{new_id}.held", "pool": "default", "backend": "gpu-0", "tokens": 1}
    refused, granted = gateway.batch(
        {"op": "sync", "ids": [{**held, "grant": (1 << 46) + 1}]}, acquire(f"{new_id}.a")
    )
    assert refused["decision"] == "invalid" and "70368744177664" in refused["message"]
    [done] = gateway.batch(release(f"{new_id}.a", grant=granted["grant"]))
    assert done == {"outcome": "released"}
    gateway.batch({"op": "sync", "ids": [{**held, "grant": 1 << 46}]})
    [granted] = gateway.batch(acquire(f"{new_id}.b"))
    assert granted["grant"] < 1 << 46
    ends = [release(f"{new_id}.b", grant=granted["grant"]), release(held["id"], grant=1 << 46)]
    assert gateway.batch(*ends) == [{"outcome": "released"}] * 2


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b"[]", b"{}", b'{"session":"s"}', b'{"session":"s","ops":3}',
     b'{"session":"a b","ops":[]}', b"\xff\xfe", b"[" * 50_000,
     b'{"session":"s","ops":[],"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}"],
    ids=lambda body: body[:30],
)  # fmt: skip
def test_a_body_that_is_no_batch_is_400_in_words(gateway: Gateway, body: bytes) -> None:
    assert is_problem(gateway("POST", "/v1/admission", body), 400, "invalid_batch")


def test_a_body_that_is_too_large_is_413(gateway: Gateway) -> None:
    answer = gateway("POST", "/v1/admission", b'{"session":"s","ops":[' + b" " * (4 << 20) + b"]}")
    assert is_problem(answer, 413, "body_too_large")


def test_a_connection_serves_one_exchange_after_another(gateway: Gateway) -> None:
    connection = UnixConnection(gateway.path)
    for _ in range(20):
        assert call("", "GET", "/healthz", connection=connection).status == 200
        assert call("", "GET", "/nowhere", connection=connection).status == 404
    connection.close()


# -- single leases -----------------------------------------------------------------------------


def test_a_lease_is_created_once_and_released_once(gateway: Gateway, new_id: str) -> None:
    created = gateway.lease(new_id, bytes=1_000)
    assert created.status == 201
    assert created.body["decision"] == "granted" and created.body["tokens"] == 6_600
    again = gateway.lease(new_id, bytes=1_000)
    assert again.status == 200, "casebook 3: the same lease, nothing more taken"
    assert again.body == created.body
    assert gateway.node.in_use() == (1, 6_600)
    shown = gateway("GET", f"/v1/leases/{new_id}")
    assert (shown.status, shown.body["id"], shown.body["state"]) == (200, new_id, "active")
    first, second = gateway.release(new_id), gateway.release(new_id)
    assert (first.status, first.body) == (200, {"outcome": "released"})
    assert (second.status, second.body) == (200, {"outcome": "already_released"})
    assert gateway.node.in_use() == (0, 0)


def test_a_lease_whose_id_has_a_colon_is_found_however_it_is_written(
    gateway: Gateway, new_id: str
) -> None:
    for target in (f"{new_id}:1", f"{new_id}%3A2", f"{new_id}%3a3"):
        lease_id = target.replace("%3A", ":").replace("%3a", ":")
        assert gateway.lease(lease_id).status == 201
        assert gateway.release(target).body == {"outcome": "released"}


def test_an_id_that_never_was_is_answered_and_refused_for_a_while(
    gateway: Gateway, new_id: str
) -> None:
    """Casebook 2: its acquire may still be on the way."""
    answer = gateway.release(new_id)
    assert (answer.status, answer.body) == (200, {"outcome": "unknown"})
    assert is_problem(gateway.lease(new_id), 409, "lease_ended")


def test_a_released_id_is_not_granted_again(gateway: Gateway, new_id: str) -> None:
    assert gateway.lease(new_id).status == 201
    gateway.release(new_id)
    assert is_problem(gateway.lease(new_id), 409, "lease_ended")
    [ended] = gateway.batch(acquire(new_id))
    assert ended == {"decision": "ended", "id": new_id}


def test_a_refusal_is_429_with_a_wait(gateway: Gateway, new_id: str) -> None:
    ids = [f"{new_id}.{n}" for n in range(25)]
    granted = gateway.batch(*(acquire(i, tokens=1) for i in ids))
    assert {each["decision"] for each in granted} == {"granted"}
    answer = gateway.lease(f"{new_id}.late", tokens=1)
    assert is_problem(answer, 429, "streams_exhausted")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    told = answer.body
    assert (told["pool"], told["limit"], told["in_use"], told["requested"]) == (
        "default",
        25,
        25,
        1,
    )
    assert told["retryable"] is True and 1_000 <= told["retry_after_ms"] <= 60_000
    gateway.batch(*(release(i) for i in ids))
    assert gateway.lease(f"{new_id}.late", tokens=1).status == 201, "a refusal leaves no trace"
    gateway.release(f"{new_id}.late")


def test_tokens_that_are_contended_are_429_and_those_that_never_fit_413(
    gateway: Gateway, new_id: str
) -> None:
    assert gateway.lease(new_id, tokens=79_000).status == 201
    answer = gateway.lease(f"{new_id}.b", tokens=1_001)
    assert is_problem(answer, 429, "tokens_exhausted")
    assert (answer.body["limit"], answer.body["in_use"]) == (80_000, 79_000)
    answer = gateway.lease(f"{new_id}.c", tokens=80_001)
    assert is_problem(answer, 413, "request_too_large")
    assert "retry-after" not in answer.headers
    gateway.release(new_id)


def test_an_unknown_route_is_400_with_a_remedy(gateway: Gateway, new_id: str) -> None:
    answer = gateway.lease(new_id, route="/nowhere")
    assert is_problem(answer, 400, "unknown_route")
    assert "weir.yml" in answer.body["detail"]


@pytest.mark.parametrize("verdict", ["done", "", "COMPLETED"])
def test_an_unknown_verdict_is_400_and_the_lease_is_kept(
    gateway: Gateway, new_id: str, verdict: str
) -> None:
    gateway.lease(new_id)
    answer = gateway.release(new_id, verdict)
    if verdict:
        assert is_problem(answer, 400, "invalid_verdict")
        assert gateway.node.in_use()[0] == 1
    assert gateway.release(new_id).status == 200


@pytest.mark.parametrize("lease_id", ["a%20b", "%00", "a%0ab", "%ff", "%F0%9F%98%80", "x" * 129])
def test_an_id_that_no_lease_can_have_is_400_and_not_remembered(
    gateway: Gateway, lease_id: str
) -> None:
    for _ in range(2):
        assert is_problem(gateway.release(lease_id), 400, "invalid_id")


SIZES = ["-5", "9223372036854775808", "1" * 5000, "1e18", "1e400", "NaN", "-Infinity", "true",
         '"100"', "[]", "{}", "0.5"]  # fmt: skip


@pytest.mark.parametrize("field", ["bytes", "tokens"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: size[:20])
def test_a_size_that_is_no_whole_number_is_400_and_takes_nothing(
    gateway: Gateway, new_id: str, field: str, size: str
) -> None:
    """Casebook 32."""
    body = (
        f'{{"id":"{new_id}","route":"{ROUTE}","session":"{gateway.session}","{field}":{size}}}'
    ).encode()
    assert is_problem(gateway("POST", "/v1/leases", body), 400, "invalid_request")
    assert gateway.node.in_use() == (0, 0)


def test_the_largest_sizes_are_refused_and_zero_reserves_the_scenes_output(
    gateway: Gateway, new_id: str
) -> None:
    for field in ("bytes", "tokens"):
        assert gateway.lease(new_id, **{field: 2147483647}).status in (400, 413)
    assert gateway.node.in_use() == (0, 0)
    assert gateway.lease(new_id, bytes=0).body["tokens"] == 6_000
    gateway.release(new_id)
    assert gateway.lease(f"{new_id}.absent").body["tokens"] == 6_000
    gateway.release(f"{new_id}.absent")


def _release_from_a_process(path: str, lease_id: str, barrier: Any, outcomes: Any) -> None:
    connection = UnixConnection(path)
    connection.connect()
    barrier.wait(10)
    answer = call("", "DELETE", f"/v1/leases/{lease_id}", connection=connection)
    outcomes.put((answer.status, answer.body["outcome"]))
    connection.close()


def test_of_releases_from_many_processes_one_counts(gateway: Gateway, new_id: str) -> None:
    """Casebook 14."""
    context = multiprocessing.get_context("fork")
    for n in range(5):
        lease_id = f"{new_id}.{n}"
        gateway.lease(lease_id, tokens=100)
        barrier, outcomes = context.Barrier(4), context.Queue()
        processes = [
            context.Process(
                target=_release_from_a_process, args=(gateway.path, lease_id, barrier, outcomes)
            )
            for _ in range(4)
        ]
        for process in processes:
            process.start()
        told = sorted(outcomes.get(timeout=10) for _ in processes)
        for process in processes:
            process.join(10)
        assert told == [(200, "already_released")] * 3 + [(200, "released")]
        assert gateway.node.in_use() == (0, 0)


def test_of_releases_from_every_witness_one_counts_in_any_order(
    gateway: Gateway, new_id: str
) -> None:
    """Casebook 14: the Lua path, the log, the reaper's stand-in and an operator."""
    ended = gateway.node.metric("weir_leases_ended_total")
    witnesses = ("lua", "log", "session", "admin")
    for n, order in enumerate(itertools.permutations(witnesses)):
        lease_id = f"{new_id}.{n}"
        gateway.batch(acquire(lease_id, tokens=10))
        told = []
        for witness in order:
            if witness == "admin":
                answer = requests.delete(
                    f"{gateway.node.admin}/v1/leases/{lease_id}", timeout=10
                ).json()
                told.append(answer["outcome"])
            else:
                told.append(gateway.batch(release(lease_id, witness=witness))[0]["outcome"])
        assert told == ["released"] + ["already_released"] * 3, order
    wait_for(lambda: gateway.node.in_use() == (0, 0))
    assert gateway.node.metric("weir_leases_ended_total") == ended + 24
    assert gateway.node.metric("weir_lease_drift") == 0


def test_many_sessions_at_once_are_never_granted_more_than_the_limit(
    gateway: Gateway, new_id: str
) -> None:
    """Casebook 18."""
    context = multiprocessing.get_context("fork")
    barrier, granted = context.Barrier(4), context.Queue()
    processes = [
        context.Process(target=_take_twenty, args=(gateway.path, f"{new_id}.{n}", barrier, granted))
        for n in range(4)
    ]
    for process in processes:
        process.start()
    ids = [lease_id for _ in processes for lease_id in granted.get(timeout=10)]
    for process in processes:
        process.join(10)
    assert len(ids) == 25
    assert gateway.node.in_use() == (25, 25)
    gateway.batch(*(release(lease_id) for lease_id in ids))


def _take_twenty(path: str, prefix: str, barrier: Any, granted: Any) -> None:
    connection = UnixConnection(path)
    connection.connect()
    barrier.wait(10)
    got = []
    for n in range(20):
        asked = {"id": f"{prefix}.{n}", "route": ROUTE, "session": prefix, "tokens": 1}
        answer = call("", "POST", "/v1/leases", asked, connection=connection)
        assert answer.status in (201, 429)
        if answer.status == 201:
            got.append(asked["id"])
    granted.put(got)
    connection.close()


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/v1/admission", 405), ("PUT", "/v1/leases", 405), ("GET", "/v1/pools", 404),
        ("GET", "/metrics", 404), ("GET", "/nowhere", 404), ("GET", "/", 404),
        ("GET", "/v1/leases/none", 404), ("GET", "/v1/leases/", 404), ("TRACE", "/healthz", 405),
    ],
)  # fmt: skip
def test_what_the_data_plane_does_not_offer_is_a_problem(
    gateway: Gateway, method: str, target: str, status: int
) -> None:
    answer = gateway(method, target)
    assert answer.status == status
    assert is_problem(answer, status, answer.body["code"])
    assert re.fullmatch(r"[a-z_]+", answer.body["code"])


# -- the admin plane ---------------------------------------------------------------------------


def admin(node: Node, method: str, target: str, **options: Any) -> Answer:
    response = requests.request(method, f"{node.admin}{target}", timeout=10, **options)
    check_answer(method, target, response)
    headers = {name.lower(): value for name, value in response.headers.items()}
    kind = headers.get("content-type", "")
    return Answer(
        response.status_code, headers, response.json() if "json" in kind else response.text
    )


def test_pools_are_shown_as_the_contract_says(gateway: Gateway, new_id: str) -> None:
    gateway.batch(acquire(new_id, tokens=70))
    node = gateway.node
    [pool] = node.get("/v1/pools")["pools"]
    assert pool == node.get("/v1/pools/default")
    [backend] = pool["backends"]
    assert (pool["name"], pool["waiting"], pool["streams"], pool["tokens"]) == ("default", 0, 1, 70)
    assert backend == {
        "name": "gpu-0", "url": node.config["pools"]["default"]["backends"][0]["url"],
        "state": "active", "max_streams": 25, "max_tokens": 80_000,
        "streams": 1, "tokens": 70, "draining": 0,
    }  # fmt: skip
    gateway.batch(release(new_id))


def test_a_pool_that_is_not_there_is_404_and_the_others_are_named(node: Node) -> None:
    answer = admin(node, "GET", "/v1/pools/nope")
    assert is_problem(answer, 404, "pool_not_found")
    assert "default" in answer.body["detail"]


def test_leases_come_in_pages(gateway: Gateway, new_id: str) -> None:
    ids = [f"{new_id}.{n}" for n in range(7)]
    gateway.batch(*(acquire(i, tokens=1) for i in ids))
    seen, asked, pages = [], {"limit": "3"}, 0
    while asked.get("cursor", "") is not None:
        page = gateway.node.get("/v1/leases", params=asked)
        seen += [lease["id"] for lease in page["leases"]]
        asked["cursor"] = page["next"]
        pages += 1
        if pages == 1:  # what ends between two pages shifts nothing
            gateway.batch(release(ids[0]), release(ids[5]))
    assert seen == [*ids[:5], ids[6]]
    assert pages == 2
    gateway.batch(*(release(i) for i in ids))


def test_a_page_that_is_just_full_is_the_last(gateway: Gateway, new_id: str) -> None:
    ids = [f"{new_id}.{n}" for n in range(3)]
    gateway.batch(*(acquire(i, tokens=1) for i in ids))
    page = gateway.node.get("/v1/leases", params={"limit": 3})
    assert (len(page["leases"]), page["next"]) == (3, None)
    page = gateway.node.get("/v1/leases", params={"limit": 2})
    assert (len(page["leases"]), bool(page["next"])) == (2, True)
    gateway.batch(*(release(i) for i in ids))
    assert gateway.node.get("/v1/leases") == {"leases": [], "next": None}


def test_leases_are_chosen_by_pool_and_state(gateway: Gateway, new_id: str) -> None:
    gateway.batch(acquire(new_id, tokens=1))
    node = gateway.node
    for query, count in (
        ("pool=default", 1), ("pool=nope", 0), ("state=active", 1), ("state=draining", 0),
        ("pool=default&state=active", 1), ("tenant=nobody", 0),
    ):  # fmt: skip
        assert len(node.get(f"/v1/leases?{query}")["leases"]) == count, query
    gateway.batch(release(new_id))


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=-1", "limit=1001", "limit=x", "limit=1.5", "limit=1e2", "limit=NaN",
     "limit=" + "9" * 3_000, "limit=%C2%B2", "limit=true", "cursor=x", "cursor=-1",
     "cursor=99999999999999999999", "state=gone", "state=ACTIVE"],
    ids=lambda query: query[:30],
)  # fmt: skip
def test_a_query_that_makes_no_sense_is_400(node: Node, query: str) -> None:
    answer = admin(node, "GET", f"/v1/leases?{query}")
    assert answer.status == 400, answer
    assert is_problem(answer, 400, answer.body["code"])
    assert query.partition("=")[0] in answer.body["detail"]


def test_an_operator_ends_a_lease_once(gateway: Gateway, new_id: str) -> None:
    gateway.batch(acquire(new_id, tokens=1))
    node = gateway.node
    assert admin(node, "GET", f"/v1/leases/{new_id}").body["state"] == "active"
    assert admin(node, "DELETE", f"/v1/leases/{new_id}").body == {"outcome": "released"}
    again = admin(node, "DELETE", f"/v1/leases/{new_id}")
    assert (again.status, again.body) == (200, {"outcome": "already_released"})
    wait_for(lambda: node.in_use() == (0, 0))
    assert is_problem(admin(node, "GET", f"/v1/leases/{new_id}"), 404, "lease_not_found")
    assert node.metric("weir_leases_ended_total", verdict="killed", witness="admin") >= 1


def test_health_readiness_and_metrics_are_served(node: Node) -> None:
    assert admin(node, "GET", "/healthz").body == {"status": "ok"}
    assert admin(node, "GET", "/readyz").body == {"status": "ready"}
    metrics = admin(node, "GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    for name in (
        "weir_requests_total", "weir_decision_seconds", "weir_streams", "weir_streams_limit",
        "weir_tokens", "weir_tokens_limit", "weir_leases_granted_total",
        "weir_leases_ended_total", "weir_lease_drift", "weir_abort_seconds", "weir_build_info",
    ):  # fmt: skip
        assert re.search(rf"^# TYPE {name.removesuffix('_total')}", metrics.body, re.M), name


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", "/v1/admission"), ("POST", "/v1/leases"), ("PUT", "/v1/leases/x"), ("GET", "/v1")],
)
def test_the_admin_plane_decides_nothing(node: Node, method: str, target: str) -> None:
    before = node.metric("weir_leases_granted_total")
    body = {"id": "x", "route": ROUTE, "session": "s", "ops": [acquire("x")]}
    answer = admin(node, method, target, json=body)
    assert answer.status in (404, 405)
    assert is_problem(answer, answer.status, answer.body["code"])
    assert node.metric("weir_leases_granted_total") == before


def test_the_admin_plane_opens_to_its_tokens_only(
    start_node: Callable[..., Node], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Casebook 44."""
    monkeypatch.setenv("WEIR_TEST_OPS", "s3cret-ops")
    monkeypatch.setenv("WEIR_TEST_NIGHT", "s3cret-night")
    settings = {
        "tokens": [
            {"name": "ops", "env": "WEIR_TEST_OPS"}, {"name": "night", "env": "WEIR_TEST_NIGHT"},
        ],
    }  # fmt: skip
    node = start_with_tokens(start_node, engine, settings)
    changing = ("DELETE", "/v1/leases/none")
    for method, target in (("GET", "/v1/pools"), ("GET", "/v1/leases"), ("GET", "/metrics"),
                           ("GET", "/v1/sessions"), ("GET", "/nowhere"), changing):  # fmt: skip
        for value in (
            None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer s3cret-op", "Bearer s3cret-opss",
            "s3cret-ops", "Basic s3cret-ops", "Bearer s3cret-ops, Bearer x", "Bearer \xe9",
        ):  # fmt: skip
            headers = {} if value is None else {"Authorization": value.encode("latin-1")}
            answer = admin(node, method, target, headers=headers)
            assert is_problem(answer, 401, "unauthorized"), (target, value)
            assert answer.headers["www-authenticate"].startswith("Bearer")
    for n, token in enumerate(("s3cret-ops", "s3cret-night")):
        headers = {"Authorization": f"Bearer {token}"}
        assert admin(node, "GET", "/v1/pools", headers=headers).status == 200
        assert admin(node, "DELETE", f"/v1/leases/none-{n}", headers=headers).status == 404
    assert admin(node, "GET", "/healthz").status == 200
    assert admin(node, "GET", "/readyz").status == 200
    for target in ("/healthz/../v1/pools", "//v1/pools", "/healthz?x=/v1/pools", "/healthz/"):
        connection = http.client.HTTPConnection("127.0.0.1", node.admin_port, timeout=10)
        answer = call("", "GET", target, connection=connection)
        connection.close()
        assert answer.status in (400, 401, 404) or answer.body == {"status": "ok"}, target
    for file in Path(node.state).rglob("*"):
        if file.is_file():
            assert "s3cret" not in file.read_text(errors="replace"), file


def start_with_tokens(
    start_node: Callable[..., Node], engine: Engine, settings: dict[str, Any]
) -> Node:
    """A node whose admin plane has tokens, at an address that is free."""
    port = free_port()
    settings["listen"] = f"127.0.0.1:{port}"
    node = start_node([engine.url], admin=settings)
    node.admin_port, node.admin = port, f"http://127.0.0.1:{port}"
    return node
