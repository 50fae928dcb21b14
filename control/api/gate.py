"""The gate of the admin plane: who asks, whether they may, and that a change is written down.

Everything here works by the table of routes; a method that is not in it is closed.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import falcon

from control.api.browsers import check_host, check_origin
from control.api.caller import Caller, caller, require
from control.api.problems import problem
from control.api.routes import Operation, Role, Route
from control.api.tokens import BearerTokens
from control.audit import AuditError, AuditLog, Entry
from control.config import Token

ANYONE = "anyone"
"""Who asks where no tokens are configured."""
SAFE_METHODS = ("GET", "HEAD")
MAX_TARGET = 300
"""Characters of a target that the audit log keeps."""

log = logging.getLogger("weir.admin")


class Gate:
    """Falcon middleware before every route of the table.

    With no tokens the plane is this machine's, and anyone on it is an admin; then a browser on
    it must not be led here by a name that is not its own (DNS rebinding).
    """

    def __init__(
        self,
        routes: Iterable[Route],
        tokens: Sequence[Token],
        audit: AuditLog,
        clock: Callable[[], float],
    ) -> None:
        self._routes = {route.path: route for route in routes}
        open_paths = [route.path for route in self._routes.values() if route.is_open]
        self._open_paths = {path for path in open_paths if "{" not in path}
        self._open_folders = tuple(path.partition("{")[0] for path in open_paths if "{" in path)
        self._tokens = BearerTokens("admin.tokens", tokens, clock)
        self._audit = audit

    # -- on the way in -------------------------------------------------------------------------

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Falcon's first hook, before the route is looked up: who asks."""
        if not self._tokens:
            check_host(req)
        if not self._is_open(req.path):
            req.context.caller = self._identify(req)

    def process_resource(
        self, req: falcon.Request, resp: falcon.Response, resource: object, params: dict[str, str]
    ) -> None:
        """Falcon's second hook, for a route that exists: whether the caller may do this."""
        route = self._routes[req.uri_template or ""]
        operation = route.operations.get(req.method)
        if operation is None:
            raise falcon.HTTPMethodNotAllowed(sorted(route.operations))
        req.context.operation = operation
        req.context.write_ahead = self._write_ahead
        req.context.target = "/".join(params.values())[:MAX_TARGET]
        if operation.role is None:
            return
        require(req, operation.role)
        if req.method not in SAFE_METHODS:
            check_origin(req)
        _check_query(req, operation)

    # -- on the way out ------------------------------------------------------------------------

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: object, succeeded: bool
    ) -> None:
        """Falcon's last hook: what was asked for and not done is written down too."""
        resp.set_header("X-Content-Type-Options", "nosniff")
        if not resp.get_header("Cache-Control"):
            resp.set_header("Cache-Control", "no-store")
        operation: Operation | None = getattr(req.context, "operation", None)
        if operation is None or operation.action is None:
            return
        code = getattr(req.context, "problem_code", None)
        if code is None and getattr(req.context, "is_written", False):
            return
        try:
            self._write(req, operation.action, code or "unchanged")
        except AuditError as exc:
            log.error("audit_failed error=%s", exc)

    # -- within --------------------------------------------------------------------------------

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or path.startswith(self._open_folders)

    def _write_ahead(self, req: falcon.Request, before: object, after: object) -> None:
        operation: Operation = req.context.operation
        assert operation.action is not None
        try:
            self._write(req, operation.action, "done", before, after)
        except AuditError as exc:
            raise problem(
                falcon.HTTP_503,
                "audit_failed",
                f"nothing was changed, for it cannot be written down: {exc}; mend it",
            ) from exc
        req.context.is_written = True

    def _write(
        self,
        req: falcon.Request,
        action: str,
        outcome: str,
        before: object = None,
        after: object = None,
    ) -> None:
        who = caller(req)
        at = round(self._audit.clock(), 3)
        target = req.context.target
        self._audit.write(Entry(at, who.name, who.address, action, target, before, after, outcome))

    def _identify(self, req: falcon.Request) -> Caller:
        address = req.remote_addr or ""
        if not self._tokens:
            return Caller(ANYONE, Role.ADMIN, address, open=True)
        token = self._tokens.owner(req)
        return Caller(token.name, Role(token.role), address)


def _check_query(req: falcon.Request, operation: Operation) -> None:
    known = [param.name for param in operation.query]
    for name, value in req.params.items():
        if name not in known:
            told = f"there are: {', '.join(known)}" if known else "there is none here"
            raise problem(
                falcon.HTTP_400, "unknown_parameter", f"no parameter {name[:64]!r}; {told}"
            )
        if not isinstance(value, str):
            raise problem(
                falcon.HTTP_400, "invalid_parameter", f"{name} stands more than once: keep one"
            )
