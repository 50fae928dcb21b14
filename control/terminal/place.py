"""Which service a command talks to, and as whom."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from control.client import AdminClient
from control.config import Config, load
from control.config.schema import Secret
from control.config.secrets import SecretError, read_secret, read_tokens

ADDRESS_VARIABLE = "WEIR_ADMIN"
TOKEN_VARIABLE = "WEIR_ADMIN_TOKEN"
DEFAULT_FILES = (Path("weir.yml"), Path("/etc/weir/weir.yml"))
DEFAULT_ADDRESS = "http://127.0.0.1:8081"
TIMEOUT_S = 10.0
ROLES = ("admin", "operate", "read")


class PlaceError(Exception):
    """No service can be asked so; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """A service's address, and how to show oneself there; ``told_by`` says where the token is
    from. ``config`` is the file that named the service, where one did."""

    address: str
    token: str | None
    told_by: str
    config: Config | None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def client(self) -> AdminClient:
        """A client of it."""
        return AdminClient(
            self.address, self.token, TIMEOUT_S,
            ca=self.ca, certificate=self.certificate, key=self.key,
        )  # fmt: skip


def find_place(options: argparse.Namespace) -> Place:
    """``--admin``, ``-c``, ``WEIR_ADMIN``, ``weir.yml`` here or in ``/etc/weir``, or this
    machine's usual address, the first that is given."""
    address = options.admin
    config = None
    if not address and options.config:
        config = load(options.config)
    elif not address and not (address := os.environ.get(ADDRESS_VARIABLE)):
        file = next((file for file in DEFAULT_FILES if file.is_file()), None)
        config = load(file) if file else None
    if not address:
        address = admin_url(config) if config else DEFAULT_ADDRESS
    if not _is_address(address):
        told = "that" if "@" in address else repr(address)  # it may have a password before it
        raise PlaceError(f"{told} is no service's address: it must be http(s)://HOST:PORT")
    token, told_by = _token(options.token_file, config)
    for file in (options.ca, options.cert, options.key):
        if file and not os.access(file, os.R_OK):
            raise PlaceError(f"{file} cannot be read: name a PEM file")
    return Place(address, token, told_by, config, options.ca, options.cert, options.key)


def admin_url(config: Config) -> str:
    """Where this machine reaches the admin plane of a configuration."""
    listen = config.admin.listen
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(listen.host)
    scheme = "https" if getattr(config.admin, "tls", None) else "http"
    return f"{scheme}://{local}:{listen.port}" if local else f"{scheme}://{listen}"


def _is_address(text: str) -> bool:
    if "@" in text:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _token(file: Path | None, config: Config | None) -> tuple[str | None, str]:
    if file:
        try:
            return read_secret(Secret(file=file)), f"--token-file {file}"
        except SecretError as exc:
            raise PlaceError(f"--token-file: {exc}") from exc
    if os.environ.get(TOKEN_VARIABLE):
        try:
            return read_secret(Secret(env=TOKEN_VARIABLE)), TOKEN_VARIABLE
        except SecretError as exc:
            raise PlaceError(f"{TOKEN_VARIABLE}: {exc}") from exc
    if config:
        # On the service's own machine its file says where the tokens are: the strongest.
        tokens, _ = read_tokens(config)
        for token in sorted(tokens, key=lambda each: ROLES.index(each.role)):
            return token.value, f"{token.name} in admin.tokens"
    return None, ""
