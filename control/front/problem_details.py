"""The body of an error, RFC 9457, for whoever answers with one."""

import json

MEDIA_TYPE = "application/problem+json"


def problem_body(status: int, title: str, code: str, detail: str, **members: object) -> bytes:
    """``detail`` says what is wrong and how to mend it; ``members`` are the problem's own."""
    body = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        **members,
    }
    return json.dumps(body, ensure_ascii=False).encode()
