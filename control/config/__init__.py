"""``weir.yml``: read once, validated whole, frozen, handed down."""

from control.config.faults import Fault
from control.config.load import ConfigError, for_engines, load
from control.config.schema import Backend, Config, Pool, Route

__all__ = ["Backend", "Config", "ConfigError", "Fault", "Pool", "Route", "for_engines", "load"]
