"""The admin REST: settings and their ETags, pages of leases, the configuration, the audit log."""

import json
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from control.config import load
from tests.harness.admission import Service

BACKEND = "/v1/pools/default/backends/gpu-0"
FILE = {"max_streams": 20_000, "max_tokens": 1_000_000_000, "state": "active"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("rest"))
    yield service
    service.stop()


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    """Nothing in use, and all as the file says."""
    yield shared
    for session in shared.get("/v1/sessions")["sessions"]:
        shared.ask("DELETE", f"/v1/sessions/{session['id']}")
    change(shared, dict.fromkeys(FILE))


def change(service: Service, body: Any, **headers: str) -> requests.Response:
    response: requests.Response = service.ask("PATCH", BACKEND, json=body, headers=headers)
    return response


def settings(service: Service) -> dict[str, Any]:
    shown = service.get(BACKEND)
    return {name: shown[name] for name in FILE}


# -- settings ------------------------------------------------------------------------------------


def test_what_is_absent_stays_and_null_goes_back_to_the_file(service: Service) -> None:
    changed = change(service, {"max_streams": 7, "state": "draining"}).json()
    assert (changed["max_streams"], changed["state"]) == (7, "draining")
    assert changed["max_tokens"] == FILE["max_tokens"] and changed["configured"] == FILE
    changed = change(service, {"state": None, "max_tokens": 9}).json()
    assert (changed["max_streams"], changed["max_tokens"], changed["state"]) == (7, 9, "active")
    changed = change(service, {"max_streams": None, "max_tokens": None}).json()
    assert "configured" not in changed and settings(service) == FILE


def test_a_backend_that_has_left_the_file_is_not_opened_again(tmp_path: Path) -> None:
    service = Service(tmp_path)
    held = service.grant(2)
    gone = {lease["backend"] for lease in map(service.get, (f"/v1/leases/{i}" for i in held))}
    backends = service.config["pools"]["default"]["backends"]
    backends[:] = [{**backends[0], "name": "new"}]
    service.write_config()
    service.reload()
    for name in gone:
        path = f"/v1/pools/default/backends/{name}"
        change = {"state": "active", "max_streams": 9, "max_tokens": 90_000}
        refused = service.ask("PATCH", path, json=change)
        assert (refused.status_code, refused.json()["code"]) == (404, "backend_not_found")
        assert service.get(path)["state"] == "disabled"
    service.stop()


def test_a_change_with_the_etag_of_other_settings_is_refused_with_those_in_force(
    service: Service,
) -> None:
    first = service.ask("GET", BACKEND).headers["ETag"]
    service.grant(3)
    assert service.ask("GET", BACKEND).headers["ETag"] == first, "use is no setting"
    made = change(service, {"max_streams": 8}, **{"If-Match": first})
    second = made.headers["ETag"]
    assert made.status_code == 200 and second != first
    refused = change(service, {"max_streams": 9}, **{"If-Match": first})
    assert (refused.status_code, refused.json()["code"]) == (412, "precondition_failed")
    assert refused.json()["current"]["max_streams"] == 8
    assert refused.headers["ETag"] == second and settings(service)["max_streams"] == 8
    for matching in (f'"x", {second}', "*", f'W/"z",{second}'):
        assert change(service, {"max_streams": 9}, **{"If-Match": matching}).status_code == 200
        change(service, {"max_streams": 8})
    for other in (f"W/{second}", '"", "y"', first):
        assert change(service, {"max_streams": 9}, **{"If-Match": other}).status_code == 412
    for malformed in (second.strip('"'), '"', f"{second} {second}", "", f"{second},", "*, *"):
        refused = change(service, {"max_streams": 9}, **{"If-Match": malformed})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_if_match"), malformed
    assert settings(service)["max_streams"] == 8


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"7", b"{}", b'{"max_streams":0}', b'{"max_streams":1.5}',
     b'{"max_streams":1e400}', b'{"max_streams":NaN}', b'{"max_streams":Infinity}',
     b'{"max_streams":"5"}', b'{"max_streams":[5]}', b'{"max_streams":' + b"9" * 400 + b"}",
     b'{"max_streams":5,"max_streams":6}', b'{"state":"gone"}', b'{"state":["active"]}',
     b'{"state":true}', b'{"max_stream":5}', b'{"max_streams":5,"x":1}', b"\xff\xfe{}",
     b'{"state":"\xed\xa0\x80"}', b'{"state":"\\ud800"}', b"[" * 20_000,
     b'{"state":' * 5_000 + b"1" + b"}" * 5_000, b'\xef\xbb\xbf{"max_streams":5}',
     b'{"max_streams":5}x', b'{"max_streams":1000001}', b'{"max_tokens":1000000001}'],
    ids=lambda body: body[:24],
)  # fmt: skip
def test_a_body_that_is_no_change_is_400_and_changes_nothing(service: Service, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    refused = service.ask("PATCH", BACKEND, data=body, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_change")
    assert settings(service) == FILE
    assert service.audit()[-1]["outcome"] == "invalid_change"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"max_streams":0}', "max_streams: 0 must be a whole number from 1 to 1000000, or null"),
        ('{"max_streams":9223372036854775808}', "max_streams: 9223372036854775808 must be"),
        ('{"max_streams":20.0,"max_tokens":"9"}', 'max_tokens: "9" must be a whole number'),
        ('{"state":"closed"}', 'state: "closed" must be one of active, draining, disabled, or'),
        ('{"max_stream":5}', "no member 'max_stream'; there are: max_streams, max_tokens, state"),
        ("", 'is no JSON (Input data was truncated): send one, as {"max_streams": 20}'),
        ("[]", 'the body must be an object: send one, as {"max_streams": 20}'),
    ],
    ids=lambda value: value[:24],
)
def test_what_is_no_change_is_told_with_its_value_and_what_it_must_be(
    service: Service, body: str, told: str
) -> None:
    assert told in service.ask("PATCH", BACKEND, data=body).json()["detail"]


def test_a_title_has_no_status_of_its_own(service: Service) -> None:
    wrong_method, no_path = service.ask("PUT", "/v1/pools"), service.ask("GET", "/v1/nothing")
    assert (wrong_method.json()["title"], wrong_method.headers["Allow"]) == (
        "Method Not Allowed", "GET",
    )  # fmt: skip
    assert (no_path.json()["title"], no_path.json()["code"]) == ("Not Found", "not_found")


@pytest.mark.parametrize("media", ["", "application/x-www-form-urlencoded"])
def test_what_curl_says_of_a_body_by_itself_does_not_matter(service: Service, media: str) -> None:
    body = b'{"max_streams":5}'
    assert service.ask("PATCH", BACKEND, data=body, headers={"Content-Type": media}).ok
    assert settings(service)["max_streams"] == 5
    assert service.ask("PATCH", BACKEND, data=b'{"max_streams":null}').ok
    assert settings(service) == FILE


def test_a_body_of_another_kind_or_size_is_refused(service: Service) -> None:
    body = b'{"max_streams":5}'
    for media in ("text/plain", "multipart/form-data", "application/jsonx", "application/xml"):
        refused = service.ask("PATCH", BACKEND, data=body, headers={"Content-Type": media})
        assert (refused.status_code, refused.json()["code"]) == (415, "unsupported_media_type")
    large = {"Content-Type": "application/json; charset=utf-8"}
    for size in (64 << 10, 4 << 20):
        refused = service.ask("PATCH", BACKEND, data=body + b" " * size, headers=large)
        assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
    assert settings(service) == FILE
    assert service.ask("PATCH", BACKEND, data=body, headers=large).status_code == 200
    in_chunks = service.ask("PATCH", BACKEND, data=iter([body[:5], body[5:]]), headers=large)
    assert in_chunks.status_code == 200


def test_a_whole_number_may_be_written_as_a_float(service: Service) -> None:
    for number in ("7.0", "0.7e1", "70e-1"):
        body = b'{"max_streams":%s}' % number.encode()
        headers = {"Content-Type": "application/json"}
        assert service.ask("PATCH", BACKEND, data=body, headers=headers).status_code == 200
        assert settings(service)["max_streams"] == 7
        change(service, {"max_streams": None})


def test_live_changes_outlast_a_restart_and_show_what_the_file_says(tmp_path: Path) -> None:
    service = Service(tmp_path)
    change(service, {"max_streams": 3, "state": "draining"})
    etag = service.ask("GET", BACKEND).headers["ETag"]
    service.process.kill()
    service.process.wait(10)
    service.start()
    assert service.ask("GET", BACKEND).headers["ETag"] == etag
    assert service.get("/v1/config")["live"] == [
        {"pool": "default", "backend": "gpu-0", "max_streams": {"file": 20_000, "live": 3},
         "state": {"file": "active", "live": "draining"}}
    ]  # fmt: skip
    service.stop()


# -- leases --------------------------------------------------------------------------------------


def ids_of(page: dict[str, Any]) -> list[str]:
    return [lease["id"] for lease in page["leases"]]


def test_leases_are_chosen_by_all_that_they_have(service: Service) -> None:
    a = service.grant(3, scene="QA", session="node-a/1/1")
    b = service.grant(2, session="node-b/1/1")
    backends = {lease["id"]: lease["backend"] for lease in service.get("/v1/leases")["leases"]}
    for query, expected in (
        ("", a + b), ("scene=QA", a), ("scene=Record_Gen", b), ("session=node-b/1/1", b),
        ("session=node-b", []), ("pool=default", a + b), ("pool=x", []), ("tenant=", a + b),
        ("tenant=x", []), ("state=active", a + b), ("state=draining", []), ("scene=QA&pool=x", []),
        ("backend=gpu-1", [i for i in a + b if backends[i] == "gpu-1"]),
        ("scene=QA&session=node-a/1/1&backend=gpu-0", [i for i in a if backends[i] == "gpu-0"]),
    ):  # fmt: skip
        assert sorted(ids_of(service.get(f"/v1/leases?{query}"))) == sorted(expected), query


@pytest.mark.parametrize("sort", ["-age", "age"])
def test_pages_are_right_while_leases_come_and_go(service: Service, sort: str) -> None:
    ids = [i for _ in range(5) for i in service.grant(20)]
    seen: list[str] = []
    asked: dict[str, Any] = {"limit": 7, "sort": sort}
    gone: set[str] = set()
    came: set[str] = set()
    while True:
        page = service.get("/v1/leases", params=asked)
        seen += ids_of(page)
        ages = [lease["age_s"] for lease in page["leases"]]
        assert ages == sorted(ages, reverse=sort == "-age")
        if page["next"] is None:
            break
        asked["cursor"] = page["next"]
        unseen = [i for i in ids if i not in seen and i not in gone]
        for victim in (seen[-1], *unseen[3:4]):  # the cursor's own lease goes too
            service.ask("DELETE", f"/v1/leases/{victim}")
            gone.add(victim)
        came |= set(service.grant(2))
    assert len(seen) == len(set(seen)), "none is shown twice"
    assert set(ids) - gone <= set(seen), "none that lives is left out"
    assert bool(came & set(seen)) is (sort == "-age"), "what is new is at the young end"


@pytest.mark.parametrize(
    "query",
    ["cutt=true", "limit=5&x=", "Limit=5", "limit=1&limit=2", "sort=size", "sort=", "state=",
     "cursor=", "cursor=1_2", "cursor=nan_1_x", "cursor=1.0_1_a%20b", "limit=", "limit=+5",
     "pool=a&pool=b", "cursor=" + "9" * 3_000],
    ids=lambda query: query[:20],
)  # fmt: skip
def test_a_query_that_is_not_understood_is_refused(service: Service, query: str) -> None:
    refused = service.ask("GET", f"/v1/leases?{query}")
    assert refused.status_code == 400
    assert refused.json()["code"] in ("unknown_parameter", "invalid_parameter")


def test_a_typing_error_does_not_end_a_lease_where_a_cut_was_meant(service: Service) -> None:
    [lease] = service.grant()
    refused = service.ask("DELETE", f"/v1/leases/{lease}?cutt=true")
    assert (refused.status_code, refused.json()["code"]) == (400, "unknown_parameter")
    assert "cut" in refused.json()["detail"]
    assert service.get(f"/v1/leases/{lease}")["state"] == "active"


def test_ten_thousand_leases_are_paged_without_stopping_the_decisions(service: Service) -> None:
    service.grant(10_000)
    took = []
    asked: dict[str, Any] = {"limit": 100, "sort": "-age"}
    seen = 0
    for _ in range(5):
        began = time.perf_counter()
        page = service.get("/v1/leases", params=asked)
        took.append(time.perf_counter() - began)
        seen += len(page["leases"])
        asked["cursor"] = page["next"]
    assert seen == 500
    assert min(took) < 0.25, took


# -- the configuration -----------------------------------------------------------------------------


def test_the_configuration_in_force_is_shown_with_its_version_and_no_secret(tmp_path: Path) -> None:
    service = Service(tmp_path, agent={"webhook": "https://u:s3cret@hooks.example/s3cret?k=s3cret"})
    shown = service.get("/v1/config")
    assert shown["version"] == load(service.file).version
    assert shown["file"] == str(service.file)
    assert shown["started_at"] <= shown["loaded_at"] <= time.time()
    assert (shown["reload_error"], shown["live"]) == (None, [])
    effective = shown["effective"]
    assert effective["admin"]["listen"] == f"127.0.0.1:{service.port}"
    assert effective["pools"]["default"]["session_ttl"] == 3_600
    assert effective["agent"]["webhook"] == "https://hooks.example/…"
    assert "s3cret" not in json.dumps(shown)

    service.config["pools"]["default"]["stall"] = "never"
    service.write_config()
    service.reload()
    refused = service.get("/v1/config")
    assert "pools.default.stall: must be a duration" in refused["reload_error"]
    assert refused["version"] == shown["version"] and refused["loaded_at"] == shown["loaded_at"]

    service.config["pools"]["default"]["stall"] = "1m"
    service.write_config()
    service.reload()
    mended = service.get("/v1/config")
    assert mended["reload_error"] is None and mended["version"] != shown["version"]
    assert mended["loaded_at"] > shown["loaded_at"] and mended["started_at"] == shown["started_at"]
    assert mended["effective"]["pools"]["default"]["stall"] == 60
    service.stop()


# -- the audit log ---------------------------------------------------------------------------------


def test_every_change_is_one_line_that_says_what_was_before(service: Service) -> None:
    began = len(service.audit())
    session = f"node-c/{time.time_ns()}/1"
    released, cut, _ = service.grant(3, session=session)
    change(service, {"max_streams": 5})
    service.ask("DELETE", f"/v1/leases/{released}")
    service.ask("DELETE", f"/v1/leases/{released}")
    service.ask("DELETE", f"/v1/leases/{cut}?cut=true")
    service.ask("DELETE", f"/v1/sessions/{session}")
    service.ask("DELETE", "/v1/leases/none")
    service.gateway("DELETE", f"/v1/leases/{service.grant()[0]}")  # a gateway's own
    lines = service.audit()[began:]
    assert [(line["action"], line["target"], line["outcome"]) for line in lines] == [
        ("change_backend", "default/gpu-0", "done"),
        ("end_lease", released, "done"),
        ("end_lease", released, "unchanged"),
        ("end_lease", cut, "done"),
        ("end_session", session, "done"),
        ("end_lease", "none", "lease_not_found"),
    ]
    assert all(line["who"] == "anyone" and line["from"] == "127.0.0.1" for line in lines)
    assert all(abs(line["at"] - time.time()) < 60 for line in lines)
    assert (lines[0]["before"], lines[0]["after"]) == (FILE, {**FILE, "max_streams": 5})
    assert lines[1]["before"]["tokens"] == 10 and lines[1]["after"] == {"ends": "now"}
    assert lines[3]["after"] == {"ends": "with its stream"}
    assert (lines[4]["before"], lines[4]["after"]) == ({"leases": 2}, {"leases": 0})
    shown = service.get("/v1/audit", params={"limit": 6})
    assert shown["entries"] == lines[::-1]
    mode = (service.state / "log" / "audit.log").stat().st_mode & 0o777
    assert mode == 0o640


def test_the_audit_log_is_read_in_pages_back_into_the_file_rotated_last(service: Service) -> None:
    log = service.state / "log" / "audit.log"
    log.unlink(missing_ok=True)
    log.with_name("audit.log.1").unlink(missing_ok=True)
    for n in range(5):
        change(service, {"max_streams": 100 + n})
    log.rename(log.with_name("audit.log.1"))
    for n in range(5, 9):
        change(service, {"max_streams": 100 + n})
    with log.open("ab") as file:
        file.write(b'{"broken\n\xff\xfe\n[]\n{"who":7}\n')
    assert len(log.read_bytes().splitlines()) == 8, "it went on in a new file"
    seen: list[int] = []
    asked: dict[str, Any] = {"limit": 3}
    while True:
        page = service.get("/v1/audit", params=asked)
        seen += [entry["after"]["max_streams"] for entry in page["entries"]]
        if page["next"] is None:
            break
        asked["cursor"] = page["next"]
        change(service, {"max_streams": 7})  # what is new shifts nothing
    assert seen == list(range(108, 99, -1))
    gone = service.ask("GET", "/v1/audit?cursor=1-2")
    assert (gone.status_code, gone.json()["code"]) == (404, "page_not_found")
    for cursor in ("x", "1", "-", "9" * 400, "1-2%0A", "1-2-3"):
        refused = service.ask("GET", f"/v1/audit?cursor={cursor}")
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_parameter"), cursor


def test_what_cannot_be_written_down_is_not_done(service: Service) -> None:
    log = service.state / "log" / "audit.log"
    [lease] = service.grant(session="node-d/1/1")
    kept = log.with_name("kept")
    log.rename(kept)
    log.symlink_to("/dev/full")
    before = settings(service)
    for response in (
        change(service, {"max_streams": 4}),
        service.ask("DELETE", f"/v1/leases/{lease}"),
        service.ask("DELETE", f"/v1/leases/{lease}?cut=true"),
        service.ask("DELETE", "/v1/sessions/node-d/1/1"),
    ):
        assert (response.status_code, response.json()["code"]) == (503, "audit_failed")
        assert "No space left" in response.json()["detail"]
    assert settings(service) == before
    assert service.get(f"/v1/leases/{lease}")["state"] == "active"
    assert service.batch("node-d/1/1") == [], "no cut is asked for"
    log.unlink()
    log.mkdir()
    assert change(service, {"max_streams": 4}).status_code == 503
    unread = service.ask("GET", "/v1/audit")
    assert (unread.status_code, unread.json()["code"]) == (503, "audit_failed")
    assert "cannot be read" in unread.json()["detail"]
    log.rmdir()
    assert change(service, {"max_streams": 4}).status_code == 200
    assert service.ask("DELETE", "/v1/leases/x", headers={"Origin": "null"}).status_code == 403
    assert [line["outcome"] for line in service.audit()] == ["done", "cross_site"]


def test_a_change_that_was_written_down_and_failed_is_followed_by_its_reason(
    tmp_path: Path,
) -> None:
    service = Service(tmp_path)
    service.grant(300)  # so that the journal is larger than what a file may be now
    worker = psutil.Process(service.worker())
    full, hard = 8_192, worker.rlimit(resource.RLIMIT_FSIZE)[1]
    worker.rlimit(resource.RLIMIT_FSIZE, (full, hard))
    refused = change(service, {"max_streams": 4})
    assert (refused.status_code, refused.json()["code"]) == (503, "journal")
    assert settings(service) == FILE
    assert [line["outcome"] for line in service.audit()] == ["done", "journal"]
    worker.rlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert change(service, {"max_streams": 4}).status_code == 200
    service.stop()


def test_a_slow_or_broken_client_of_the_admin_plane_hurts_nobody(service: Service) -> None:
    idle = []
    for n in range(50):
        client = socket.create_connection(("127.0.0.1", service.port), 5)
        client.sendall(
            b"PATCH /v1/pools/default/backends/gpu-0 HTTP/1.1\r\nHost: 127.0.0.1\r\n"[:n]
        )
        idle.append(client)
    assert service.grant(5)
    assert service.get("/v1/pools")["pools"]
    for client in idle:
        client.close()
