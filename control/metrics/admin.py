"""What the admin plane knows, as metric families: the configuration, the audit log, who listens."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from control.audit import AuditLog
from control.chronicle.subscribers import Subscribers
from control.config import Loaded
from control.metrics.families import Families


class AdminCollector(Collector):
    """Read at each scrape."""

    def __init__(
        self, loaded: Loaded, audit: AuditLog, subscribers: Subscribers, families: Families
    ) -> None:
        self._loaded = loaded
        self._audit = audit
        self._subscribers = subscribers
        self._families = families

    def collect(self) -> Iterator[Metric]:
        make, loaded = self._families, self._loaded
        yield make.gauge(
            "weir_config_info",
            "The version of the configuration in force",
            ["version"],
            [((loaded.config.version,), 1)],
        )
        yield make.gauge(
            "weir_config_loaded_timestamp_seconds",
            "When the configuration in force was read, since 1970",
            [],
            [((), loaded.loaded_at)],
        )
        yield make.gauge(
            "weir_config_refused",
            "1 where the file was refused when it was last read, and an older one is in force",
            [],
            [((), loaded.reload_error is not None)],
        )
        yield make.counter(
            "weir_audit_failures",
            "Changes that were not made, for the audit log could not be written",
            [],
            [((), self._audit.failures)],
        )
        yield make.gauge(
            "weir_event_subscribers",
            "Readers of the event stream",
            [],
            [((), len(self._subscribers))],
        )
        yield make.counter(
            "weir_event_subscribers_dropped",
            "Readers of the event stream that were too slow and were dropped",
            [],
            [((), self._subscribers.dropped)],
        )
