"""Errors of the API as RFC 9457 problem details with a ``code``."""

import json

import falcon


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
    code = getattr(exc, "problem_code", None) or exc.title.lower().replace(" ", "_").removeprefix(
        f"{exc.status_code}_"
    )
    body = {
        "type": "about:blank",
        "title": exc.title or exc.status,
        "status": exc.status_code,
        "code": code,
        "detail": exc.description or f"{req.method} {req.path} is not served here",
        **getattr(exc, "members", {}),
    }
    resp.content_type = "application/problem+json"
    resp.data = json.dumps(body, ensure_ascii=False).encode()
