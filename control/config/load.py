"""Reads ``weir.yml`` and reports every fault at once, each with its path and a remedy."""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pydantic
import yaml

from control.config.schema import Config, Section
from control.config.units import address

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where (``pools.qwen.backends[1].max_tokens``), and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """A configuration that cannot be used; ``faults`` has them all."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        self.source = source
        self.faults = faults
        lines = "\n".join(f"  {fault}" for fault in faults)
        super().__init__(f"{source}: {len(faults)} fault(s)\n{lines}")


class _StrictLoader(yaml.SafeLoader):
    """YAML as people mean it: a key that stands twice is a mistake."""

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
        raw_bytes = path.read_bytes()
        if len(raw_bytes) > MAX_FILE_BYTES:
            raise ConfigError(source, [Fault("", f"is larger than {MAX_FILE_BYTES} bytes")])
        raw = yaml.load(raw_bytes, Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)
    except OSError as exc:
        raise ConfigError(source, [Fault("", f"cannot be read: {exc.strerror}")]) from exc
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(source, [Fault("", f"is not YAML: {_one_line(exc)}")]) from exc
    return parse(raw, source)


def for_engines(engines: Sequence[str], overrides: Mapping[str, Any]) -> tuple[Config, str]:
    """One pool ``default`` of these engines' URLs with mission 000's limits, and the same as the
    text of a file."""
    backends = [{"name": f"gpu-{n}", "url": url} for n, url in enumerate(engines)]
    raw = {"pools": {"default": {"backends": backends}}, **overrides}
    return parse(raw, "command line"), yaml.safe_dump(raw, sort_keys=False)


def parse(raw: object, source: str) -> Config:
    """A configuration from plain data, or :class:`ConfigError` with every fault."""
    if not isinstance(raw, dict):
        raise ConfigError(source, [Fault("", "must be a mapping; begin with `pools:`")])
    faults: list[Fault] = []
    config: Config | None = None
    try:
        config = Config.model_validate(raw)
    except pydantic.ValidationError as exc:
        faults = [_fault(error) for error in exc.errors(include_url=False)]
    known = {fault.path for fault in faults}
    faults += [fault for fault in _cross_checks(raw) if fault.path not in known]
    if faults or config is None:
        raise ConfigError(source, sorted(faults, key=lambda fault: fault.path))
    return config


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())


# -- what one value can be wrong in ------------------------------------------------------


def _fault(error: Any) -> Fault:
    loc = [part for part in error["loc"] if part not in _UNION_TAGS]
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part == "[key]":
            continue
        else:
            path += f".{part}" if path else str(part)
    return Fault(path, _words(error, loc))


_UNION_TAGS = ("constrained-int", "literal['auto']", "function-after[_unix_name(), str]")


def _words(error: Any, loc: Sequence[str | int]) -> str:
    context = error.get("ctx", {})
    got = _shown(error.get("input"))
    match error["type"]:
        case "extra_forbidden":
            return _unknown_key(str(loc[-1]), _section_at(loc[:-1]))
        case "missing":
            return "is missing: add it"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, not {got}"
        case "greater_than":
            return f"must be more than {context['gt']}, not {got}"
        case "less_than_equal":
            return f"must be at most {context['le']}, not {got}"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"must be a whole number, not {got}"
        case "float_type" | "float_parsing" | "finite_number":
            return f"must be a number, not {got}"
        case "bool_type":
            return f"must be true or false, not {got}"
        case "string_type":
            return f"must be text, not {got}"
        case "literal_error":
            return f"must be {context['expected']}, not {got}"
        case "too_short":
            return "must have at least one entry"
        case "tuple_type" | "list_type":
            return f"must be a list, not {got}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"must be a mapping of keys, not {got}"
        case "value_error":
            return f"{context['error']}, not {got}"
        case _:
            return f"{error['msg'][:1].lower()}{error['msg'][1:]}, not {got}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(key: str, section: type[Section] | None) -> str:
    if section is None:
        return "is not a known key: remove it"
    names = list(section.model_fields)
    near = difflib.get_close_matches(key, names, n=1)
    if near:
        return f"is not a known key; did you mean {near[0]}?"
    return f"is not a known key: remove it (known here: {', '.join(names)})"


def _section_at(loc: Sequence[str | int]) -> type[Section] | None:
    """The model that stands at a path of the file."""
    here: Any = Config
    for part in loc:
        if isinstance(part, str) and isinstance(here, type) and issubclass(here, Section):
            field = here.model_fields.get(part)
            here = field.annotation if field else None
        else:
            inner = [arg for arg in get_args(here) if _find_section(arg)]
            here = inner[-1] if inner else None
        here = _find_section(here) if not _is_container(here) else here
    return here if isinstance(here, type) and issubclass(here, Section) else None


def _is_container(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) in (dict, tuple)


def _find_section(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for arg in get_args(annotation):
        if found := _find_section(arg):
            return found
    return None


# -- what two values can contradict each other in ----------------------------------------


def _cross_checks(raw: dict[Any, Any]) -> Iterator[Fault]:
    """Faults between sections. Works on plain data that may itself be faulty, so that one wrong
    number does not hide them."""
    yield from _route_faults(raw)
    yield from _pool_faults(raw)
    yield from _listen_faults(raw)
    yield from _store_faults(_mapping(raw.get("admission")))
    scenes = _mapping(raw.get("scenes"))
    outputs = scenes.get("expected_output", {"Record_Gen": 0, "QA": 0})
    default = scenes.get("default", "Record_Gen")
    if isinstance(outputs, dict) and isinstance(default, str) and default not in outputs:
        yield Fault(
            "scenes.default",
            f"{default!r} is not among scenes.expected_output ({', '.join(map(str, outputs))}): "
            "add it there or name one of them",
        )


def _route_faults(raw: dict[Any, Any]) -> Iterator[Fault]:
    pools = _mapping(raw.get("pools"))
    routes = raw.get("routes")
    paths: Counter[str] = Counter()
    listed = routes if isinstance(routes, list) else []
    if routes is None and pools and "default" not in pools:
        yield Fault("routes", "is missing, and there is no pool named default: add routes")
    for n, route in enumerate(listed):
        route = _mapping(route)
        pool, path = route.get("pool"), route.get("path")
        if isinstance(pool, str) and pool not in pools:
            known = ", ".join(map(str, pools)) or "none"
            yield Fault(f"routes[{n}].pool", f"there is no pool {pool!r}; there are: {known}")
        if isinstance(path, str):
            paths[path] += 1
            if paths[path] == 2:
                yield Fault(f"routes[{n}].path", f"{path!r} stands twice: remove one")


def _pool_faults(raw: dict[Any, Any]) -> Iterator[Fault]:
    for pool_name, pool in _mapping(raw.get("pools")).items():
        backends = _mapping(pool).get("backends")
        names: Counter[str] = Counter()
        urls: Counter[str] = Counter()
        for n, backend in enumerate(backends if isinstance(backends, list) else []):
            backend = _mapping(backend)
            name, url = backend.get("name"), backend.get("url")
            path = f"pools.{pool_name}.backends[{n}]"
            if isinstance(name, str):
                names[name] += 1
                if names[name] == 2:
                    yield Fault(f"{path}.name", f"{name!r} stands twice: give each its own")
            if isinstance(url, str):
                urls[url.rstrip("/")] += 1
                if urls[url.rstrip("/")] == 2:
                    yield Fault(
                        f"{path}.url", f"{url!r} stands twice: one GPU has one set of limits"
                    )


def _listen_faults(raw: dict[Any, Any]) -> Iterator[Fault]:
    admin = _mapping(raw.get("admin"))
    places = {
        "listen": raw.get("listen", "127.0.0.1:8080"),
        "listen_h2c": raw.get("listen_h2c"),
        "tls.listen": _mapping(raw.get("tls")).get("listen"),
        "admin.listen": admin.get("listen", "127.0.0.1:8081"),
    }
    seen: dict[str, str] = {}
    for path, place in places.items():
        if not isinstance(place, str):
            continue
        if place in seen:
            yield Fault(path, f"{place} is taken by {seen[place]}: give each its own port")
        seen.setdefault(place, path)
    listen = places["admin.listen"]
    if not admin.get("tokens") and isinstance(listen, str) and not _is_loopback(listen):
        yield Fault(
            "admin.listen",
            f"{listen} is open to others, and admin.tokens is empty: add a token "
            "({name: ops, env: WEIR_ADMIN_TOKEN}) or listen on 127.0.0.1",
        )


def _store_faults(admission: Mapping[Any, Any]) -> Iterator[Fault]:
    store = admission.get("store", "memory")
    if isinstance(store, str) and store != "memory":
        yield Fault("admission.store", f"{store!r} is not a store of this version: use memory")
    workers = admission.get("workers", 1)
    if store == "memory" and isinstance(workers, int) and workers > 1:
        yield Fault(
            "admission.workers",
            f"the memory store lives in one process, {workers} would each admit up to the "
            "limits: use 1",
        )


def _is_loopback(place: str) -> bool:
    try:
        return address(place).is_loopback
    except ValueError:
        return True  # not an address: reported by its own check


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}
