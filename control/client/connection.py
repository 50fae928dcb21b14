"""One service over HTTP: a Unix socket, or TCP with a token and TLS."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import requests
import urllib3.exceptions

from control.client.unix_socket import UnixAdapter

UNIX = "unix:"
MAX_TOLD = 300
"""Characters of an answer that an error quotes."""
READ_BYTES = 1 << 16


class ServiceError(Exception):
    """The service could not be reached, or did not do what it was asked; the message says what
    it was and why. ``status`` is the answer's, None where there was none; ``code`` and ``detail``
    are those of its problem details, empty where it had none."""

    def __init__(
        self, message: str, status: int | None = None, code: str = "", detail: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.detail = detail


class Connection:
    """One service, at ``unix:/path/to.sock``, ``http://host:port`` or ``https://host:port``.

    ``timeout_s`` bounds connecting, and each wait for bytes of an answer. ``ca`` is a PEM file
    that vouches for the service instead of the system's authorities; ``certificate`` and ``key``
    are this client's own. Every method of the clients either returns what the service said or
    raises :class:`ServiceError`; after it, nothing is known of what the service did, and asking
    once more is always harmless.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        timeout_s: float = 1.0,
        *,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._session = requests.Session()
        # The service is never behind the proxy that the environment may name.
        self._session.trust_env = False
        if address.startswith(UNIX):
            self._base = "http://weir"
            self._session.mount(self._base, UnixAdapter(address.removeprefix(UNIX)))
        else:
            self._base = address.rstrip("/")
        if ca:
            self._session.verify = str(ca)
        if certificate:
            self._session.cert = (str(certificate), str(key)) if key else str(certificate)
        if token and not _is_token(token):
            # No header can carry it; and what refuses the header would quote it.
            raise ServiceError("the token has characters that none has: only printable ASCII")
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _object(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str | None] | None = None,
    ) -> dict[str, Any]:
        """The answer, an object."""
        return self._object_of(self._call(method, path + query_text(query or {}), body))

    def _object_of(self, response: requests.Response) -> dict[str, Any]:
        answer = self._json(response)
        if not isinstance(answer, dict):
            asked = f"{response.request.method} {urlsplit(response.url).path}"
            raise ServiceError(f"{asked} at {self.address}: not an object")
        return answer

    def _list(
        self,
        method: str,
        path: str,
        key: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str | None] | None = None,
    ) -> list[dict[str, Any]]:
        """The objects under ``key`` of the answer."""
        answer = self._json(self._call(method, path + query_text(query or {}), body))
        entries = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise ServiceError(f"{method} {path} at {self.address}: no {key} in the answer")
        return entries

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        if {".", ".."} & set(path.partition("?")[0].split("/")):
            # On its way it would become another path.
            why = "nothing is named . or .."
            raise ServiceError(f"{method} {path}: {why}", 404, "not_found", why)
        send = partial(
            self._session.request, method, self._base + path, json=body, headers=headers,
            timeout=self._timeout_s, allow_redirects=False,
        )  # fmt: skip
        with self._errors(method, path):
            try:
                response = send()
            except requests.Timeout:
                raise
            except requests.ConnectionError:
                # A kept connection may be closed just now, as by a service that hands over.
                response = send()
        self._raise_refusal(method, path, response)
        return response

    def _stream(
        self, path: str, headers: Mapping[str, str], silence_s: float
    ) -> Generator[bytes, None, None]:
        """The bytes of an answer without end, as they come; ``silence_s`` bounds the wait for
        the next ones. Its connection closes with the generator."""
        with self._errors("GET", path), closing(
            self._session.get(
                self._base + path, headers=headers, stream=True, allow_redirects=False,
                timeout=(self._timeout_s, silence_s),
            )
        ) as response:  # fmt: skip
            self._raise_refusal("GET", path, response)
            while chunk := response.raw.read1(READ_BYTES):
                yield chunk

    @contextmanager
    def _errors(self, method: str, path: str) -> Iterator[None]:
        try:
            yield
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as exc:
            raise ServiceError(f"{method} {path} at {self.address}: {_cause(exc)}") from exc

    def _raise_refusal(self, method: str, path: str, response: requests.Response) -> None:
        if response.status_code // 100 != 2:
            code, detail = _problem(response)
            told = f"{response.status_code} {detail}".strip()
            message = f"{method} {path} at {self.address}: {told}"
            raise ServiceError(message, response.status_code, code, detail)

    def _json(self, response: requests.Response) -> Any:
        try:
            return response.json()
        except (ValueError, RecursionError) as exc:
            raise ServiceError(f"{self.address} answered what is not JSON") from exc


def query_text(query: Mapping[str, str | None]) -> str:
    """``?name=value…`` of what is given."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _cause(exc: BaseException) -> str:
    """What lies at the bottom of it: requests' own words name an address that is none."""
    seen: BaseException = exc
    while inner := seen.__cause__ or seen.__context__:
        seen = inner
    return str(seen) or type(seen).__name__


def _problem(response: requests.Response) -> tuple[str, str]:
    """The code of the service's refusal, and what it said of it (RFC 9457)."""
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(answer, dict):
        return "", ""
    detail = answer.get("detail") or answer.get("title")
    return str(answer.get("code") or "")[:MAX_TOLD], str(detail or "")[:MAX_TOLD]
