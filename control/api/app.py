"""The WSGI application: the data plane and the admin plane, each on listeners of its own."""

import hmac
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import falcon

from control.admission import Admission
from control.api.data_plane import DataPlane
from control.api.events import Events
from control.api.health import Health, Metrics
from control.api.history import History
from control.api.leases import Leases
from control.api.nodes import Nodes
from control.api.pools import Backends, Pools
from control.api.problems import problem, serialize
from control.api.sessions import Sessions
from control.metrics import ServiceMetrics
from control.subscribers import Subscribers

log = logging.getLogger("weir.api")

OPEN_PATHS = ("/healthz", "/readyz")

App = falcon.App[falcon.Request, falcon.Response]
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def create_app(
    admission: Admission,
    subscribers: Subscribers,
    urls: dict[tuple[str, str], str],
    tokens: Mapping[str, str],
) -> WsgiApp:
    """Both planes over one :class:`Admission`.

    ``urls`` maps (pool, backend) to an address. ``tokens`` maps a name to the bearer token that
    opens the admin plane; with none, the plane is open (and must listen on loopback only).
    """
    metrics = ServiceMetrics(admission)
    data = create_data_plane(admission, urls, metrics)
    admin = create_admin_plane(admission, subscribers, metrics, tokens)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # The worker says which of its listeners a request came by.
        plane = data if environ.get("weir.plane", "admin") == "data" else admin
        return plane(environ, start_response)

    return app


def create_data_plane(
    admission: Admission, urls: dict[tuple[str, str], str], metrics: ServiceMetrics
) -> App:
    """``/v1/admission`` and ``/v1/leases`` for gateways; sessions and nodes for agents."""
    app = _app([])
    plane = DataPlane(
        admission, urls, metrics.decision_seconds.observe, metrics.abort_seconds.observe
    )
    app.add_route("/v1/admission", plane, suffix="batch")
    app.add_route("/v1/leases", LeaseCollection(plane, Leases(admission)))
    app.add_route("/v1/leases/{lease_id}", LeaseItem(plane, Leases(admission)))
    app.add_route("/v1/nodes/{name}", Nodes(admission), suffix="report")
    _add_sessions(app, admission)
    _add_health(app, admission)
    return app


def create_admin_plane(
    admission: Admission,
    subscribers: Subscribers,
    metrics: ServiceMetrics,
    tokens: Mapping[str, str],
) -> App:
    """Pools, leases, sessions, nodes, health and metrics for people."""
    app = _app([BearerTokens(tokens)] if tokens else [])
    app.add_route("/v1/pools", Pools(admission))
    app.add_route("/v1/pools/{name}", Pools(admission), suffix="one")
    app.add_route("/v1/pools/{name}/backends/{backend}", Backends(admission))
    app.add_route("/v1/leases", Leases(admission))
    app.add_route("/v1/leases/{lease_id}", Leases(admission), suffix="one")
    app.add_route("/v1/nodes", Nodes(admission))
    app.add_route("/v1/nodes/{name}", Nodes(admission), suffix="one")
    _add_sessions(app, admission)
    app.add_route("/v1/events", Events(admission, subscribers))
    app.add_route("/v1/history", History(admission))
    app.add_route("/metrics", Metrics(metrics.registry))
    _add_health(app, admission)
    return app


class LeaseCollection:
    """``/v1/leases`` of the data plane."""

    def __init__(self, plane: DataPlane, leases: Leases) -> None:
        self.on_post = plane.on_post_lease
        self.on_get = leases.on_get


class LeaseItem:
    """``/v1/leases/{id}`` of the data plane."""

    def __init__(self, plane: DataPlane, leases: Leases) -> None:
        self.on_get = leases.on_get_one
        self.on_delete = plane.on_delete_lease


class BearerTokens:
    """Middleware: the admin plane opens to a known token, compared in constant time."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = {name: token.encode() for name, token in tokens.items()}

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        if req.path in OPEN_PATHS:
            return
        given = (req.get_header("Authorization") or "").encode("latin-1", "replace")
        # All are compared, so that the time taken tells nothing.
        matches = [
            hmac.compare_digest(given, b"Bearer " + token) for token in self._tokens.values()
        ]
        if not any(matches):
            raise problem(
                falcon.HTTP_401,
                "unauthorized",
                "send Authorization: Bearer with one of the tokens under admin.tokens",
                {"WWW-Authenticate": "Bearer"},
            )


def _app(middleware: list[BearerTokens]) -> App:
    app: App = falcon.App(middleware=middleware)
    app.set_error_serializer(serialize)
    app.add_error_handler(Exception, _unexpected)
    return app


def _add_sessions(app: App, admission: Admission) -> None:
    sessions = Sessions(admission)
    app.add_route("/v1/sessions", sessions)
    app.add_route("/v1/sessions/{session:path}", sessions, suffix="one")


def _add_health(app: App, admission: Admission) -> None:
    health = Health(admission)
    app.add_route("/healthz", health, suffix="live")
    app.add_route("/readyz", health, suffix="ready")


def _unexpected(
    req: falcon.Request, resp: falcon.Response, exc: Exception, params: Mapping[str, object]
) -> None:
    # The type and the place, never the message: it may quote a request.
    place = "".join(traceback.format_tb(exc.__traceback__))
    log.error("request_failed method=%s error=%s\n%s", req.method, type(exc).__name__, place)
    raise problem(falcon.HTTP_500, "internal", "a defect of Weir; the service's log names it")
