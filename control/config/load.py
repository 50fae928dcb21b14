"""Reads ``weir.yml`` and reports every fault at once, each with its path and a remedy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
import yaml

from control.config.cross_checks import contradictions
from control.config.faults import Fault, faults_of
from control.config.schema import Config

MAX_FILE_BYTES = 1 << 20


class ConfigError(Exception):
    """A configuration that cannot be used; ``faults`` has them all."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        self.source = source
        self.faults = faults
        lines = "".join(f"\n  {fault}" for fault in faults)
        many = f"{len(faults)} faults{lines}"
        super().__init__(f"{source}: {faults[0] if len(faults) == 1 else many}")


class _StrictLoader(yaml.SafeLoader):
    """YAML as people mean it: a key that stands twice is a mistake, and so is text that neither
    a file's name nor a request can hold."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        text = super().construct_scalar(node)
        if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
            raise yaml.constructor.ConstructorError(
                None, None, "a character that no text of ours can have", node.start_mark
            )
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is not text: quote it", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice: keep one", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def load(path: Path) -> Config:
    """The configuration in ``path``, or :class:`ConfigError`."""
    source = str(path)
    try:
        with path.open("rb") as file:
            raw_bytes = file.read(MAX_FILE_BYTES + 1)
        if len(raw_bytes) > MAX_FILE_BYTES:
            raise ConfigError(source, [Fault("", f"is larger than {MAX_FILE_BYTES} bytes")])
        raw = yaml.load(raw_bytes, Loader=_StrictLoader)
    except OSError as exc:
        raise ConfigError(source, [Fault("", f"cannot be read: {exc.strerror}")]) from exc
    except (yaml.YAMLError, ValueError, KeyError, RecursionError) as exc:
        # A ValueError or KeyError is of a value that only looks like a date or a number.
        raise ConfigError(source, [Fault("", f"is not YAML: {_one_line(exc)}")]) from exc
    return parse(raw, source)


def for_engines(engines: Sequence[str], overrides: Mapping[str, Any]) -> tuple[Config, str]:
    """One pool ``default`` of these engines' URLs with mission 000's limits, and the same as the
    text of a file, which means the same wherever it is read."""
    backends = [{"name": f"gpu-{n}", "url": url} for n, url in enumerate(engines)]
    raw = {"pools": {"default": {"backends": backends}}, **overrides}
    config = parse(raw, "command line")
    return config, yaml.safe_dump({**raw, "state": str(config.state)}, sort_keys=False)


def parse(raw: object, source: str) -> Config:
    """A configuration from plain data, or :class:`ConfigError` with every fault."""
    if not isinstance(raw, dict):
        raise ConfigError(source, [Fault("", "must be a mapping; begin with `pools:`")])
    faults: list[Fault] = []
    config: Config | None = None
    try:
        config = Config.model_validate(raw)
    except pydantic.ValidationError as exc:
        faults = faults_of(exc)
    known = {fault.path for fault in faults}
    faults += [fault for fault in contradictions(raw) if fault.path not in known]
    if faults or config is None:
        raise ConfigError(source, sorted(faults, key=lambda fault: fault.path))
    return config


def _one_line(exc: Exception) -> str:
    """What is wrong and where, without the file's own line: it may hold a secret."""
    told, mark = str(exc), None
    if isinstance(exc, yaml.MarkedYAMLError):
        told = ": ".join(filter(None, (exc.context, exc.problem)))
        mark = exc.problem_mark or exc.context_mark
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return " ".join(told.split()) + place
