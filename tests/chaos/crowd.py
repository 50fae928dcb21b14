"""Clients in threads, each with one request after the other."""

import threading
import time
from collections import Counter
from functools import partial

from tests.chaos import plan
from tests.chaos.client import perform
from tests.chaos.outcome import Kind, Outcome
from tests.harness.node import Node


class Crowd:
    """``size`` clients of a node. What became of each request is in ``outcomes``."""

    def __init__(self, node: Node, seed: int, size: int, longest_s: float) -> None:
        self.outcomes: list[Outcome] = []
        self.counts: Counter[str] = Counter()
        self.busy = 0
        self._reading: dict[int, str] = {}
        self._node = node
        self._seed = seed
        self._longest_s = longest_s
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._live, args=(n,), daemon=True) for n in range(size)
        ]

    def start(self) -> None:
        """All begin to ask."""
        for thread in self._threads:
            thread.start()

    def end(self, timeout_s: float) -> bool:
        """Nobody asks any more; wait for those that read. False where some still do."""
        self._over.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def since(self, index: int) -> list[Outcome]:
        """The outcomes from one on."""
        with self._lock:
            return self.outcomes[index:]

    def streams(self) -> set[str]:
        """The ids of those that are read just now, as they come: each must be a lease."""
        with self._lock:
            return set(self._reading.values())

    def _note(self, client: int, request_id: str) -> None:
        with self._lock:
            self._reading[client] = request_id

    def _live(self, client: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            request = plan.request(self._seed, client, number, self._longest_s)
            with self._lock:
                self.busy += 1
            outcome = perform(
                request, self._node.port, self._node.h2_port, partial(self._note, client)
            )
            with self._lock:
                self.busy -= 1
                self._reading.pop(client, None)
                self.outcomes.append(outcome)
                self.counts[outcome.what] += 1
            served = outcome.kind in (Kind.COMPLETE, Kind.LEFT, Kind.ENGINE_FAILED)
            self._over.wait(request.rests if served else request.rests_refused)
