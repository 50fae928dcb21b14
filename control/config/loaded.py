"""A configuration in force, and how it came to be so."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from control.config.extras import missing_extras
from control.config.load import ConfigError, load
from control.config.schema import Config
from control.config.secrets import Token, read_node_tokens, read_tokens


@dataclass(frozen=True, slots=True)
class Loaded:
    """Times in seconds since 1970. ``node_tokens`` are those of nodes elsewhere.
    ``reload_error``: what the file was refused for since."""

    config: Config
    tokens: Sequence[Token]
    file: Path
    loaded_at: float
    started_at: float
    reload_error: str | None = None
    node_tokens: Sequence[Token] = ()


def load_with_tokens(file: Path, started_at: float | None = None) -> Loaded:
    """The configuration in ``file`` with the tokens that it names, or :class:`ConfigError`."""
    now = time.time()
    config = load(file)
    tokens, faults = read_tokens(config)
    node_tokens, node_faults = read_node_tokens(config)
    faults += missing_extras(config)
    if faults or node_faults:
        raise ConfigError(str(file), [*faults, *node_faults])
    since = now if started_at is None else started_at
    return Loaded(config, tokens, file, now, since, node_tokens=node_tokens)
