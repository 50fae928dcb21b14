"""Requests take turns with all else that the worker has to do."""

from collections import deque

import gevent
from gevent.event import Event

GIVE_WAY_S = 0.001
"""The shortest time in which the loop surely looks around."""


class Turns:
    """One request each time that the event loop has looked around, in the order of their coming.
    A client that sends request after request never has to be waited for, and nobody else would
    be heard in between."""

    def __init__(self) -> None:
        self._line: deque[Event] = deque()
        self._taken_at = -1

    def take(self) -> None:
        """Wait for the next turn, where this one has been taken."""
        loop = gevent.get_hub().loop
        mine = Event()
        self._line.append(mine)
        try:
            if self._line[0] is not mine:
                mine.wait()
            if loop.iteration == self._taken_at:
                gevent.sleep(GIVE_WAY_S)
            self._taken_at = loop.iteration
        finally:
            self._line.remove(mine)
            if self._line:
                self._line[0].set()
