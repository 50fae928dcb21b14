"""A granted stream: the engine's bytes, unchanged, as they come."""

import json
import time
from statistics import median

import pytest
import requests

from tests.harness.client import Client, chat_body, events_in
from tests.harness.h2client import H2Client
from tests.harness.node import Engine, Node, wait_for

LATEST_S = 0.05
"""An event is at the client within so long of the engine's sending it; one of them may meet a
machine that is busy with other tests. What is gathered anywhere comes late more often than not."""


def lateness(event: bytes | str) -> float:
    text = event.decode() if isinstance(event, bytes) else event
    return time.time() - float(text.split('"sent_at":')[1].split(",")[0])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Accept-Encoding": "gzip, br"},
        {"Connection": "close"},
        {"Range": "bytes=0-10", "If-Modified-Since": "Thu, 01 Jan 2099 00:00:00 GMT"},
        {"Expect": "100-continue"},
        {"X-Accel-Buffering": "yes", "Cache-Control": "no-store", "TE": "trailers"},
    ],
    ids=lambda headers: ",".join(headers) or "plain",
)
def test_each_event_arrives_as_it_is_sent(node: Node, headers: dict[str, str]) -> None:
    with Client(node.port) as client:
        assert client.post(chat_body(10, gap_ms=100), headers=headers).head().status == 200
        late = [lateness(client.events(1)[0]) for _ in range(10)]
    assert median(late) < LATEST_S and max(late) < 2, late


def test_each_event_arrives_as_it_is_sent_over_http2(node: Node) -> None:
    client = H2Client(node.h2_port).post(chat_body(10, gap_ms=100)).head()
    assert client.status == 200
    late = []
    for n in range(1, 11):
        client.read_until(lambda n=n: client.body.count(b"\n\n") >= n)
        late.append(lateness(client.body.decode().split("\n\n")[n - 1]))
    client.close()
    assert median(late) < LATEST_S and max(late) < 2, late


def test_bytes_are_identical_end_to_end(node: Node, engine: Engine) -> None:
    # Frames differ in their ids and times only; their shape and payload must not.
    body = chat_body(200, gap_ms=0, payload='血压 120/80 \\n {"error": 1} 🙂')
    direct = requests.post(f"{engine.url}/v1/chat/completions", data=body, timeout=10)
    with Client(node.port) as client:
        _, through = client.request(body)
    strip = ("id", "created", "sent_at")

    def shape(text: bytes) -> list[object]:
        frames = [e if e == "[DONE]" else json.loads(e) for e in events_in(text)]
        return [
            f if isinstance(f, str) else {k: v for k, v in f.items() if k not in strip}
            for f in frames
        ]

    assert shape(through) == shape(direct.content)
    assert len(through) - through.count(b"chatcmpl-") * 32 == len(direct.content) - sum(
        len(json.loads(e)["id"]) - len("chatcmpl-")
        for e in events_in(direct.content)
        if e != "[DONE]"
    )


def test_a_plain_answer_passes_too(node: Node) -> None:
    asked = json.loads(chat_body(3, gap_ms=1))
    asked["stream"] = False
    response = requests.post(f"{node.url}/v1/chat/completions", json=asked, timeout=10)
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"]
    node.settled()


def test_the_answer_carries_the_request_id_that_nginx_minted(node: Node, engine: Engine) -> None:
    with Client(node.port) as client:
        response, _ = client.request(chat_body(1, tag="rid"), headers={"X-Request-Id": "mine"})
    minted = response.headers["x-request-id"]
    assert len(minted) == 32 and minted != "mine"
    assert engine.ended("rid")[0]["request_id"] == minted


def test_a_stream_is_counted_while_it_runs_and_freed_when_it_ends(node: Node) -> None:
    node.settled()
    with Client(node.port) as client:
        client.post(chat_body(10, gap_ms=30)).head()
        client.events(1)
        [lease] = node.leases()
        assert lease["state"] == "active"
        assert lease["id"] == client.response.headers["x-request-id"]
        assert (lease["pool"], lease["backend"], lease["scene"]) == (
            "default", "gpu-0", "Record_Gen",
        )  # fmt: skip
        client.rest()
    node.settled(4)  # a lingering close takes 5 s


def test_scene_decides_the_reservation_and_an_unknown_one_counts_as_the_default(
    node: Node,
) -> None:
    tokens = {}
    for scene in ("QA", "Record_Gen", "Nonsense", "", "a b", "x" * 300, "é"):
        with Client(node.port) as client:
            client.post(chat_body(50), headers={"X-Medical-Scene": scene}).head()
            tokens[scene] = node.in_use()[1]
        wait_for(lambda: node.in_use() == (0, 0))
    prompt = tokens["QA"] - 1_000
    assert 0 < prompt < 200
    assert {t for scene, t in tokens.items() if scene != "QA"} == {6_000 + prompt}


def test_the_access_log_has_what_a_second_witness_needs_and_no_prompt(node: Node) -> None:
    secret = "HIV-positive-patient"
    with Client(node.port) as client:
        response, _ = client.request(
            chat_body(3, gap_ms=1, prompt=secret), path=f"/v1/chat/completions?q={secret}"
        )
    request_id = response.headers["x-request-id"]
    line = wait_for(lambda: [e for e in node.access_log() if e["id"] == request_id])[0]
    assert line["verdict"] == "completed" and line["completion"] == "OK"
    assert line["grant"] and line["backend"] == "gpu-0" and line["pid"] in node.workers("nginx")
    assert line["seen"] == "5 terminated"
    for file in node.state.rglob("*"):
        if file.is_file():
            assert secret not in file.read_text(errors="replace"), file
