"""What a browser on this machine must not be led to do by a page of another site."""

import re
from urllib.parse import urlsplit

import falcon

from control.api.problems import problem
from control.config.units import Address

_HOST = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?\Z")


def check_host(req: falcon.Request) -> None:
    """The name that a browser came by must be this machine's own. No browser sends none."""
    host = req.get_header("Host")
    if not host:
        return
    match = _HOST.match(host)
    name = match[1].strip("[]").rstrip(".").lower() if match else ""
    if not Address(name, 0).is_loopback:
        raise problem(
            falcon.HTTP_421,
            "wrong_host",
            f"Host: {host[:64]!r} is not this machine's loopback: without admin.tokens nothing "
            "else is answered; use http://127.0.0.1, or configure tokens",
        )


def check_origin(req: falcon.Request) -> None:
    """A page of another site must not change anything through its visitor's browser."""
    site = req.get_header("Sec-Fetch-Site") or "none"
    origin = req.get_header("Origin")
    try:
        same = origin is None or urlsplit(origin).netloc == (req.get_header("Host") or "")
    except ValueError:
        same = False
    if site not in ("same-origin", "none") or not same:
        raise problem(
            falcon.HTTP_403,
            "cross_site",
            "a page of another site asked for a change: only this service's own page may",
        )
