"""The OpenAPI document and the admin plane's routes are the same in both directions."""

import re

import falcon
import jsonschema
import pytest

from control.api.openapi import MEANINGS, document, refusals
from control.api.routes import Operation, Reply, Role, Route, add_routes
from tests.harness.openapi import openapi, routes

RESERVED = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


class Thing:
    """A resource with two methods."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None: ...

    def on_delete(self, req: falcon.Request, resp: falcon.Response) -> None: ...


def operation(role: Role | None = Role.READ) -> Operation:
    return Operation(role, "does", {200: Reply("done")})


def served() -> set[tuple[str, str]]:
    """(path, method) of all that the application answers, as Falcon's router has it."""
    app: falcon.App[falcon.Request, falcon.Response] = falcon.App()
    add_routes(app, routes())
    found = set()
    for route in routes():
        path = re.sub(r"\{\w+(?::\w+)?\}", "x", route.path)
        resource, methods, _, template = app._router.find(path)  # type: ignore[attr-defined]
        assert (resource, template) == (route.resource, route.path), "no other route is before it"
        shown = re.sub(r":\w+\}", "}", route.path)
        for method, responder in methods.items():
            if getattr(responder, "__self__", None) is resource:
                found.add((shown, method))
    return found


def test_what_is_served_is_documented_and_what_is_documented_is_served() -> None:
    documented = {
        (path, method.upper()) for path, methods in openapi()["paths"].items() for method in methods
    }
    assert documented == served()
    assert {method for methods in openapi()["paths"].values() for method in methods} <= RESERVED


def test_every_operation_has_a_role_or_is_open_to_everybody() -> None:
    opened = {route.path for route in routes() if route.is_open}
    assert {"/healthz", "/readyz"} <= opened
    assert all(path in ("/", "/healthz", "/readyz") or path.startswith("/ui") for path in opened)
    for route in routes():
        for method, each in route.operations.items():
            if each.role is Role.READ:
                assert method in ("GET", "HEAD") and each.action is None, route.path
            if method not in ("GET", "HEAD"):
                assert each.action, f"{method} {route.path} is a change, and has no name"


@pytest.mark.parametrize(
    "methods",
    [{"GET"}, {"GET", "DELETE", "PATCH"}, set()],
)
def test_a_method_that_the_table_forgot_does_not_start(methods: set[str]) -> None:
    table = {method: operation() for method in methods}
    with pytest.raises(ValueError, match="its table has"):
        add_routes(falcon.App(), [Route("/thing", Thing(), table)])


def test_a_route_is_open_for_all_its_methods_or_for_none() -> None:
    table = {"GET": operation(None), "DELETE": operation()}
    with pytest.raises(ValueError, match="open for some"):
        add_routes(falcon.App(), [Route("/thing", Thing(), table)])


def test_the_document_is_sound() -> None:
    shown = openapi()
    assert shown["openapi"].startswith("3.1")
    ids = [each["operationId"] for path in shown["paths"].values() for each in path.values()]
    assert len(ids) == len(set(ids))
    for name, schema in shown["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema.get("description"), f"{name} says nothing"
    names = set(re.findall(r'"#/components/schemas/(\w+)"', str(shown).replace("'", '"')))
    assert names <= set(shown["components"]["schemas"])


def test_every_refusal_is_told_with_its_status_and_role() -> None:
    for route in routes():
        for method, each in route.operations.items():
            path = re.sub(r":\w+\}", "}", route.path)
            shown = openapi()["paths"][path][method.lower()]
            assert shown["x-weir-role"] == each.role
            codes = refusals(method, each)
            assert set(codes) <= set(MEANINGS)
            statuses = {str(MEANINGS[code][0]) for code in codes}
            assert statuses | {str(status) for status in each.replies} == set(shown["responses"])
            assert ("401" in statuses) is (each.role is not None) is bool(shown["security"])


def test_the_document_follows_its_table() -> None:
    shown = document([Route("/thing/{name:path}", Thing(), {"GET": operation(Role.ADMIN)})])
    assert set(shown["paths"]) == {"/thing/{name}"}
    assert set(shown["paths"]["/thing/{name}"]["get"]["responses"]) == {
        "200", "400", "401", "403", "408", "413", "414", "417", "421", "429", "431", "503",
    }  # fmt: skip
