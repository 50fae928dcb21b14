"""Tokens: from the environment or from a file, never in ``weir.yml`` itself."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from control.config.faults import Fault
from control.config.schema import Config, Secret

MAX_SECRET_BYTES = 4096
SHORT = 16
"""Characters of a token that can be guessed in time; a warning, not a refusal."""
_TOKEN = re.compile(r"^[\x21-\x7e]+\Z")


class SecretError(Exception):
    """A secret that cannot be used: at which key, and what to do."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token with its owner's name and role."""

    name: str
    role: str
    value: str = field(repr=False)


def read_secret(secret: Secret) -> str:
    """The secret itself, or :class:`SecretError`. An empty one is none."""
    key, value = ("env", _from_environment(secret)) if secret.env else ("file", _from_file(secret))
    if not _TOKEN.match(value):
        raise SecretError(key, "holds characters that no token has: use printable ASCII, no spaces")
    return value


def read_tokens(config: Config) -> tuple[list[Token], list[Fault]]:
    """The admin plane's tokens, and what is wrong with those that are not among them."""
    return _read("admin.tokens", [(entry, entry.name, entry.role) for entry in config.admin.tokens])


def read_node_tokens(config: Config) -> tuple[list[Token], list[Fault]]:
    """The same of the nodes elsewhere."""
    entries = [(entry, entry.name, "node") for entry in config.admission.tokens]
    return _read("admission.tokens", entries)


def read_own_token(config: Config) -> tuple[str | None, list[Fault]]:
    """What this node shows to a service elsewhere; None where it shows none."""
    if config.admission.token is None:
        return None, []
    try:
        return read_secret(config.admission.token), []
    except SecretError as exc:
        return None, [Fault(f"admission.token.{exc.key}", str(exc))]


def _read(
    section: str, entries: Sequence[tuple[Secret, str, str]]
) -> tuple[list[Token], list[Fault]]:
    tokens: list[Token] = []
    faults: list[Fault] = []
    owners: dict[str, str] = {}
    for n, (entry, name, role) in enumerate(entries):
        path = f"{section}[{n}]"
        try:
            token = Token(name, role, read_secret(entry))
        except SecretError as exc:
            faults.append(Fault(f"{path}.{exc.key}", str(exc)))
            continue
        if token.value in owners:
            owner = owners[token.value]
            faults.append(Fault(path, f"has the same token as {owner}: give each its own"))
            continue
        owners[token.value] = token.name
        tokens.append(token)
    return tokens, faults


def weaknesses(config: Config, tokens: Sequence[Token]) -> Iterator[str]:
    """What a person should mend, though it works."""
    for token in tokens:
        if len(token.value) < SHORT:
            yield (
                f"the token of {token.name} has fewer than {SHORT} characters: "
                "make one with openssl rand -hex 32"
            )
    for entry in (*config.admin.tokens, *config.admission.tokens):
        if entry.file and _is_open(entry.file):
            yield f"{entry.file} can be read by everybody: chmod 640 it"


def _is_open(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False  # not readable at all: a fault that is told elsewhere


def _from_environment(secret: Secret) -> str:
    assert secret.env is not None
    value = os.environ.get(secret.env)
    if not value:
        told = "is not set" if value is None else "is empty"
        raise SecretError("env", f"{secret.env} {told}: set it to the token")
    return value


def _from_file(secret: Secret) -> str:
    assert secret.file is not None
    try:
        with secret.file.open("rb") as file:
            value = file.read(MAX_SECRET_BYTES + 1)
    except OSError as exc:
        raise SecretError("file", f"{secret.file} cannot be read: {exc.strerror}") from exc
    if len(value) > MAX_SECRET_BYTES:
        raise SecretError("file", f"{secret.file} is larger than {MAX_SECRET_BYTES} bytes")
    value = value.strip(b" \t\r\n")
    if not value:
        raise SecretError("file", f"{secret.file} is empty: write the token into it")
    return value.decode("latin-1")
