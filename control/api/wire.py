"""The data plane's JSON, and its translation to and from the use cases' own types."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from control.admission import Ask, UnknownRoute
from control.core.decision import AlreadyEnded, Granted, Refused, ReleaseOutcome
from control.core.ledger import LAST_GRANT, Held
from control.core.node import MemoryState
from control.core.operation import Operation, Release, Reroute, Result, Sync, Synced
from control.core.pool import BackendState, Limits
from control.core.verdict import Phase, Verdict, Witness
from control.progress import Report

MAX_TOKENS = 1_000_000_000
"""No context is longer; a number beyond it is a fault of the caller, not a wish."""
MAX_STREAMS = 1_000_000
MAX_BYTES = 1 << 40
MAX_DELAY_MS = 3_600_000
"""Longer ones are counted as this: a release waits for as long as the service is away."""
MAX_GRANT = 1 << 53
"""Lua and JSON hold whole numbers up to it exactly."""

LeaseId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}\Z")]
SessionId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,200}\Z")]
Label = Annotated[str, Meta(max_length=256)]
Version = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Grant = Annotated[int, Meta(ge=1, le=MAX_GRANT)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Inode = Annotated[int, Meta(ge=0)]
"""All 64 bits of it, on some file systems."""
Number = Annotated[float, Meta(ge=0, le=1e18)]
TraceParent = Annotated[str, Meta(pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")]
NodeName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\Z")]


class Wanted(Struct, kw_only=True):
    """What a stream wants. ``bytes``: length of the request's body; ``tokens`` overrides the
    estimate that is made of it. ``trace``: the client's ``traceparent``."""

    id: LeaseId
    route: Label
    bytes: Annotated[int, Meta(ge=0, le=MAX_BYTES)] = 0
    scene: Label = ""
    tokens: Tokens | None = None
    trace: TraceParent | None = None


class AcquireOp(Wanted, tag="acquire", tag_field="op", kw_only=True):
    """Take room for a stream."""


class RerouteOp(Struct, tag="reroute", tag_field="op"):
    """The backend that was granted cannot be reached, and has been sent nothing."""

    id: LeaseId


class ReleaseOp(Struct, tag="release", tag_field="op"):
    """``delay_ms``: how long ago the gateway saw the end. ``phase``: of a client that left, how
    far its stream had come."""

    id: LeaseId
    verdict: Verdict
    witness: Witness = Witness.LUA
    grant: Grant | None = None
    delay_ms: Number = 0.0
    phase: Phase | None = None


class HeldLease(Struct):
    """A lease as its gateway knows it, to be adopted where the service does not."""

    id: LeaseId
    pool: Label
    backend: Label
    tokens: Tokens
    scene: Label = ""
    grant: Annotated[int, Meta(ge=1, le=LAST_GRANT)] | None = None


class SyncOp(Struct, tag="sync", tag_field="op"):
    """All leases that the session holds, of what was granted ``up_to`` the last grant that it
    has heard of. ``config``: the version of the configuration that the gateway runs."""

    ids: list[LeaseId | HeldLease]
    up_to: Annotated[int, Meta(ge=0, le=MAX_GRANT)] | None = None
    config: Version | None = None


Op = AcquireOp | RerouteOp | ReleaseOp | SyncOp


ProgressEntry = tuple[LeaseId, Count, Count | None, Count]
"""A stream's id, bytes, events (null: its answer is no event stream) and idle milliseconds."""


class Batch(Struct):
    """A body of ``POST /v1/admission``. ``dropped``: releases that found no place in the gateway
    since it was last answered; ``progress``: of some streams that it holds."""

    session: SessionId
    ops: list[Op]
    dropped: Count = 0
    progress: list[ProgressEntry] = []


class _LooseBatch(Struct):
    """The same with its operations unread, so that one that is nonsense spoils no other."""

    session: SessionId
    ops: list[msgspec.Raw]
    dropped: Count = 0
    progress: msgspec.Raw = msgspec.Raw(b"[]")


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


class SyncedResult(Struct, omit_defaults=True):
    """Ids of what a sync ended and adopted. ``limits``: those in force of the pools that
    gateways decide by themselves while they have no answer, as [streams, tokens, state]."""

    ended: list[str]
    adopted: list[str]
    limits: dict[str, dict[str, Limits]] = {}


Answer = OpError | GrantedResult | RefusedResult | EndedResult | ReleasedResult | SyncedResult


class BatchResult(Struct, omit_defaults=True):
    """An answer to ``POST /v1/admission``: a result an operation, in order. ``sync``: say all
    that you hold. ``cut``: end these streams."""

    results: list[Answer]
    sync: bool = False
    cut: Sequence[str] = ()


class BackendChange(Struct, forbid_unknown_fields=True):
    """A body of ``PATCH /v1/pools/{pool}/backends/{backend}``; what is absent stays,
    null goes back to what the file says."""

    max_streams: Annotated[int, Meta(ge=1, le=MAX_STREAMS)] | UnsetType | None = UNSET
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | UnsetType | None = UNSET
    state: BackendState | UnsetType | None = UNSET

    def members(self) -> set[str]:
        """Those that are there."""
        return {name for name in self.__struct_fields__ if getattr(self, name) is not UNSET}


class AgentReport(Struct):
    """``started``: seconds since 1970."""

    pid: Count
    started: Number


class TailerReport(Struct):
    """How far the access log has been read, and what was met on the way."""

    file: Label
    inode: Inode
    offset: Count
    lag_bytes: Count
    lag_seconds: Number
    lines: Count = 0
    released: Count = 0
    broken: Count = 0
    oversized: Count = 0
    gaps: Count = 0


class ProcessReport(Struct):
    """A process's private memory. ``role``: ``nginx``, ``admission``, ``agent`` or a master."""

    pid: Count
    role: Annotated[str, Meta(max_length=32)]
    uss_bytes: Count


class MemoryReport(Struct):
    """``source`` of limit and use: ``cgroup2``, ``cgroup1``, ``machine`` or ``configured``."""

    source: Annotated[str, Meta(max_length=32)]
    limit_bytes: Count
    used_bytes: Count
    state: MemoryState
    per_stream_bytes: Number | None = None
    leak_suspected: bool = False
    processes: Annotated[list[ProcessReport], Meta(max_length=1_024)] = []


class NodeReport(Struct):
    """A body of ``PUT /v1/nodes/{node}``."""

    agent: AgentReport
    tailer: TailerReport | None = None
    memory: MemoryReport | None = None

    @property
    def memory_state(self) -> MemoryState:
        """What the agent says of the node's memory; all is well where it says nothing."""
        return self.memory.state if self.memory else MemoryState.OK


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for a body that is not what it should be."""


class WireError(ValueError):
    """A body that cannot be read at all; the message is for its sender."""


_RELEASED = {outcome: ReleasedResult(outcome) for outcome in ReleaseOutcome}
_batch = msgspec.json.Decoder(Batch)

_loose_batch = msgspec.json.Decoder(_LooseBatch)
_op = msgspec.json.Decoder(Op)
_entries = msgspec.json.Decoder(list[msgspec.Raw])
_entry = msgspec.json.Decoder(ProgressEntry)
_lease_request = msgspec.json.Decoder(LeaseRequest)
_change = msgspec.json.Decoder(BackendChange)
_report = msgspec.json.Decoder(NodeReport)
_encoder = msgspec.json.Encoder()
encode = _encoder.encode


class Told(NamedTuple):
    """What a gateway worker has to say."""

    session: str
    ops: Sequence[Op | OpError]
    dropped: int
    progress: Sequence[Report]


def read_batch(body: bytes) -> Told:
    """What can be read of a batch; :class:`WireError` where not even its session can."""
    try:
        batch = _batch.decode(body)
        progress = [_to_report(entry) for entry in batch.progress]
        return Told(batch.session, batch.ops, batch.dropped, progress)
    except UNREADABLE:
        return _read_loosely(body)


def read_lease_request(body: bytes) -> LeaseRequest:
    """A single acquire, or :class:`WireError`."""
    try:
        return _lease_request.decode(body)
    except UNREADABLE as exc:
        raise WireError(_why(exc)) from exc


def is_lease_id(text: str) -> bool:
    """Whether a lease may have this id."""
    try:
        msgspec.convert(text, LeaseId)
    except msgspec.ValidationError:
        return False
    return True


def read_change(body: bytes) -> BackendChange:
    """A change of a backend, or :class:`WireError`."""
    try:
        change = _decode_change(body)
        json.loads(body, object_pairs_hook=_once_each)
    except (*UNREADABLE, ValueError) as exc:
        raise WireError(_why_no_change(body, exc)) from exc
    if not change.members():
        raise WireError("nothing is changed: send max_streams, max_tokens or state")
    return change


def _decode_change(body: bytes) -> BackendChange:
    try:
        return _change.decode(body)
    except msgspec.ValidationError:
        # JSON knows one kind of number, and a program that reckons in floats sends 20.0.
        with contextlib.suppress(*UNREADABLE, AttributeError):
            members = {
                name: int(value) if isinstance(value, float) and value.is_integer() else value
                for name, value in msgspec.json.decode(body).items()
            }
            return msgspec.convert(members, BackendChange)
        raise


_AS_CHANGE = 'send one, as {"max_streams": 20}'
_CHANGEABLE = {
    "max_streams": f"a whole number from 1 to {MAX_STREAMS}",
    "max_tokens": f"a whole number from 1 to {MAX_TOKENS}",
    "state": f"one of {', '.join(BackendState)}",
}


def _why_no_change(body: bytes, exc: Exception) -> str:
    """The first member that is none, with what it must be."""
    try:
        members = msgspec.json.decode(body)
    except UNREADABLE as unread:
        if isinstance(exc, msgspec.ValidationError):
            return _why(exc)  # JSON, with a number that is too large for any
        return f"the body is no JSON ({_why(unread)}): {_AS_CHANGE}"
    if not isinstance(members, dict):
        return f"the body must be an object: {_AS_CHANGE}"
    for name, value in members.items():
        if name not in _CHANGEABLE:
            return f"no member {name[:64]!r}; there are: {', '.join(_CHANGEABLE)}"
        try:
            _decode_change(encode({name: value}))
        except UNREADABLE:
            told = encode(value)[:64].decode(errors="replace")
            return f"{name}: {told} must be {_CHANGEABLE[name]}, or null for what the file says"
    return _why(exc)


def _once_each(pairs: list[tuple[str, object]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("a member stands twice: send it once")


def read_report(name: str, body: bytes) -> NodeReport:
    """An agent's report of a node of this name, or :class:`WireError`."""
    try:
        msgspec.convert(name, NodeName)
        return _report.decode(body)
    except (*UNREADABLE, msgspec.ValidationError) as exc:
        raise WireError(_why(exc)) from exc


def plain(report: NodeReport) -> dict[str, Any]:
    """The report as plain data, as it is shown."""
    return dict(msgspec.to_builtins(report))


def from_plain(report: Mapping[str, Any]) -> NodeReport:
    """The inverse of :func:`plain`."""
    return msgspec.convert(report, NodeReport)


def _read_loosely(body: bytes) -> Told:
    # Bytes that are not UTF-8 become a mark that no pattern or number admits.
    text = body.decode("utf-8", errors="replace")
    try:
        batch = _loose_batch.decode(text)
    except UNREADABLE as exc:
        told = f'{_why(exc)}; send {{"session": "node/pid/start", "ops": […]}}'
        raise WireError(told) from exc
    ops = [_read_op(raw) for raw in batch.ops]
    return Told(batch.session, ops, batch.dropped, _read_progress(batch.progress))


def _read_op(raw: msgspec.Raw) -> Op | OpError:
    try:
        return _op.decode(raw)
    except UNREADABLE as exc:
        return OpError(_why(exc))


def _read_progress(raw: msgspec.Raw) -> list[Report]:
    """The entries that make sense: nothing depends on the others."""
    reports = []
    try:
        for entry in _entries.decode(raw):
            with contextlib.suppress(*UNREADABLE):
                reports.append(_to_report(_entry.decode(entry)))
    except UNREADABLE:
        return []
    return reports


def _to_report(entry: ProgressEntry) -> Report:
    lease_id, passed, events, idle_ms = entry
    return Report(lease_id, passed, events, idle_ms / 1_000)


def _why(exc: Exception) -> str:
    return "nested too deep" if isinstance(exc, RecursionError) else str(exc)


def to_request(session: str, op: Op) -> Ask | Operation:
    """What the use cases are asked to do."""
    match op:
        case AcquireOp():
            return Ask(op.id, op.route, op.scene, op.bytes, op.tokens, op.trace)
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
                [Held(h.id, h.pool, h.backend, h.scene, h.tokens, h.grant) for h in held],
                op.up_to,
                op.config,
            )


def to_answer(result: Result | UnknownRoute, urls: dict[tuple[str, str], str]) -> Answer:
    """What a gateway is told. ``urls`` maps (pool, backend) to the backend's address."""
    match result:
        case Granted(lease, _, tight):
            return GrantedResult(
                id=lease.id,
                pool=lease.pool,
                backend=lease.backend,
                url=urls.get((lease.pool, lease.backend), ""),  # none for one that was retired
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
        case Synced(ended, adopted, limits):
            return SyncedResult(
                [lease.id for lease in ended], [lease.id for lease in adopted], limits
            )
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
