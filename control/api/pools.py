"""``/v1/pools``: pools, their backends, and live changes of their limits."""

import logging

import falcon

from control.admission import Admission
from control.api import wire
from control.api.body import read_body
from control.api.problems import problem
from control.core.pool import Backend, Limits, Pool, in_use
from control.stores import StoreError

log = logging.getLogger("weir.admin")


class Pools:
    """``/v1/pools`` and ``/v1/pools/{pool}``"""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        pools = self._admission.pools()
        resp.data = wire.encode({"pools": [_pool(pool) for pool in pools]})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, name: str) -> None:
        resp.data = wire.encode(_pool(_find_pool(self._admission, name)))


class Backends:
    """``/v1/pools/{pool}/backends/{backend}``"""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response, name: str, backend: str) -> None:
        resp.data = wire.encode(_backend(_find_backend(self._admission, name, backend)))

    def on_patch(self, req: falcon.Request, resp: falcon.Response, name: str, backend: str) -> None:
        """Change limits or state: at once, and over restarts. Streams that run are not touched."""
        try:
            change = wire.read_change(read_body(req))
        except wire.WireError as exc:
            raise problem(falcon.HTTP_400, "invalid_change", str(exc)) from exc
        changed = _find_backend(self._admission, name, backend)
        before = changed.limits
        after = Limits(
            change.max_streams or before.max_streams,
            change.max_tokens or before.max_tokens,
            change.state or before.state,
        )
        try:
            self._admission.adjust(changed, after, "admin")
        except StoreError as exc:
            raise problem(
                falcon.HTTP_503, "journal", f"nothing was changed: {exc}; make room, or mend it"
            ) from exc
        log.info(
            "limits_changed pool=%s backend=%s before=%d/%d/%s after=%d/%d/%s",
            name, backend, *before, *after,
        )  # fmt: skip
        resp.data = wire.encode(_backend(changed))


def _find_pool(admission: Admission, name: str) -> Pool:
    pools = admission.pools()
    for pool in pools:
        if pool.name == name:
            return pool
    known = ", ".join(pool.name for pool in pools)
    raise problem(falcon.HTTP_404, "pool_not_found", f"no pool {name[:64]!r}; there are: {known}")


def _find_backend(admission: Admission, pool_name: str, name: str) -> Backend:
    backends = _find_pool(admission, pool_name).backends
    if name not in backends:
        known = ", ".join(backends)
        raise problem(
            falcon.HTTP_404, "backend_not_found", f"no backend {name[:64]!r}; there are: {known}"
        )
    return backends[name]


def _pool(pool: Pool) -> dict[str, object]:
    streams, tokens = in_use(pool.backends.values())
    return {
        "name": pool.name,
        "waiting": 0,
        "streams": streams,
        "tokens": tokens,
        "backends": [_backend(backend) for backend in pool.backends.values()],
    }


def _backend(backend: Backend) -> dict[str, object]:
    shown: dict[str, object] = {
        "name": backend.name,
        "url": backend.url,
        "state": backend.state,
        "max_streams": backend.max_streams,
        "max_tokens": backend.max_tokens,
        "streams": backend.streams,
        "tokens": backend.tokens,
        "draining": backend.draining,
    }
    if backend.limits != backend.configured:
        # Changed live: what the file says instead.
        shown["configured"] = backend.configured._asdict()
    return shown
