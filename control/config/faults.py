"""What is wrong with one value of ``weir.yml``, in words: path, fault, remedy."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pydantic

from control.config.schema import Config, Section


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where (``pools.qwen.backends[1].max_tokens``), and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def unusable(exc: OSError) -> str:
    """What the system says of a file or folder, with the remedy; of anything else its words."""
    if exc.filename is None or not exc.strerror:
        return exc.strerror or str(exc)
    return f"{exc.filename}: {exc.strerror}: mend that, or name another place"


def faults_of(exc: pydantic.ValidationError) -> list[Fault]:
    """Every fault that the schema found."""
    faults: list[Fault] = []
    for error in exc.errors(include_url=False):
        fault = _fault(error)
        within = any(known.path.startswith(fault.path) for known in faults)
        # A list whose entries are faulty counts as short of them too.
        if not (error["type"] == "too_short" and within):
            faults.append(fault)
    return faults


def _fault(error: Any) -> Fault:
    loc = error["loc"]
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part == "[key]":
            continue
        else:
            path += f".{part}" if path else str(part)
    return Fault(path, _words(error, loc))


_WORDS = {
    "missing": "is missing: add it",
    "greater_than_equal": "must be at least {ge}, not {got}",
    "greater_than": "must be more than {gt}, not {got}",
    "less_than_equal": "must be at most {le}, not {got}",
    "int_type": "must be a whole number, not {got}",
    "float_type": "must be a number, not {got}",
    "float_parsing": "must be a number, not {got}",
    "finite_number": "must be a number, not {got}",
    "bool_type": "must be true or false, not {got}",
    "string_type": "must be text, not {got}",
    "literal_error": "must be {expected}, not {got}",
    "too_short": "must have at least one entry",
    "tuple_type": "must be a list, not {got}",
    "dict_type": "must be a mapping of keys, not {got}",
    "model_type": "must be a mapping of keys, not {got}",
    "value_error": "{error}, not {got}",
}
"""Pydantic's error types in our words; the rest keep pydantic's."""


SECRET_KEYS = {"token", "tokens", "webhook", "endpoint"}
_HIDDEN = re.compile(r"(?<=://)[^\s'\"]*@|(?<=\?)[^\s'\"]+")
"""Of a URL, what may be a password or a key."""


def _words(error: Any, loc: Sequence[str | int]) -> str:
    if error["type"] == "extra_forbidden":
        return _unknown_key(str(loc[-1]), _section_at(loc[:-1]))
    template = _WORDS.get(error["type"], "{msg}, not {got}")
    # Whoever wrote a secret itself into the file does not want it in a log as well.
    got = "what it is" if SECRET_KEYS.intersection(loc) else _shown(error.get("input"))
    return template.format(msg=error["msg"], got=got, **error.get("ctx", {}))


def _shown(value: object) -> str:
    text = _HIDDEN.sub("…", repr(value))
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
