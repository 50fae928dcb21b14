"""Runs a measurement in a network namespace of its own, with the fleet's kernel settings.

``python -m tests.harness.netns MEASUREMENT`` prints its figures as JSON. Needs root.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.client import Client, chat_body
from tests.harness.node import Engine, Node, wait_for

SYSCTLS = Path(__file__).parents[2] / "ansible/roles/host/files/60-weir.conf"
QA = {"X-Medical-Scene": "QA"}
CLIENTS = 20
STILL = 2_000
"""Bytes a second that are no stream's: the engine counts what it tells of itself, too."""
BIG = {"gap_ms": 0, "payload": "x" * 2_000}


def in_namespace(measurement: str, **settings: Any) -> Any:
    """The figures of a measurement, made in a fresh namespace."""
    command = ["unshare", "--net", sys.executable, "-m", "tests.harness.netns", measurement]
    done = subprocess.run(
        [*command, json.dumps(settings)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def set_up(ship: bool) -> None:
    """Loopback, and the settings that Weir ships."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    if not ship:
        return
    for name, value in re.findall(r"^(\S+) = (.+)$", SYSCTLS.read_text(), re.MULTILINE):
        place = Path("/proc/sys", *name.split("."))
        if name.startswith("net.ipv4.") and place.exists():  # the others are the machine's
            place.write_text(value)


@contextmanager
def running(*options: str, **settings: Any) -> Iterator[tuple[Engine, Node]]:
    """An engine and its node; both are stopped, or whoever waits for their output waits on."""
    engine = Engine(*options)
    try:
        node = Node(Path(tempfile.mkdtemp()), [engine.url], **settings)
        try:
            yield engine, node
        finally:
            node.stop()
    finally:
        engine.stop()


def held(ship: bool) -> dict[str, float]:
    """Stalled clients before an engine that sends as fast as it can: bytes that it sent for each
    beyond what the client took, what the kernel holds in nginx's socket towards it, and what that
    socket may receive."""
    set_up(ship)
    limits = {"max_tokens": 10_000_000}
    with running("--kv-tokens", "10000000", pool={"stall": "60s"}, limits=limits) as (engine, node):
        clients = [
            Client(node.port, receive_buffer=4_096).post(chat_body(100_000, **BIG), headers=QA)
            for _ in range(CLIENTS)
        ]
        wait_for(lambda: node.in_use()[0] == CLIENTS)
        sent, before = 0, -STILL
        while sent - before >= STILL:
            time.sleep(1)
            sent, before = engine.stats()["bytes_sent"], sent
        sockets = subprocess.run(["ss", "-tmn"], capture_output=True, text=True, check=True).stdout
        towards_client = rf"ESTAB\s+\d+\s+(\d+)\s+127\.0\.0\.1:{node.port}\s"
        mine = re.findall(rf"{towards_client}.*\n?.*skmem:\(r\d+,rb(\d+)", sockets)
        for client in clients:
            client.fin()
        node.settled()
    return {
        "sent_each": sent / CLIENTS,
        "towards_client": max(int(queue) for queue, _ in mine),
        "receives": min(int(buffer) for _, buffer in mine),
    }


def vanished() -> dict[str, Any]:
    """A client's packets are lost from one moment on, while its engine goes on: seconds until the
    engine is told."""
    set_up(ship=True)
    with running() as (engine, node):
        client = Client(node.port)
        client.post(chat_body(10_000, gap_ms=500, tag="vanished"), headers=QA).head()
        client.events(2)
        cut_off(client.socket.getsockname()[1], node.port)
        lost_at = time.monotonic()
        wait_for(lambda: engine.ended("vanished"), 80, every_s=0.2)
        noticed_s = time.monotonic() - lost_at
        node.settled()
        [line] = [line for line in node.access_log() if line["route"]]
    return {"noticed_s": noticed_s, "verdict": line["verdict"]}


def cut_off(port: int, server: int) -> None:
    """What passes between the two ports goes nowhere, and nothing else: another connection may
    have one of them."""
    subprocess.run(["nft", "add", "table", "inet", "weir"], check=True)
    chain = "{ type filter hook output priority 0 ; }"
    subprocess.run(["nft", "add", "chain", "inet", "weir", "lost", chain], check=True)
    for source, destination in ((port, server), (server, port)):
        rule = f"tcp sport {source} tcp dport {destination} drop".split()
        subprocess.run(["nft", "add", "rule", "inet", "weir", "lost", *rule], check=True)


def main() -> None:
    measurements: dict[str, Callable[..., Any]] = {"held": held, "vanished": vanished}
    print(json.dumps(measurements[sys.argv[1]](**json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main()
