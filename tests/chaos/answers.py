"""Whether an answer's bytes are sound: frames, terminator, refusals."""

import json
from typing import Any, NamedTuple

from tests.chaos.outcome import Kind
from tests.chaos.plan import Request
from tests.harness.client import error_of

DONE = b"data: [DONE]"
PING = b": ping"
TOLD = ("upstream_truncated", "timeout", "killed")
"""What a frame of Weir's own says of an answer that breaks off after it."""
BEGUN_FOR = (400,)
"""What it says where heartbeats began an answer, and the engine then refused."""


class Unsound(ValueError):
    """Bytes that nobody may ever see."""


class Frames(NamedTuple):
    """Of the beginning of an event stream: its frames with text, whether the engine said that it
    stops, the terminator, and what a frame of Weir's own says of its breaking off."""

    texts: int
    stopped: bool = False
    done: bool = False
    told: Any = None


def frames_of(body: bytes, request_id: str, beats: bool = False) -> Frames:
    """:class:`Unsound` where it is no beginning of an event stream, or another request's.
    ``beats``: on a route with heartbeats."""
    *events, rest = body.split(b"\n\n")
    frames, stopped, done, told = 0, False, False, None
    codes = TOLD + BEGUN_FOR if beats else TOLD
    for event in events:
        if beats and event == PING and not done and not told:
            continue
        if done or told or not event.startswith(b"data: "):
            raise Unsound(f"not an event, or after the end: {event[:80]!r}")
        if event == DONE:
            done = True
            continue
        try:
            chunk = json.loads(event[6:])
            code = chunk.get("error", {}).get("code")
            if code in codes and (code in TOLD or not frames):
                told = code
                continue
            finish = chunk["choices"][0]["finish_reason"]
        except (ValueError, KeyError, IndexError, AttributeError) as exc:
            raise Unsound(f"not a chunk: {event[:80]!r}") from exc
        if chunk["id"] != f"chatcmpl-{request_id}":
            raise Unsound(f"a chunk of {chunk['id']} in the answer of {request_id}")
        frames += finish is None
        stopped = stopped or finish == "stop"
    begins = b"data: ".startswith(rest[:6]) or (beats and (PING + b"\n").startswith(rest))
    if rest and not begins:
        raise Unsound(f"not the beginning of an event: {rest[:80]!r}")
    return Frames(frames, stopped, done, told)


def judge(
    request: Request, status: int, headers: dict[str, str], body: bytes
) -> tuple[Kind, str, str]:
    """What an answer that came to its end is: its kind, a refusal's reason, and more words.
    :class:`Unsound` where it is none that may be."""
    if not headers.get("x-request-id"):
        raise Unsound("no X-Request-Id")
    if status == 200:
        told = _told(request, headers, body)
        if told:
            return told
        _whole(request, headers, body)
        return Kind.COMPLETE, "", ""
    if status == 400 and request.nonsense:
        if json.loads(body)["error"]["code"] != 400:
            raise Unsound("the engine's own refusal was changed")
        return Kind.ENGINE_FAILED, "", "refused the body"
    if status == 500 and b"CUDA out of memory" in body:
        return Kind.CRASHED, "", ""
    if status in (429, 503):
        reason = _refusal(status, headers, body)
        if reason == "no_backend" and request.fail_after == 0:
            return Kind.ENGINE_FAILED, "", "died before its answer"
        return Kind.REFUSED, reason, ""
    raise Unsound(f"status {status}")


def _told(request: Request, headers: dict[str, str], body: bytes) -> tuple[Kind, str, str] | None:
    """What an answer is that tells of its breaking off and then ends as HTTP has it, as only routes
    with heartbeats can; None where it does not."""
    if not (request.beats and request.streams and body.endswith(b"\n\n")):
        return None
    seen = frames_of(body, headers["x-request-id"], beats=True)
    if not seen.told:
        return None
    if (seen.told == 400) != request.nonsense:
        raise Unsound(f"told of {seen.told}")
    failed = request.nonsense or request.fail_after == seen.texts
    return Kind.ENGINE_FAILED if failed else Kind.CUT, "", f"told of {seen.told}"


def _whole(request: Request, headers: dict[str, str], body: bytes) -> None:
    if request.nonsense or (request.streams and request.fail_after is not None):
        raise Unsound("a whole answer of an engine that failed")
    if not request.streams:
        answer = json.loads(body)
        tokens = answer["usage"]["completion_tokens"]
        if tokens != request.frames or answer["id"] != f"chatcmpl-{headers['x-request-id']}":
            raise Unsound(f"{tokens} tokens of {request.frames}, id {answer['id']}")
        return
    if not headers.get("content-type", "").startswith("text/event-stream"):
        raise Unsound(f"Content-Type {headers.get('content-type')}")
    if not body.endswith(b"\n\n"):
        raise Unsound("ends within an event")
    seen = frames_of(body, headers["x-request-id"], request.beats)
    if seen != Frames(request.frames, stopped=True, done=True):
        raise Unsound(f"ended well with {seen}")


def _refusal(status: int, headers: dict[str, str], body: bytes) -> str:
    try:
        error: dict[str, Any] = error_of(body)
        told = error["weir"]
        reason = str(told["reason"])
        wait_s = int(headers["retry-after"])
    except (AssertionError, ValueError, KeyError, IndexError) as exc:
        raise Unsound(f"status {status}, but no refusal of ours: {exc!r}") from exc
    expected = 429 if reason in ("streams_exhausted", "tokens_exhausted") else 503
    sound = (
        status == expected
        and 1 <= wait_s <= 60
        and headers.get("x-weir-reason") == reason == error["code"]
        and error["type"] == "overloaded"
        and error["message"]
        and (not told["limit"] or told["in_use"] + told["requested"] > told["limit"])
    )
    if not sound:
        raise Unsound(f"status {status}, Retry-After {wait_s}, {error}")
    return reason
