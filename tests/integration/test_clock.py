"""The wall clock is set while streams run: nothing of Weir counts by it (casebook 20)."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from control.nginx import find_nginx
from tests.harness.client import Client, chat_body
from tests.harness.node import Engine, Node, reload

CACHE_S = 1
"""How often the library that sets the clock looks at its file."""


class Clock:
    """The wall clock, and only that, of nginx. (Python's processes read no other than the
    monotonic one, except to show an hour to people.)"""

    def __init__(self, folder: Path) -> None:
        [library] = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
        self._offset = folder / "clock"
        self._offset.write_text("+0\n")
        self.binary = folder / "nginx"
        # nginx forgets its environment, but for what it is told to keep.
        kept = "FAKETIME_TIMESTAMP_FILE", "FAKETIME_CACHE_DURATION", "FAKETIME_DONT_FAKE_MONOTONIC"
        keep = " ".join(f"env {name};" for name in kept)
        self.binary.write_text(
            f"""#!/bin/sh
export LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={self._offset}
export FAKETIME_CACHE_DURATION={CACHE_S} FAKETIME_DONT_FAKE_MONOTONIC=1
for word; do
    shift
    [ "$word" = "daemon off;" ] && word="daemon off; {keep}"
    set -- "$@" "$word"
done
exec {find_nginx("auto").binary} "$@"
"""
        )
        self.binary.chmod(0o755)

    def set(self, to: str) -> None:
        self._offset.write_text(f"{to}\n")
        time.sleep(CACHE_S + 0.5)


@pytest.mark.parametrize("step", ["+1h", "-1h"])
def test_no_lease_is_lost_and_none_becomes_permanent(
    start_engine: Callable[..., Engine],
    start_node: Callable[..., Node],
    tmp_path: Path,
    step: str,
) -> None:
    clock = Clock(tmp_path)
    engine = start_engine()
    node = start_node(
        [engine.url],
        pool={"session_ttl": "2s"},
        limits={"max_streams": 5},
        nginx={"binary": str(clock.binary)},
    )
    qa = {"X-Medical-Scene": "QA"}
    clients = [Client(node.port).post(chat_body(2_000, gap_ms=50), headers=qa) for _ in range(5)]
    for client in clients:
        assert client.head().status == 200
    clock.set(step)
    time.sleep(3)  # nothing but heartbeats
    for _ in range(5):
        with Client(node.port) as rival:
            assert rival.request(chat_body(1), headers=qa)[0].status == 429
        time.sleep(0.4)
    assert abs(node.access_log()[-1]["ts"] - time.time()) > 3_000, "the clock was not set"
    assert node.in_use()[0] == 5 and node.metric("weir_leases_ended_total") == 0
    for client in clients:
        client.events(1)
        client.fin()
    node.settled()
    reload(node)  # workers that begin in another hour than their process seems to
    last = Client(node.port).post(chat_body(2_000, gap_ms=50), headers=qa)
    assert last.head().status == 200
    time.sleep(3)
    [lease] = node.leases()
    assert 2 < lease["age_s"] < 10
    last.fin()
    node.settled()
