"""Spans of decisions and streams, for clients that trace: what they are, and when.

A client says with ``traceparent`` (W3C Trace Context) which span of its own it waits in, and
whether that trace is kept. Of those that are, Weir makes two children: ``weir.decide`` and
``weir.stream``. What is known of a lease's trace stands here beside the ledger, and ends with the
process: streams that outlast a restart have no span.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from control.core.change import ENDED, Change
from control.core.decision import Granted, Refused
from control.core.lease import Lease
from control.core.verdict import Verdict

DECIDE, STREAM = "weir.decide", "weir.stream"
SAMPLED = 1
"""The flag of a trace that is kept."""
FAILED = frozenset(
    {Verdict.UPSTREAM_ERROR, Verdict.UPSTREAM_TRUNCATED, Verdict.TIMEOUT, Verdict.LOST}
)
"""Ends that were nobody's wish."""

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\Z")

MADE, EXPORTED, FAILED_TO_EXPORT = "made", "exported", "failed"
NO_SPANS: Mapping[str, int] = {MADE: 0, EXPORTED: 0, FAILED_TO_EXPORT: 0}

Attributes = Mapping[str, str | int]


class Parent(NamedTuple):
    """The client's span."""

    trace_id: int
    span_id: int


class Span(NamedTuple):
    """A piece of work that is done. Times in nanoseconds since 1970. ``failure``: why it did not
    come to a good end, or None."""

    name: str
    parent: Parent
    began_ns: int
    ended_ns: int
    attributes: Attributes
    failure: str | None = None


class _Traced(NamedTuple):
    parent: Parent
    granted_ns: int


class Tracing:
    """Hands spans to ``send``, which must not wait; ``counts`` says what became of them.
    ``wall_ns``: nanoseconds since 1970."""

    def __init__(
        self,
        send: Callable[[Span], None],
        counts: Mapping[str, int],
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._send = send
        self.counts = counts
        self.wall_ns = wall_ns
        self._streams: dict[str, _Traced] = {}
        """By the ids of live leases."""

    def __len__(self) -> int:
        return len(self._streams)

    def decided(self, traceparent: str, result: object, began_ns: int) -> None:
        """A request of a client that traces was decided."""
        parent = read_traceparent(traceparent)
        if parent is None:
            return
        now = self.wall_ns()
        match result:
            case Granted(lease=lease):
                told = {"weir.outcome": "granted", **_of_lease(lease)}
                self._streams.setdefault(lease.id, _Traced(parent, now))
                self._send(Span(DECIDE, parent, began_ns, now, told))
            case Refused() as refused:
                told = {
                    "weir.outcome": "refused",
                    "weir.reason": refused.reason.value,
                    "weir.pool": refused.pool,
                    "weir.limit": refused.limit,
                    "weir.in_use": refused.in_use,
                    "weir.requested": refused.requested,
                }
                self._send(Span(DECIDE, parent, began_ns, now, told, refused.reason.value))
            case _:  # the client has left, or there is no such route
                told = {"weir.outcome": "nothing"}
                self._send(Span(DECIDE, parent, began_ns, now, told))

    def changed(self, changes: Sequence[Change]) -> None:
        """Leases were granted, moved or ended, for good."""
        if not self._streams:
            return
        for change in changes:
            if change.kind != ENDED:
                continue
            traced = self._streams.pop(change.lease.id, None)
            if traced is None:
                continue
            assert change.verdict is not None and change.witness is not None
            told = {
                **_of_lease(change.lease),
                "weir.backend": change.backend,
                "weir.verdict": change.verdict.value,
                "weir.witness": change.witness.value,
            }
            failure = change.verdict.value if change.verdict in FAILED else None
            now = self.wall_ns()
            self._send(Span(STREAM, traced.parent, traced.granted_ns, now, told, failure))


def read_traceparent(text: str) -> Parent | None:
    """The span that a ``traceparent`` names, where its trace is kept; None for all that is not one,
    or is of a trace that is not."""
    match = _TRACEPARENT.match(text)
    if match is None or match[1] == "ff" or not int(match[4], 16) & SAMPLED:
        return None
    parent = Parent(int(match[2], 16), int(match[3], 16))
    return parent if parent.trace_id and parent.span_id else None


def _of_lease(lease: Lease) -> dict[str, str | int]:
    return {
        "weir.lease": lease.id,
        "weir.pool": lease.pool,
        "weir.backend": lease.backend,
        "weir.scene": lease.scene,
        "weir.tokens": lease.tokens,
    }
