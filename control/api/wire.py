"""The data plane's JSON, and its translation to and from the use cases' own types."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from control.admission import Ask, UnknownRoute
from control.core.decision import AlreadyEnded, Granted, Refused, ReleaseOutcome
from control.core.ledger import Held
from control.core.operation import Operation, Release, Reroute, Result, Sync, Synced
from control.core.verdict import Verdict, Witness

MAX_TOKENS = 1_000_000_000
"""No context is longer; a number beyond it is a fault of the caller, not a wish."""
MAX_BYTES = 1 << 40
MAX_DELAY_MS = 3_600_000

LeaseId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}\Z")]
SessionId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,200}\Z")]
Label = Annotated[str, Meta(max_length=256)]
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class Wanted(Struct, kw_only=True):
    """What a stream wants. ``bytes``: length of the request's body; ``tokens`` overrides the
    estimate that is made of it."""

    id: LeaseId
    route: Label
    bytes: Annotated[int, Meta(ge=0, le=MAX_BYTES)] = 0
    scene: Label = ""
    tokens: Tokens | None = None


class AcquireOp(Wanted, tag="acquire", tag_field="op", kw_only=True):
    """Take room for a stream."""


class RerouteOp(Struct, tag="reroute", tag_field="op"):
    """The backend that was granted cannot be reached, and has been sent nothing."""

    id: LeaseId


class ReleaseOp(Struct, tag="release", tag_field="op"):
    """``delay_ms``: how long ago the gateway saw the end."""

    id: LeaseId
    verdict: Verdict
    witness: Witness = Witness.LUA
    grant: Annotated[int, Meta(ge=1)] | None = None
    delay_ms: Annotated[float, Meta(ge=0, le=MAX_DELAY_MS)] = 0.0


class HeldLease(Struct):
    """A lease as its gateway knows it, to be adopted where the service does not."""

    id: LeaseId
    pool: Label
    backend: Label
    tokens: Tokens
    scene: Label = ""


class SyncOp(Struct, tag="sync", tag_field="op"):
    """All leases that the session holds."""

    ids: list[LeaseId | HeldLease]


Op = AcquireOp | RerouteOp | ReleaseOp | SyncOp


class Batch(Struct):
    """A body of ``POST /v1/admission``."""

    session: SessionId
    ops: list[Op]


class _LooseBatch(Struct):
    """The same with its operations unread, so that one that is nonsense spoils no other."""

    session: SessionId
    ops: list[msgspec.Raw]


class LeaseRequest(Wanted, kw_only=True):
    """A body of ``POST /v1/leases``."""

    session: SessionId


class OpError(Struct, tag="invalid", tag_field="decision"):
    """An operation that could not be read. Nothing was changed by it."""

    message: str


class GrantedResult(Struct, tag="granted", tag_field="decision"):
    """``url`` is the backend's. ``grant`` tells this lease from an earlier one of its id.
    ``tight``: room is scarce, and the release should not wait for company."""

    id: str
    pool: str
    backend: str
    url: str
    scene: str
    tokens: int
    grant: int
    tight: bool


class RefusedResult(Struct, tag="refused", tag_field="decision"):
    """``status`` is what the client should get; numbers are in the reason's unit."""

    reason: str
    status: int
    pool: str
    limit: int
    in_use: int
    requested: int
    retry_after_ms: int
    retryable: bool


class EndedResult(Struct, tag="ended", tag_field="decision"):
    """The id's release came first: the client has left."""

    id: str


class ReleasedResult(Struct):
    """What a release did."""

    outcome: ReleaseOutcome


class SyncedResult(Struct):
    """Ids of what a sync ended and adopted."""

    ended: list[str]
    adopted: list[str]


Answer = OpError | GrantedResult | RefusedResult | EndedResult | ReleasedResult | SyncedResult


class BatchResult(Struct):
    """An answer to ``POST /v1/admission``: a result an operation, in order."""

    results: list[Answer]


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for a body that is not what it should be."""


class WireError(ValueError):
    """A body that cannot be read at all; the message is for its sender."""


_RELEASED = {outcome: ReleasedResult(outcome) for outcome in ReleaseOutcome}
_batch = msgspec.json.Decoder(Batch)

_loose_batch = msgspec.json.Decoder(_LooseBatch)
_op = msgspec.json.Decoder(Op)
_lease_request = msgspec.json.Decoder(LeaseRequest)
_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def read_batch(body: bytes) -> tuple[str, Sequence[Op | OpError]]:
    """The session and its operations; :class:`WireError` where not even these can be told."""
    try:
        batch = _batch.decode(body)
        return batch.session, batch.ops
    except UNREADABLE:
        return _read_loosely(body)


def read_lease_request(body: bytes) -> LeaseRequest:
    """A single acquire, or :class:`WireError`."""
    try:
        return _lease_request.decode(body)
    except UNREADABLE as exc:
        raise WireError(_why(exc)) from exc


def _read_loosely(body: bytes) -> tuple[str, list[Op | OpError]]:
    # Bytes that are not UTF-8 become a mark that no pattern or number admits.
    text = body.decode("utf-8", errors="replace")
    try:
        batch = _loose_batch.decode(text)
    except UNREADABLE as exc:
        told = f'{_why(exc)}; send {{"session": "node/pid/start", "ops": […]}}'
        raise WireError(told) from exc
    return batch.session, [_read_op(raw) for raw in batch.ops]


def _read_op(raw: msgspec.Raw) -> Op | OpError:
    try:
        return _op.decode(raw)
    except UNREADABLE as exc:
        return OpError(_why(exc))


def _why(exc: Exception) -> str:
    return "nested too deep" if isinstance(exc, RecursionError) else str(exc)


def to_request(session: str, op: Op) -> Ask | Operation:
    """What the use cases are asked to do."""
    match op:
        case AcquireOp():
            return Ask(op.id, op.route, op.scene, op.bytes, op.tokens)
        case ReleaseOp():
            return Release(op.id, op.verdict, op.witness, op.grant)
        case RerouteOp():
            return Reroute(op.id)
        case SyncOp():
            known = [held for held in op.ids if isinstance(held, str)]
            held = [h for h in op.ids if isinstance(h, HeldLease)]
            return Sync(
                session,
                known,
                [Held(h.id, h.pool, h.backend, h.scene, h.tokens) for h in held],
            )


def to_answer(result: Result | UnknownRoute, urls: dict[tuple[str, str], str]) -> Answer:
    """What a gateway is told. ``urls`` maps (pool, backend) to the backend's address."""
    match result:
        case Granted(lease, _, tight):
            return GrantedResult(
                id=lease.id,
                pool=lease.pool,
                backend=lease.backend,
                url=urls[lease.pool, lease.backend],
                scene=lease.scene,
                tokens=lease.tokens,
                grant=lease.grant,
                tight=tight,
            )
        case Refused():
            return to_refusal(result)
        case AlreadyEnded(lease_id):
            return EndedResult(lease_id)
        case ReleaseOutcome():
            return _RELEASED[result]
        case Synced(ended, adopted):
            return SyncedResult([lease.id for lease in ended], [lease.id for lease in adopted])
        case UnknownRoute(route):
            return OpError(f"route: {route!r} is not configured; add it under routes in weir.yml")


def to_refusal(refused: Refused) -> RefusedResult:
    """A refusal with the status and the wait that its client should be told."""
    return RefusedResult(
        reason=refused.reason,
        status=refused.reason.status,
        pool=refused.pool,
        limit=refused.limit,
        in_use=refused.in_use,
        requested=refused.requested,
        retry_after_ms=retry_after_ms(refused),
        retryable=refused.reason.retryable,
    )


def retry_after_ms(refused: Refused) -> int:
    """Between 1 and 60 s (contract.md, section 3); 0 where coming back is of no use."""
    if not refused.reason.retryable:
        return 0
    return max(1_000, min(60_000, round(refused.retry_after_s * 1_000)))
