"""Tells a URL of alarms, in a thread of its own: a slow receiver holds up nothing."""

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import requests

TIMEOUT_S = 5.0
TRIES = 3
RETRY_S = 1.0
MAX_WAITING = 32
"""Events that wait for a slow receiver; more are dropped, and said so."""

log = logging.getLogger("weir.agent")


class Webhook:
    """Posts each event as JSON, in order. What fails is logged and given up."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S, retry_s: float = RETRY_S) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._events: queue.Queue[Mapping[str, Any] | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def send(self, event: Mapping[str, Any]) -> None:
        """Queue an event; returns at once."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            log.warning("webhook_overflow event=%s dropped=1", event.get("event"))

    def stop(self, timeout_s: float) -> None:
        """Send what waits, as far as the time reaches."""
        if self._thread.is_alive():
            try:
                self._events.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _run(self) -> None:
        with requests.Session() as session:
            while (event := self._events.get()) is not None:
                for attempt in range(TRIES):
                    if attempt:
                        time.sleep(self._retry_s)
                    if self._post(session, event):
                        break

    def _post(self, session: requests.Session, event: Mapping[str, Any]) -> bool:
        # Never the URL nor requests' own words, which quote it: paths of webhooks are secrets.
        host = urlsplit(self._url).hostname
        try:
            status = session.post(
                self._url, json=event, timeout=self._timeout_s, allow_redirects=False
            ).status_code
        except (requests.RequestException, OSError) as exc:
            log.warning("webhook_failed host=%s error=%s", host, type(exc).__name__)
            return False
        if status // 100 != 2:
            log.warning("webhook_failed host=%s status=%d", host, status)
        return status // 100 == 2
