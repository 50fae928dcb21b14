"""Refusals as events: told one by one while they are few, summed by the second where they are many.

An overload refuses thousands a second: told one by one they would push all else out of the ring.
"""

from dataclasses import dataclass
from typing import Any

from control.chronicle.events import REFUSED, Event
from control.core.decision import Refused

EACH_UP_TO = 20
"""Refusals of one pool and reason that are told each by itself within a second."""
SECOND_S = 1.0


@dataclass(slots=True)
class _Second:
    began: float
    seen: int = 0
    last: Refused | None = None
    scene: str | None = None
    """Of all that are summed; None where they differ."""


class Refusals:
    """One second at a time for each pool and reason."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], _Second] = {}

    def add(self, scene: str, refused: Refused, now: float) -> list[Event]:
        """Events to tell because of this refusal: itself, or none yet."""
        key = (refused.pool, refused.reason)
        told: list[Event] = []
        second = self._seconds.get(key)
        if second is None or now - second.began >= SECOND_S:
            if second is not None:
                told += _sum(second, now)
            second = self._seconds[key] = _Second(now)
        second.seen += 1
        if second.seen <= EACH_UP_TO:
            told.append(Event(REFUSED, now, refused.pool, _data(scene, refused)))
        else:
            is_first = second.last is None
            second.scene = scene if is_first or second.scene == scene else None
            second.last = refused
        return told

    def tick(self, now: float) -> list[Event]:
        """The sums of seconds that are over."""
        over = [key for key, second in self._seconds.items() if now - second.began >= SECOND_S]
        return [event for key in over for event in _sum(self._seconds.pop(key), now)]


def _sum(second: _Second, now: float) -> list[Event]:
    if second.last is None:
        return []
    count = second.seen - EACH_UP_TO
    data = {**_data(second.scene, second.last), "count": count}
    return [Event(REFUSED, now, second.last.pool, data)]


def _data(scene: str | None, refused: Refused) -> dict[str, Any]:
    return {
        "pool": refused.pool,
        "scene": scene,
        "reason": refused.reason,
        "requested": refused.requested,
        "limit": refused.limit,
        "in_use": refused.in_use,
    }
