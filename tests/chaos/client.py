"""One request done as it is planned, over HTTP/1.1 or HTTP/2; what came of it."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h2.exceptions

from tests.chaos.answers import Unsound, frames_of, judge
from tests.chaos.conversation import SILENCE_S, Conversation, Http1, Http2, SentAway
from tests.chaos.outcome import Kind, Outcome
from tests.chaos.plan import Request


def perform(
    request: Request, port: int, h2_port: int, streams: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Do it. Never raises. ``streams`` is told the id of a stream that is read as it comes."""
    began = time.monotonic()
    try:
        slow = request.reads_every > 0
        talk: Conversation
        talk = Http2(h2_port, slow) if request.protocol == "h2" else Http1(port, slow)
    except OSError as exc:
        return Outcome(request, Kind.UNREACHABLE, began, time.monotonic(), detail=repr(exc))
    return _Visit(request, talk, began, streams).run()


class _Visit:
    """A request on its open connection."""

    def __init__(
        self, request: Request, talk: Conversation, began: float, streams: Callable[[str], None]
    ) -> None:
        self._request = request
        self._streams = streams
        self._talk = talk
        self._began = began
        self._body = bytearray()
        self._leaves_at = float("inf")

    def run(self) -> Outcome:
        request = self._request
        try:
            time.sleep(request.hesitates)
            if request.leaves:
                self._leaves_at = time.monotonic() + request.leaves_at
            self._talk.ask(request)
            self._bounded(self._talk.head)
            if self._talk.status == 200 and request.streams and not request.reads_every:
                self._streams(self._talk.headers.get("x-request-id", ""))
            while piece := self._bounded(self._talk.more):
                self._body += piece
                if request.reads_every:
                    time.sleep(request.reads_every)
            kind, reason, detail = judge(
                request, self._talk.status, self._talk.headers, bytes(self._body)
            )
            outcome = self._outcome(kind, detail, reason)
        except _Leaves:
            outcome = self._left()
        except SentAway as exc:
            outcome = self._outcome(Kind.SENT_AWAY, str(exc))
        except TimeoutError:
            outcome = self._outcome(Kind.SILENT, f"nothing for {SILENCE_S:g} s")
        except OSError as exc:
            outcome = self._cut(exc)
        except (Unsound, ValueError, KeyError, IndexError, h2.exceptions.ProtocolError) as exc:
            outcome = self._outcome(Kind.BROKEN, repr(exc))
        with suppress(OSError, h2.exceptions.ProtocolError):  # closed from the other side
            self._talk.leave(request.leaves if outcome.kind is Kind.LEFT else None)
        return outcome

    def _bounded(self, step: Callable[[], Any]) -> Any:
        left = self._leaves_at - time.monotonic()
        if left <= 0:
            raise _Leaves
        self._talk.wait_at_most(min(SILENCE_S, left))
        try:
            return step()
        except TimeoutError:
            if time.monotonic() >= self._leaves_at:
                raise _Leaves from None
            raise

    def _left(self) -> Outcome:
        """What came before it left must have been sound as well."""
        try:
            return self._outcome(Kind.LEFT, frames=self._frames())
        except Unsound as exc:
            return self._outcome(Kind.BROKEN, f"before it left: {exc}")

    def _cut(self, exc: OSError) -> Outcome:
        try:
            frames = self._frames()
        except Unsound as unsound:
            return self._outcome(Kind.BROKEN, f"{exc!r}, and {unsound}")
        request = self._request
        if request.streams and request.fail_after is not None and frames == request.fail_after:
            return self._outcome(Kind.ENGINE_FAILED, "died mid-stream", frames=frames)
        return self._outcome(Kind.CUT, repr(exc)[:200], frames=frames)

    def _frames(self) -> int:
        talk = self._talk
        if talk.status != 200 or not self._request.streams:
            return 0
        request_id = talk.headers.get("x-request-id", "")
        return frames_of(bytes(self._body), request_id, self._request.beats).texts

    def _outcome(self, kind: Kind, detail: str = "", reason: str = "", frames: int = 0) -> Outcome:
        talk = self._talk
        whole = self._request.frames if kind is Kind.COMPLETE else frames
        return Outcome(
            self._request, kind, self._began, time.monotonic(), talk.port, talk.status,
            talk.headers.get("x-request-id", ""), reason, whole, detail, bytes(self._body[-400:]),
        )  # fmt: skip


class _Leaves(Exception):
    """It is time to leave."""
