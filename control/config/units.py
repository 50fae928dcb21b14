"""Durations, sizes and addresses as they are written in ``weir.yml``."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

_DURATION = re.compile(r"^(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"^(\d{1,9})([kmg])?\Z", re.IGNORECASE)
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_HOST = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?\Z")
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def seconds(value: object) -> float:
    """``250ms``, ``10s``, ``5m``, ``1h`` in seconds."""
    if isinstance(value, str) and (match := _DURATION.match(value)):
        return float(match[1]) * _SECONDS[match[2]]
    raise ValueError("must be a duration like 250ms, 10s, 5m or 1h")


def size_bytes(value: object) -> int:
    """``64k``, ``20m``, ``1g`` or a plain number of bytes."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and (match := _SIZE.match(text)):
        return int(match[1]) * _BYTES[(match[2] or "").lower()]
    raise ValueError("must be a size like 64k or 20m, or a number of bytes")


def address(value: object) -> Address:
    """``HOST:PORT`` or ``[IPV6]:PORT``."""
    if isinstance(value, Address):
        return value
    if isinstance(value, str) and ":" in value:
        host, _, port = value.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            sound = _is_ip(host)
        else:
            sound = _HOST.match(host) is not None
        if sound and port.isascii() and port.isdigit() and _is_port(port):
            return Address(host, int(port))
    raise ValueError(f"must be HOST:PORT with a port from 1 to {MAX_PORT}, like 127.0.0.1:8080")


def _is_port(digits: str) -> bool:
    return len(digits) <= len(str(MAX_PORT)) and 1 <= int(digits) <= MAX_PORT


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def clock_text(duration_s: float) -> str:
    """Seconds as nginx writes them, in whole milliseconds."""
    return f"{round(duration_s * 1000)}ms"


Duration = Annotated[float, BeforeValidator(seconds)]
Size = Annotated[int, BeforeValidator(size_bytes)]
Listen = Annotated[Address, BeforeValidator(address), PlainSerializer(str)]
