"""Query parameters, read strictly."""

from collections.abc import Sequence

import falcon

from control.api.problems import problem


def integer(req: falcon.Request, name: str, default: int, at_least: int, at_most: int) -> int:
    """A whole number within bounds."""
    asked = req.get_param(name)
    if asked is None:
        return default
    # isascii: isdigit alone admits digits that int() refuses.
    plain = asked.isascii() and asked.isdigit() and len(asked) < 20
    number = int(asked) if plain else -1
    if not at_least <= number <= at_most:
        raise invalid(name, asked, f"a whole number from {at_least} to {at_most}")
    return number


def boolean(req: falcon.Request, name: str) -> bool:
    """A flag, false where it is absent."""
    return one_of(req, name, ("true", "false"), "false") == "true"


def one_of(req: falcon.Request, name: str, known: Sequence[str], default: str) -> str:
    """One of a few words."""
    asked = req.get_param(name)
    if asked is None:
        return default
    if asked not in known:
        raise invalid(name, asked, f"one of {', '.join(known)}")
    return asked


def invalid(name: str, asked: str, wanted: str) -> falcon.HTTPError:
    """An error to raise for a parameter that makes no sense."""
    return problem(falcon.HTTP_400, "invalid_parameter", f"{name}: {asked[:64]!r} must be {wanted}")
