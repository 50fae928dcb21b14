"""How far live streams have come, as their gateways last said. Kept beside the ledger: nothing is
decided by it, and it is forgotten with the lease."""

from collections.abc import Container, Iterable
from typing import NamedTuple

from control.core.change import ENDED, Change


class Report(NamedTuple):
    """What a gateway says of one stream. ``events``: None where its answer is no event stream;
    ``idle_s``: since its last event (or byte, where it has none)."""

    id: str
    bytes: int
    events: int | None
    idle_s: float


class Progress(NamedTuple):
    """What was said last of one stream, and when, in monotonic seconds."""

    report: Report
    at: float

    @property
    def phase(self) -> str:
        """``prefill`` until something has come of the engine; comments are nothing."""
        _, passed, events, _ = self.report
        return "stream" if passed and events != 0 else "prefill"


class ProgressBoard:
    """By lease."""

    def __init__(self) -> None:
        self._last: dict[str, Progress] = {}

    def note(self, reports: Iterable[Report], own: Container[str], now: float) -> None:
        """Take a session's word for those leases that are its own."""
        for report in reports:
            if report.id in own:
                self._last[report.id] = Progress(report, now)

    def forget(self, changes: Iterable[Change]) -> None:
        """Leases have ended."""
        if self._last:
            for change in changes:
                if change.kind is ENDED:
                    self._last.pop(change.lease.id, None)

    def of(self, lease_id: str) -> Progress | None:
        """What is known of one stream."""
        return self._last.get(lease_id)
