"""What must be true in the end: nothing in use, nothing open, nothing left."""

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import requests

from tests.chaos.bed import MAX_STREAMS, MAX_TOKENS, NGINX_WORKERS, SESSION_TTL_S, Bed
from tests.chaos.logs import AccessLog
from tests.harness.client import Client, chat_body
from tests.harness.node import Node, open_descriptors

SETTLES_S = SESSION_TTL_S + 4.0
SERVES_S = 10.0
SLACK = 12
"""Descriptors that a process may have more than a fresh one: connections at rest."""
FOLLOWED_S = 75.0
"""How long the agent may read on a log file that was deleted."""
DEFECTS = re.compile(
    r"Traceback|_failed error=|operation_rejected|batcher_stopped|round_failed|releases_dropped"
)
"""What no fault may make a part say of itself."""

ENDED = re.compile(
    r'^weir_leases_ended_total\{verdict="(\w+)",witness="(\w+)"\} (\S+)$', re.MULTILINE
)


def descriptors(node: Node) -> dict[str, int]:
    """Open descriptors by role, the most of any process of it. The agent's access logs are not
    counted: they are as many as there are files."""
    agent = node.pid("agent")
    return {
        "nginx worker": max(open_descriptors(pid) for pid in node.workers("nginx")),
        "admission worker": max(open_descriptors(pid) for pid in node.workers("admission")),
        "agent": open_descriptors(agent) - len(_access_logs(agent)),
    }


def ends(node: Node) -> dict[str, int]:
    """Ended leases by verdict and witness, as the service's process counts them."""
    text = requests.get(f"{node.admin}/metrics", timeout=10).text
    found = ENDED.findall(text)
    return {f"{verdict} ({witness})": int(float(n)) for verdict, witness, n in found if float(n)}


def family(node: Node) -> list[psutil.Process]:
    """All processes of the node."""
    root = psutil.Process(node.process.pid)
    return [root, *root.children(recursive=True)]


def check_serving(node: Node) -> Iterator[str]:
    """A whole stream passes."""
    said = "nothing"
    deadline = time.monotonic() + SERVES_S
    while time.monotonic() < deadline:
        try:
            with Client(node.port, timeout_s=5) as client:
                response, body = client.request(chat_body(2, gap_ms=1))
        except OSError as exc:
            said = repr(exc)
        else:
            if response.status == 200 and body.endswith(b"data: [DONE]\n\n"):
                return
            said = f"{response} {body[-200:]!r}"
        time.sleep(0.2)
    yield f"the node serves no request {SERVES_S:g} s after the last fault: {said}"


def check_settled(bed: Bed) -> Iterator[str]:
    """Nothing in use within the session's time to live and a little, all adds up."""
    node = bed.node
    yield from _within(SETTLES_S, lambda: _in_use(node), "still in use")
    yield from _within(2.0, lambda: _active(bed), "streams are still on engines")
    yield from _within(2.0, lambda: _ledger(node), "the ledger does not add up")
    yield from _within(5.0, lambda: _limits(node), "limits are not as they were configured")
    yield from _within(5.0, lambda: _tailer(node), "the agent has not caught up")


def check_descriptors(node: Node, baseline: dict[str, int], log: AccessLog) -> Iterator[str]:
    """As many open as before, in the same processes or others; as many workers as before."""

    def more() -> dict[str, Any]:
        now = descriptors(node)
        return {
            role: f"{count}, at first {baseline[role]}"
            for role, count in now.items()
            if count > baseline[role] + SLACK
        }

    yield from _within(15.0, more, "descriptors are left open")
    yield from _within(15.0, lambda: _workers(node), "not the configured workers")
    held = [
        f.path for f in psutil.Process(node.pid("agent")).open_files() if "/access.log" in f.path
    ]
    lately = sum(time.monotonic() - at < FOLLOWED_S for at in log.gone)
    if len(held) > log.files() + lately:
        yield f"the agent holds {len(held)} access logs: {held}"


def check_logs(node: Node) -> Iterator[str]:
    """No part has said that it failed."""
    folder = node.state / "log"
    for file in sorted(folder.glob("*.log")):
        if file.name.startswith("access"):
            continue
        lines = file.read_text(errors="replace").splitlines()
        found = [n for n, line in enumerate(lines) if DEFECTS.search(line)]
        if found:
            told = "\n    ".join(lines[found[0] : found[0] + 30])
            yield f"{file.name} tells of {len(found)} defects; the first:\n    {told}"


def check_gone(node: Node, processes: list[psutil.Process]) -> Iterator[str]:
    """Stops the node. It ends, complains of nothing, and nothing of it is left."""
    try:
        node.stop()
    except AssertionError as exc:
        yield f"nginx complains, or something is left: {str(exc)[:2_000]}"
    except Exception as exc:  # noqa: BLE001 (it did not end: one problem more, not the last)
        yield f"the node does not end: {exc!r}"
    left = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    if left:
        yield f"processes are left: {left}"


def _within(seconds: float, fault: Callable[[], Any], what: str) -> Iterator[str]:
    """Wait until there is no fault; say what it is where it stays."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = fault()
        except (requests.RequestException, psutil.Error, OSError) as exc:
            found = repr(exc)
        if not found:
            return
        if time.monotonic() > deadline:
            yield f"{what} after {seconds:g} s: {json.dumps(found, default=str)[:3_000]}"
            return
        time.sleep(0.1)


def _in_use(node: Node) -> Any:
    leases = node.leases()
    return {"leases": leases, "in_use": node.in_use()} if leases or any(node.in_use()) else None


def _active(bed: Bed) -> Any:
    active = {name: engine.stats()["active"] for name, engine in bed.engines.items()}
    return {name: count for name, count in active.items() if count}


def _ledger(node: Node) -> Any:
    drift = node.metric("weir_lease_drift")
    granted = node.metric("weir_leases_granted_total")
    ended = node.metric("weir_leases_ended_total")
    return (drift or granted != ended) and {"drift": drift, "granted": granted, "ended": ended}


def _limits(node: Node) -> Any:
    wanted = {"state": "active", "max_streams": MAX_STREAMS, "max_tokens": MAX_TOKENS}
    backends = node.pool()["backends"]
    return [b for b in backends if any(b[key] != value for key, value in wanted.items())]


def _tailer(node: Node) -> Any:
    nodes = node.get("/v1/nodes")["nodes"]
    return [each for each in nodes if each["silent"] or each["tailer"]["lag_bytes"]] or (
        not nodes and "no agent is heard"
    )


def _access_logs(pid: int) -> list[str]:
    """Those that a process has open."""
    files = [file.path for file in psutil.Process(pid).open_files()]
    return [path for path in files if "/access.log" in path]


def _workers(node: Node) -> Any:
    workers = {"nginx": node.workers("nginx"), "admission": node.workers("admission")}
    counts = {name: len(pids) for name, pids in workers.items()}
    return counts != {"nginx": NGINX_WORKERS, "admission": 1} and workers
