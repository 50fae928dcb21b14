"""Errors of the API as RFC 9457 problem details with a ``code``."""

from collections.abc import Mapping

import falcon

from control.front.problem_details import MEDIA_TYPE, problem_body

KINDS: Mapping[str, tuple[int, str]] = {
    "unknown_parameter": (400, "The query has a parameter that is not there"),
    "invalid_parameter": (400, "A parameter of the query makes no sense"),
    "invalid_change": (400, "The body is no change: wrong JSON, member, type or value"),
    "invalid_if_match": (400, "If-Match is neither * nor a list of ETags"),
    "unauthorized": (401, "No token, or none of those that are configured"),
    "forbidden": (403, "The token's role does not suffice"),
    "cross_site": (403, "A page of another site asked for a change"),
    "pool_not_found": (404, "There is no such pool"),
    "backend_not_found": (404, "The pool has no such backend"),
    "lease_not_found": (404, "There is no such live lease"),
    "session_not_found": (404, "There is no such session"),
    "page_not_found": (404, "That part of the log has been rotated away"),
    "node_not_found": (404, "No such node has been heard"),
    "file_not_found": (404, "The dashboard has no such file"),
    "precondition_failed": (412, "The settings are not those that If-Match names"),
    "body_too_large": (413, "The body is larger than 64 KB"),
    "unsupported_media_type": (415, "The body is not application/json"),
    "wrong_host": (421, "Without tokens: Host is not this machine's loopback"),
    "throttled": (429, "Too many wrong tokens came from this address"),
    "audit_failed": (503, "The audit log cannot be read; or written, so nothing was changed"),
    "journal": (503, "The journal cannot be written"),
    "too_many_subscribers": (503, "Too many follow the events already"),
    "drift": (503, "The ledger does not add up"),
}
"""What the admin plane's problems mean, by code, with their status."""


def problem(
    status: str, code: str, detail: str, headers: dict[str, str] | None = None, **members: object
) -> falcon.HTTPError:
    """An error to raise: ``detail`` says what is wrong and how to mend it."""
    return Problem(status, code, detail, headers, members)


class Problem(falcon.HTTPError):
    """An HTTP error that carries a code and members of its own."""

    def __init__(
        self,
        status: str,
        code: str,
        detail: str,
        headers: dict[str, str] | None,
        members: dict[str, object],
    ) -> None:
        super().__init__(status, title=status.split(" ", 1)[1], description=detail, headers=headers)
        self.problem_code = code
        self.members = members


def serialize(req: falcon.Request, resp: falcon.Response, exc: falcon.HTTPError) -> None:
    """Falcon's error serializer: every error of the API leaves through here."""
    title = exc.title.removeprefix(f"{exc.status_code} ")
    code = getattr(exc, "problem_code", None) or title.lower().replace(" ", "_")
    req.context.problem_code = code
    resp.content_type = MEDIA_TYPE
    resp.data = problem_body(
        exc.status_code,
        title,
        code,
        exc.description or f"{req.method} {req.path} is not served here",
        **getattr(exc, "members", {}),
    )
