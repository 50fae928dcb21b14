"""The WSGI application: the data plane and the admin plane, each on listeners of its own."""

import logging
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import falcon

from control.admission import Admission
from control.api.admin_routes import Parts, admin_routes
from control.api.data_plane import DataPlane
from control.api.gate import Gate
from control.api.health import Health
from control.api.leases import Leases
from control.api.node_gate import NodeGate
from control.api.nodes import Nodes
from control.api.problems import problem, serialize
from control.api.routes import add_routes
from control.api.sessions import Sessions
from control.api.tokens import BearerTokens
from control.api.ui import ui_routes
from control.audit import AuditLog
from control.chronicle.subscribers import Subscribers
from control.config import Loaded
from control.metrics import ServiceMetrics

log = logging.getLogger("weir.api")

App = falcon.App[falcon.Request, falcon.Response]
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def create_app(
    admission: Admission,
    subscribers: Subscribers,
    urls: dict[tuple[str, str], str],
    loaded: Loaded,
    audit: AuditLog,
) -> WsgiApp:
    """Both planes over one :class:`Admission`.

    ``urls`` maps (pool, backend) to an address. The tokens in ``loaded`` open the admin plane,
    and the data plane for nodes elsewhere; with none, a plane is open (and must listen on loopback
    only, or know its clients by their certificates).
    """
    metrics = ServiceMetrics(admission)
    metrics.show_admin(loaded, audit, subscribers)
    node_tokens = BearerTokens("admission.tokens", loaded.node_tokens, admission.clock)
    local = create_data_plane(admission, urls, metrics)
    remote = create_data_plane(admission, urls, metrics, NodeGate(node_tokens))
    admin = create_admin_plane(Parts(admission, subscribers, metrics, loaded, audit))

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # The worker says which of its listeners a request came by.
        if environ["weir.plane"] == "admin":
            return admin(environ, start_response)
        return (local if environ["weir.local"] else remote)(environ, start_response)

    return app


def create_data_plane(
    admission: Admission,
    urls: dict[tuple[str, str], str],
    metrics: ServiceMetrics,
    *gates: NodeGate,
) -> App:
    """``/v1/admission`` and ``/v1/leases`` for gateways; sessions and nodes for agents."""
    app = _app(gates)
    plane = DataPlane(
        admission, urls, metrics.decision_seconds.observe, metrics.abort_seconds.observe
    )
    app.add_route("/v1/admission", plane, suffix="batch")
    app.add_route("/v1/leases", LeaseCollection(plane, Leases(admission)))
    app.add_route("/v1/leases/{lease_id}", LeaseItem(plane, Leases(admission)))
    app.add_route("/v1/nodes/{node}", Nodes(admission), suffix="report")
    _add_sessions(app, admission)
    _add_health(app, admission)
    return app


def create_admin_plane(parts: Parts) -> App:
    """All that is in the table of routes, and the dashboard, behind one gate."""
    routes = (*admin_routes(parts), *ui_routes())
    gate = Gate(routes, parts.loaded.tokens, parts.audit, parts.admission.clock)
    app = _app([gate])
    add_routes(app, routes)
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


def _app(middleware: Sequence[Gate | NodeGate]) -> App:
    app: App = falcon.App(middleware=list(middleware))
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
