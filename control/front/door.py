"""A listener that is open."""

from control.front.connections import Connections
from control.front.handshake import Handshakes
from control.front.listener import Listener
from control.front.turns import Turns


class Door:
    """A listener, and who has come in by it."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.connections = Connections(listener.max_connections, listener.max_bodies)
        self.handshakes = Handshakes(listener) if listener.tls else None
        self._turns = Turns() if listener.plane == "admin" else None

    def turns(self) -> Turns:
        """Those that a connection takes: of the admin plane all together, of gateways each its
        own."""
        return self._turns or Turns()
