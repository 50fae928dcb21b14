"""The registry of one admission service.

The hot path pays for two histograms only; all else is read when it is asked for.
"""

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from control.admission import Admission
from control.audit import AuditLog
from control.chronicle.subscribers import Subscribers
from control.config import Loaded
from control.metrics.admin import AdminCollector
from control.metrics.families import Families
from control.metrics.ledger import LedgerCollector
from control.metrics.nodes import NodeCollector

DECISION_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
ABORT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class ServiceMetrics:
    """All that ``/metrics`` shows, and the two histograms to be fed."""

    def __init__(self, admission: Admission) -> None:
        # A second series for each, with the time of its birth.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._families = Families()
        self.registry.register(LedgerCollector(admission, self._families))
        self.registry.register(NodeCollector(admission, self._families))
        self.decision_seconds = Histogram(
            "weir_decision_seconds",
            "Time the service took for a batch with an acquire in it",
            buckets=DECISION_BUCKETS,
            registry=self.registry,
        )
        self.abort_seconds = Histogram(
            "weir_abort_seconds",
            "Time from nginx's seeing a client leave to its lease's ending or draining",
            buckets=ABORT_BUCKETS,
            registry=self.registry,
        )
        # Of the worker that decides, under the names that every Prometheus knows.
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def show_admin(self, loaded: Loaded, audit: AuditLog, subscribers: Subscribers) -> None:
        """Show what the admin plane knows, too."""
        self.registry.register(AdminCollector(loaded, audit, subscribers, self._families))
