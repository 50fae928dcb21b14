"""Who asks, as far as a responder needs to know. The gate (:mod:`control.api.gate`) finds out."""

from collections.abc import Iterable
from dataclasses import dataclass

import falcon

from control.api.problems import problem
from control.api.routes import Operation, Role


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody. ``open``: nobody has to say who they are, and everybody may do everything."""

    name: str
    role: Role
    address: str
    open: bool = False


def caller(req: falcon.Request) -> Caller:
    """Who asks."""
    found: Caller = req.context.caller
    return found


def require(req: falcon.Request, role: Role) -> None:
    """403 where the caller's role does not suffice."""
    who = caller(req)
    if not who.role.covers(role):
        raise problem(
            falcon.HTTP_403,
            "forbidden",
            f"this takes the role {role}, and the token of {who.name} has {who.role}: "
            "use another token",
            role=role,
        )


def require_for_fields(req: falcon.Request, members: Iterable[str]) -> None:
    """403 where a member of the body takes another role than the operation."""
    operation: Operation = req.context.operation
    for member in members:
        if member in operation.field_roles:
            require(req, operation.field_roles[member])


def about_to_change(req: falcon.Request, before: object, after: object) -> None:
    """A change is about to be made: it is in the audit log when this returns. Else 503 is raised,
    and nothing may be changed. The data plane has no gate, and what gateways and agents do is
    not written down."""
    write_ahead = getattr(req.context, "write_ahead", None)
    if write_ahead is not None:
        write_ahead(req, before, after)
