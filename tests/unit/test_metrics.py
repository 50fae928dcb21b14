"""Metrics over a real ledger: labels take only so many values, whoever sends them."""

from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from control.admission import Admission, Ask
from control.core.estimate import Estimate
from control.core.node import MemoryState
from control.core.operation import Reroute
from control.core.pool import Backend, Pool
from control.metrics import ServiceMetrics
from control.metrics.families import MAX_VALUES, Families
from control.stores import MemoryStore

Samples = dict[tuple[str, ...], float]


class Service:
    """An admission over memory alone, and what its metrics say."""

    def __init__(self, pools: int = 1) -> None:
        self.now = 100.0
        made = [
            Pool(f"pool-{n}", {"gpu-0": Backend("gpu-0", "http://127.0.0.1:1", 25, 80_000)})
            for n in range(pools)
        ]
        routes = {f"/{pool.name}": pool.name for pool in made}
        estimate = Estimate(0.6, {"QA": 1_000}, "QA")
        self.admission = Admission(MemoryStore(made), routes, estimate, lambda: self.now)
        self.metrics = ServiceMetrics(self.admission)

    def samples(self, name: str) -> Samples:
        """A metric's samples by their label values, in the order of the labels' names."""
        text = generate_latest(self.metrics.registry).decode()
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }

    def report(self, node: str, roles: tuple[str, ...] = ("nginx",), state: str = "ok") -> None:
        memory: dict[str, Any] = {
            "used_bytes": 10,
            "limit_bytes": 100,
            "state": state,
            "leak_suspected": False,
            "processes": [{"pid": 1, "role": role, "uss_bytes": 5} for role in roles],
        }
        self.admission.report_node(node, MemoryState(state), {"memory": memory})


def test_a_thousand_pools_keep_their_names_and_the_rest_is_other() -> None:
    service = Service(pools=MAX_VALUES + 200)
    streams = service.samples("weir_streams_limit")
    assert len(streams) == MAX_VALUES + 1
    assert streams["gpu-0", "other"] == 200 * 25
    assert sum(streams.values()) == (MAX_VALUES + 200) * 25
    opened = service.samples("weir_backend_open")
    assert opened["gpu-0", "other"] == 1, "a state is not a sum"
    assert service.samples("weir_streams_limit") == streams, "the same ones at each scrape"


def test_nodes_that_come_and_go_do_not_grow_the_series_without_bound() -> None:
    service = Service()
    for n in range(3 * MAX_VALUES):
        service.report(f"node-{n}")
        if n % 500 == 0:
            service.samples("weir_node_silent")
    assert len(service.samples("weir_node_silent")) <= MAX_VALUES + 1
    # Each scrape knows some; what was never scraped has taken no place.
    known = set(service.samples("weir_node_memory_used_bytes"))
    service.report("node-0", state="full")
    assert service.samples("weir_node_memory_state")[("node-0",)] == 2
    assert set(service.samples("weir_node_memory_used_bytes")) <= known | {("node-0",), ("other",)}


def test_what_an_agent_calls_its_processes_is_bounded_too() -> None:
    service = Service()
    service.report("node", tuple(f"role-{n}" for n in range(MAX_VALUES + 7)))
    memory = service.samples("weir_node_memory_bytes")
    assert len(memory) == MAX_VALUES + 1
    assert memory["node", "other"] == 7 * 5


@pytest.mark.parametrize("label", ["scene", "pool", "backend", "node", "process", "tenant"])
def test_each_label_has_its_own_thousand(label: str) -> None:
    families = Families(max_values=2)
    rows = [((value,), 1.0) for value in "abcd"]
    family = families.counter("weir_things", "Things", [label], rows)
    assert [(s.labels[label], s.value) for s in family.samples] == [
        ("a", 1), ("b", 1), ("other", 2),
    ]  # fmt: skip
    again = families.counter("weir_more", "More", [label], [(("d",), 1.0), (("b",), 1.0)])
    assert [s.labels[label] for s in again.samples] == ["other", "b"]


def test_an_engine_that_could_not_be_reached_is_counted_once_a_stream() -> None:
    service = Service()
    admission = service.admission
    admission.batch("node/1/1", [Reroute("unknown")])
    assert service.samples("weir_backend_unreachable_total") == {("gpu-0", "pool-0"): 0}
    admission.batch("node/1/1", [Ask("a", "/pool-0", "QA", 10)])
    admission.batch("node/1/1", [Reroute("a")])
    assert service.samples("weir_backend_unreachable_total") == {("gpu-0", "pool-0"): 1}
    assert service.samples("weir_backend_open") == {("gpu-0", "pool-0"): 0}
    service.now += 10
    assert service.samples("weir_backend_open") == {("gpu-0", "pool-0"): 1}


def test_each_kind_of_end_is_there_before_it_has_come() -> None:
    """An alert on the first lost lease needs the zero before it."""
    ended = Service().samples("weir_leases_ended_total")
    assert ended["lost", "session"] == ended["upstream_truncated", "lua"] == 0


def test_a_count_that_does_not_add_up_shows() -> None:
    service = Service()
    service.admission.acquire("node/1/1", Ask("a", "/pool-0", "QA", 10))
    assert service.samples("weir_lease_drift") == {(): 0}
    service.admission.totals().granted += 2
    assert service.samples("weir_lease_drift") == {(): 2}
