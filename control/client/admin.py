"""What people and their programs ask of the admin plane.

.. code:: python

    with AdminClient("http://127.0.0.1:8081", token) as weir:
        for lease in weir.leases(pool="qwen", sort="-age"):
            print(lease["id"], lease["age_s"])
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, cast
from urllib.parse import quote

from control.client.answers import Backend, Event, Lease, Node, Pool, Session, Whoami
from control.client.connection import Connection, ServiceError, query_text
from control.client.events import follow

PAGE = 500
"""Leases that are asked for at once where all are wanted."""
SILENCE_S = 25.0
"""An event stream has a comment every 10 s."""


class Keep(Enum):
    """A setting that a change does not touch."""

    KEEP = "keep"


KEEP = Keep.KEEP


class AdminClient(Connection):
    """The admin plane of one service. Errors are :class:`ServiceError`; what is not there has
    ``status`` 404 and a ``code`` like ``pool_not_found``."""

    def pools(self) -> list[Pool]:
        """All pools, as configured."""
        return cast(list[Pool], self._list("GET", "/v1/pools", "pools"))

    def pool(self, name: str) -> Pool:
        """One pool."""
        return cast(Pool, self._object("GET", f"/v1/pools/{_part(name)}"))

    def backend(self, pool: str, name: str) -> tuple[Backend, str | None]:
        """One backend, and the ETag of its settings: a change that names it is refused with
        status 412 where somebody else has changed them meanwhile."""
        response = self._call("GET", _backend(pool, name))
        return cast(Backend, self._object_of(response)), response.headers.get("ETag")

    def set_limits(
        self,
        pool: str,
        backend: str,
        *,
        max_streams: int | Keep | None = KEEP,
        max_tokens: int | Keep | None = KEEP,
        etag: str | None = None,
    ) -> Backend:
        """Change limits at once, and over restarts; None goes back to what the file says.
        Nothing that runs is cut."""
        asked = {"max_streams": max_streams, "max_tokens": max_tokens}
        change = {name: value for name, value in asked.items() if value is not KEEP}
        return self._change(pool, backend, change, etag)

    def set_state(
        self,
        pool: str,
        backend: str,
        state: Literal["active", "draining", "disabled"] | None,
        *,
        etag: str | None = None,
    ) -> Backend:
        """``active``, ``draining`` (streams finish, no new ones), ``disabled``, or None for what
        the file says."""
        return self._change(pool, backend, {"state": state}, etag)

    def leases(self, *, page: int = PAGE, **filters: str | None) -> Iterator[Lease]:
        """Live leases, oldest first, asked for page by page as they are taken. ``filters`` are
        ``pool``, ``backend``, ``tenant``, ``state``, ``session``, ``scene`` and ``sort``
        (``-age`` for oldest first, ``age`` for youngest first)."""
        cursor: str | None = None
        while True:
            leases, cursor = self.lease_page(limit=page, cursor=cursor, **filters)
            yield from leases
            if cursor is None:
                return

    def lease_page(
        self, *, limit: int = 100, cursor: str | None = None, **filters: str | None
    ) -> tuple[list[Lease], str | None]:
        """At most ``limit`` leases (1,000), and the cursor of those after them."""
        answer = self._object(
            "GET", "/v1/leases", query={"limit": str(limit), "cursor": cursor, **filters}
        )
        if not isinstance(answer.get("leases"), list):
            raise ServiceError(f"GET /v1/leases at {self.address}: no leases in the answer")
        return answer["leases"], answer.get("next")

    def lease(self, lease_id: str) -> Lease:
        """One live lease. Ended ones are not kept."""
        return cast(Lease, self._object("GET", f"/v1/leases/{_part(lease_id)}"))

    def end_lease(self, lease_id: str, *, cut: bool = False) -> str:
        """Force its release, and leave its stream; or with ``cut`` have nginx end the stream, and
        the lease with it. The outcome: ``cutting``, ``released`` or ``already_released``."""
        path = f"/v1/leases/{_part(lease_id)}"
        answer = self._object("DELETE", path, query={"cut": "true" if cut else None})
        return str(answer.get("outcome"))

    def sessions(self, node: str | None = None) -> list[Session]:
        """nginx's workers that have been heard, of all nodes or of one."""
        return cast(
            list[Session], self._list("GET", "/v1/sessions", "sessions", query={"node": node})
        )

    def end_session(self, session: str) -> list[str]:
        """End all that a worker holds, as lost; the leases' ids."""
        answer = self._object("DELETE", f"/v1/sessions/{quote(session, safe='/')}")
        return list(answer.get("ended") or [])

    def nodes(self) -> list[Node]:
        """All nodes that have been heard."""
        return cast(list[Node], self._list("GET", "/v1/nodes", "nodes"))

    def node(self, name: str) -> Node:
        """One node."""
        return cast(Node, self._object("GET", f"/v1/nodes/{_part(name)}"))

    def config(self) -> dict[str, Any]:
        """The configuration in force, its version, and where live limits differ from it."""
        return self._object("GET", "/v1/config")

    def audit(self, *, page: int = 100) -> Iterator[dict[str, Any]]:
        """Who changed what, newest first, asked for page by page as it is taken."""
        cursor: str | None = None
        while True:
            answer = self._object("GET", "/v1/audit", query={"limit": str(page), "cursor": cursor})
            yield from answer.get("entries") or []
            cursor = answer.get("next")
            if cursor is None:
                return

    def history(self, minutes: int = 60) -> dict[str, Any]:
        """Grants, refusals, ends and highest use, minute by minute."""
        return self._object("GET", "/v1/history", query={"minutes": str(minutes)})

    def whoami(self) -> Whoami:
        """The name and role of this client's token."""
        return cast(Whoami, self._object("GET", "/v1/whoami"))

    def events(
        self,
        *,
        kinds: Sequence[str] = (),
        pool: str | None = None,
        since: int | None = None,
        on_loss: Callable[[ServiceError], None] | None = None,
    ) -> Iterator[Event]:
        """What happens, as it happens, without end. A connection that is lost is made again, by
        and by slower, and goes on after the last event; ``on_loss`` is told each time. Events
        that could not be had are told of by one of kind ``gap`` or ``dropped``. ``since`` is the
        id of the last event that is known already."""
        path = "/v1/events" + query_text({"kinds": ",".join(kinds) or None, "pool": pool})

        def connect(last_id: int | None) -> Generator[bytes, None, None]:
            headers = {} if last_id is None else {"Last-Event-ID": str(last_id)}
            return self._stream(path, headers, SILENCE_S)

        return follow(connect, since, on_loss)

    def health(self) -> dict[str, Any]:
        """The process lives, or :class:`ServiceError`."""
        return self._object("GET", "/healthz")

    def ready(self) -> dict[str, Any]:
        """It would decide, or :class:`ServiceError` with the reason as its ``code``."""
        return self._object("GET", "/readyz")

    def metrics(self) -> str:
        """The metrics, as Prometheus reads them."""
        return self._call("GET", "/metrics").text

    def _change(
        self, pool: str, backend: str, change: Mapping[str, object], etag: str | None
    ) -> Backend:
        headers = {"If-Match": etag} if etag else {}
        response = self._call("PATCH", _backend(pool, backend), change, headers)
        return cast(Backend, self._object_of(response))


def _backend(pool: str, name: str) -> str:
    return f"/v1/pools/{_part(pool)}/backends/{_part(name)}"


def _part(name: str) -> str:
    return quote(name, safe="")
