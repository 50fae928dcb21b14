"""Dashboards without their browsers: ``python -m tests.bench.watchers HOST:PORT COUNT``.

Each asks for what the page asks for (nginx/www/ui/live.js), as often. They run at the lowest
priority, for they are other machines' work.
"""

import http.client
import json
import os
import sys
import threading
import time

FEW = 300
PART = 500
CHUNK = 1 << 20


def watch(admin: str, begin_s: float) -> None:
    """Follow the events, and read the rest now and then, for ever."""
    threading.Thread(target=_follow, args=(admin,), daemon=True).start()
    threading.Thread(target=_read, args=(admin, begin_s), daemon=True).start()


def _follow(admin: str) -> None:
    while True:
        connection = http.client.HTTPConnection(admin)
        connection.request("GET", "/v1/events?thin=true")
        answer = connection.getresponse()
        while answer.read1(CHUNK):
            pass
        time.sleep(2)  # dropped, as one that is too slow is


def _read(admin: str, begin_s: float) -> None:
    connection = http.client.HTTPConnection(admin)

    def get(path: str) -> bytes:
        connection.request("GET", path)
        return connection.getresponse().read()

    time.sleep(begin_s)  # not all in the same instant
    cursor = ""
    for second in range(1 << 30):
        due = time.monotonic() + 1
        pools = json.loads(get("/v1/pools"))["pools"]
        few = sum(pool["streams"] for pool in pools) <= FEW
        if second % 2 == 0:
            get("/v1/nodes")
            get("/v1/leases?limit=1000" if few else "/v1/leases?limit=25")
        if second % 3 == 0:
            get("/readyz")
        if second % 5 == 0:
            get("/v1/history?minutes=2")
            if not few:
                page = json.loads(get(f"/v1/leases?limit={PART}{cursor}"))
                cursor = f"&cursor={page['next']}" if page["next"] else ""
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    os.nice(19)
    count = int(sys.argv[2])
    for number in range(count):
        watch(sys.argv[1], number / count)
    threading.Event().wait()
