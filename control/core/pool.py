"""A pool: interchangeable backends, each with limits of its own.

Limits are per backend because memory is per GPU: a pool that is fine in total can still
overrun one GPU. Both units, streams and tokens, are taken in one step or not at all.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from control.core.decision import Reason, Refused
from control.core.lease import Lease, LeaseState

FIRST_MEAN_HOLD_S = 15.0
"""Seconds a stream is taken to last before one has ended here (mission 000: 3 to 30)."""
HOLD_WEIGHT = 0.05
"""How much the newest end counts in the mean duration: about the last twenty ends."""


class BackendState(StrEnum):
    """What an operator wants of a backend."""

    ACTIVE = "active"
    DRAINING = "draining"
    DISABLED = "disabled"


class Limits(NamedTuple):
    """What may be in use of a backend, and whether it is open at all."""

    max_streams: int
    max_tokens: int
    state: BackendState = BackendState.ACTIVE


@dataclass(slots=True)
class Backend:
    """One engine on one GPU: its limits, and what its live leases hold of them.

    ``configured`` are the limits it was made with; those in force may have been changed since.
    """

    name: str
    url: str
    max_streams: int
    max_tokens: int
    state: BackendState = BackendState.ACTIVE
    streams: int = 0
    tokens: int = 0
    draining: int = 0
    passed_over_until: float = -math.inf
    configured: Limits = field(init=False)

    def __post_init__(self) -> None:
        self.configured = self.limits

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return Limits(self.max_streams, self.max_tokens, self.state)

    def adjust(self, limits: Limits) -> None:
        """Put other limits in force. What is over them runs on; nothing new comes until below."""
        self.max_streams, self.max_tokens, self.state = limits

    def is_passed_over(self, now: float) -> bool:
        """Whether it was found unreachable just now."""
        return now < self.passed_over_until

    def open_at(self, now: float) -> bool:
        """Whether it takes new streams: wanted, and not found unreachable just now."""
        return self.state is BackendState.ACTIVE and not self.is_passed_over(now)

    def fits(self, tokens: int) -> bool:
        """Whether one more stream of so many tokens stays within both limits."""
        return self.streams < self.max_streams and self.tokens + tokens <= self.max_tokens

    @property
    def is_tight(self) -> bool:
        """Whether more than half of either limit is in use: others may soon wait for room."""
        return 2 * self.streams > self.max_streams or 2 * self.tokens > self.max_tokens

    @property
    def free_tokens(self) -> int:
        """Tokens under the limit; negative where the limit was lowered under what is in use."""
        return self.max_tokens - self.tokens

    def hold(self, lease: Lease) -> None:
        """Count a lease that became live."""
        self.streams += 1
        self.tokens += lease.tokens
        self.draining += lease.state is LeaseState.DRAINING

    def drop(self, lease: Lease) -> None:
        """Forget a lease that was live; to be called while its state is what was counted."""
        self.streams -= 1
        self.tokens -= lease.tokens
        self.draining -= lease.state is LeaseState.DRAINING


@dataclass(slots=True)
class Pool:
    """Backends that can take each other's requests. Times are in seconds."""

    name: str
    backends: dict[str, Backend]
    session_ttl: float = 15.0
    drain: float = 0.1
    pass_over: float = 5.0
    decided_locally: bool = False
    """Whether gateways admit by themselves while they have no answer."""
    settles_at: float = -math.inf
    """Until then nothing new is granted: what runs already is not yet known."""
    mean_hold: float = field(default=FIRST_MEAN_HOLD_S)

    def choose(self, tokens: int, now: float, jitter: Callable[[], float]) -> Backend | Refused:
        """The open backend where both units fit and most tokens are free, or why there is none.

        ``jitter`` gives a factor for the time to come back, so that those refused together do
        not return together.
        """
        if now < self.settles_at:
            wait = (self.settles_at - now) * jitter()
            return Refused(Reason.ADMISSION_DOWN, self.name, retry_after_s=wait)
        best: Backend | None = None
        for backend in self.backends.values():
            if (
                backend.open_at(now)
                and backend.fits(tokens)
                and (best is None or backend.free_tokens > best.free_tokens)
            ):
                best = backend
        return best or self._refuse(tokens, now, jitter())

    def settle(self, now: float) -> None:
        """Grant nothing until every gateway that lives has surely said what it holds."""
        self.settles_at = now + self.session_ttl

    def note_end(self, lease: Lease, now: float) -> None:
        """Learn from a finished stream how long streams last here."""
        self.mean_hold += HOLD_WEIGHT * (now - lease.granted_at - self.mean_hold)

    def _refuse(self, tokens: int, now: float, jitter: float) -> Refused:
        candidates = [backend for backend in self.backends.values() if backend.open_at(now)]
        enabled = [b for b in self.backends.values() if b.state is not BackendState.DISABLED]
        largest = max((backend.max_tokens for backend in enabled), default=0)
        if enabled and tokens > largest:
            return Refused(
                Reason.REQUEST_TOO_LARGE, self.name, largest, 0, tokens, retry_after_s=0.0
            )
        if not candidates:
            return self._refuse_closed(enabled, now, jitter)
        with_a_stream_left = [b for b in candidates if b.streams < b.max_streams]
        # Named is the backend that comes nearest: the one a client would wait for.
        if with_a_stream_left:
            nearest = max(with_a_stream_left, key=lambda backend: backend.free_tokens)
            reason, limit, in_use = Reason.TOKENS_EXHAUSTED, nearest.max_tokens, nearest.tokens
            requested = tokens
        else:
            nearest = max(candidates, key=lambda backend: backend.max_streams - backend.streams)
            reason, limit, in_use = Reason.STREAMS_EXHAUSTED, nearest.max_streams, nearest.streams
            requested = 1
        live = sum(backend.streams for backend in candidates)
        wait = self.mean_hold / max(1, live) * jitter
        return Refused(reason, self.name, limit, in_use, requested, retry_after_s=wait)

    def _refuse_closed(self, enabled: list[Backend], now: float, jitter: float) -> Refused:
        unreachable = [b for b in enabled if b.state is BackendState.ACTIVE]
        if unreachable:
            back = min(backend.passed_over_until for backend in unreachable) - now
            return Refused(Reason.NO_BACKEND, self.name, retry_after_s=back * jitter)
        reason = Reason.DRAINING if enabled else Reason.NO_BACKEND
        return Refused(reason, self.name, retry_after_s=self.mean_hold * jitter)


def in_use(backends: Iterable[Backend]) -> tuple[int, int]:
    """Streams and tokens that are active or draining, over all of them."""
    streams = tokens = 0
    for backend in backends:
        streams += backend.streams
        tokens += backend.tokens
    return streams, tokens
