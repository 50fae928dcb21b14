"""Metric families whose labels take only so many values."""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

MAX_VALUES = 1_000
"""Values of one label (contract.md, section 6); each is a time series in somebody's Prometheus."""
OTHER = "other"
"""Stands for all that came later."""

Rows = Iterable[tuple[Sequence[str], float]]
"""Label values, in the order of the labels, and the sample."""
Join = Callable[[Iterable[float]], float]


class Families:
    """Makes families, and remembers which values each label has had: the first ones keep their
    names for good, so that no series changes its meaning from scrape to scrape."""

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self._max_values = max_values
        self._known: dict[str, set[str]] = {}

    def gauge(
        self, name: str, about: str, labels: Sequence[str], rows: Rows, join: Join = sum
    ) -> Metric:
        """What is so now. ``join`` makes one sample of those that become ``other``."""
        family = GaugeMetricFamily(name, about, labels=labels)
        for values, sample in self._bounded(labels, rows, join):
            family.add_metric(values, sample)
        return family

    def counter(self, name: str, about: str, labels: Sequence[str], rows: Rows) -> Metric:
        """What only grows; ``_total`` is added to the name."""
        family = CounterMetricFamily(name, about, labels=labels)
        for values, sample in self._bounded(labels, rows, sum):
            family.add_metric(values, sample)
        return family

    def _bounded(self, labels: Sequence[str], rows: Rows, join: Join) -> Rows:
        gathered: dict[tuple[str, ...], list[float]] = {}
        for values, sample in rows:
            bounded = tuple(map(self._bound, labels, values))
            gathered.setdefault(bounded, []).append(sample)
        return [(values, join(samples)) for values, samples in gathered.items()]

    def _bound(self, label: str, value: str) -> str:
        known = self._known.setdefault(label, set())
        if value in known:
            return value
        if len(known) >= self._max_values:
            return OTHER
        known.add(value)
        return value
