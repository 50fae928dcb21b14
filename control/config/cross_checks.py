"""Where two values of ``weir.yml`` contradict each other."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from control.config.faults import Fault
from control.config.remote_checks import admission_faults, is_loopback, token_faults


def contradictions(raw: dict[Any, Any]) -> Iterator[Fault]:
    """Faults between sections. Works on plain data that may itself be faulty, so that one wrong
    number does not hide them."""
    yield from _route_faults(raw)
    yield from _pool_faults(raw)
    yield from _listen_faults(raw)
    yield from token_faults("admin.tokens", _mapping(raw.get("admin")).get("tokens"))
    yield from admission_faults(_mapping(raw.get("admission")))
    yield from _store_faults(_mapping(raw.get("admission")))
    yield from _memory_faults(_mapping(raw.get("agent")))
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
    for n, entry in enumerate(listed):
        route = _mapping(entry)
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
        for n, entry in enumerate(backends if isinstance(backends, list) else []):
            backend = _mapping(entry)
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
        "admission.listen": _mapping(raw.get("admission")).get("listen"),
    }
    seen: dict[str, str] = {}
    for path, place in places.items():
        if not isinstance(place, str):
            continue
        if place in seen:
            yield Fault(path, f"{place} is taken by {seen[place]}: give each its own port")
        seen.setdefault(place, path)
    listen = places["admin.listen"]
    if not admin.get("tokens") and isinstance(listen, str) and not is_loopback(listen):
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


def _memory_faults(agent: Mapping[Any, Any]) -> Iterator[Fault]:
    marks = {
        "memory_resume": agent.get("memory_resume", 0.80),
        "memory_alarm": agent.get("memory_alarm", 0.85),
        "memory_full": agent.get("memory_full", 0.92),
    }
    for (lower, low), (upper, up) in pairwise(marks.items()):
        both = isinstance(low, int | float) and isinstance(up, int | float)
        if both and not low < up:
            yield Fault(f"agent.{upper}", f"{up} must be above agent.{lower}, which is {low}")


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}
