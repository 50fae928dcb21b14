"""From a client's leaving to the engine's seeing it, and to the lease's end."""

import json
import time

from tests.bench.bed import Bed, Side
from tests.bench.report import Row, Say, percentile
from tests.bench.sizes import Sizes
from tests.harness.client import Client, chat_body
from tests.harness.node import wait_for

GAP_MS = 20_000
"""Nothing is sent while the client leaves: neither would a write tell, nor would unread data
turn its FIN into a reset."""
POLL_S = 0.0003
"""Between two looks at a lease: without it they keep two cores from nginx's worker."""


def measure(bed: Bed, sizes: Sizes, say: Say) -> list[Row]:
    """p50 and p99 in milliseconds; clients leave by FIN after the first event, one by one."""
    return [*_engine_rows(bed, sizes, say), *_lease_rows(bed, sizes, say)]


def _engine_rows(bed: Bed, sizes: Sizes, say: Say) -> list[Row]:
    found: dict[tuple[str, int], list[float]] = {}
    own: list[float] = []
    for number in range(sizes.rounds):
        say(f"aborts, the engine: round {number + 1} of {sizes.rounds}")
        left: dict[str, tuple[str, float]] = {}
        seen = _abort_metric(bed)
        for n in range(sizes.aborts):
            for side in bed.sides:
                tag = f"bench-{number}-{n}-{side.name}"
                left[tag] = side.name, _leave(side, tag)
        wait_for(lambda: bed.engine.stats()["active"] == 0, 10)
        bed.weir.settle()
        late: dict[str, list[float]] = {side.name: [] for side in bed.sides}
        for ended in bed.engine.ended():
            if ended["tag"] in left and ended["how"] == "aborted":
                name, at = left[ended["tag"]]
                late[name].append((ended["at"] - at) * 1e3)
        for name, values in late.items():
            if len(values) != sizes.aborts:
                say(f"warning: aborts, {name}: the engine saw {len(values)} of {sizes.aborts}")
            for percent in (50, 99):
                found.setdefault((name, percent), []).append(percentile(values, percent))
        now = _abort_metric(bed)
        seconds, count = now[0] - seen[0], now[1] - seen[1]
        own.append(seconds / count * 1e3)
    rows = [
        Row(f"client leaves -> engine sees it, p{p}", "ms", found["plain", p], found["weir", p])
        for p in (50, 99)
    ]
    return [*rows, Row("nginx sees it -> lease ends, mean (own metric)", "ms", [], own)]


def _leave(side: Side, tag: str) -> float:
    """One stream left after its first event; the wall time of it."""
    with Client(side.port) as client:
        client.post(chat_body(3, GAP_MS, first_ms=0, tag=tag)).head()
        client.events(1)
        return client.fin()


def _abort_metric(bed: Bed) -> tuple[float, float]:
    """Seconds and count of the service's own histogram."""
    metric = bed.node.metric
    return metric("weir_abort_seconds_sum"), metric("weir_abort_seconds_count")


def _lease_rows(bed: Bed, sizes: Sizes, say: Say) -> list[Row]:
    """Asking for the lease slows down what is measured: apart from the engine's, therefore."""
    found: dict[int, list[float]] = {50: [], 99: []}
    for number in range(sizes.rounds):
        say(f"aborts, the lease: round {number + 1} of {sizes.rounds}")
        times = []
        with Client(bed.node.admin_port) as admin:
            for n in range(sizes.lease_aborts):
                times.append(_lease_end(bed, admin, f"lease-{number}-{n}") * 1e3)
        for percent, values in found.items():
            values.append(percentile(times, percent))
        bed.weir.settle()
    return [Row(f"client leaves -> lease ends, p{p}", "ms", [], found[p]) for p in (50, 99)]


def _lease_end(bed: Bed, admin: Client, tag: str) -> float:
    """Seconds until the admin plane has said that the lease is draining or gone: what it takes
    to ask, about half a millisecond, is in them."""
    with Client(bed.weir.port) as client:
        response = client.post(chat_body(3, GAP_MS, first_ms=0, tag=tag)).head()
        client.events(1)
        path = f"/v1/leases/{response.headers['x-request-id']}"
        at = client.fin()

    def ended() -> bool:
        answer, body = admin.request(b"", method="GET", path=path, headers={"Host": "127.0.0.1"})
        return answer.status == 404 or json.loads(body)["state"] != "active"

    wait_for(ended, 10, POLL_S)
    return time.time() - at
