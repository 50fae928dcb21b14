"""``weir.yml``: read once, validated whole, frozen, handed down."""

from control.config.faults import Fault
from control.config.load import ConfigError, for_engines, load
from control.config.loaded import Loaded, load_with_tokens
from control.config.schema import Backend, Config, Pool, Route
from control.config.secrets import Token

__all__ = [
    "Backend",
    "Config",
    "ConfigError",
    "Fault",
    "Loaded",
    "Pool",
    "Route",
    "Token",
    "for_engines",
    "load",
    "load_with_tokens",
]
