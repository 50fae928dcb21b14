"""``/openapi.json``: the admin plane's document, written from its table of routes."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import falcon
import msgspec

import control
from control.api import wire
from control.api.problems import KINDS
from control.api.routes import Operation, Reply, Role, Route
from control.api.shapes import ProblemDetails
from control.front.refusal import BEFORE_THE_APPLICATION

PROBLEM_MEDIA = "application/problem+json"
BEARER = "bearer"
REF = "#/components/schemas/{name}"
MEANINGS = {**{each.code: (each.status, each.detail) for each in BEFORE_THE_APPLICATION}, **KINDS}
"""Status and meaning of a problem, by code."""
_PLACEHOLDER = re.compile(r"\{(\w+)(?::\w+)?\}")


class OpenApi:
    """The document, made once."""

    def __init__(self) -> None:
        self._data = b""

    def describe(self, routes: Iterable[Route]) -> None:
        """Write down all routes."""
        self._data = wire.encode(document(routes))

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = self._data


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """OpenAPI 3.1 of these routes."""
    routes = list(routes)
    operations = [each for route in routes for each in route.operations.values()]
    shapes = {ProblemDetails, *(each.body for each in operations if each.body)}
    shapes |= {reply.shape for each in operations for reply in each.replies.values() if reply.shape}
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=REF)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Weir, admin plane",
            "version": control.__version__,
            "description": "Errors are RFC 9457 problem details with a code. x-weir-role is the "
            "role that a token needs; each role may do what those before it may: "
            f"{', '.join(Role)}. Parameters that are not listed are refused.",
        },
        "paths": {
            _PLACEHOLDER.sub(r"{\1}", route.path): {
                method.lower(): _operation(route, method, operation)
                for method, operation in route.operations.items()
            }
            for route in routes
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {BEARER: {"type": "http", "scheme": "bearer"}},
        },
    }


def refusals(method: str, operation: Operation) -> list[str]:
    """Codes of every problem that an operation is answered with: its own, the gate's, and those
    of the listener before them."""
    codes = ["wrong_host", *(each.code for each in BEFORE_THE_APPLICATION), *operation.refusals]
    if operation.role is None:
        return sorted(set(codes))
    codes += ["unauthorized", "throttled", "unknown_parameter"]
    if operation.query:
        codes.append("invalid_parameter")
    if operation.role is not Role.READ or operation.field_roles:
        codes.append("forbidden")
    if method not in ("GET", "HEAD"):
        codes.append("cross_site")
    return sorted(set(codes))


def _operation(route: Route, method: str, operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.about,
        "operationId": _operation_id(route.path, method),
        "parameters": _parameters(route.path, operation),
        "responses": {
            **{str(status): _reply(reply) for status, reply in operation.replies.items()},
            **_problems(refusals(method, operation)),
        },
        "security": [] if operation.role is None else [{BEARER: []}],
        "x-weir-role": operation.role,
    }
    if operation.field_roles:
        described["x-weir-field-roles"] = operation.field_roles
    if operation.body is not None:
        # What is absent stays: a change has at least one member.
        content: dict[str, Any] = {
            "schema": {"allOf": [_ref(operation.body), {"minProperties": 1}]}
        }
        if operation.example is not None:
            content["example"] = operation.example
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    return described


def _parameters(path: str, operation: Operation) -> list[dict[str, Any]]:
    within = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PLACEHOLDER.findall(path)
    ]
    return within + [
        {
            "name": param.name,
            "in": place,
            "required": False,
            "description": param.about,
            "schema": param.schema,
            **({"example": param.example} if param.example else {}),
        }
        for place, params in (("query", operation.query), ("header", operation.headers))
        for param in params
    ]


def _reply(reply: Reply) -> dict[str, Any]:
    schema = _ref(reply.shape) if reply.shape else {}
    described: dict[str, Any] = {
        "description": reply.about,
        "content": {reply.media: {"schema": schema}},
    }
    if reply.headers:
        described["headers"] = _headers(reply.headers)
    return described


def _problems(codes: Iterable[str]) -> dict[str, Any]:
    by_status: defaultdict[int, list[str]] = defaultdict(list)
    for code in codes:
        by_status[MEANINGS[code][0]].append(code)
    return {str(status): _problem(status, told) for status, told in sorted(by_status.items())}


def _problem(status: int, codes: list[str]) -> dict[str, Any]:
    exact = {"properties": {"status": {"const": status}, "code": {"enum": codes}}}
    described: dict[str, Any] = {
        "description": "; ".join(MEANINGS[code][1] for code in codes),
        "content": {PROBLEM_MEDIA: {"schema": {"allOf": [_ref(ProblemDetails), exact]}}},
    }
    headers = PROBLEM_HEADERS.get(status)
    if headers:
        described["headers"] = _headers(headers)
    return described


PROBLEM_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    412: {"ETag": "That of the settings as they are now"},
    429: {"Retry-After": "Whole seconds until the next token is looked at"},
}


def _headers(headers: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: {"required": True, "description": about, "schema": {"type": "string"}}
        for name, about in headers.items()
    }


def _ref(shape: type) -> dict[str, str]:
    return {"$ref": REF.format(name=shape.__name__)}


def _operation_id(path: str, method: str) -> str:
    words = re.findall(r"\w+", _PLACEHOLDER.sub(r"\1", path.removeprefix("/v1")))
    return "_".join([method.lower(), *words])
