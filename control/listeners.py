"""The service's listeners, made from its configuration."""

from control.config import Config
from control.front.listener import Listener, admin_listener, unix_listener


def listeners(config: Config) -> list[Listener]:
    """All, the Unix socket first."""
    return [
        unix_listener(f"unix:{config.admission_socket}"),
        admin_listener(str(config.admin.listen), None),
    ]
