"""A client of the admission service, for what runs beside it: the agent, scripts."""

import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

UNIX = "unix:"
MAX_TOLD = 300
"""Characters of an answer that an error quotes."""


class ServiceError(Exception):
    """The service could not be reached, or did not do what it was asked; the message says what
    it was and why. ``status`` is the answer's, None where there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ServiceClient:
    """One service, at ``unix:/path/to.sock`` or ``http://host:port``.

    ``timeout_s`` bounds connecting, and each wait for bytes of an answer. Every method either
    returns what the service said or raises :class:`ServiceError`; after it, nothing is known of
    what the service did, and asking once more is always harmless.
    """

    def __init__(self, address: str, token: str | None = None, timeout_s: float = 1.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._session = requests.Session()
        # The service is never behind the proxy that the environment may name.
        self._session.trust_env = False
        if address.startswith(UNIX):
            self._base = "http://weir"
            self._session.mount(self._base, _UnixAdapter(address.removeprefix(UNIX)))
        else:
            self._base = address.rstrip("/")
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def batch(self, session: str, ops: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Do at most 500 operations; their results, in order."""
        body = {"session": session, "ops": ops}
        results = self._list("POST", "/v1/admission", "results", body)
        if len(results) != len(ops):
            raise ServiceError(f"{self.address} gave {len(results)} results for {len(ops)} ops")
        return results

    def sessions(self, node: str) -> list[dict[str, Any]]:
        """The sessions of a node: ``{"id": "node/pid/start_ms", "leases", "silent_s"}``."""
        path = f"/v1/sessions?node={quote(node, safe='')}"
        return self._list("GET", path, "sessions")

    def end_session(self, session: str) -> None:
        """End a session and all its leases. One that is gone already is as well."""
        try:
            self._call("DELETE", f"/v1/sessions/{quote(session, safe='/')}")
        except ServiceError as exc:
            if exc.status != 404:
                raise

    def report_node(self, name: str, report: Mapping[str, Any]) -> dict[str, Any]:
        """Tell how a node is; ``{"streams": n}``, its live streams."""
        path = f"/v1/nodes/{quote(name, safe='')}"
        answer = self._json(self._call("PUT", path, report))
        if not isinstance(answer, dict):
            raise ServiceError(f"PUT {path} at {self.address}: not an object")
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _list(
        self, method: str, path: str, key: str, body: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """The objects under ``key`` of the answer."""
        answer = self._json(self._call(method, path, body))
        entries = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise ServiceError(f"{method} {path} at {self.address}: no {key} in the answer")
        return entries

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> requests.Response:
        try:
            response = self._send(method, path, body)
        except (requests.RequestException, OSError) as exc:
            raise ServiceError(f"{method} {path} at {self.address}: {_cause(exc)}") from exc
        if response.status_code // 100 != 2:
            told = f"{response.status_code} {_detail(response)}".strip()
            message = f"{method} {path} at {self.address}: {told}"
            raise ServiceError(message, response.status_code)
        return response

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> requests.Response:
        send = partial(
            self._session.request, method, self._base + path, json=body,
            timeout=self._timeout_s, allow_redirects=False,
        )  # fmt: skip
        try:
            return send()
        except requests.Timeout:
            raise
        except requests.ConnectionError:
            # A kept connection may be closed just now, as by a service that hands over.
            return send()

    def _json(self, response: requests.Response) -> Any:
        try:
            return response.json()
        except ValueError as exc:
            raise ServiceError(f"{self.address} answered what is not JSON") from exc


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("weir")
        self._path = path

    def _new_conn(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(str(self._path))
        except OSError:
            sock.close()
            raise
        return sock


class _UnixPool(HTTPConnectionPool):
    """The open connections to one Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("weir")
        self._path = path

    def _new_conn(self) -> _UnixConnection:
        return _UnixConnection(self._path)


class _UnixAdapter(HTTPAdapter):
    """What requests sends through."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._pool = _UnixPool(Path(path))

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> _UnixPool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()


def _cause(exc: BaseException) -> str:
    """What lies at the bottom of it: requests' own words name an address that is none."""
    seen: BaseException = exc
    while inner := seen.__cause__ or seen.__context__:
        seen = inner
    return str(seen) or type(seen).__name__


def _detail(response: requests.Response) -> str:
    """What the service said of its refusal (RFC 9457)."""
    try:
        answer = response.json()
    except ValueError:
        return ""
    detail = answer.get("detail") or answer.get("title") if isinstance(answer, dict) else None
    return str(detail or "")[:MAX_TOLD]
