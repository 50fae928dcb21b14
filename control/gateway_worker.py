"""gunicorn's gevent worker with an HTTP front of its own.

gunicorn's request handling costs 170 us of the 250 us that a call takes there, and every stream's
first token waits for one. A C parser and one send replace it on all listeners; the application,
gevent and the process model stay the same.
"""

import contextlib
import logging
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import gevent
import psutil
from gevent.server import StreamServer
from gunicorn.workers.ggevent import GeventWorker

from control.front.connection import Connection
from control.front.door import Door
from control.front.refusal import FULL

NOTIFY_S = 1.0
"""How often gunicorn's arbiter is told that the worker lives."""
LOOK_S = 0.05
"""How late the worker notices that it is to end."""
LONGEST_START_S = 10.0
"""A successor that needs longer has failed."""
LAST_REQUESTS_S = 0.05
"""Who has connected, or has begun to ask, may ask within it."""
LAST_ANSWERS_S = 0.25
"""What has been asked is answered within it, before another decides."""

log = logging.getLogger("weir.front")


class GatewayWorker(GeventWorker):  # type: ignore[misc]
    """The worker class of the admission service, whose application has the ``listeners`` of the
    sockets, in their order.

    ``lock`` is set by the application: told to end while a sibling starts, the worker serves until
    that one has announced itself there.
    """

    lock: Any = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._leaving = False

    def run(self) -> None:
        """Serve until told to end; then answer what has begun, and go."""
        doors = [Door(listener) for listener in self.app.listeners]
        servers = [
            StreamServer(sock, handle=partial(self._handle, door))
            for sock, door in zip(self.sockets, doors, strict=True)
        ]
        for server in servers:
            server.start()
        self._serve_out_the_term()
        self._leaving = True
        left_at = time.monotonic()
        for server in servers:
            server.close()
        gevent.sleep(0)  # who has been accepted comes in
        everyone = [door.connections for door in doors]
        for connections in everyone:
            connections.close_for_reading(but_who_asks=True)
        _wait_while(lambda: any(each.any_asks for each in everyone), left_at + LAST_REQUESTS_S)
        for connections in everyone:
            connections.close_for_reading()
        _wait_while(lambda: any(everyone), left_at + LAST_ANSWERS_S)

    def _serve_out_the_term(self) -> None:
        notified_at = told_at = 0.0
        while True:
            now = time.monotonic()
            if now - notified_at > NOTIFY_S:
                notified_at = now
                self.notify()
            if not self.alive:
                told_at = told_at or now
                if now - told_at > LONGEST_START_S or not self._awaits_successor():
                    return
            gevent.sleep(LOOK_S)

    def _awaits_successor(self) -> bool:
        """Whether a younger sibling is starting and has not come so far as to decide."""
        if self.lock is None or self.lock.has_successor:
            return False
        try:
            born = psutil.Process().create_time()
            siblings = psutil.Process(self.ppid).children()
            return any(sibling.create_time() > born for sibling in siblings)
        except psutil.NoSuchProcess:
            return False

    def _handle(self, door: Door, client: Any, addr: Any) -> None:
        """A client of one of our listeners, from its accept to its end."""
        peer = addr[0] if isinstance(addr, tuple) else ""
        if door.handshakes:
            try:
                client = door.handshakes.wrap(client)
            except OSError as exc:  # it has just closed
                log.debug("client_gone plane=%s error=%s", door.listener.plane, exc)
                client.close()
                return
        if not door.connections.enter(client):
            if not door.handshakes:
                with contextlib.suppress(OSError):
                    client.setblocking(False)
                    client.send(FULL.wire)
            client.close()
            return
        try:
            if door.handshakes and not door.handshakes.shake(client, peer):
                return
            Connection(client, self.wsgi, door, lambda: not self._leaving, peer).serve()
        except OSError as exc:
            # It closed or fell silent: it opens a new connection when it needs one.
            log.debug("client_gone plane=%s error=%s", door.listener.plane, exc)
        except Exception as exc:  # noqa: BLE001 (the top of a connection)
            place = "".join(traceback.format_tb(exc.__traceback__))
            log.error("connection_failed error=%s\n%s", type(exc).__name__, place)
        finally:
            door.connections.leave(client)
            client.close()


def _wait_while(busy: Callable[[], bool], deadline: float) -> None:
    while busy() and time.monotonic() < deadline:
        gevent.sleep(0.005)
