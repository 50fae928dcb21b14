"""What the front answers by itself, before or instead of the application."""

from typing import NamedTuple

from control.front.problem_details import MEDIA_TYPE, problem_body


class Refusal(NamedTuple):
    """An answer after which the connection is closed: what was sent cannot be relied on."""

    status: int
    title: str
    code: str
    detail: str

    @property
    def wire(self) -> bytes:
        """The whole answer."""
        body = problem_body(*self)
        retry = "Retry-After: 1\r\n" if self.status == 503 else ""
        head = (
            f"HTTP/1.1 {self.status} {self.title}\r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n"
        )
        return head.encode() + body


MAX_TARGET = 8 << 10
"""Bytes of a request's target."""
MAX_HEAD = 16 << 10
"""Bytes of a request's line and headers."""
MAX_FIELDS = 100

NOT_HTTP = Refusal(400, "Bad Request", "not_http", "send HTTP/1.1")
BAD_TARGET = Refusal(
    400, "Bad Request", "bad_target", "the request's target must be a path, like /v1/pools"
)
UPGRADE = Refusal(
    400, "Bad Request", "upgrade", "no other protocol is spoken here: send the body without Upgrade"
)
TIMED_OUT = Refusal(
    408,
    "Request Timeout",
    "request_timeout",
    "the request did not come whole in time: try again",
)
TARGET_TOO_LONG = Refusal(
    414, "URI Too Long", "uri_too_long", f"the request's target has at most {MAX_TARGET} bytes"
)
EXPECTATION = Refusal(
    417, "Expectation Failed", "expectation_failed", "of Expect only 100-continue is known"
)
HEAD_TOO_LARGE = Refusal(
    431,
    "Request Header Fields Too Large",
    "head_too_large",
    f"line and headers have at most {MAX_HEAD} bytes and {MAX_FIELDS} fields",
)
FAILED = Refusal(
    500, "Internal Server Error", "internal", "a defect of Weir; the service's log names it"
)
FULL = Refusal(
    503, "Service Unavailable", "too_many_connections", "this listener is full: come back soon"
)


def body_too_large(most: int) -> Refusal:
    """A body of more than ``most`` bytes."""
    return Refusal(
        413, "Content Too Large", "body_too_large", f"a body has at most {most} bytes here"
    )


BEFORE_THE_APPLICATION = (
    NOT_HTTP, BAD_TARGET, UPGRADE, TIMED_OUT, TARGET_TOO_LONG, EXPECTATION, HEAD_TOO_LARGE,
    body_too_large(0), FULL,
)  # fmt: skip
"""Whatever is asked for, it may be answered with one of these."""
