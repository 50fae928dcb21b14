"""What Lua reads of an event stream that passes: ``lua/weir/sniff.lua`` in LuaJIT."""

import importlib
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.places import LUA


def _lua_jit() -> Any:
    for name in ("luajit21", "luajit20"):
        try:
            return importlib.import_module(f"lupa.{name}")
        except ImportError:
            continue
    pytest.skip("lupa has no LuaJIT here", allow_module_level=True)


runtime = _lua_jit().LuaRuntime(encoding=None)
runtime.execute(f'package.path = "{LUA}/?.lua;" .. package.path'.encode())
sniff = runtime.eval(b'require("weir.sniff")')
if isinstance(sniff, tuple):  # newer versions of Lua tell the file as well
    sniff = sniff[0]


class Seen(NamedTuple):
    events: int
    terminated: bool
    failed: bool


def look(chunks: Iterable[bytes], finish: bool = True) -> Seen:
    state = sniff[b"new"]()
    for chunk in chunks:
        sniff[b"feed"](state, chunk)
    if finish:
        sniff[b"finish"](state)
    return Seen(state[b"events"], state[b"terminated"], state[b"failed"])


def seen(text: str | bytes) -> Seen:
    return look([text if isinstance(text, bytes) else text.encode()])


def test_it_is_said_in_which_chunk_an_event_ends() -> None:
    state = sniff[b"new"]()
    chunks = [b": beat\n\n", b"data: 1\n", b"\n", b"data: 2\n\ndata: 3\n\n", b"data: 4"]
    told = [sniff[b"feed"](state, each) for each in chunks]
    assert told == [False, False, True, True, False]


CHUNK = 'data: {"choices":[{"delta":{"content":"热"}}]}\n\n'

# -- events ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("", 0),
        (CHUNK, 1),
        (CHUNK * 20, 20),
        (CHUNK.replace("\n", "\r\n") * 3, 3),
        (CHUNK.replace("\n", "\r") * 3, 3),
        ("data: a\n", 0),
        ("data: a\n\n\n\n", 1),
        ("data: a\r\n\r\n\r\n", 1),
        ("data:\n\n", 1),
        ("data: a\ndata: b\ndata: c\n\n", 1),
        ("event: x\nid: 7\nretry: 10\ndata: a\n\n", 1),
        ("event: x\n\n", 0),
        (": ping\n\n", 0),
        (": ping\n: ping\n\n" + CHUNK, 1),
        ("data: a\n: ping in the middle\ndata: b\n\n", 1),
        ("id: 7\n\n", 0),
        ("dat: a\n\n", 0),
        ("database: a\n\n", 0),
        (" data: a\n\n", 0),
        ("\n\n\n", 0),
    ],
)
def test_an_event_is_data_that_a_blank_line_ends(text: str, events: int) -> None:
    assert seen(text) == (events, False, False)


def test_an_event_counts_when_it_is_complete_and_not_before() -> None:
    assert look([b"data: a"], finish=False).events == 0
    assert look([b"data: a\n"], finish=False).events == 0
    assert look([b"data: a\n", b"\n"], finish=False).events == 1


# -- the terminator ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "data: [DONE]\n\n", "data:[DONE]\n\n", "data: [DONE]\r\n\r\n", "data:[DONE]\r\n\r\n",
        "data: x\r\rdata: [DONE]\r\r",
        "data:  \t[DONE] \t\n\n", "data: [DONE]\n", "data: [DONE]", "data: [DONE]\r",
        CHUNK + "data: [DONE]\n\n", ": ping\n\ndata: [DONE]\n\n",
        "event: message_stop\ndata: {}\n\n", "event:message_stop\r\ndata: {}\r\n\r\n",
        'event: message_stop\ndata: {"type":"message_stop"}\n\n', "event: message_stop",
        "x" * 5_000 + "\ndata: [DONE]\n\n",
    ],
    ids=lambda text: text[-40:],
)  # fmt: skip
def test_a_terminator_is_seen(text: str) -> None:
    assert seen(text).terminated
    assert not seen(text).failed


@pytest.mark.parametrize(
    "text",
    [
        CHUNK, "", 'data: "[DONE]"\n\n', 'data: {"text":"[DONE]"}\n\n', "data: [DONE]]\n\n",
        "data: [DONE] and more\n\n", "data: [DONE\n\n", "data: [done]\n\n", "[DONE]\n\n",
        ": data: [DONE]\n\n", "event: [DONE]\n\n", "event: message_stopped\n\n",
        "event: message\n\n", "event: my message_stop\n\n", 'data: {"type":"message_stop"}x\n\n',
        "data: message_stop\n\n", "data: x data: [DONE]\n\n", "data: [DONE]" + "x" * 100 + "\n\n",
         "event: message_stop" + "x" * 100 + "\n\n",
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_what_only_looks_like_a_terminator_is_none(text: str) -> None:
    assert not seen(text).terminated


# -- errors ------------------------------------------------------------------------------------

ERRORS = [
    '{"error":{"message":"m"}}', '{"error": {"message":"m"}}', '{ "error" : {} }',
    '\t{\t"error"\t:\t{}}', '{"error":"text"}', '{"error":1}', '{"error":[]}', '{"error":true}',
    '{"object":"error","message":"m"}', '{"object": "error"}', '{ "object" : "error" }',
    '{"type":"error","error":{"type":"overloaded_error"}}', '{"type": "error"}',
]  # fmt: skip


@pytest.mark.parametrize("data", ERRORS)
@pytest.mark.parametrize("blank", ["", " ", "  \t "], ids=["close", "blank", "blanks"])
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", ""], ids=["lf", "crlf", "end"])
def test_an_error_at_the_top_is_seen(data: str, blank: str, end: str) -> None:
    assert seen(f"data:{blank}{data}{end}").failed
    assert seen(f"{CHUNK}data:{blank}{data}{end}").failed


@pytest.mark.parametrize(
    "text",
    [
        "event: error\ndata: {}\n\n",
        "event:error\ndata: {}\n\n",
        "event: error\r\n",
        "event:  error",
        CHUNK + "event: error\n",
    ],
)
def test_an_event_named_error_is_seen(text: str) -> None:
    assert seen(text).failed


def test_an_error_is_seen_beside_a_terminator() -> None:
    assert seen('data: {"error":{}}\n\ndata: [DONE]\n\n') == (2, True, True)


@pytest.mark.parametrize(
    "text",
    [
        'data: {"error":null,"choices":[]}\n\n', 'data: {"error" : null}\n\n',
        'data: {"error":  null}\n\n', 'data: {"errors":{}}\n\n', 'data: {"error_code":1}\n\n',
        'data: {"my_error":{}}\n\n', 'data: {"object":"errors"}\n\n',
        'data: {"object":"error_free"}\n\n', 'data: {"type":"errors"}\n\n',
        'data: {"type":"error.none"}\n\n', 'data: {"object":"chat.completion.chunk"}\n\n',
        'data: {"choices":[{"delta":{"content":"{\\"error\\":{}}"}}]}\n\n',
        'data: {"choices":[{"delta":{"content":"data: {\\"error\\":1}"}}]}\n\n',
        'data: {"choices":[{"error":{}}]}\n\n', 'data: "error"\n\n', "data: error\n\n",
        'data: [{"error":{}}]\n\n', '{"error":{}}\n\n', ': {"error":{}}\n\n',
        'id: {"error":{}}\n\n', "event: errors\n\n", "event: error_none\n\n", "event: no error\n\n",
        "event: error" + "x" * 100 + "\n\n", 'data: "event: error"\n\n', "data: event: error\n\n",
        'data: {"text":"\\nevent: error\\n"}\n\n', 'data: {"a":1,"error":null}\n\n',
    ],
    ids=lambda text: text[:50],
)  # fmt: skip
def test_what_only_looks_like_an_error_is_none(text: str) -> None:
    assert not seen(text).failed


# -- lines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [62, 63, 64, 65, 1_000, 1_000_000])
def test_a_line_may_be_of_any_length(size: int) -> None:
    long = 'data: {"choices":"' + "x" * size + '"}\n\n'
    assert seen(long * 3 + "data: [DONE]\n\n") == (4, True, False)
    whole = (long * 3 + "data: [DONE]\n\n").encode()
    pieces = [whole[at : at + 4_096] for at in range(0, len(whole), 4_096)]
    assert look(pieces) == (4, True, False)


def test_of_a_line_that_goes_on_only_the_beginning_is_kept() -> None:
    state = sniff[b"new"]()
    for _ in range(1_000):
        sniff[b"feed"](state, b"x" * 1_000)
    assert len(state[b"line"]) <= 64


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_terminator_in_the_tail_of_a_cut_line_is_none(cut: int) -> None:
    """The middle of a long line may begin a chunk; it does not begin a line."""
    text = b"data: " + b"x" * 100 + b"data: [DONE]"
    assert look([text[:-cut], text[-cut:], b"\n\n"]) == (1, False, False)


@pytest.mark.parametrize(
    "line",
    [
        b"data: [DONE]" + b" " * 70 + b"x", b"data: {" + b" " * 70 + b'"error":{}}',
        b'data: {"error":' + b" " * 70 + b"null}", b"event: error" + b" " * 70,
        b"event: message_stop" + b" " * 70, b"data:" + b" " * 70 + b"[DONE]",
    ],
    ids=lambda line: line[:20].decode(),
)  # fmt: skip
def test_a_line_of_many_blanks_is_seen_alike_however_it_is_cut(line: bytes) -> None:
    whole = look([line + b"\n\n"])
    for cut in range(1, len(line) + 1):
        assert look([line[:cut], line[cut:], b"\n\n"]) == whole, cut


def test_a_last_line_without_a_line_feed_counts_when_the_stream_is_over() -> None:
    assert not look([b"data: [DO", b"NE]"], finish=False).terminated
    assert look([b"data: [DO", b"NE]"]).terminated


def test_finishing_twice_changes_nothing() -> None:
    state = sniff[b"new"]()
    sniff[b"feed"](state, b"data: a\n\ndata: [DONE]")
    sniff[b"finish"](state)
    first = (state[b"events"], state[b"terminated"], state[b"failed"])
    sniff[b"finish"](state)
    assert (state[b"events"], state[b"terminated"], state[b"failed"]) == first


def test_streams_do_not_mix() -> None:
    one, two = sniff[b"new"](), sniff[b"new"]()
    sniff[b"feed"](one, b"data: [DO")
    sniff[b"feed"](two, b"NE]\n\n")
    sniff[b"feed"](one, b"NE]\n")
    assert one[b"terminated"] and not two[b"terminated"]


# -- any split ---------------------------------------------------------------------------------

fragments = st.sampled_from(
    [
        b"data:", b"data: ", b"event:", b"event: ", b"error", b"message_stop", b"[DONE]", b"\n",
        b"\r\n", b"\n\n", b"\r", b" ", b"\t", b'{"error"', b'{"object"', b'{"type"', b":",
        b'"error"', b"null", b"{}", b"}", b": ping\n", b"x" * 70, b"x", b"data: [DONE]\n\n",
        b'data: {"error":{}}\n\n', b"event: error\n", b" " * 60, "热".encode(), b"\x00\xff",
    ]
)  # fmt: skip
texts: st.SearchStrategy[bytes] = st.lists(fragments | st.binary(max_size=3), max_size=14).map(
    b"".join
)


@given(texts, st.lists(st.integers(0, 400), max_size=10))
@settings(max_examples=1_500, deadline=None)
def test_any_split_is_seen_like_the_whole(text: bytes, cuts: list[int]) -> None:
    marks = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(marks)]
    assert look(pieces) == look([text])


@given(texts)
@settings(max_examples=500, deadline=None)
def test_byte_by_byte_is_seen_like_the_whole(text: bytes) -> None:
    assert look(text[n : n + 1] for n in range(len(text))) == look([text])


def as_specified(text: bytes) -> tuple[int, bool]:
    """Events and the terminator by the event stream's own rules, line by line."""
    events, terminated, data = 0, False, False
    *lines, last = re.split(rb"\r\n|\n|\r", text)
    for line in [*lines, *([last] if last else [])]:
        if not line:
            events += data
            data = False
        elif line.startswith(b"data:"):
            data = True
            terminated |= line[5:].strip(b" \t") == b"[DONE]"
        elif line.startswith(b"event:"):
            terminated |= line[6:].lstrip(b" \t") == b"message_stop"
    return events, terminated


sound_lines = st.sampled_from(
    [b"data: a", b"data:", b"data: [DONE]", b"data:[DONE] ", b'data: {"x":1}', b": c", b"",
     b"event: message_stop", b"event: delta", b"id: 1", b"data: [DONE] x", b"event: message_stop "]
)  # fmt: skip


@given(st.lists(st.tuples(sound_lines, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=15))
@settings(max_examples=500, deadline=None)
def test_events_and_terminators_are_those_of_the_specification(
    lines: list[tuple[bytes, bytes]],
) -> None:
    text = b"".join(line + end for line, end in lines)
    found = seen(text)
    assert (found.events, found.terminated) == as_specified(text)
