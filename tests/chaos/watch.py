"""What must be true at every moment: looked at some times a second while the faults go on."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import requests

from tests.chaos.bed import BLOCK_SLACK, MAX_STREAMS, MAX_TOKENS, Bed
from tests.chaos.causes import Causes
from tests.chaos.limits import LimitsInForce
from tests.chaos.old_workers import OldWorkers, leaving
from tests.chaos.outcome import Kind

ENGINE_EVERY_S = 0.1
SERVICE_EVERY_S = 0.5
WORKERS_EVERY_S = 0.2
CRASH = (str(Kind.CUT), str(Kind.CRASHED), "refused: no_backend")
CRASH_LASTS_S = 4.0
ADOPTED_S = 4.0
"""A gateway tells what it holds with its next batch, within a second."""
SETTLED_S = 3.0
"""What was granted before limits were lowered has begun by then: uploads, stopped workers."""


@dataclass(slots=True)
class Seen:
    """An engine as it was seen last. ``total`` when its limits were lowered ``since``; None where
    it was told already that they did not hold."""

    streams: int = 0
    peak: int = 0
    tokens_peak: int = 0
    crashed: int = 0
    since: float = 0.0
    total: int | None = 0


@dataclass
class Watch:
    """Watches engines and service in threads of its own. ``streams`` gives the ids of streams
    that clients read just now; ``problem`` takes what is wrong."""

    bed: Bed
    causes: Causes
    limits: LimitsInForce
    streams: Callable[[], set[str]]
    problem: Callable[[str], None]
    seen: dict[str, Seen] = field(default_factory=dict)
    unknown_since: dict[str, float] = field(default_factory=dict)
    """Streams that run and are no leases, each from when on."""
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin to look."""
        for name in self.bed.engines:
            self.seen[name] = Seen()
            self._spawn(ENGINE_EVERY_S, self._engine_look(name))
        self._spawn(SERVICE_EVERY_S, self._look_at_service)
        old = OldWorkers(self.causes, self.bed.shutdown_s)
        self._spawn(WORKERS_EVERY_S, lambda: self._look_at_workers(old))

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        for thread in self._threads:
            thread.join(15)

    @property
    def active(self) -> int:
        """Streams on all engines, a moment ago."""
        return sum(seen.streams for seen in self.seen.values())

    def _spawn(self, every_s: float, look: Callable[[], None]) -> None:
        def forever() -> None:
            while not self._over.wait(every_s):
                look()

        thread = threading.Thread(target=forever, daemon=True)
        thread.start()
        self._threads.append(thread)

    # -- engines ---------------------------------------------------------------------------

    def _engine_look(self, name: str) -> Callable[[], None]:
        session = requests.Session()
        url = f"{self.bed.engines[name].url}/stats"

        def look() -> None:
            try:
                stats = session.get(url, timeout=10).json()
            except requests.RequestException as exc:
                self.problem(f"{name}: the engine gave no answer: {exc!r}")
                return
            self.check_engine(name, stats, time.monotonic())

        return look

    def check_engine(self, name: str, stats: dict[str, int], now: float) -> None:
        """Never over its limits, those that are in force for what begins now."""
        seen = self.seen[name]
        seen.streams = stats["active"]
        if stats["peak"] > max(seen.peak, MAX_STREAMS):
            self._tell(name, f"{stats['peak']} streams at once, limit {MAX_STREAMS}", now)
        if stats["kv_tokens_peak"] > max(seen.tokens_peak, MAX_TOKENS + BLOCK_SLACK):
            self._tell(name, f"{stats['kv_tokens_peak']} tokens at once, limit {MAX_TOKENS}", now)
        if stats["crashed"] > seen.crashed:
            self._tell(name, "crashed: CUDA out of memory", now)
            # Told once: what comes of it is no problem of its own.
            self.causes.add(f"# crash of {name}", CRASH, now - 1.0, until=now + CRASH_LASTS_S)
        seen.peak = max(seen.peak, stats["peak"])
        seen.tokens_peak = max(seen.tokens_peak, stats["kv_tokens_peak"])
        seen.crashed = stats["crashed"]
        self._check_lowered(name, stats, now)

    def _check_lowered(self, name: str, stats: dict[str, int], now: float) -> None:
        """Whatever began since must have found room: from then on it can only become less."""
        lowered = self.limits.of(name)
        seen = self.seen[name]
        if lowered is None or now - lowered.since < SETTLED_S or self.bed.local:
            return  # alone, a new nginx worker knows only what is configured
        if seen.since != lowered.since:
            seen.since, seen.total = lowered.since, stats["total"]
        if seen.total in (None, stats["total"]):
            return
        over = (
            stats["active"] > lowered.max_streams
            or stats["kv_tokens_used"] > lowered.max_tokens + BLOCK_SLACK
        )
        if over or not lowered.is_open:
            seen.total = None
            self._tell(name, f"began a stream under {lowered}, now {stats}", now)

    # -- nginx -----------------------------------------------------------------------------

    def _look_at_workers(self, old: OldWorkers) -> None:
        now = time.monotonic()
        old.look(leaving(self.bed.node, old.known), now)

    # -- the service -----------------------------------------------------------------------

    def _look_at_service(self) -> None:
        node = self.bed.node
        try:
            drift = node.metric("weir_lease_drift")
            pools = node.get("/v1/pools")["pools"]
            before = self.streams()
            leases = {lease["id"] for lease in node.leases()}
        except requests.RequestException:
            self.unknown_since.clear()
            return  # it is away: the faults see to it that it comes back
        now = time.monotonic()
        self.check_service(drift, [each for pool in pools for each in pool["backends"]], now)
        self.check_known(before & self.streams(), leases, now)

    def check_known(self, streams: set[str], leases: set[str], now: float) -> None:
        """A stream that runs is a lease, or is adopted as one soon after the service is back."""
        since = self.unknown_since
        for gone in [name for name in since if name not in streams or name in leases]:
            del since[gone]
        for name in streams - leases:
            if now - since.setdefault(name, now) > ADOPTED_S:
                since[name] = math.inf  # told once
                self._tell("service", f"does not know the stream {name}, which runs", now)

    def check_service(self, drift: float, backends: list[dict[str, Any]], now: float) -> None:
        """Everything adds up, and nothing is below zero."""
        if drift:
            self._tell("service", f"weir_lease_drift is {drift:g}", now)
        for backend in backends:
            counts = {key: backend[key] for key in ("streams", "tokens", "draining")}
            if min(counts.values()) < 0 or counts["draining"] > counts["streams"]:
                self._tell(backend["name"], f"counts {counts}", now)

    def _tell(self, who: str, what: str, now: float) -> None:
        self.problem(f"{who}: {what}; lately: {self.causes.near(now)[-6:]}")
