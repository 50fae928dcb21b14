"""A listener that is open."""

from control.front.connections import Connections
from control.front.handshake import Handshakes
from control.front.listener import Listener


class Door:
    """A listener, and who has come in by it."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.connections = Connections(listener.max_connections, listener.max_bodies)
        self.handshakes = Handshakes(listener) if listener.tls else None
