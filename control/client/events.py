"""An event stream that is followed over broken connections and restarts of the service."""

import json
import random
import time
from collections.abc import Callable, Generator
from contextlib import closing

from control.client.answers import Event
from control.client.connection import ServiceError

RETRY_S = 1.0
"""Before a connection is made again, where the service names no other time; twice as long after
each failure."""
LONGEST_RETRY_S = 15.0
MAX_LINE = 1 << 20
MAX_DIGITS = 18

Open = Callable[[int | None], Generator[bytes, None, None]]
"""Asks for the events after an id, and gives the bytes of the answer as they come."""


def follow(
    connect: Open, since: int | None, on_loss: Callable[[ServiceError], None] | None
) -> Generator[Event, None, None]:
    """The events of one connection after the other. What keeps the first one from being made is
    raised; later only what will not pass by itself, such as a token that is refused."""
    stream = EventParser(since)
    failures, once = 0, False
    while True:
        try:
            with closing(connect(stream.last_id)) as chunks:
                for chunk in chunks:
                    once, failures = True, 0
                    yield from stream.feed(chunk)
            lost = ServiceError("the service ended the stream of events")
        except ServiceError as exc:
            passing = exc.status is None or exc.status >= 500 or exc.status == 429
            if not once or not passing:
                raise
            lost = exc
        if on_loss:
            on_loss(lost)
        stream.reset()
        wait_s = min(LONGEST_RETRY_S, stream.retry_s * 2**failures)
        time.sleep(wait_s * random.uniform(0.75, 1.25))
        failures = min(failures + 1, 10)


class EventParser:
    """Bytes to events, as HTML's living standard says (section 9.2). ``last_id`` is that of the
    last whole event."""

    def __init__(self, last_id: int | None = None) -> None:
        self.last_id = last_id
        self.retry_s = RETRY_S
        self.reset()

    def reset(self) -> None:
        """A new connection: what was half said is forgotten."""
        self._buffer = b""
        self._kind, self._id, self._data = "", self.last_id, list[str]()

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this makes whole."""
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        if len(self._buffer) > MAX_LINE:
            raise ServiceError("an event is longer than 1 MB: is this the admin plane of Weir?")
        found = (self._take(line.rstrip(b"\r").decode("utf-8", "replace")) for line in lines)
        return [event for event in found if event]

    def _take(self, line: str) -> Event | None:
        if not line:
            return self._whole()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        is_number = value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS
        match field:
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "id" if is_number:
                self._id = int(value)
            case "retry" if is_number:
                self.retry_s = min(LONGEST_RETRY_S, int(value) / 1_000)
        return None

    def _whole(self) -> Event | None:
        kind, text = self._kind or "message", "\n".join(self._data)
        is_event, is_new = bool(self._data), self._id != self.last_id
        self.last_id = self._id
        self._kind, self._data = "", []
        if not is_event:
            return None
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise ServiceError(f"the data of an event {kind} is not JSON") from exc
        return Event(kind, self._id if is_new else None, data if isinstance(data, dict) else {})
