"""The GPU: a KV cache in blocks, streams that grow in it, and what happens when it is full."""

import json
import math
from collections import deque
from dataclasses import dataclass, field

BLOCK_TOKENS = 16
"""Tokens of a KV block: vLLM's default."""
TOKENS_PER_CHAR = 0.6
"""Mission 000, section 4.1; what the admission's estimate assumes."""
DEFAULT_FRAMES = 64
REMEMBERED = 20_000
"""Ended streams that can be asked for."""

WORDS = (
    "患者", "主诉", "发热", "三天", "，", "体温", "最高", "39.2", "℃", "，", "无", "咳嗽", "。",
    "Patient", " reports", " fever", " for", " three", " days", ".", "\n",
)  # fmt: skip


class OutOfMemory(Exception):
    """CUDA out of memory: the engine is dead."""


@dataclass(frozen=True, slots=True)
class Script:
    """What a stream shall do. ``gap_s`` and ``first_s`` in seconds.

    ``fail_after`` frames it dies mid-stream. ``error_after`` frames it sends an error event, then
    its terminator and a clean end, as vLLM does when its engine core crashes, and with 0 frames
    when it refuses in a burst. Without ``terminates`` it ends cleanly and says no ``[DONE]``.
    ``payload`` is every frame's text. ``late`` sends the headers with the first token (llama.cpp)
    and not at once (vLLM). ``tag`` names it in the list of ended streams.
    """

    frames: int = DEFAULT_FRAMES
    gap_s: float = 0.03
    first_s: float = 0.05
    fail_after: int | None = None
    error_after: int | None = None
    terminates: bool = True
    payload: str | None = None
    late: bool = False
    tag: str = ""
    stream: bool = True
    prompt_tokens: int = 0


class BadRequest(ValueError):
    """A body that the engine refuses; the message is for its sender."""


def read_script(body: bytes, stream_by_default: bool) -> Script:
    """The script in a request's body: OpenAI's fields, and ours under ``sim``."""
    try:
        asked = json.loads(body) if body else {}
    except (ValueError, RecursionError) as exc:
        raise BadRequest("the body is not JSON") from exc
    if not isinstance(asked, dict):
        raise BadRequest("the body is not a JSON object")
    sim = asked.get("sim") or {}
    if not isinstance(sim, dict):
        raise BadRequest("sim: must be an object")
    frames = _number(asked, "max_tokens", DEFAULT_FRAMES, 1, 1_000_000)
    payload = sim.get("payload")
    if isinstance(payload, int) and not isinstance(payload, bool) and 0 <= payload <= 1 << 20:
        payload = "x" * payload
    if payload is not None and not isinstance(payload, str):
        raise BadRequest("sim.payload: must be text, or a number of characters")
    tag = str(sim.get("tag", ""))[:64]
    for name, text in (("payload", payload or ""), ("tag", tag)):
        if not _is_unicode(text):
            raise BadRequest(f"sim.{name}: has half a character, a lone surrogate")
    fail_after = _number(sim, "fail_after", -1, 0, 1_000_000)
    error_after = _number(sim, "error_after", -1, 0, 1_000_000)
    return Script(
        frames=int(_number(sim, "frames", min(frames, 4096), 0, 1_000_000)),
        gap_s=_number(sim, "gap_ms", 30, 0, 600_000) / 1_000,
        first_s=_number(sim, "first_ms", 50, 0, 600_000) / 1_000,
        fail_after=None if fail_after < 0 else int(fail_after),
        error_after=None if error_after < 0 else int(error_after),
        terminates=sim.get("terminates") is not False,
        payload=payload,
        late=sim.get("late") is True,
        tag=tag,
        stream=bool(asked.get("stream", stream_by_default)),
        prompt_tokens=math.ceil(_prompt_chars(asked) * TOKENS_PER_CHAR),
    )


def _number(
    asked: dict[str, object], name: str, default: float, least: float, most: float
) -> float:
    value = asked.get(name)
    if value is None:
        return default
    sound = isinstance(value, int | float) and not isinstance(value, bool)
    if not sound or not least <= float(str(value)) <= most:
        raise BadRequest(f"{name}: must be a number from {least} to {most}")
    return float(str(value))


def _is_unicode(text: str) -> bool:
    """Whether it can be sent: JSON's escapes can make what UTF-8 has no form for."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _prompt_chars(asked: dict[str, object]) -> int:
    """Characters of the prompt, wherever it stands."""
    chars = 0
    todo: list[object] = [asked.get("messages"), asked.get("prompt"), asked.get("input")]
    while todo:
        part = todo.pop()
        if isinstance(part, str):
            chars += len(part)
        elif isinstance(part, list):
            todo += part
        elif isinstance(part, dict):
            todo += [part.get("content"), part.get("text")]
    return chars


@dataclass(slots=True, eq=False)
class Stream:
    """A sequence on the GPU. ``tokens``: prompt and output so far."""

    script: Script
    request_id: str
    began_at: float
    tokens: int = 0
    frames: int = 0
    alive: bool = True

    @property
    def blocks(self) -> int:
        return -(-self.tokens // BLOCK_TOKENS)


@dataclass(slots=True)
class Ended:
    """An ended stream: when (seconds since the epoch), how, after how many frames."""

    tag: str
    request_id: str
    how: str
    at: float
    frames: int


@dataclass(slots=True)
class Engine:
    """All streams of one GPU. ``step`` is the time of one forward pass in seconds: a cancelled
    stream keeps its blocks until the next one. The caller brings the clock."""

    kv_tokens: int
    step: float
    streams: set[Stream] = field(default_factory=set)
    blocks: int = 0
    peak: int = 0
    peak_blocks: int = 0
    total: int = 0
    completed: int = 0
    aborted: int = 0
    crashed: int = 0
    bytes_sent: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    ended: deque[Ended] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def begin(self, script: Script, request_id: str, now: float) -> Stream:
        """Take the prompt's blocks. Past the cache's end: :class:`OutOfMemory`."""
        stream = Stream(script, request_id, now, tokens=script.prompt_tokens)
        self.streams.add(stream)
        self.total += 1
        self.peak = max(self.peak, len(self.streams))
        self.prompt_tokens += script.prompt_tokens
        self._take(stream.blocks)
        return stream

    def generate(self, stream: Stream) -> str:
        """One token more, and its text."""
        before = stream.blocks
        stream.tokens += 1
        stream.frames += 1
        self.generated_tokens += 1
        if stream.blocks != before:
            self._take(stream.blocks - before)
        if stream.script.payload is not None:
            return stream.script.payload
        return WORDS[(stream.frames - 1) % len(WORDS)]

    def finish(self, stream: Stream, how: str, wall: float) -> None:
        """The stream ended by itself: its blocks are free at once."""
        self.completed += how == "completed"
        self.note(stream, how, wall)
        self.free(stream)

    def note(self, stream: Stream, how: str, wall: float) -> None:
        """Remember how and when a stream ended."""
        stream.alive = False
        script = stream.script
        self.ended.append(Ended(script.tag, stream.request_id, how, wall, stream.frames))

    def free(self, stream: Stream) -> None:
        """Give a stream's blocks back; harmless when repeated."""
        if stream in self.streams:
            self.streams.remove(stream)
            self.blocks -= stream.blocks

    def crash(self, wall: float) -> list[Stream]:
        """CUDA out of memory: everything is lost. Returns the streams that were running."""
        self.crashed += 1
        lost = [stream for stream in self.streams if stream.alive]
        for stream in lost:
            self.note(stream, "crashed", wall)
        self.streams.clear()
        self.blocks = 0
        return lost

    def stats(self) -> dict[str, int]:
        """What ``GET /stats`` says. ``active`` counts what holds blocks, cancelled or not."""
        return {
            "active": len(self.streams),
            "peak": self.peak,
            "total": self.total,
            "completed": self.completed,
            "aborted": self.aborted,
            "crashed": self.crashed,
            "bytes_sent": self.bytes_sent,
            "kv_tokens_used": self.blocks * BLOCK_TOKENS,
            "kv_tokens_peak": self.peak_blocks * BLOCK_TOKENS,
            "kv_tokens": self.kv_tokens,
        }

    def _take(self, blocks: int) -> None:
        self.blocks += blocks
        self.peak_blocks = max(self.peak_blocks, self.blocks)
        if self.blocks * BLOCK_TOKENS > self.kv_tokens:
            raise OutOfMemory
