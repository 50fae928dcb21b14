"""``/v1/config``, ``/v1/audit`` and ``/v1/whoami``: what the service is, and who did what."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import falcon

from control.admission import Admission
from control.api import shapes, wire
from control.api.caller import caller
from control.api.params import integer, invalid
from control.api.problems import problem
from control.audit import AuditLog, Cursor, UnknownCursor
from control.config import Loaded
from control.core.pool import Backend, BackendState

DEFAULT_ENTRIES = 100
MAX_ENTRIES = 1_000
AUDIT_CURSOR = "^[0-9]{1,18}-[0-9]{1,18}$"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*\Z")
_USER_INFO = re.compile(r"://[^/\s@'\"]*@")


class Configuration:
    """``/v1/config``"""

    def __init__(self, admission: Admission, loaded: Loaded) -> None:
        self._admission = admission
        self._loaded = loaded
        self._version = loaded.config.version
        self._effective = without_secrets(loaded.config.model_dump(mode="json"))

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        loaded = self._loaded
        error = loaded.reload_error
        shown = shapes.Configuration(
            version=self._version,
            file=str(loaded.file.absolute()),
            loaded_at=round(loaded.loaded_at, 3),
            started_at=round(loaded.started_at, 3),
            reload_error=_USER_INFO.sub("://…@", error) if error else None,
            effective=self._effective,
            live=[
                _difference(pool.name, backend)
                for pool in self._admission.pools()
                for backend in pool.backends.values()
                if backend.limits != backend.configured
            ],
        )
        resp.data = wire.encode(shown)


class Audit:
    """``/v1/audit``"""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        limit = integer(req, "limit", DEFAULT_ENTRIES, at_least=1, at_most=MAX_ENTRIES)
        cursor = _cursor(req)
        try:
            entries, before = self._audit.newest(limit, cursor)
        except UnknownCursor as exc:
            raise problem(
                falcon.HTTP_404, "page_not_found", "the log has been rotated since: begin anew"
            ) from exc
        except OSError as exc:
            why = f"{self._audit.path} cannot be read: {exc.strerror}; mend it"
            raise problem(falcon.HTTP_503, "audit_failed", why) from exc
        following = f"{before.inode}-{before.start}" if before else None
        resp.data = wire.encode(shapes.Audit(entries, following))


def _cursor(req: falcon.Request) -> Cursor | None:
    asked = req.get_param("cursor")
    if asked is None:
        return None
    if not re.fullmatch(AUDIT_CURSOR, asked):
        raise invalid("cursor", asked, "the next of the page before")
    inode, _, start = asked.partition("-")
    return Cursor(int(inode), int(start))


class Whoami:
    """``/v1/whoami``"""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        who = caller(req)
        resp.data = wire.encode(shapes.Whoami(who.name, who.role.value, who.open))


def without_secrets(value: Any) -> Any:
    """Settings as they may be shown: of a URL that may hold a secret, only where it leads."""
    if isinstance(value, Mapping):
        return {key: without_secrets(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_secrets(each) for each in value]
    if not isinstance(value, str) or not _URL.match(value):
        return value
    try:
        parts = urlsplit(value)
    except ValueError:
        return "…"
    place = parts.netloc.rpartition("@")[2]
    hidden = "/…" if parts.path.strip("/") or parts.query or parts.username else ""
    return f"{parts.scheme}://{place}{hidden}"


def _difference(pool: str, backend: Backend) -> shapes.LiveChange:
    file, live = backend.configured, backend.limits
    return shapes.LiveChange(
        pool,
        backend.name,
        max_streams=_pair(file.max_streams, live.max_streams),
        max_tokens=_pair(file.max_tokens, live.max_tokens),
        state=_pair(file.state, live.state),
    )


def _pair(file: int | BackendState, live: int | BackendState) -> shapes.Difference | None:
    return shapes.Difference(file, live) if file != live else None
