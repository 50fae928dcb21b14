"""An answer that the application gives bit by bit, watched for its client's leaving."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import gevent

READ_BYTES = 64 << 10
MAX_REST = 64 << 10
"""Bytes of next requests that a client may send while it is being answered."""

log = logging.getLogger("weir.front")


class ClientLeft(BaseException):
    """Raised in an application that waits for something to say to a client that has left."""


class Stream:
    """The items of an application's iterable, up to its end, its failure or the client's leaving.

    While the application waits its own code is running, so the end comes as an exception there,
    and never anywhere else. ``rest``: what the client has sent meanwhile.
    """

    def __init__(self, client: Any, said: Iterable[bytes]) -> None:
        self.left = False
        self.failure: Exception | None = None
        self.rest = b""
        self._client = client
        self._said = said
        self._items: Iterator[bytes] = iter(())
        self._begun = False
        self._waits = False
        self._self = gevent.getcurrent()
        self._watcher = gevent.spawn(self._watch)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self.left:
            try:
                self._waits = True
                if not self._begun:
                    self._begun = True
                    self._items = iter(self._said)
                item = next(self._items)
            except (StopIteration, ClientLeft):
                break
            except Exception as exc:  # noqa: BLE001 (the application's, for whoever sends)
                self.failure = exc
                break
            finally:
                self._waits = False
            if item:
                return item
        raise StopIteration

    def close(self) -> None:
        """Tell the application that nobody listens any more."""
        self._watcher.kill()
        close = getattr(self._said, "close", None)
        if close is None:
            return
        try:
            close()
        except Exception as exc:  # noqa: BLE001 (the answer is over either way)
            log.error("close_failed error=%s", type(exc).__name__)

    def _watch(self) -> None:
        while len(self.rest) <= MAX_REST:
            try:
                data = self._client.recv(READ_BYTES)
            except TimeoutError:
                continue
            except OSError:
                break
            if not data:
                break
            self.rest += data
        self.left = True
        # In the hub nothing else runs: the application waits now, or it does not.
        gevent.get_hub().loop.run_callback(self._interrupt)

    def _interrupt(self) -> None:
        if self._waits and not self._self.dead:
            self._self.throw(ClientLeft)
