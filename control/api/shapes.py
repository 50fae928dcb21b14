"""What the admin plane answers, as it is written in JSON and in the OpenAPI document."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from control.api.wire import AgentReport, MemoryReport, TailerReport
from control.audit import Entry
from control.core.decision import ReleaseOutcome
from control.core.lease import LeaseState
from control.core.pool import BackendState
from control.core.verdict import Verdict, Witness

Whole = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Cursor = Annotated[str, Meta(description="The cursor of the next page; null: this is the last")]


class Settings(Struct):
    """A backend's limits, and whether it is open."""

    max_streams: Whole
    max_tokens: Whole
    state: BackendState


class Backend(Struct, omit_defaults=True):
    """One engine. streams and tokens count what is active or draining. configured: what the file
    says, where limits were changed live. unreachable: true, and there, for pass_over after a
    connection failed."""

    name: str
    url: str
    state: BackendState
    max_streams: Whole
    max_tokens: Whole
    streams: Whole
    tokens: Whole
    draining: Whole
    configured: Settings | None = None
    unreachable: bool = False


class Pool(Struct):
    """Interchangeable backends, and what is in use of all."""

    name: str
    waiting: Whole
    streams: Whole
    tokens: Whole
    backends: list[Backend]


class Pools(Struct):
    """All pools, as configured."""

    pools: list[Pool]


class Progress(Struct):
    """How far a stream has come, as its gateway said reported_s ago. events: null where its
    answer is no event stream. idle_s: since its last event then."""

    bytes: Whole
    events: Whole | None
    idle_s: float
    phase: str
    reported_s: float


class Lease(Struct):
    """One stream's room. granted_at: seconds since 1970."""

    id: str
    pool: str
    backend: str
    tenant: str
    scene: str
    tokens: Whole
    session: str
    state: LeaseState
    verdict: Verdict | None
    witness: Witness | None
    granted_at: float
    age_s: float
    progress: Progress | None


class Leases(Struct):
    """A page of live leases."""

    leases: list[Lease]
    next: Cursor | None


class Released(Struct):
    """What a release or a cut did."""

    outcome: ReleaseOutcome


class Session(Struct):
    """An nginx worker, how long it has not been heard, and the version of the configuration that
    it runs (null before it has said so, within a second)."""

    id: str
    leases: Whole
    silent_s: float
    config: str | None


class Sessions(Struct):
    """nginx workers that have been heard."""

    sessions: list[Session]


class EndedSession(Struct):
    """Ids of the leases that ended with it."""

    ended: list[str]


class Node(Struct):
    """A node, and its agent's last report. sessions: without the agent's own, by which it tells of
    ends. silent: not heard for 5 s."""

    name: str
    sessions: Whole
    streams: Whole
    silent: bool
    silent_s: float | None
    agent: AgentReport | None
    tailer: TailerReport | None
    memory: MemoryReport | None


class Nodes(Struct):
    """Nodes that have been heard, by name."""

    nodes: list[Node]


class Difference(Struct):
    """A setting as the file has it, and as it is in force."""

    file: Whole | BackendState
    live: Whole | BackendState


class LiveChange(Struct, omit_defaults=True):
    """What was changed live of a backend; what is absent is as in the file."""

    pool: str
    backend: str
    max_streams: Difference | None = None
    max_tokens: Difference | None = None
    state: Difference | None = None


class Configuration(Struct):
    """The configuration in force. Times in seconds since 1970; durations in seconds, sizes in
    bytes. reload_error: what the file was refused for since, null where it was not. effective:
    every setting, with defaults, without secrets."""

    version: Annotated[str, Meta(pattern="^[0-9a-f]{12}$")]
    file: str
    loaded_at: float
    started_at: float
    reload_error: str | None
    effective: dict[str, Any]
    live: list[LiveChange]


class PoolUse(Struct):
    """The most of a pool that was in use at once within a minute, and its limits at the end."""

    streams_max: Whole
    tokens_max: Whole
    streams_limit: Whole
    tokens_limit: Whole


class Minute(Struct):
    """at: when it began. refused by reason, ended by verdict; what was none is absent."""

    at: float
    granted: Whole
    refused: dict[str, Whole]
    ended: dict[str, Whole]
    pools: dict[str, PoolUse]


class History(Struct):
    """The last minutes, oldest first; the last one goes on."""

    step_s: Whole
    since: float
    points: list[Minute]


class Audit(Struct):
    """A page of the audit log, newest first."""

    entries: list[Entry]
    next: Cursor | None


class Whoami(Struct):
    """Who asks. open: no tokens are configured, and anyone on this machine may do everything."""

    name: str
    role: Literal["read", "operate", "admin"]
    open: bool


class Health(Struct):
    """ok: the process lives. ready: it would decide."""

    status: Literal["ok", "ready"]


class ProblemDetails(Struct):
    """RFC 9457 problem details. Some codes have members of their own."""

    type: str
    title: str
    status: Annotated[int, Meta(ge=400, le=599)]
    code: Annotated[str, Meta(pattern="^[a-z_]+$")]
    detail: str
