"""Health and metrics."""

import falcon
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from control.admission import Admission
from control.api.problems import problem


class Health:
    """``/healthz``: the process lives. ``/readyz``: it would decide."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get_live(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = b'{"status":"ok"}'

    def on_get_ready(self, req: falcon.Request, resp: falcon.Response) -> None:
        drift = self._admission.drift()
        if drift:
            raise problem(
                falcon.HTTP_503,
                "drift",
                f"granted - ended - live is {drift}: restart the service and report it",
            )
        if fault := self._admission.fault():
            raise problem(
                falcon.HTTP_503, "journal", f"nothing is granted: {fault}; make room, or mend it"
            )
        resp.data = b'{"status":"ready"}'


class Metrics:
    """``/metrics``"""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.content_type = CONTENT_TYPE_LATEST
        resp.data = generate_latest(self._registry)
