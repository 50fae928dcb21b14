"""What the ledger knows, as metric families: pools, leases, releases."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import control
from control.admission import Admission
from control.core.pool import Backend, BackendState
from control.core.verdict import Verdict, Witness
from control.metrics.families import Families, Join


class _OfBackend(NamedTuple):
    """A gauge that each backend has. ``now`` is monotonic."""

    name: str
    about: str
    sample: Callable[[Backend, float], float]
    join: Join = sum


OF_BACKENDS = (
    _OfBackend(
        "weir_streams", "Streams in use, active or draining", lambda b, _: b.streams
    ),
    _OfBackend(
        "weir_streams_limit", "Streams that may be in use", lambda b, _: b.max_streams
    ),
    _OfBackend(
        "weir_streams_draining",
        "Streams that have ended, and whose room the engine may still hold",
        lambda b, _: b.draining,
    ),
    _OfBackend("weir_tokens", "Tokens in use, active or draining", lambda b, _: b.tokens),
    _OfBackend("weir_tokens_limit", "Tokens that may be in use", lambda b, _: b.max_tokens),
    _OfBackend(
        "weir_backend_open",
        "1 where it takes new streams: wanted, and not found unreachable just now",
        lambda b, now: b.open_at(now),
        max,
    ),
    _OfBackend(
        "weir_limits_changed",
        "1 where the limits or the state in force are not those of the file",
        lambda b, _: b.limits != b.configured,
        max,
    ),
)  # fmt: skip


class LedgerCollector(Collector):
    """Counters are never kept twice: what the ledger knows is read from it at each scrape."""

    def __init__(self, admission: Admission, families: Families) -> None:
        self._admission = admission
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._pools()
        yield from self._requests()
        yield from self._leases()
        yield from self._releases()
        yield from self._service()

    def _pools(self) -> Iterator[Metric]:
        make, admission = self._families, self._admission
        now = admission.clock()
        pools = admission.pools()
        backends = [
            ((pool.name, backend.name), backend)
            for pool in pools
            for backend in pool.backends.values()
        ]
        for name, about, sample, join in OF_BACKENDS:
            rows = [(where, sample(backend, now)) for where, backend in backends]
            yield make.gauge(name, about, ["pool", "backend"], rows, join)
        yield make.gauge(
            "weir_backend_state",
            "1 for the state that is wanted of a backend, 0 for the others",
            ["pool", "backend", "state"],
            [
                ((*where, state), backend.state is state)
                for where, backend in backends
                for state in BackendState
            ],
        )
        yield make.counter(
            "weir_backend_unreachable",
            "Streams whose engine could not be connected to",
            ["pool", "backend"],
            [(where, admission.unreachable[where]) for where, _ in backends],
        )
        yield make.gauge(
            "weir_stream_mean_seconds",
            "How long streams last: a mean in which the newest twenty count most",
            ["pool"],
            [((pool.name,), pool.mean_hold) for pool in pools],
            max,
        )

    def _requests(self) -> Iterator[Metric]:
        yield self._families.counter(
            "weir_requests",
            "Requests for admission",
            ["pool", "scene", "outcome"],
            self._admission.outcomes.items(),
        )

    def _leases(self) -> Iterator[Metric]:
        make, admission = self._families, self._admission
        totals = admission.totals()
        yield make.counter(
            "weir_leases_granted",
            "Leases granted, adopted, or found in the journal at the start",
            [],
            [((), totals.granted)],
        )
        yield make.counter(
            "weir_leases_ended",
            "Leases ended, by how and by who said so first",
            ["verdict", "witness"],
            # Those that have not come yet, too: an increase begins at 0.
            [(end, totals.ended[end]) for end in product(Verdict, Witness)],
        )
        yield make.gauge(
            "weir_lease_drift", "Granted - ended - live; always 0", [], [((), admission.drift())]
        )
        yield make.counter(
            "weir_client_aborts",
            "Clients that left, by how far they had come",
            ["phase"],
            [((phase,), count) for phase, count in admission.aborts.items()],
        )

    def _releases(self) -> Iterator[Metric]:
        make, admission = self._families, self._admission
        yield make.counter(
            "weir_releases_idle",
            "Releases that changed nothing, by what they met and who sent them",
            ["outcome", "witness"],
            admission.totals().idle_releases.items(),
        )
        yield make.counter(
            "weir_releases_dropped",
            "Releases that found no place in their gateway; the log is their second witness",
            [],
            [((), admission.dropped)],
        )

    def _service(self) -> Iterator[Metric]:
        make, admission = self._families, self._admission
        yield make.gauge(
            "weir_journal_failed",
            "1 while nothing can be kept, and so nothing is granted",
            [],
            [((), admission.fault() is not None)],
        )
        yield make.counter(
            "weir_spans",
            "Spans for clients that trace: made, and what the collector was sent of them",
            ["outcome"],
            [((outcome,), count) for outcome, count in admission.spans().items()],
        )
        version = control.__version__
        yield make.gauge("weir_build_info", "The version that runs", ["version"], [((version,), 1)])
