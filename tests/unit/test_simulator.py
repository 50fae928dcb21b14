"""The simulated GPU: its KV cache, and what a request's body may ask of it."""

import asyncio
import json
import math
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.simulator.engine import (
    BLOCK_TOKENS,
    DEFAULT_FRAMES,
    REMEMBERED,
    BadRequest,
    Engine,
    OutOfMemory,
    Script,
    Stream,
    read_script,
)
from control.simulator.server import Answer as ServerAnswer
from control.simulator.server import Simulator


def engine(kv_tokens: int = 1_600) -> Engine:
    return Engine(kv_tokens, step=0.02)


def begin(gpu: Engine, prompt_tokens: int, **script: Any) -> Stream:
    return gpu.begin(Script(prompt_tokens=prompt_tokens, **script), "rid", 0.0)


# -- the cache ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (160, 10)]
)
def test_a_prompt_takes_whole_blocks_at_the_start(tokens: int, blocks: int) -> None:
    gpu = engine()
    assert begin(gpu, tokens).blocks == blocks
    assert gpu.stats()["kv_tokens_used"] == blocks * BLOCK_TOKENS


def test_a_stream_grows_by_one_token_with_each_frame() -> None:
    gpu = engine()
    stream = begin(gpu, 15)
    held = []
    for _ in range(18):
        gpu.generate(stream)
        held.append(gpu.blocks)
    assert held == [1] + [2] * 16 + [3]
    assert (stream.tokens, stream.frames) == (33, 18)
    assert (gpu.generated_tokens, gpu.prompt_tokens) == (18, 15)


def test_each_frame_is_its_payload_or_a_word() -> None:
    gpu = engine()
    assert gpu.generate(begin(gpu, 1, payload="same")) == "same"
    assert gpu.generate(begin(gpu, 1, payload="")) == ""
    plain = begin(gpu, 1)
    text = "".join(gpu.generate(plain) for _ in range(40))
    assert text.startswith("患者主诉发热")


def test_a_full_cache_is_not_yet_too_full() -> None:
    gpu = engine(160)
    stream = begin(gpu, 159)
    gpu.generate(stream)
    assert gpu.stats()["kv_tokens_used"] == 160
    with pytest.raises(OutOfMemory):
        gpu.generate(stream)


def test_a_prompt_past_the_end_is_out_of_memory_whoever_holds_the_rest() -> None:
    gpu = engine(160)
    begin(gpu, 80)
    begin(gpu, 80)
    with pytest.raises(OutOfMemory):
        begin(gpu, 1)
    with pytest.raises(OutOfMemory):
        begin(engine(160), 161)


def test_a_crash_loses_everything_and_frees_it_once() -> None:
    gpu = engine(160)
    streams = [begin(gpu, 16, tag=str(n)) for n in range(3)]
    gone = begin(gpu, 16)
    gpu.note(gone, "aborted", 1.0)
    lost = gpu.crash(2.0)
    assert set(lost) == set(streams), "one that had been cancelled is not lost again"
    assert not any(stream.alive for stream in streams)
    assert (gpu.crashed, gpu.blocks, len(gpu.streams)) == (1, 0, 0)
    assert [(e.how, e.at) for e in gpu.ended] == [("aborted", 1.0)] + [("crashed", 2.0)] * 3
    for stream in [*streams, gone]:
        gpu.free(stream)
    assert gpu.blocks == 0
    begin(gpu, 160)


def test_a_stream_is_freed_once() -> None:
    gpu = engine()
    first, second = begin(gpu, 100), begin(gpu, 50)
    gpu.finish(first, "completed", 1.0)
    left = gpu.blocks
    assert left == second.blocks
    gpu.free(first)
    gpu.free(first)
    assert gpu.blocks == left
    assert (gpu.completed, gpu.stats()["active"]) == (1, 1)


def test_a_cancelled_stream_is_active_until_it_is_freed() -> None:
    gpu = engine()
    stream = begin(gpu, 100)
    gpu.note(stream, "aborted", 1.0)
    assert not stream.alive
    assert gpu.stats()["active"] == 1 and gpu.blocks == 7
    gpu.free(stream)
    assert gpu.stats()["active"] == 0 and gpu.blocks == 0


def test_only_a_completed_stream_counts_as_completed() -> None:
    gpu = engine()
    gpu.finish(begin(gpu, 1), "failed", 1.0)
    gpu.finish(begin(gpu, 1), "completed", 1.0)
    assert gpu.completed == 1


def test_peaks_are_kept() -> None:
    gpu = engine()
    streams = [begin(gpu, 16) for _ in range(5)]
    for stream in streams:
        gpu.finish(stream, "completed", 1.0)
    begin(gpu, 16)
    stats = gpu.stats()
    assert (stats["active"], stats["peak"], stats["total"]) == (1, 5, 6)
    assert (stats["kv_tokens_used"], stats["kv_tokens_peak"]) == (16, 80)


def test_the_streams_that_ended_are_remembered_up_to_a_bound() -> None:
    gpu = engine()
    for n in range(REMEMBERED + 5):
        gpu.finish(begin(gpu, 1, tag=str(n)), "completed", float(n))
    assert len(gpu.ended) == REMEMBERED
    assert gpu.ended[0].tag == "5" and gpu.ended[-1].tag == str(REMEMBERED + 4)


@given(st.lists(st.tuples(st.sampled_from("bgfnc"), st.integers(0, 60)), max_size=60))
def test_what_is_in_use_is_what_the_streams_hold(steps: list[tuple[str, int]]) -> None:
    gpu = engine(1_000)
    known: list[Stream] = []
    for what, number in steps:
        stream = known[number % len(known)] if known else None
        try:
            if what == "b":
                known.append(begin(gpu, number))
            elif what == "c":
                gpu.crash(0.0)
            elif stream is None:
                continue
            elif what == "g" and stream.alive:
                gpu.generate(stream)
            elif what == "n" and stream.alive:
                gpu.note(stream, "aborted", 0.0)
            elif what == "f":
                gpu.free(stream)
                stream.alive = False
        except OutOfMemory:
            assert gpu.blocks * BLOCK_TOKENS > gpu.kv_tokens
            gpu.crash(0.0)
        assert gpu.blocks == sum(held.blocks for held in gpu.streams)
        assert gpu.blocks * BLOCK_TOKENS <= gpu.kv_tokens
        assert gpu.peak_blocks >= gpu.blocks and gpu.peak >= len(gpu.streams)


# -- requests ----------------------------------------------------------------------------------


def read(asked: Any, stream_by_default: bool = False) -> Script:
    body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    return read_script(body, stream_by_default)


def test_nothing_asked_is_a_default_answer() -> None:
    assert read(b"") == read({}) == Script(stream=False)
    assert read({}).frames == DEFAULT_FRAMES


def test_openais_fields_are_understood() -> None:
    asked = {"messages": [{"role": "user", "content": "x" * 10}], "max_tokens": 7, "stream": True}
    script = read(asked)
    assert (script.frames, script.stream) == (7, True)
    assert script.prompt_tokens == math.ceil(10 * 0.6)


def test_ours_stand_under_sim() -> None:
    sim = {"frames": 3, "gap_ms": 20, "first_ms": 250, "fail_after": 2, "payload": "p",
           "late": True, "tag": "t" * 100}  # fmt: skip
    script = read({"max_tokens": 99, "sim": sim})
    assert (script.frames, script.gap_s, script.first_s) == (3, 0.02, 0.25)
    assert (script.fail_after, script.payload, script.late) == (2, "p", True)
    assert script.tag == "t" * 64
    assert read({"sim": {"frames": 0, "gap_ms": 0, "first_ms": 0}}).frames == 0


def test_a_number_for_a_payload_is_so_many_characters() -> None:
    assert read({"sim": {"payload": 1_000}}).payload == "x" * 1_000
    assert read({"sim": {"payload": 0}}).payload == ""


@pytest.mark.parametrize("default", [True, False])
def test_the_path_decides_about_streaming_where_the_body_does_not(default: bool) -> None:
    assert read({}, default).stream is default
    assert read({"stream": True}, default).stream is True
    assert read({"stream": False}, default).stream is False


@pytest.mark.parametrize(
    ("asked", "chars"),
    [
        ({"prompt": "abc"}, 3),
        ({"input": ["ab", "cd"]}, 4),
        ({"messages": [{"content": "ab"}, {"content": [{"type": "text", "text": "cde"}]}]}, 5),
        ({"messages": [{"content": "患者"}]}, 2),
        ({"messages": [{"content": None}, 7, None, []]}, 0),
        ({"messages": "text"}, 4),
        ({"prompt": {"content": {"text": "abc"}}}, 3),
        ({"other": "text"}, 0),
    ],
)
def test_the_prompt_is_counted_wherever_it_stands(asked: dict[str, Any], chars: int) -> None:
    assert read(asked).prompt_tokens == math.ceil(chars * 0.6)


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense", b"{", b"[]", b"1", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000,
        b'{"sim":7}', b'{"sim":[1]}', b'{"sim":"text"}',
    ],
    ids=lambda body: body[:20],
)  # fmt: skip
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        read_script(body, True)
    assert str(caught.value)


WRONG = ["-5", "9223372036854775808", "1" * 4_000, "1e18", "1e400", "NaN", "Infinity", "-Infinity",
         "true", '"100"', "[]", "{}"]  # fmt: skip


@pytest.mark.parametrize("number", WRONG, ids=lambda number: number[:20])
@pytest.mark.parametrize(
    "body",
    ['{"max_tokens":%s}', '{"sim":{"frames":%s}}', '{"sim":{"gap_ms":%s}}',
     '{"sim":{"first_ms":%s}}', '{"sim":{"fail_after":%s}}'],
)  # fmt: skip
def test_a_number_that_is_none_is_refused_by_name(body: str, number: str) -> None:
    """Casebook 32: a model server must not die of it."""
    with pytest.raises(BadRequest):
        read_script((body % number).encode(), True)


def test_a_number_of_5000_digits_is_refused() -> None:
    with pytest.raises(BadRequest):
        read_script(b'{"max_tokens":' + b"1" * 5_000 + b"}", True)


@pytest.mark.parametrize("name", ["max_tokens"])
def test_zero_tokens_are_refused_and_null_is_the_default(name: str) -> None:
    with pytest.raises(BadRequest):
        read({name: 0})
    assert read({name: None}) == read({})


@pytest.mark.parametrize("payload", [-1, (1 << 20) + 1, True, 1.5, [], {}])
def test_a_payload_that_is_none_is_refused(payload: Any) -> None:
    with pytest.raises(BadRequest):
        read({"sim": {"payload": payload}})


@pytest.mark.parametrize("name", ["payload", "tag"])
def test_half_a_character_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match=name):
        read({"sim": {name: "\ud800"}})
    assert read({"sim": {name: "\U0001f600"}})


def test_an_answer_that_fails_holds_up_no_other() -> None:
    class Answer:
        def __init__(self, fails: bool) -> None:
            self.went_on = asyncio.Event()
            self.fails = fails

        def advance(self, now: float) -> None:
            self.went_on.set()
            if self.fails:
                raise ValueError("of one answer")

    async def both() -> list[str]:
        told = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, about: told.append(str(about["exception"])))
        simulator = Simulator(engine(), keepalive_s=5.0, restart_s=2.0)
        broken, sound = Answer(fails=True), Answer(fails=False)
        at = loop.time() + 0.01
        for answer in (broken, sound):
            simulator.schedule(cast(ServerAnswer, answer), at)
        await asyncio.wait_for(sound.went_on.wait(), 10)
        return told

    assert asyncio.run(both()) == ["of one answer"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["sim", "frames", "gap_ms", "payload", "messages", "content", "text", "max_tokens",
             "stream", "tag", "fail_after", "first_ms", "prompt"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


@given(json_values | st.dictionaries(st.just("sim"), json_values, min_size=1))
def test_whatever_is_asked_is_a_sound_script_or_refused(asked: Any) -> None:
    try:
        script = read(asked)
    except BadRequest:
        return
    assert 0 <= script.frames <= 1_000_000 and isinstance(script.frames, int)
    assert 0 <= script.gap_s <= 600 and 0 <= script.first_s <= 600
    assert script.fail_after is None or script.fail_after >= 0
    assert script.payload is None or isinstance(script.payload, str)
    assert script.prompt_tokens >= 0


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_bad_request(body: bytes) -> None:
    try:
        read_script(body, True)
    except BadRequest as exc:
        assert str(exc)
