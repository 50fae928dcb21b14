"""What a client's request came to."""

from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.plan import Request

TAIL_BYTES = 160


class Kind(StrEnum):
    """The one word for it."""

    COMPLETE = "complete"
    """All frames and the terminator, or the whole JSON answer."""
    REFUSED = "refused"
    """429 or 503, well formed."""
    LEFT = "left"
    """The client left, as it was planned."""
    ENGINE_FAILED = "engine failed"
    """The engine refused the body or died, as it was told to."""
    CUT = "cut"
    """The connection was closed before the end of the answer, or before its beginning."""
    SENT_AWAY = "sent away"
    """HTTP/2's connection closed before the request was taken: it may be sent again."""
    UNREACHABLE = "unreachable"
    """Nobody listened."""
    CRASHED = "crashed"
    """The engine is out of memory: what nobody may let happen."""
    SILENT = "silent"
    """Nothing came for too long."""
    BROKEN = "broken"
    """Bytes or a status that nobody may ever see."""


PLANNED = (Kind.COMPLETE, Kind.LEFT, Kind.ENGINE_FAILED)
"""What needs no other cause than the plan."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``began`` and ``ended`` in monotonic seconds; ``port`` is the client's own; ``reason`` a
    refusal's; ``tail`` the last bytes that came."""

    request: Request
    kind: Kind
    began: float
    ended: float
    port: int = 0
    status: int = 0
    request_id: str = ""
    reason: str = ""
    frames: int = 0
    detail: str = ""
    tail: bytes = b""

    @property
    def what(self) -> str:
        """The kind, and of a refusal its reason: what a cause has to explain."""
        return f"refused: {self.reason}" if self.kind is Kind.REFUSED else str(self.kind)

    def told(self, start: float) -> str:
        """For people, with its times since ``start``."""
        return (
            f"client {self.request.tag} ({self.request.protocol}, port {self.port}): {self.what}"
            f" {self.began - start:.3f}-{self.ended - start:.3f} s, status {self.status},"
            f" id {self.request_id or '-'}, {self.frames} of {self.request.frames} frames;"
            f" {self.detail}; tail {self.tail[-TAIL_BYTES:]!r}"
        )
