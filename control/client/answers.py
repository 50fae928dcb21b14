"""What the admin plane answers, by name. ``docs/api.md`` says what each member means."""

from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict


class Limits(TypedDict):
    """A backend's settings."""

    max_streams: int
    max_tokens: int
    state: str


class Backend(Limits):
    """One engine, what is in use of it, what the file says where that differs, and whether it
    could not be connected to just now."""

    name: str
    url: str
    streams: int
    tokens: int
    draining: int
    configured: NotRequired[Limits]
    unreachable: NotRequired[bool]


class Pool(TypedDict):
    """A pool with its backends."""

    name: str
    waiting: int
    streams: int
    tokens: int
    backends: list[Backend]


class Progress(TypedDict):
    """How far a stream has come, as its nginx said ``reported_s`` ago. ``events`` is None where
    its answer is no event stream."""

    bytes: int
    events: int | None
    idle_s: float
    phase: str
    reported_s: float


class Lease(TypedDict):
    """One live lease."""

    id: str
    pool: str
    backend: str
    tenant: str | None
    scene: str
    tokens: int
    session: str
    state: str
    verdict: str | None
    witness: str | None
    granted_at: float
    age_s: float
    progress: NotRequired[Progress | None]


class Session(TypedDict):
    """An nginx worker: ``node/pid/start_ms``; ``config`` is the version that it runs."""

    id: str
    leases: int
    silent_s: float
    config: NotRequired[str | None]


class Node(TypedDict):
    """A node, and its agent's last report."""

    name: str
    sessions: int
    streams: int
    silent: bool
    silent_s: float | None
    agent: dict[str, Any] | None
    tailer: dict[str, Any] | None
    memory: dict[str, Any] | None


class Whoami(TypedDict):
    """Who this client is to the service; ``open``: it asks for no tokens."""

    name: str
    role: str
    open: bool


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Kinds ``gap`` and ``dropped`` tell of events that this client has not had."""

    kind: str
    id: int | None
    data: dict[str, Any]
