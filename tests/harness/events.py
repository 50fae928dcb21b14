"""A reader of ``GET /v1/events`` that keeps all that it is told."""

import contextlib
import json
import threading
from typing import Any, NamedTuple

import requests


class Told(NamedTuple):
    """One event."""

    id: int
    kind: str
    data: dict[str, Any]


class EventReader:
    """Reads in a thread of its own, from its making to its end or :meth:`close`."""

    def __init__(self, admin: str, last_id: int | None = None, **query: Any) -> None:
        self.told: list[Told] = []
        self.over: set[str] = set()
        """Ids of the leases that have ended."""
        self.last_id = last_id
        self.ended = threading.Event()
        headers = {} if last_id is None else {"Last-Event-ID": str(last_id)}
        self.response = requests.get(
            f"{admin}/v1/events", params=query, headers=headers, stream=True, timeout=30
        )
        assert self.response.status_code == 200, self.response.text
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        fields: dict[str, str] = {}
        # A connection that breaks ends it as well as a polite end, and close() does from outside.
        with contextlib.suppress(requests.RequestException, AttributeError, ValueError):
            for raw in self.response.iter_lines(chunk_size=None):
                line = raw.decode()
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                    continue
                self.last_id = int(fields.get("id", self.last_id or 0))
                if "data" in fields:
                    data = json.loads(fields["data"])
                    self.told.append(Told(int(fields["id"]), fields["event"], data))
                    if fields["event"] == "ended":
                        self.over.add(data["id"])
                fields = {}
        self.ended.set()

    def of(self, kind: str) -> list[Told]:
        return [event for event in self.told if event.kind == kind]

    def life(self, lease_id: str) -> list[str]:
        """The kinds of what was told of one lease, in order."""
        return [event.kind for event in self.told if event.data.get("id") == lease_id]

    def close(self) -> None:
        """Leave, and wait until nothing more is read."""
        with contextlib.suppress(OSError, AttributeError):
            self.response.raw._fp.fp.raw._sock.shutdown(2)
        self._thread.join(10)
        self.response.close()
