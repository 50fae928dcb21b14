"""Where in an engine's answer a comment may be put: ``lua/weir/framing.lua`` in LuaJIT."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_sniff import runtime

framing = runtime.eval(b'require("weir.framing")')
if isinstance(framing, tuple):  # newer versions of Lua tell the file as well
    framing = framing[0]

PING = b": ping\n\n"
BREAKS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """``data`` in pieces, none of them empty."""
    edges = sorted({n % len(data) for n in at} - {0})
    return [data[a:b] for a, b in zip([0, *edges], [*edges, len(data)], strict=True)]


def dechunked(wire: bytes) -> bytes:
    body, at = b"", 0
    while True:
        stop = wire.index(b"\r\n", at)
        size = int(wire[at:stop], 16)
        if size == 0:
            return body
        body += wire[stop + 2 : stop + 2 + size]
        assert wire[stop + 2 + size :][:2] == b"\r\n"
        at = stop + 2 + size + 2


@st.composite
def bodies(draw: Any) -> list[bytes]:
    """Events with one kind of line break, as real engines write them."""
    end = draw(BREAKS)
    lines = st.sampled_from([b"data: {}", b"data: x", b"id: 7", b": c", b"data:"])
    events = draw(st.lists(st.lists(lines, min_size=1, max_size=3), min_size=1, max_size=6))
    return [end.join(event) + end + end for event in events]


@given(bodies(), st.lists(st.integers(0, 10_000), max_size=8), st.lists(st.integers(0, 10_000)))
def test_a_comment_wherever_it_may_be_breaks_no_event_and_no_chunk(
    events: list[bytes], chunks_at: list[int], wire_at: list[int]
) -> None:
    body = b"".join(events)
    wire = b"".join(chunk(piece) for piece in cut(body, chunks_at)) + b"0\r\nX: trailer\r\n\r\n"
    state = framing[b"new"](True)
    out = b""
    for piece in cut(wire, wire_at):
        out += piece
        framing[b"feed"](state, piece)
        if state[b"between"]:
            out += framing[b"framed"](state, PING)
    assert state[b"ended"] and not state[b"broken"]
    got = dechunked(out)
    assert got.replace(PING, b"") == body
    # Each comment stands where an event has just ended, or at the very beginning.
    for place in re.finditer(re.escape(PING), got):
        before = got[: place.start()].replace(PING, b"")
        assert before in [b"".join(events[:n]) for n in range(len(events) + 1)]


@given(bodies(), st.lists(st.integers(0, 10_000)))
def test_the_same_where_the_body_has_no_chunks(events: list[bytes], at: list[int]) -> None:
    state = framing[b"new"](False)
    borders = {len(b"".join(events[:n])) for n in range(len(events) + 1)}
    seen = 0
    for piece in cut(b"".join(events), at):
        seen += len(piece)
        framing[b"feed"](state, piece)
        assert not state[b"between"] or seen in borders
    assert state[b"between"] and not state[b"ended"]


@pytest.mark.parametrize("wire", [b"zz\r\nx", b"\r\n", b"5" * 300, b"3;" + b"x" * 300])
def test_what_is_no_chunk_gets_no_comments_any_more(wire: bytes) -> None:
    state = framing[b"new"](True)
    framing[b"feed"](state, wire)
    assert state[b"broken"] and not state[b"between"]
    framing[b"feed"](state, chunk(b"data: x\n\n"))
    assert not state[b"between"]


@pytest.mark.parametrize("pieces", [1, 3, 1_000])
def test_the_end_is_behind_the_trailers(pieces: int) -> None:
    wire = chunk(b"data: x\n\n") + b"0;last\r\nX: 1\r\nY: 2\r\n\r\n"
    state = framing[b"new"](True)
    for at in range(0, len(wire), pieces):
        assert not state[b"ended"]
        framing[b"feed"](state, wire[at : at + pieces])
    assert state[b"ended"] and not state[b"between"]


def test_a_length_ends_a_body() -> None:
    state = framing[b"new"](False, 9)
    framing[b"feed"](state, b"data: x\n")
    assert not state[b"ended"]
    framing[b"feed"](state, b"\n")
    assert state[b"ended"] and not state[b"between"]
    assert framing[b"new"](False, 0)[b"ended"] and not framing[b"new"](True, 0)[b"ended"]


DELTA = b'data: {"delta":"' + b"x" * 90 + b'"}\n\n'


@pytest.mark.parametrize("before", [b"", DELTA], ids=["alone", "last"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("event", "over"),
    [
        (b"data: [DONE]", True), (b"data:[DONE] ", True),
        (b'event: message_stop\ndata: {"type":"message_stop"}', True),
        (b"data: {}", False), (b"data: x data: [DONE]", False), (b": data: [DONE]", False),
        (b"data: [DONE] x", False), (b"event: message_stopped\ndata: {}", False),
        (b"x" * 90 + b"data: [DONE]", False), (b"data: [DONE]\ndata: x", False),
    ],
)  # fmt: skip
def test_the_terminator_is_known_when_it_is_the_last_event(
    before: bytes, end: bytes, event: bytes, over: bool
) -> None:
    text = before + event.replace(b"\n", end) + end + end
    for pieces in (1, 7, 1_000):
        state = framing[b"new"](False)
        for at in range(0, len(text), pieces):
            framing[b"feed"](state, text[at : at + pieces])
            assert not framing[b"is_over"](state) or at + pieces >= len(text) - len(end)
        assert framing[b"is_over"](state) is over
    framing[b"feed"](state, DELTA)
    assert not framing[b"is_over"](state)


def test_the_body_can_be_had_without_its_framing() -> None:
    state = framing[b"new"](True)
    state[b"payload"] = runtime.table()
    for piece in cut(chunk(b'{"error"') + chunk(b":1}") + b"0\r\n\r\n", [3, 9, 14, 21]):
        framing[b"feed"](state, piece)
    assert b"".join(state[b"payload"].values()) == b'{"error":1}'
