"""Query parameters, read strictly."""

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
        raise problem(
            falcon.HTTP_400,
            f"invalid_{name}",
            f"{name}: {asked[:64]!r} must be a whole number from {at_least} to {at_most}",
        )
    return number


def boolean(req: falcon.Request, name: str) -> bool:
    """A flag, false where it is absent."""
    asked = req.get_param(name)
    if asked not in (None, "true", "false"):
        raise problem(
            falcon.HTTP_400, f"invalid_{name}", f"{name}: {asked[:64]!r} must be true or false"
        )
    return asked == "true"
