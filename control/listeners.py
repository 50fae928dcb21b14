"""The service's listeners, made from its configuration."""

import ssl

from gevent.ssl import SSLContext

from control.config import Config, ConfigError, Fault
from control.config.schema import ServiceTls
from control.front.listener import Listener, admin_listener, node_listener, unix_listener
from control.tls import TlsError, server_context, server_faults


def listeners(config: Config, source: str) -> list[Listener]:
    """All, the Unix socket first. :class:`ConfigError`, which names the file ``source``, where
    a certificate or a key cannot be used."""
    if config.is_apart:
        told = f"the service of this node is at {config.admission.url}: start it there"
        raise ConfigError(source, [Fault("admission.url", told)])
    try:
        admin_tls = _context("admin.tls", config.admin.tls)
        node_tls = _context("admission.tls", config.admission.tls)
    except TlsError as exc:
        raise ConfigError(source, server_faults(config)) from exc
    made = [
        unix_listener(f"unix:{config.admission_socket}"),
        admin_listener(str(config.admin.listen), admin_tls),
    ]
    if config.admission.listen:
        made.append(node_listener(str(config.admission.listen), node_tls))
    return made


def _context(path: str, tls: ServiceTls | None) -> ssl.SSLContext | None:
    # The worker's sockets are gevent's.
    return server_context(path, tls, SSLContext) if tls else None
