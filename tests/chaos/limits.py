"""Limits that are lowered for a while: what is in force, and since when."""

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lowered:
    """A backend's limits that an operator changed, surely in force ``since`` (monotonic)."""

    max_streams: int
    max_tokens: int
    is_open: bool
    since: float


class LimitsInForce:
    """Which backends' limits are lowered now. For threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lowered: dict[str, Lowered] = {}
        self._claimed: set[str] = set()

    def claim(self, backend: str) -> bool:
        """Become the one who changes a backend; False where somebody else is."""
        with self._lock:
            free = backend not in self._claimed
            self._claimed.add(backend)
            return free

    def leave(self, backend: str) -> None:
        """They are as configured, and others may change them."""
        with self._lock:
            self._claimed.discard(backend)

    def lower(self, backend: str, lowered: Lowered) -> None:
        """They have just been lowered."""
        with self._lock:
            self._lowered[backend] = lowered

    def forget(self) -> None:
        """It cannot be told any more what is in force."""
        with self._lock:
            self._lowered.clear()

    def restore(self, backend: str) -> None:
        """They are about to be raised again."""
        with self._lock:
            self._lowered.pop(backend, None)

    def of(self, backend: str) -> Lowered | None:
        """None where the configured limits are in force, or may be."""
        with self._lock:
            return self._lowered.get(backend)
