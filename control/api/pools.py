"""``/v1/pools``: pools, their backends, and live changes of their limits."""

import hashlib
import logging
import re
from typing import TypeVar

import falcon
from msgspec import UnsetType, to_builtins

from control.admission import Admission
from control.api import shapes, wire
from control.api.body import read_json
from control.api.caller import about_to_change, caller, require_for_fields
from control.api.problems import problem
from control.core.pool import Backend, BackendState, Limits, Pool, in_use
from control.stores import StoreError

_ETAG = '(?:W/)?"[!#-~]*"'
IF_MATCH = rf"^(?:\*|{_ETAG}(?: *, *{_ETAG})*)$"

T = TypeVar("T", int, BackendState)

log = logging.getLogger("weir.admin")


class Pools:
    """``/v1/pools`` and ``/v1/pools/{pool}``"""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        now = self._admission.clock()
        pools = [_pool(pool, now) for pool in self._admission.pools()]
        resp.data = wire.encode(shapes.Pools(pools))

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, pool: str) -> None:
        found = _find_pool(self._admission, pool)
        resp.data = wire.encode(_pool(found, self._admission.clock()))


class Backends:
    """``/v1/pools/{pool}/backends/{backend}``. The ETag is that of its settings and not of its
    use, so that a change can say which settings it was made for."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response, pool: str, backend: str) -> None:
        self._show(resp, pool, _find_backend(self._admission, pool, backend))

    def on_patch(self, req: falcon.Request, resp: falcon.Response, pool: str, backend: str) -> None:
        """Change limits or state: at once, and over restarts. Streams that run are not touched."""
        try:
            change = wire.read_change(read_json(req))
        except wire.WireError as exc:
            raise problem(falcon.HTTP_400, "invalid_change", str(exc)) from exc
        require_for_fields(req, change.members())
        changed = _find_backend(self._admission, pool, backend)
        if not changed.url:  # nginx would be sent nowhere
            raise problem(
                falcon.HTTP_404,
                "backend_not_found",
                f"{backend} is no longer in the file, and goes with its last stream: add it there",
            )
        self._check_if_match(req, pool, changed)
        before = changed.limits
        after = _changed(change, changed)
        about_to_change(req, before._asdict(), after._asdict())
        try:
            self._admission.adjust(changed, after, caller(req).name)
        except StoreError as exc:
            raise problem(
                falcon.HTTP_503, "journal", f"nothing was changed: {exc}; make room, or mend it"
            ) from exc
        log.info(
            "limits_changed pool=%s backend=%s before=%d/%d/%s after=%d/%d/%s",
            pool, backend, *before, *after,
        )  # fmt: skip
        self._show(resp, pool, changed)

    def _show(self, resp: falcon.Response, pool: str, backend: Backend) -> None:
        resp.set_header("ETag", etag(pool, backend))
        resp.data = wire.encode(_backend(backend, self._admission.clock()))

    def _check_if_match(self, req: falcon.Request, pool: str, backend: Backend) -> None:
        asked = req.get_header("If-Match")
        if asked is None:
            return
        if not re.fullmatch(IF_MATCH, asked):
            raise problem(
                falcon.HTTP_400,
                "invalid_if_match",
                'If-Match: send * or an ETag, like "1a2b"',
            )
        current = etag(pool, backend)
        if asked != "*" and current not in re.findall(_ETAG, asked):
            raise problem(
                falcon.HTTP_412,
                "precondition_failed",
                "the settings have been changed since: look at what they are now, and ask again",
                {"ETag": current},
                current=to_builtins(_backend(backend, self._admission.clock())),
            )


def _changed(change: wire.BackendChange, backend: Backend) -> Limits:
    """The limits after a change: what is absent stays, null goes back to the file's."""
    now, file = backend.limits, backend.configured
    return Limits(
        _after(change.max_streams, now.max_streams, file.max_streams),
        _after(change.max_tokens, now.max_tokens, file.max_tokens),
        _after(change.state, now.state, file.state),
    )


def _after(asked: T | UnsetType | None, now: T, file: T) -> T:
    if isinstance(asked, UnsetType):
        return now
    return file if asked is None else asked


def etag(pool: str, backend: Backend) -> str:
    """Changes with a backend's settings, and with what the file says of them."""
    told = repr((pool, backend.name, *backend.limits, *backend.configured))
    return f'"{hashlib.sha256(told.encode()).hexdigest()[:16]}"'


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


def _pool(pool: Pool, now: float) -> shapes.Pool:
    streams, tokens = in_use(pool.backends.values())
    backends = [_backend(backend, now) for backend in pool.backends.values()]
    return shapes.Pool(pool.name, 0, streams, tokens, backends)


def _backend(backend: Backend, now: float) -> shapes.Backend:
    changed = backend.limits != backend.configured
    return shapes.Backend(
        name=backend.name,
        url=backend.url,
        state=backend.state,
        max_streams=backend.max_streams,
        max_tokens=backend.max_tokens,
        streams=backend.streams,
        tokens=backend.tokens,
        draining=backend.draining,
        configured=shapes.Settings(*backend.configured) if changed else None,
        unreachable=backend.is_passed_over(now),
    )
