"""Prometheus metrics, read from the ledger when they are asked for.

Counters are never kept twice: what the ledger knows is collected from it at each scrape, so the
hot path pays for two histograms only.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import control
from control.admission import Admission

DECISION_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
ABORT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class ServiceMetrics:
    """The registry of one admission service."""

    def __init__(self, admission: Admission) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(LedgerCollector(admission))
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


class LedgerCollector(Collector):
    """What the ledger knows, as metric families."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        yield from self._pools()
        yield from self._counters()

    def _pools(self) -> Iterator[Metric]:
        by_backend = ["pool", "backend"]
        streams = GaugeMetricFamily("weir_streams", "Streams in use", labels=by_backend)
        streams_limit = GaugeMetricFamily(
            "weir_streams_limit", "Streams that may be in use", labels=by_backend
        )
        tokens = GaugeMetricFamily("weir_tokens", "Tokens in use", labels=by_backend)
        tokens_limit = GaugeMetricFamily(
            "weir_tokens_limit", "Tokens that may be in use", labels=by_backend
        )
        for pool in self._admission.pools():
            for backend in pool.backends.values():
                labels = [pool.name, backend.name]
                streams.add_metric(labels, backend.streams)
                streams_limit.add_metric(labels, backend.max_streams)
                tokens.add_metric(labels, backend.tokens)
                tokens_limit.add_metric(labels, backend.max_tokens)
        yield from (streams, streams_limit, tokens, tokens_limit)

    def _counters(self) -> Iterator[Metric]:
        totals = self._admission.totals()
        requests = CounterMetricFamily(
            "weir_requests", "Requests for admission", labels=["pool", "scene", "outcome"]
        )
        for (pool, scene, outcome), count in self._admission.outcomes.items():
            requests.add_metric([pool, scene, outcome], count)
        yield requests
        yield CounterMetricFamily(
            "weir_leases_granted", "Leases granted or adopted", value=totals.granted
        )
        ended = CounterMetricFamily(
            "weir_leases_ended", "Leases ended", labels=["verdict", "witness"]
        )
        for (verdict, witness), count in totals.ended.items():
            ended.add_metric([verdict, witness], count)
        yield ended
        idle = CounterMetricFamily(
            "weir_releases_idle",
            "Releases that changed nothing, by what they met and who sent them",
            labels=["outcome", "witness"],
        )
        for (outcome, witness), count in totals.idle_releases.items():
            idle.add_metric([outcome, witness], count)
        yield idle
        yield GaugeMetricFamily(
            "weir_lease_drift", "Granted - ended - live; always 0", value=self._admission.drift()
        )
        info = GaugeMetricFamily("weir_build_info", "The version that runs", labels=["version"])
        info.add_metric([control.__version__], 1)
        yield info
