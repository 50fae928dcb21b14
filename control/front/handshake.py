"""TLS handshakes of a listener, each in its connection's own greenlet."""

import logging
import time
from typing import Any

import gevent

from control.front.listener import Listener

SAY_EVERY_S = 10.0
"""Scanners and a wrong authority on many nodes fill no log."""

log = logging.getLogger("weir.front")


class Handshakes:
    """Says now and then which ones fail: a node that is not let in must be found somewhere."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._failed = 0
        self._said_at = -SAY_EVERY_S

    def wrap(self, client: Any) -> Any:
        """The client's socket with TLS, before its handshake."""
        assert self._listener.tls
        return self._listener.tls.wrap_socket(
            client, server_side=True, do_handshake_on_connect=False
        )

    def shake(self, client: Any, peer: str) -> bool:
        """Whether the client and its certificate are as they should be."""
        patience = self._listener.patience
        try:
            with gevent.Timeout(patience and patience.handshake_s, TimeoutError("too slow")):
                client.do_handshake()
        except OSError as exc:
            self._say(peer, exc)
            return False
        return True

    def _say(self, peer: str, exc: OSError) -> None:
        self._failed += 1
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY_S:
            # OpenSSL's own words: they name the fault, and quote nothing.
            reason = getattr(exc, "verify_message", None) or getattr(exc, "reason", None) or exc
            log.warning(
                "handshake_failed plane=%s from=%s error=%s count=%d",
                self._listener.plane, peer, reason, self._failed,
            )  # fmt: skip
            self._failed, self._said_at = 0, now
