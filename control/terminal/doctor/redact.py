"""What may leave the machine: lines of known shape, without secrets, queries and quoted text."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

REMOVED = "[removed]"
SHORTEST_SECRET = 4
"""What is shorter stands in any text by chance."""
MAX_SECRET_BYTES = 64 << 10

_USERINFO = re.compile(r"(?<=://)[^/@\s\"']+@")
_QUERY = re.compile(r"\?[^\s\"'<>]+")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+")
_ASSIGNED = re.compile(
    r"(?i)([\w-]*(?:password|passwd|secret|api[_-]?key|authorization|access[_-]?token)"
    r"[\"']?\s*[=:]\s*)[\"']?[^\s\"',;}]+"
)
_SECRET_KEY = re.compile(r"(?i)(^|_)(token|secret|password|authorization|api_?key)$")
_ACCESS_VALUE = re.compile(r"[A-Za-z0-9_./:,=\[\] -]{0,200}\Z")
_ACCESS_KEYS = frozenset((
    "ts", "id", "pid", "route", "pool", "backend", "grant", "scene", "method", "protocol",
    "status", "completion", "verdict", "reason", "bytes_in", "bytes_out", "seen", "phase",
    "seconds", "upstream", "upstream_status", "upstream_first_byte", "upstream_seconds",
))  # fmt: skip
_ERROR_LINE = re.compile(
    r"(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[\w+\] \d+#\d+: (?:\*\d+ )?)(.*)\Z", re.DOTALL
)
_ERROR_FIELDS = re.compile(r", (client|server|request|subrequest|upstream|host|referrer): ")
_OWN_LINE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+ |\[\d{4}-\d\d-\d\d [^\]]+\] \[\d+\] \[)"
)
_TRACE_LINE = re.compile(
    r"Traceback \(most recent call last\):\Z|\s+File \"[^\"]+\", line \d+, in "
)
_EXCEPTION = re.compile(
    r"([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Lost|Refused))(?::.*)?\Z"
)
_QUOTED = re.compile(r"\"[^\"]*\"?|'[^']*'?")


class Redactor:
    """Takes out ``secrets``, literal values, and what looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: list[str] = []
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        """More literal values."""
        found = {*self._secrets, *(each for each in secrets if len(each) >= SHORTEST_SECRET)}
        # Longer ones first: one may hold another.
        self._secrets = sorted(found, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Any text of ours: without secrets, URLs' users and queries."""
        for secret in self._secrets:
            text = text.replace(secret, REMOVED)
        text = _USERINFO.sub(f"{REMOVED}@", text)
        text = _QUERY.sub(f"?{REMOVED}", text)
        text = _BEARER.sub(rf"\1 {REMOVED}", text)
        return _ASSIGNED.sub(rf"\1{REMOVED}", text)

    def values(self, value: Any, name: str = "") -> Any:
        """Plain data, the same way; what a webhook's path says is its secret."""
        if isinstance(value, Mapping):
            return {key: self.values(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.values(each, name) for each in value]
        if not isinstance(value, str):
            return value
        if _SECRET_KEY.search(name):
            return REMOVED
        if name == "webhook":
            parts = urlsplit(value)
            return f"{parts.scheme}://{parts.hostname or ''}/{REMOVED}"
        return self.text(value)

    def access_line(self, line: str) -> str | None:
        """A line of the access log: the members that Weir writes, none with a query in it."""
        try:
            told = json.loads(line)
        except ValueError:
            return None
        if not isinstance(told, dict):
            return None
        kept = {name: told[name] for name in told if name in _ACCESS_KEYS}
        for name, value in kept.items():
            plain = isinstance(value, int | float) or (
                isinstance(value, str) and _ACCESS_VALUE.match(value)
            )
            if not plain:
                kept[name] = REMOVED
        return self.text(json.dumps(kept))

    def error_line(self, line: str) -> str | None:
        """A line of nginx's error log: its own words, and of the request its method alone."""
        match = _ERROR_LINE.match(line)
        if not match:
            return None
        message, *fields = _ERROR_FIELDS.split(match[2])
        kept = [_QUOTED.sub(f'"{REMOVED}"', message)]
        for name, value in zip(fields[::2], fields[1::2], strict=True):
            if name == "request":
                method = re.match(r"\"([A-Z]{1,10}) ", value)
                kept.append(f"request: {method[1] if method else REMOVED}")
            elif name == "upstream":
                place = re.match(r"\"(\w+://[\w.\[\]:-]+)", value)
                kept.append(f"upstream: {place[1] if place else REMOVED}")
        return self.text(match[1] + ", ".join(kept))

    def own_line(self, line: str) -> str | None:
        """A line of the service's or the agent's log: an event, or a place in a traceback. What
        an exception says is left out: it may quote a request."""
        if _OWN_LINE.match(line) or _TRACE_LINE.match(line):
            return self.text(line)
        if match := _EXCEPTION.match(line):
            return f"{match[1]}: {REMOVED}"
        return None


def secrets_of(config: Any, environs: Iterable[Mapping[str, str]]) -> set[str]:
    """Every secret that a configuration names by variable or file, as far as it can be read, and
    the whole of a webhook's address."""
    found: set[str] = set()
    environs = list(environs)  # they are looked through once for each variable
    for name, value in _leaves(config):
        if name == "env":
            found |= {environ[value] for environ in environs if environ.get(value)}
        elif name == "file":
            found |= _lines_of(Path(value))
        elif name == "webhook":
            found.add(value)
    return found


def _leaves(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each, name)
    elif isinstance(value, str):
        yield name, value


def _lines_of(file: Path) -> set[str]:
    if not os.access(file, os.R_OK) or not file.is_file():
        return set()
    with file.open("rb") as opened:
        text = opened.read(MAX_SECRET_BYTES).decode("utf-8", "replace")
    return {line.strip() for line in text.splitlines() if line.strip()}
