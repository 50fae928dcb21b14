"""What the admin plane's routes are made of: who may do what, and what is answered.

The table itself is :mod:`control.api.admin_routes`. The application is built from it, the gate
(:mod:`control.api.gate`) asks it who may pass, and the OpenAPI document is written from it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import falcon


class Role(StrEnum):
    """What a token may do: look; end leases and drain backends as well; everything."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def covers(self, needed: "Role") -> bool:
        """Whether this role may do what ``needed`` may."""
        return list(Role).index(self) >= list(Role).index(needed)


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a query or a header, with its JSON schema."""

    name: str
    about: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    example: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is no problem. ``shape``: its JSON, one of :mod:`control.api.shapes`."""

    about: str
    shape: type | None = None
    media: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names, and what they say."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a route.

    ``role`` it takes, None: open to everybody; ``field_roles``: what certain members of the body
    take instead. ``refusals``: codes of its own problems (:mod:`control.api.problems`); those of
    the gate are understood. ``action``: what the audit log calls it; None where it changes nothing.
    """

    role: Role | None
    about: str
    replies: Mapping[int, Reply]
    refusals: tuple[str, ...] = ()
    query: tuple[Param, ...] = ()
    headers: tuple[Param, ...] = ()
    body: type | None = None
    example: Mapping[str, Any] | None = None
    field_roles: Mapping[str, Role] = field(default_factory=dict)
    action: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A path (Falcon's template), its resource, and its methods. Either all are open or none."""

    path: str
    resource: object
    operations: Mapping[str, Operation]
    suffix: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it asks for no token."""
        return all(operation.role is None for operation in self.operations.values())


def add_routes(app: falcon.App[falcon.Request, falcon.Response], routes: Iterable[Route]) -> None:
    """Serve the routes. A responder that the table does not know is a defect."""
    for route in routes:
        ending = f"_{route.suffix}" if route.suffix else ""
        served = {
            method
            for method in falcon.HTTP_METHODS
            if hasattr(route.resource, f"on_{method.lower()}{ending}")
        }
        if served != set(route.operations):
            raise ValueError(f"{route.path} serves {served}, its table has {set(route.operations)}")
        if not route.is_open and None in {each.role for each in route.operations.values()}:
            raise ValueError(f"{route.path} is open for some methods only")
        app.add_route(route.path, route.resource, **({"suffix": route.suffix} if ending else {}))
