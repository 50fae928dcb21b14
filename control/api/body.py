"""A request's body, within bounds."""

import falcon

from control.api.problems import problem

MAX_BODY = 4 << 20
"""A sync of 20,000 leases with all their fields is about 3 MB."""


def read_body(req: falcon.Request) -> bytes:
    """The request's body, or a 411 or 413."""
    length = req.content_length
    if length is None:
        raise problem(
            falcon.HTTP_411, "length_required", "send the body with a Content-Length header"
        )
    if length > MAX_BODY:
        raise problem(
            falcon.HTTP_413,
            "body_too_large",
            f"a body of {length} bytes; at most {MAX_BODY} are taken, split the batch",
        )
    return bytes(req.bounded_stream.read())
