"""The table of the admin plane's routes: the one place that says who may do what."""

from collections.abc import Mapping
from dataclasses import dataclass

from control.admission import Admission
from control.api import shapes
from control.api.about import (
    AUDIT_CURSOR,
    DEFAULT_ENTRIES,
    MAX_ENTRIES,
    Audit,
    Configuration,
    Whoami,
)
from control.api.events import Events
from control.api.health import Health, Metrics
from control.api.history import History
from control.api.lease_page import CURSOR as LEASE_CURSOR
from control.api.leases import DEFAULT_PAGE, LIVE, MAX_IDS, MAX_PAGE, SORTS, Leases
from control.api.nodes import Nodes
from control.api.openapi import OpenApi
from control.api.pools import IF_MATCH, Backends, Pools
from control.api.routes import Operation, Param, Reply, Role, Route
from control.api.sessions import Sessions
from control.api.wire import BackendChange
from control.audit import AuditLog
from control.chronicle.events import KINDS
from control.chronicle.history import SLOTS
from control.chronicle.subscribers import Subscribers
from control.config import Loaded
from control.metrics import ServiceMetrics

ETAG = {"ETag": "Changes with the backend's settings, and not with its use"}
PRECONDITION = Param(
    "If-Match",
    "Change only where these are still the settings: ETags, or *",
    {"type": "string", "pattern": IF_MATCH},
    example="*",
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes are served from."""

    admission: Admission
    subscribers: Subscribers
    metrics: ServiceMetrics
    loaded: Loaded
    audit: AuditLog


def admin_routes(parts: Parts) -> tuple[Route, ...]:
    """Every route of the admin plane."""
    admission = parts.admission
    document = OpenApi()
    routes = (
        *_pools(admission),
        *_leases(admission),
        *_sessions_and_nodes(admission),
        *_what_happens(parts),
        *_about(parts),
        Route(
            "/openapi.json",
            document,
            {"GET": Operation(Role.READ, "This document", {200: Reply("OpenAPI 3.1")})},
        ),
        *_health(parts),
    )
    document.describe(routes)
    return routes


def _pools(admission: Admission) -> tuple[Route, ...]:
    missing = ("pool_not_found", "backend_not_found")
    return (
        Route("/v1/pools", Pools(admission), {"GET": _get("All pools", shapes.Pools)}),
        Route(
            "/v1/pools/{pool}",
            Pools(admission),
            {"GET": _get("One pool", shapes.Pool, missing[:1])},
            suffix="one",
        ),
        Route(
            "/v1/pools/{pool}/backends/{backend}",
            Backends(admission),
            {
                "GET": Operation(
                    Role.READ, "One backend", {200: _json(shapes.Backend, ETAG)}, missing
                ),
                "PATCH": Operation(
                    Role.OPERATE,
                    "Change a backend's limits or state, at once and over restarts. What is "
                    "absent stays, null goes back to what the file says; what runs is not cut",
                    {200: _json(shapes.Backend, ETAG)},
                    (
                        *missing, "invalid_change", "invalid_if_match",
                        "precondition_failed", "body_too_large", "unsupported_media_type",
                        "audit_failed", "journal",
                    ),
                    headers=(PRECONDITION,),
                    body=BackendChange,
                    example={"max_streams": 10, "state": "active"},
                    field_roles={"max_streams": Role.ADMIN, "max_tokens": Role.ADMIN},
                    action="change_backend",
                ),
            },
        ),
    )  # fmt: skip


def _leases(admission: Admission) -> tuple[Route, ...]:
    filters = tuple(
        Param(name, f"Only those of this {name}")
        for name in ("pool", "backend", "tenant", "session", "scene")
    )
    return (
        Route(
            "/v1/leases",
            Leases(admission),
            {
                "GET": _get(
                    "Live leases, oldest first",
                    shapes.Leases,
                    ("invalid_parameter",),
                    (
                        Param("ids", f"Only those of these, by comma, at most {MAX_IDS}"),
                        *filters,
                        Param("state", "Only those in this state", _words(*LIVE)),
                        Param("sort", "-age: oldest first; age: youngest first", _words(*SORTS)),
                        _limit(DEFAULT_PAGE, MAX_PAGE),
                        _cursor(LEASE_CURSOR),
                    ),
                )
            },
        ),
        Route(
            "/v1/leases/{lease_id}",
            Leases(admission),
            {
                "GET": _get("One live lease", shapes.Lease, ("lease_not_found",)),
                "DELETE": Operation(
                    Role.OPERATE,
                    "End a lease, as killed. Its stream goes on, or ends too with cut=true",
                    {
                        200: _json(shapes.Released),
                        202: Reply("Its gateway is told to end the stream", shapes.Released),
                    },
                    ("lease_not_found", "invalid_parameter", "audit_failed"),
                    (
                        Param(
                            "cut", "End the stream, and the lease with it", _words("true", "false")
                        ),
                    ),
                    action="end_lease",
                ),
            },
            suffix="one",
        ),
    )


def _sessions_and_nodes(admission: Admission) -> tuple[Route, ...]:
    return (
        Route(
            "/v1/sessions",
            Sessions(admission),
            {
                "GET": _get(
                    "nginx workers that have been heard",
                    shapes.Sessions,
                    query=(Param("node", "Only those of this node"),),
                )
            },
        ),
        Route(
            "/v1/sessions/{session:path}",
            Sessions(admission),
            {
                "DELETE": Operation(
                    Role.OPERATE,
                    "End all that a worker holds, as lost; one that lives has it back in a moment",
                    {200: _json(shapes.EndedSession)},
                    ("session_not_found", "audit_failed"),
                    action="end_session",
                )
            },
            suffix="one",
        ),
        Route("/v1/nodes", Nodes(admission), {"GET": _get("All nodes", shapes.Nodes)}),
        Route(
            "/v1/nodes/{node}",
            Nodes(admission),
            {"GET": _get("One node", shapes.Node, ("node_not_found",))},
            suffix="one",
        ),
    )


def _what_happens(parts: Parts) -> tuple[Route, ...]:
    kinds = "|".join(KINDS)
    return (
        Route(
            "/v1/events",
            Events(parts.admission, parts.subscribers),
            {
                "GET": Operation(
                    Role.READ,
                    "What happens, as it happens",
                    {200: Reply("An event stream without end", media="text/event-stream")},
                    ("invalid_parameter", "too_many_subscribers"),
                    (
                        Param("kinds", "Only these, by comma", _text(f"^({kinds})(,({kinds}))*$")),
                        Param("pool", "Only what concerns this pool"),
                        Param(
                            "thin",
                            "Where many come at once, without leases that began and ended in it",
                            _words("true", "false"),
                        ),
                        Param("last_event_id", "Go on after this event, as Last-Event-ID"),
                    ),
                    headers=(Param("Last-Event-ID", "Go on after this event"),),
                )
            },
        ),
        Route(
            "/v1/history",
            History(parts.admission),
            {
                "GET": _get(
                    "The last hour by the minute",
                    shapes.History,
                    ("invalid_parameter",),
                    (Param("minutes", "Whole minutes at most", _whole(SLOTS, SLOTS)),),
                )
            },
        ),
    )


def _about(parts: Parts) -> tuple[Route, ...]:
    return (
        Route(
            "/v1/config",
            Configuration(parts.admission, parts.loaded),
            {"GET": _get("The configuration in force", shapes.Configuration)},
        ),
        Route(
            "/v1/audit",
            Audit(parts.audit),
            {
                "GET": Operation(
                    Role.ADMIN,
                    "Who changed what, newest first",
                    {200: _json(shapes.Audit)},
                    ("invalid_parameter", "page_not_found", "audit_failed"),
                    (_limit(DEFAULT_ENTRIES, MAX_ENTRIES), _cursor(AUDIT_CURSOR)),
                )
            },
        ),
        Route("/v1/whoami", Whoami(), {"GET": _get("Who asks", shapes.Whoami)}),
    )


def _health(parts: Parts) -> tuple[Route, ...]:
    health = Health(parts.admission)
    return (
        Route(
            "/metrics",
            Metrics(parts.metrics.registry),
            {
                "GET": Operation(
                    Role.READ, "Metrics", {200: Reply("Prometheus text", media="text/plain")}
                )
            },
        ),
        Route(
            "/healthz",
            health,
            {"GET": Operation(None, "The process lives", {200: _json(shapes.Health)})},
            suffix="live",
        ),
        Route(
            "/readyz",
            health,
            {
                "GET": Operation(
                    None, "It would decide", {200: _json(shapes.Health)}, ("drift", "journal")
                )
            },
            suffix="ready",
        ),
    )


def _get(
    about: str,
    shape: type,
    refusals: tuple[str, ...] = (),
    query: tuple[Param, ...] = (),
) -> Operation:
    return Operation(Role.READ, about, {200: _json(shape)}, refusals, query)


def _json(shape: type, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply((shape.__doc__ or "").split(". ")[0].rstrip("."), shape, headers=headers or {})


def _words(*known: str) -> dict[str, object]:
    return {"type": "string", "enum": list(known)}


def _text(pattern: str) -> dict[str, object]:
    return {"type": "string", "pattern": pattern}


def _cursor(pattern: str) -> Param:
    return Param("cursor", "The next of the page before", _text(pattern))


def _limit(default: int, at_most: int) -> Param:
    return Param("limit", "At most so many", _whole(default, at_most))


def _whole(default: int, at_most: int) -> dict[str, object]:
    return {"type": "integer", "minimum": 1, "maximum": at_most, "default": default}
