"""HTTP over a Unix socket, for requests."""

import socket
from pathlib import Path
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("weir")
        self._path = path

    def _new_conn(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(str(self._path))
        except OSError:
            sock.close()
            raise
        return sock


class _UnixPool(HTTPConnectionPool):
    """The open connections to one Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("weir")
        self._path = path

    def _new_conn(self) -> _UnixConnection:
        return _UnixConnection(self._path)


class UnixAdapter(HTTPAdapter):
    """What requests sends through."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._pool = _UnixPool(Path(path))

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> _UnixPool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()
