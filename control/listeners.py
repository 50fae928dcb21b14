"""The service's listeners, made from its configuration."""

import ssl
from collections.abc import Sequence
from socket import AF_INET, AF_INET6, create_server

from gevent.ssl import SSLContext

from control.config import Config, ConfigError, Fault
from control.config.schema import ServiceTls
from control.config.units import address
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


def check_move(old: Sequence[Listener], new: Sequence[Listener], source: str) -> None:
    """:class:`ConfigError` where a running service cannot take new addresses: gunicorn then binds
    all anew, while its worker still listens on the old ones, and ends where one is taken."""
    if [each.bind for each in old] == [each.bind for each in new]:
        return
    faults = []
    for listener in new:
        if listener.local:
            continue
        try:
            place = address(listener.bind)
            family = AF_INET6 if ":" in place.host else AF_INET
            create_server((place.host, place.port), family=family).close()
        except OSError as exc:
            path = "admin.listen" if listener.plane == "admin" else "admission.listen"
            told = f"{listener.bind} cannot be bound while the service runs ({exc.strerror})"
            faults.append(Fault(path, f"{told}: restart it, or choose another"))
    if faults:
        raise ConfigError(source, faults)


def _context(path: str, tls: ServiceTls | None) -> ssl.SSLContext | None:
    # The worker's sockets are gevent's.
    return server_context(path, tls, SSLContext) if tls else None
