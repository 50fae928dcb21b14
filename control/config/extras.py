"""What a configuration asks for and this installation lacks."""

from collections.abc import Iterator
from importlib.util import find_spec

from control.config.faults import Fault
from control.config.schema import Config

TRACING = "opentelemetry.exporter.otlp.proto.http"


def missing_extras(config: Config) -> Iterator[Fault]:
    """Faults for features whose packages are not installed."""
    if config.tracing and not _is_installed(TRACING):
        yield Fault(
            "tracing",
            "needs packages that are not installed: .venv/bin/pip install -e '.[tracing]'",
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even its parent
        return False
