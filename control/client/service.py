"""What runs beside the service asks of its data plane: the agent, gateways, scripts."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from control.client.connection import Connection, ServiceError


class ServiceClient(Connection):
    """The data plane of one service."""

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

    def end_session(self, session: str) -> list[str]:
        """End a session and all its leases: their ids. One that is gone already has none."""
        try:
            answer = self._object("DELETE", f"/v1/sessions/{quote(session, safe='/')}")
        except ServiceError as exc:
            if exc.status != 404:
                raise
            return []
        return list(answer.get("ended") or [])

    def is_ready(self) -> bool:
        """Whether it would decide."""
        try:
            self._call("GET", "/readyz")
        except ServiceError:
            return False
        return True

    def report_node(self, name: str, report: Mapping[str, Any]) -> dict[str, Any]:
        """Tell how a node is; ``{"streams": n}``, its live streams."""
        path = f"/v1/nodes/{quote(name, safe='')}"
        return self._object("PUT", path, report)
