"""What a line of nginx's access log says of a lease (nginx/log.conf.j2)."""

import re
from typing import Any, NamedTuple

import msgspec

from control.core.decision import Reason
from control.core.verdict import Verdict, Witness

BEGINNING = b'{"ts":'
"""Of each line; within one, its quote would be escaped."""
LEASE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
MAX_GRANT = 1 << 53
"""The service takes no larger one."""
CUT_STATUSES = ("499", "000")
"""nginx's own: the client left before the answer began."""
DOUBTFUL = frozenset({Reason.ADMISSION_DOWN, Reason.NO_BACKEND})
"""Refusals behind which there may be a lease: the service's answer was not seen, or the engine
that was granted could not be reached."""
REFUSED = frozenset(Reason) - DOUBTFUL
"""Reasons of which the service itself says that nothing was taken; nginx, where it refuses after it
had asked, gives a verdict with them."""

_VERDICTS = frozenset(Verdict)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class BrokenLine(ValueError):
    """A line of which not even the id can be told."""


class Ended(NamedTuple):
    """The request is over. ``grant`` tells its lease from an earlier one of its id; ``ts`` is
    nginx's time in seconds since the epoch, zero where the line does not say."""

    id: str
    verdict: Verdict
    grant: int | None
    ts: float

    def release(self) -> dict[str, Any]:
        """The operation that ends its lease."""
        op: dict[str, Any] = {
            "op": "release",
            "id": self.id,
            "verdict": self.verdict.value,
            "witness": Witness.LOG.value,
        }
        if self.grant is not None:
            op["grant"] = self.grant
        return op


def read_line(line: bytes) -> Ended | None:
    """The end that a line tells of; None for a request that never asked for a lease or was
    surely refused one. :class:`BrokenLine` for what is no line of ours."""
    fields = _fields(line)
    lease_id = fields.get("id")
    if not (isinstance(lease_id, str) and LEASE_ID.fullmatch(lease_id)):
        raise BrokenLine("no usable id")
    if not _text(fields, "route"):
        return None
    granted = _text(fields, "grant")
    if not (granted or _text(fields, "verdict")) and _text(fields, "reason") in REFUSED:
        return None
    return Ended(lease_id, _verdict(fields), _grant(granted), _seconds(fields.get("ts")))


def pieces(line: bytes) -> list[bytes]:
    """The lines and fragments that stand on one: what nginx could not write to the end, as on a
    full disk, has no newline between it and the next."""
    before, *others = line.split(BEGINNING)
    return [piece for piece in (before, *(BEGINNING + other for other in others)) if piece]


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = _decode(line)
    except _UNREADABLE as exc:
        raise BrokenLine("not JSON") from exc
    if not isinstance(fields, dict):
        raise BrokenLine("not an object")
    return fields


def _decode(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except _UNREADABLE:
        # Bytes that are not UTF-8 spoil their own field, and no other.
        return msgspec.json.decode(line.decode("utf-8", errors="replace"))


def _verdict(fields: dict[str, Any]) -> Verdict:
    """What Lua said of the stream; else what nginx itself knows (casebook 1: never the status
    alone, an abort in mid-stream is logged 200)."""
    said = _text(fields, "verdict")
    if said in _VERDICTS:
        return Verdict(said)
    if not _text(fields, "completion") or _text(fields, "status") in CUT_STATUSES:
        return Verdict.CLIENT_ABORT
    # One status a try: "502, 200", and " : " between groups of servers.
    last = re.split(r"[,:]", _text(fields, "upstream_status"))[-1].strip()
    if len(last) == 3 and last[0] == "5":
        return Verdict.UPSTREAM_ERROR
    return Verdict.COMPLETED


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _grant(text: str) -> int | None:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    return number if 1 <= number <= MAX_GRANT else None


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
