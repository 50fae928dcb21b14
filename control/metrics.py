"""Prometheus metrics, read from the ledger when they are asked for.

Counters are never kept twice: what the ledger knows is collected from it at each scrape, so the
hot path pays for two histograms only.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import control
from control.admission import Admission
from control.core.node import MemoryState

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
        yield from self._nodes()

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
        aborts = CounterMetricFamily(
            "weir_client_aborts", "Clients that left, by how far they had come", labels=["phase"]
        )
        for phase, count in self._admission.aborts.items():
            aborts.add_metric([phase], count)
        yield aborts
        idle = CounterMetricFamily(
            "weir_releases_idle",
            "Releases that changed nothing, by what they met and who sent them",
            labels=["outcome", "witness"],
        )
        for (outcome, witness), count in totals.idle_releases.items():
            idle.add_metric([outcome, witness], count)
        yield idle
        yield CounterMetricFamily(
            "weir_releases_dropped",
            "Releases that found no place in their gateway; the log is their second witness",
            value=self._admission.dropped,
        )
        yield GaugeMetricFamily(
            "weir_journal_failed",
            "1 while nothing can be kept, and so nothing is granted",
            value=self._admission.fault() is not None,
        )
        yield GaugeMetricFamily(
            "weir_lease_drift", "Granted - ended - live; always 0", value=self._admission.drift()
        )
        info = GaugeMetricFamily("weir_build_info", "The version that runs", labels=["version"])
        info.add_metric([control.__version__], 1)
        yield info

    def _nodes(self) -> Iterator[Metric]:
        by_process = ["node", "process"]
        memory = GaugeMetricFamily(
            "weir_node_memory_bytes", "Private memory of a node's processes", labels=by_process
        )
        used = GaugeMetricFamily(
            "weir_node_memory_used_bytes", "Working set that is held to the limit", labels=["node"]
        )
        limit = GaugeMetricFamily(
            "weir_node_memory_limit_bytes", "The cgroup's or machine's limit", labels=["node"]
        )
        state = GaugeMetricFamily(
            "weir_node_memory_state", "0 ok, 1 alarm, 2 full: admits nothing new", labels=["node"]
        )
        leak = GaugeMetricFamily(
            "weir_node_leak_suspected", "1 where memory grows and streams do not", labels=["node"]
        )
        lag = GaugeMetricFamily(
            "weir_tailer_lag_seconds", "Age of the oldest unread line", labels=["node"]
        )
        unread = GaugeMetricFamily(
            "weir_tailer_lag_bytes", "Bytes of the access log that are unread", labels=["node"]
        )
        silent = GaugeMetricFamily(
            "weir_node_silent", "1 where the node's agent is not heard", labels=["node"]
        )
        now = self._admission.clock()
        for node in self._admission.nodes():
            silent.add_metric([node.name], node.is_silent(now))
            if tailer := node.report.get("tailer"):
                lag.add_metric([node.name], tailer["lag_seconds"])
                unread.add_metric([node.name], tailer["lag_bytes"])
            if told := node.report.get("memory"):
                state.add_metric([node.name], list(MemoryState).index(node.memory))
                used.add_metric([node.name], told["used_bytes"])
                limit.add_metric([node.name], told["limit_bytes"])
                leak.add_metric([node.name], told["leak_suspected"])
                sums: Counter[str] = Counter()
                for process in told["processes"]:
                    sums[process["role"]] += process["uss_bytes"]
                for role, total in sums.items():
                    memory.add_metric([node.name, role], total)
        yield from (memory, used, limit, state, leak, lag, unread, silent)
