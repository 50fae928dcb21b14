"""A request's body, within bounds."""

import falcon

from control.api.problems import problem

MAX_BODY = 4 << 20
"""A sync of 20,000 leases with all their fields is about 3 MB."""


JSON_MEDIA = (
    "application/json", "application/merge-patch+json",
    "", "application/x-www-form-urlencoded",
)  # fmt: skip
"""The last two are what curl and others say by themselves of a body that they were given; where it
came from a page of another site is told by ``Origin``, not by this."""
MAX_CHANGE = 64 << 10
"""What a person asks for on the admin plane is far smaller."""


def read_body(req: falcon.Request, at_most: int = MAX_BODY) -> bytes:
    """The request's body, or a 411 or 413."""
    length = req.content_length
    if length is None:
        raise problem(
            falcon.HTTP_411, "length_required", "send the body with a Content-Length header"
        )
    if length > at_most:
        raise problem(
            falcon.HTTP_413,
            "body_too_large",
            f"a body of {length} bytes; at most {at_most} are taken: send less",
        )
    return bytes(req.bounded_stream.read())


def read_json(req: falcon.Request) -> bytes:
    """A small body that does not say it is something else than JSON, or a 411, 413 or 415."""
    media = (req.content_type or "").partition(";")[0].strip().lower()
    if media not in JSON_MEDIA:
        raise problem(
            falcon.HTTP_415,
            "unsupported_media_type",
            f"Content-Type: {media[:64]!r} is not taken; send application/json",
        )
    return read_body(req, MAX_CHANGE)
