"""What is known of the nodes, as metric families: sessions, and what each agent last said."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from control.admission import Admission
from control.core.node import MemoryState
from control.metrics.families import Families, Join


class _Told(NamedTuple):
    """A metric that an agent's report has, in one of its parts."""

    part: str
    name: str
    about: str
    sample: Callable[[Mapping[str, Any]], float]
    join: Join = max


def _field(name: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda told: float(told[name])


GAUGES = (
    _Told(
        "memory", "weir_node_memory_used_bytes", "Working set that is held to the limit",
        _field("used_bytes"), sum,
    ),
    _Told(
        "memory", "weir_node_memory_limit_bytes", "The limit of nginx's cgroup, or the machine's",
        _field("limit_bytes"), sum,
    ),
    _Told(
        "memory", "weir_node_memory_state", "0 ok, 1 alarm, 2 full: admits nothing new",
        lambda told: list(MemoryState).index(MemoryState(told["state"])),
    ),
    _Told(
        "memory", "weir_node_leak_suspected", "1 where memory grows and streams do not",
        _field("leak_suspected"),
    ),
    _Told(
        "tailer", "weir_tailer_lag_seconds", "Age of the access log's oldest unread line",
        _field("lag_seconds"),
    ),
    _Told(
        "tailer", "weir_tailer_lag_bytes", "Bytes of the access log that are unread",
        _field("lag_bytes"),
    ),
)  # fmt: skip
COUNTERS = (
    _Told("tailer", "weir_tailer_lines", "Lines of the access log that were read", _field("lines")),
    _Told(
        "tailer", "weir_tailer_released", "Leases of which the access log was the first to tell",
        _field("released"),
    ),
    _Told(
        "tailer", "weir_tailer_broken", "Lines of the access log that could not be understood",
        lambda told: float(told["broken"] + told["oversized"]),
    ),
    _Told(
        "tailer", "weir_tailer_gaps", "How often lines of the access log may have been lost",
        _field("gaps"),
    ),
)  # fmt: skip
"""Since the agent's start."""


class NodeCollector(Collector):
    """Read from the reports at each scrape. A silent agent's last word stays."""

    def __init__(self, admission: Admission, families: Families) -> None:
        self._admission = admission
        self._families = families

    def collect(self) -> Iterator[Metric]:
        make = self._families
        now = self._admission.clock()
        nodes = self._admission.nodes()
        heard = self._admission.sessions()
        sessions = Counter((session.node,) for session in heard)
        configs = Counter((session.node, session.config) for session in heard if session.config)
        yield make.gauge(
            "weir_sessions", "nginx workers, other gateways and agents that are heard", ["node"],
            sessions.items(),
        )  # fmt: skip
        yield make.gauge(
            "weir_gateway_configs", "nginx workers by the version of the configuration they run",
            ["node", "version"], configs.items(),
        )  # fmt: skip
        yield make.gauge(
            "weir_node_silent", "1 where the node's agent is not heard any more", ["node"],
            [((node.name,), node.is_silent(now)) for node in nodes], max,
        )  # fmt: skip
        for told in GAUGES:
            yield make.gauge(told.name, told.about, ["node"], self._samples(told), told.join)
        for told in COUNTERS:
            yield make.counter(told.name, told.about, ["node"], self._samples(told))
        yield make.gauge(
            "weir_node_memory_bytes", "Private memory of a node's processes", ["node", "process"],
            [
                ((node.name, process["role"]), process["uss_bytes"])
                for node in nodes
                for process in (node.report.get("memory") or {}).get("processes", ())
            ],
        )  # fmt: skip

    def _samples(self, told: _Told) -> Iterator[tuple[tuple[str], float]]:
        for node in self._admission.nodes():
            if part := node.report.get(told.part):
                yield (node.name,), told.sample(part)
