"""The admin plane is closed to all but those who may: by token, role, host and origin."""

import http.client
import itertools
import os
import pwd
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from control.api.routes import Operation, Role, Route
from tests.harness.admission import Service
from tests.harness.node import free_port, wait_for
from tests.harness.openapi import check_answer, routes

TOKENS = {role: f"{role}-token-0123456789abcdef" for role in Role}
OPERATIONS = [
    (route, method, operation)
    for route in routes()
    for method, operation in route.operations.items()
]
names = itertools.count(1)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("secured")
    tokens = []
    for role, token in TOKENS.items():
        file = folder / role
        file.write_text(f"{token}\n")
        file.chmod(0o640)
        tokens.append({"name": f"{role}-er", "file": str(file), "role": role.value})
    service = Service(folder, admin={"tokens": tokens})
    yield service
    service.stop()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Without tokens."""
    service = Service(tmp_path_factory.mktemp("open"))
    yield service
    service.stop()


def path_of(route: Route, lease: str, session: str) -> str:
    values = {"pool": "default", "backend": "gpu-0", "lease_id": lease, "session": session,
              "node": "node-1"}  # fmt: skip
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda m: values.get(m[1], "index.html"), route.path)


def ask(service: Service, operation: Operation, method: str, path: str, headers: Any) -> Any:
    options: dict[str, Any] = {"json": operation.example} if operation.body else {}
    response = requests.request(
        method, service.url + path, headers=headers, timeout=10, stream=True, **options
    )
    with response:
        if "event-stream" not in response.headers["Content-Type"]:
            check_answer(method, path, response)
        return response


def everything(service: Service) -> Any:
    """All that an operator can change."""
    token = TOKENS[Role.READ]
    pools = service.get("/v1/pools", token)
    leases = service.get("/v1/leases?limit=1000", token)["leases"]
    return pools, [(lease["id"], lease["state"]) for lease in leases]


WRONG = {
    "none": {},
    "empty": {"Authorization": ""},
    "no token": {"Authorization": "Bearer"},
    "empty token": {"Authorization": "Bearer "},
    "wrong": {"Authorization": f"Bearer {TOKENS[Role.ADMIN]}x"},
    "cut": {"Authorization": f"Bearer {TOKENS[Role.ADMIN][:-1]}"},
    "bare": {"Authorization": TOKENS[Role.ADMIN]},
    "basic": {"Authorization": f"Basic {TOKENS[Role.ADMIN]}"},
    "two": {"Authorization": f"Bearer {TOKENS[Role.ADMIN]}, Bearer x"},
    "no text": {"Authorization": b"Bearer \xff\xfe"},
}


@pytest.mark.parametrize(
    ("route", "method", "operation"), OPERATIONS, ids=lambda each: getattr(each, "path", None)
)
def test_every_operation_opens_to_its_role_and_to_nobody_else(
    service: Service, route: Route, method: str, operation: Operation
) -> None:
    """Casebook 44."""
    session = f"node-1/{next(names)}/1"
    [lease] = service.grant(session=session)
    path = path_of(route, lease, session)
    before = everything(service)
    service.get("/v1/whoami", TOKENS[Role.READ])  # forgets the failures before
    for name, headers in WRONG.items():
        response = ask(service, operation, method, path, headers)
        assert (response.status_code == 401) is (operation.role is not None), (name, response)
        if operation.role is not None:
            assert response.headers["WWW-Authenticate"] == "Bearer"
    needed = [operation.role or Role.READ, *operation.field_roles.values()]
    for role in Role:
        may = all(role.covers(each) for each in needed)
        if not may:
            headers = {"Authorization": f"Bearer {TOKENS[role]}"}
            response = ask(service, operation, method, path, headers)
            assert response.status_code == 403 and response.json()["code"] == "forbidden"
            assert response.json()["role"] in response.json()["detail"]
    assert everything(service) == before, "what was refused has changed nothing"
    for role in Role:
        if all(role.covers(each) for each in needed):
            headers = {"Authorization": f"Bearer {TOKENS[role]}"}
            response = ask(service, operation, method, path, headers)
            assert response.status_code not in (401, 403), response.text


def test_an_operator_drains_a_backend_and_sets_no_limit(service: Service) -> None:
    path = "/v1/pools/default/backends/gpu-1"
    token = TOKENS[Role.OPERATE]
    for body in ({"max_streams": 5}, {"state": "draining", "max_tokens": 5}, {"max_tokens": None}):
        response = service.ask("PATCH", path, token, json=body)
        assert (response.status_code, response.json()["role"]) == (403, "admin")
        line = service.audit()[-1]
        assert (line["who"], line["outcome"]) == ("operate-er", "forbidden")
        assert (line["before"], line["after"]) == (None, None)
    assert service.get(path, token)["state"] == "active"
    for state in ("draining", "active"):
        assert service.ask("PATCH", path, token, json={"state": state}).json()["state"] == state


def test_what_is_in_no_table_is_closed(service: Service) -> None:
    for path in (
        "/nowhere", "/v1/", "/v1/pools/", "/healthz/", "//v1/pools",
        "/readyz%00", "/HEALTHZ",
    ):  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
        connection.request("GET", path)
        assert connection.getresponse().status in (400, 401), path
        connection.close()
        if not path.startswith("//"):  # requests sends it with one
            assert service.ask("GET", path, TOKENS[Role.ADMIN]).status_code == 404, path
    for method in ("PUT", "POST", "DELETE", "OPTIONS", "TRACE", "PROPFIND"):
        response = service.ask(method, "/v1/pools", TOKENS[Role.ADMIN])
        assert (response.status_code, response.headers["Allow"]) == (405, "GET"), method
        assert response.json()["code"] == "method_not_allowed"
        assert service.ask(method, "/v1/pools").status_code == 401


def test_secrets_are_shown_nowhere(service: Service) -> None:
    token = TOKENS[Role.ADMIN]
    for path in ("/v1/config", "/v1/audit", "/v1/whoami", "/metrics", "/openapi.json"):
        text = service.ask("GET", path, token).text
        assert not any(secret in text for secret in TOKENS.values()), path
    for file in service.state.rglob("*"):
        if file.is_file():
            assert "0123456789abcdef" not in file.read_text(errors="replace"), file
    assert "0123456789abcdef" not in service.log.read_text()


# -- who guesses -------------------------------------------------------------------------------


def test_guessing_is_throttled_by_address_and_a_right_token_is_not_looked_at_then(
    service: Service,
) -> None:
    right = TOKENS[Role.READ]
    service.get("/v1/whoami", right)
    for _ in range(120):  # no token is no guess
        assert service.ask("GET", "/v1/pools").status_code == 401

    def guess(n: int) -> int:
        return int(service.ask("GET", "/v1/pools", f"guess-{n}").status_code)

    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(guess, range(130)))
    assert set(told) == {401, 429}
    assert 100 <= told.count(401) <= 101 + time.monotonic() - began

    def refused() -> Any:
        while guess(0) != 429:
            pass
        answer = service.ask("GET", "/v1/pools", right)  # within the same second
        return [answer] if answer.status_code == 429 else []

    [answer] = wait_for(refused, 30)
    assert (answer.json()["code"], answer.headers["Retry-After"]) == ("throttled", "1")
    assert service.ask("GET", "/healthz").status_code == 200
    # From elsewhere all is as before.
    with requests.Session() as elsewhere:
        elsewhere.mount("http://", _From("127.0.0.2"))
        headers = {"Authorization": f"Bearer {right}"}
        response = elsewhere.get(f"{service.url}/v1/whoami", headers=headers, timeout=10)
        assert response.status_code == 200
    assert "tokens_throttled address=127.0.0.1" in service.log.read_text()
    wait_for(lambda: service.ask("GET", "/v1/whoami", right).status_code == 200, 10, 0.2)


class _From(requests.adapters.HTTPAdapter):
    """Connects from an address of the loopback's."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, source_address=(self._address, 0), **options)


# -- browsers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8081", "localhost.evil.example", "127.0.0.1.evil.example",
     "10.0.0.1", "[2001:db8::1]:8081", "0.0.0.0", "169.254.1.1", "a b", "::1"],
)  # fmt: skip
def test_without_tokens_another_host_is_refused(bare: Service, host: str) -> None:
    """DNS rebinding."""
    for method, path in (("GET", "/v1/pools"), ("GET", "/metrics"), ("GET", "/healthz"),
                         ("DELETE", "/v1/leases/x"), ("GET", "/nowhere")):  # fmt: skip
        response = bare.ask(method, path, headers={"Host": host})
        if response.status_code == 400 and not response.content:
            continue  # refused as no Host at all
        assert (response.status_code, response.json()["code"]) == (421, "wrong_host"), path


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8081", "localhost.", "127.0.0.1", "127.1.2.3:1", "[::1]:8081"]
)
def test_this_machines_own_names_are_answered(bare: Service, host: str) -> None:
    assert bare.ask("GET", "/v1/pools", headers={"Host": host}).status_code == 200


def test_with_tokens_any_host_is_answered(service: Service) -> None:
    headers = {"Host": "weir.example"}
    assert service.ask("GET", "/v1/pools", TOKENS[Role.READ], headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": ""},
     {"Origin": "http://[bad"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
     {"Origin": "http://127.0.0.1:1"}],
    ids=str,
)  # fmt: skip
def test_a_change_that_a_page_of_another_site_asks_for_is_refused(
    bare: Service, service: Service, headers: dict[str, str]
) -> None:
    for asked, token in ((bare, None), (service, TOKENS[Role.ADMIN])):
        [lease] = asked.grant()
        refused = asked.ask("DELETE", f"/v1/leases/{lease}", token, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "cross_site")
        assert asked.get(f"/v1/leases/{lease}", token)["state"] == "active"
        assert asked.audit()[-1]["outcome"] == "cross_site"


def test_a_change_of_its_own_page_is_made(bare: Service) -> None:
    [lease] = bare.grant()
    headers = {"Origin": bare.url, "Sec-Fetch-Site": "same-origin"}
    assert bare.ask("DELETE", f"/v1/leases/{lease}", headers=headers).status_code == 200


def test_answers_are_not_kept_nor_guessed_at_by_browsers(bare: Service) -> None:
    response = bare.ask("GET", "/v1/pools", headers={"Origin": "https://evil.example"})
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert not any(name.lower().startswith("access-control") for name in response.headers)


def test_without_tokens_anyone_is_an_admin_and_told_so(bare: Service, service: Service) -> None:
    assert bare.get("/v1/whoami") == {"name": "anyone", "role": "admin", "open": True}
    told = service.get("/v1/whoami", TOKENS[Role.OPERATE])
    assert told == {"name": "operate-er", "role": "operate", "open": False}
    assert bare.get("/v1/whoami", token="whatever")["open"] is True


def test_a_sighup_that_cannot_be_followed_leaves_the_service_as_it_is(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = Service(tmp_path / "n")
        sound = service.config["admin"]
        for listen in (f"127.0.0.1:{taken.getsockname()[1]}", "192.0.2.1:8081"):
            # Without tokens a far address is refused by the file's own rules already.
            tokens = [{"name": "ops", "env": "HOME"}] if listen.startswith("192") else []
            service.config["admin"] = {"listen": listen, "tokens": tokens}
            service.write_config()
            service.reload()
            error = service.get("/v1/config")["reload_error"]
            assert "admin.listen" in error and "cannot be bound" in error, error
        service.config["admin"] = sound
        service.write_config()
        service.file.write_text(service.file.read_text() + "node: 2026-13-45\n")
        service.reload()
        assert "is not YAML" in service.get("/v1/config")["reload_error"]
        service.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has sockets for others")
def test_an_address_that_moved_at_sighup_leaves_the_socket_to_nginx(tmp_path: Path) -> None:
    service = Service(tmp_path / "n", nginx={"user": "nobody"})
    nobody = pwd.getpwnam("nobody").pw_uid
    assert (service.state / "run" / "admission.sock").stat().st_uid == nobody
    service.port = free_port()
    service.url = f"http://127.0.0.1:{service.port}"
    service.config["admin"]["listen"] = f"127.0.0.1:{service.port}"
    service.write_config()
    service.reload()
    assert (service.state / "run" / "admission.sock").stat().st_uid == nobody
    service.stop()


def test_tokens_are_read_again_on_sighup_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first-token-0123456789")
    service = Service(tmp_path / "n", admin={"tokens": [{"name": "ops", "file": str(file)}]})
    assert service.ask("GET", "/v1/whoami", "first-token-0123456789").status_code == 200
    file.write_text("short")
    file.chmod(0o644)
    service.reload()
    assert service.ask("GET", "/v1/whoami", "first-token-0123456789").status_code == 401
    assert service.ask("GET", "/v1/whoami", "short").status_code == 200
    assert "fewer than 16 characters" in service.log.read_text()
    assert "read by everybody" in service.log.read_text()
    file.write_text(" \n")
    service.reload()
    told = service.get("/v1/config", "short")
    assert "admin.tokens[0].file" in told["reload_error"] and "is empty" in told["reload_error"]
    service.stop()
