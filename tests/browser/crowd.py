"""Leases by the thousand, straight into the service: no engine and no nginx are needed."""

import threading
import time
from collections import deque
from pathlib import Path

from control.client import ServiceClient

SESSION = "crowd/1/1"
BATCH = 400
ROUNDS_A_SECOND = 20


class Crowd:
    """One gateway's session. It lives as long as this is in use."""

    def __init__(self, socket: Path, route: str) -> None:
        self._client = ServiceClient(f"unix:{socket}", timeout_s=10)
        self._route = route
        self._held: deque[str] = deque()
        self._made = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._held)

    def grow(self, count: int) -> None:
        """Take so many leases more."""
        for done in range(0, count, BATCH):
            self._change(min(BATCH, count - done), 0)

    def change(self, a_second: int) -> None:
        """From now on as many come and go: half of the changes are grants."""
        self._thread = threading.Thread(target=self._go_on, args=(a_second,))
        self._thread.start()

    def leave(self) -> None:
        """End, with all that is held."""
        self._stop.set()
        if self._thread:
            self._thread.join()
        self._client.end_session(SESSION)
        self._client.close()

    def _go_on(self, a_second: int) -> None:
        each = max(1, a_second // ROUNDS_A_SECOND // 2)
        due = time.monotonic()
        while not self._stop.is_set():
            self._change(each, each)
            due += 1 / ROUNDS_A_SECOND
            self._stop.wait(max(0.0, due - time.monotonic()))

    def _change(self, come: int, go: int) -> None:
        new = [f"crowd-{self._made + n:06d}-0123456789abcdef" for n in range(come)]
        self._made += come
        # Neither the oldest nor the youngest: the table changes in all places.
        self._held.rotate(len(self._held) // 3)
        gone = [self._held.popleft() for _ in range(go)]
        ops = [
            {"op": "acquire", "id": name, "route": self._route, "scene": "QA", "bytes": 100}
            for name in new
        ]
        ops += [
            {"op": "release", "id": name, "verdict": "completed", "witness": "lua"} for name in gone
        ]
        results = self._client.batch(SESSION, ops)
        assert all(each.get("decision", "granted") == "granted" for each in results), results
        self._held.extend(new)
