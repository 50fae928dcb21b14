"""A listener of the service: whose plane it is, what is taken there, and how long is waited."""

import ssl
from dataclasses import dataclass
from typing import Literal, NamedTuple

Plane = Literal["data", "admin"]
IDLE, HEAD, BODY = range(3)
"""What a connection waits for: a request's first byte, the rest of its head, or of its body."""


class Patience(NamedTuple):
    """Seconds until the other side is given up. ``idle_s`` is longer than nginx keeps its
    connections (60 s), so that it is nginx that closes first."""

    handshake_s: float = 5.0
    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 75.0
    send_s: float = 30.0

    def wait_s(self, phase: int) -> float:
        """How long a client may take for what is waited for."""
        return (self.idle_s, self.head_s, self.body_s)[phase]


@dataclass(frozen=True, slots=True)
class Listener:
    """``bind`` is gunicorn's. Without ``patience`` both ends are on this machine, and the kernel
    tells when the other dies.

    ``max_body`` bounds one request's body, ``max_bodies`` those of all connections together.
    """

    bind: str
    plane: Plane
    max_body: int
    max_bodies: int
    max_connections: int
    patience: Patience | None
    tls: ssl.SSLContext | None = None

    @property
    def local(self) -> bool:
        """Whether it is the Unix socket."""
        return self.patience is None


def unix_listener(bind: str) -> Listener:
    """The data plane for this machine's gateways. Only they can open it."""
    return Listener(
        bind, "data", max_body=8 << 20, max_bodies=1 << 40, max_connections=1_000, patience=None
    )


def node_listener(bind: str, tls: ssl.SSLContext | None) -> Listener:
    """The data plane for nodes elsewhere: a connection each of their nginx workers and agents."""
    return Listener(
        bind,
        "data",
        max_body=8 << 20,
        max_bodies=64 << 20,
        max_connections=1_000,
        patience=Patience(),
        tls=tls,
    )


def admin_listener(bind: str, tls: ssl.SSLContext | None) -> Listener:
    """The admin plane: people, dashboards, scripts. Bodies are changes of a few numbers."""
    return Listener(
        bind,
        "admin",
        max_body=64 << 10,
        max_bodies=4 << 20,
        max_connections=256,
        patience=Patience(),
        tls=tls,
    )
