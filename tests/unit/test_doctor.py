"""What leaves the machine in a bug report: nothing secret, nothing that a client has said."""

import errno
import os
from pathlib import Path

import pytest
import yaml

from control.client import ServiceError
from control.config import Config, load
from control.terminal.doctor import machine
from control.terminal.doctor.archive import write_archive
from control.terminal.doctor.doctor import _files
from control.terminal.doctor.findings import of_machine, of_service, of_versions
from control.terminal.doctor.logs import node_logs
from control.terminal.doctor.redact import Redactor, secrets_of
from control.terminal.doctor.service import Told

SECRET = "hunter2-sesame"
PROMPT = "发热三天-patient"


@pytest.fixture
def redactor() -> Redactor:
    return Redactor([SECRET])


@pytest.mark.parametrize(
    "text",
    [
        f"token={SECRET}", f"redis://user:{PROMPT}@h:1/0", f"GET /v1/x?prompt={PROMPT} HTTP/1.1",
        f"Authorization: Bearer {PROMPT}", f"api_key = {PROMPT}", f'"password": "{PROMPT}"',
        f"X-Api-Key: {PROMPT}", f"http://h/{SECRET}/hook",
    ],
)  # fmt: skip
def test_secrets_users_and_queries_leave_any_text(redactor: Redactor, text: str) -> None:
    told = redactor.text(text)
    assert SECRET not in told and PROMPT not in told and "[removed]" in told


def test_what_is_no_secret_stays(redactor: Redactor) -> None:
    for text in ("max_tokens: 80000", "lease_lost id=a session=vm/1/2", "http://10.0.0.5:8000",
                 "tokens_exhausted", "keepalive 4ms;", "http://[::1]:8000/v1"):  # fmt: skip
        assert redactor.text(text) == text


def test_values_under_a_secrets_name_and_webhooks_are_cut(redactor: Redactor) -> None:
    told = redactor.values(
        {
            "agent": {"webhook": f"https://u:{SECRET}@hooks.example/T0/{PROMPT}?k={PROMPT}"},
            "admission": {"token": PROMPT, "max_tokens": 7, "store": f"redis://:{PROMPT}@h/0"},
            "tokens": [{"name": "ops", "env": "WEIR_ADMIN_TOKEN"}],
        }
    )
    assert told == {
        "agent": {"webhook": "https://hooks.example/[removed]"},
        "admission": {"token": "[removed]", "max_tokens": 7, "store": "redis://[removed]@h/0"},
        "tokens": [{"name": "ops", "env": "WEIR_ADMIN_TOKEN"}],
    }


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "2026/01/02 03:04:05 [error] 7#7: *9 upstream sent invalid header while reading, "
            f'client: 10.1.2.3, server: _, request: "POST /v1/chat?q={PROMPT} HTTP/1.1", '
            f'upstream: "http://127.0.0.1:8000/v1/chat?q={PROMPT}", host: "h", '
            f'referrer: "http://x/{PROMPT}"',
            "2026/01/02 03:04:05 [error] 7#7: *9 upstream sent invalid header while reading, "
            "request: POST, upstream: http://127.0.0.1:8000",
        ),
        (
            f'2026/01/02 03:04:05 [error] 7#7: *9 lua entry: bad body "{PROMPT}" and \'{PROMPT}',
            '2026/01/02 03:04:05 [error] 7#7: *9 lua entry: bad body "[removed]" and "[removed]"',
        ),
        ("2026/01/02 03:04:05 [notice] 7#7: signal 15 received", None),
        (f'{{"messages":[{{"content":"{PROMPT}"}}]}}', "left out"),
        ("stack traceback:", "left out"),
    ],
)
def test_the_error_log_keeps_its_own_words(redactor: Redactor, line: str, told: str | None) -> None:
    expected = None if told == "left out" else told or line
    assert redactor.error_line(line) == expected


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("2026-01-02 03:04:05,678 INFO weir.agent agent_started pid=7", "same"),
        ("[2026-01-02 03:04:05 +0000] [7] [ERROR] Worker (pid:8) was sent SIGKILL!", "same"),
        ("Traceback (most recent call last):", "same"),
        ('  File "/opt/weir/control/x.py", line 7, in run', "same"),
        (f"    raise ValueError({PROMPT!r})", None),
        (f"ValueError: {PROMPT}", "ValueError: [removed]"),
        (f"gevent.Timeout.MyError: {PROMPT} {SECRET}", "gevent.Timeout.MyError: [removed]"),
        (PROMPT, None),
    ],
)  # fmt: skip
def test_our_logs_keep_events_and_places(redactor: Redactor, line: str, told: str | None) -> None:
    assert redactor.own_line(line) == (line if told == "same" else told)


def test_the_access_log_keeps_what_weir_writes(redactor: Redactor) -> None:
    line = (
        '{"ts":1.5,"id":"a","route":"/v1/chat/completions","method":"POST","status":"200",'
        f'"uri":"/v1/chat?q={PROMPT}","scene":"{PROMPT}","upstream":"127.0.0.1:8000?{SECRET}"}}'
    )
    assert redactor.access_line(line) == (
        '{"ts": 1.5, "id": "a", "route": "/v1/chat/completions", "method": "POST", '
        '"status": "200", "scene": "[removed]", "upstream": "[removed]"}'
    )
    assert redactor.access_line(f"GET /?q={PROMPT}") is None
    assert redactor.access_line("[1]") is None


def test_secrets_are_those_that_the_file_names(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    config = {
        "admin": {"tokens": [{"env": "A"}, {"env": "NONE"}, {"file": str(file)}, {"env": "B"}]},
        "agent": {"webhook": "https://h/T0"},
    }
    found = secrets_of(config, iter([{"A": "here"}, {"A": "in the service", "B": "second"}]))
    assert found == {"here", "in the service", "second", SECRET, "https://h/T0"}


def test_an_archive_is_whole_or_not_there(tmp_path: Path) -> None:
    file = write_archive(tmp_path / "a.tar.gz", {"x": "y"})
    for folder in (tmp_path, Path("/")):
        with pytest.raises(IsADirectoryError) as caught:
            write_archive(folder, {"x": "y"})
        assert caught.value.filename == str(folder)
    assert [*tmp_path.iterdir()] == [file]
    assert not tmp_path.with_name(f"{tmp_path.name}.part").exists()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Of a node whose state folder is empty."""
    file = tmp_path / "weir.yml"
    pools = {"default": {"backends": [{"name": "gpu-0", "url": "http://127.0.0.1:9"}]}}
    file.write_text(yaml.safe_dump({"state": str(tmp_path / "weir-icu"), "pools": pools}))
    return load(file)


def test_what_this_user_may_not_read_is_left_out(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redactor: Redactor
) -> None:
    folder = config.state / "nginx"
    folder.mkdir(parents=True)
    (folder / "weir.json").write_text(f'{{"token": "{PROMPT}"')
    assert dict(_files(config, redactor))["nginx/weir.json"] == "[is not JSON]"

    look = Path.stat

    def forbidden(path: Path, **_: object) -> os.stat_result:
        if config.state not in path.parents:
            return look(path)
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", forbidden)  # as for others than the folder's owner
    told = machine.journal(config)
    assert told["unreadable"] == "Permission denied" and not [*of_machine({}, told)]
    assert dict(_files(config, redactor)).keys() == {"files.txt"}
    logs = {log.name: log.text for log in node_logs(config, redactor, 7)}
    assert set(logs) == {"access.log", "error.log", "admission.log", "agent.log"}
    assert all("cannot be read: " in text for text in logs.values())


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of systemd's: tests/ansible has the real one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    command = folder / "journalctl"
    command.touch(0o755)
    return command


def test_what_units_log_is_taken_from_the_journal_through_the_same_filter(
    config: Config, journalctl: Path, redactor: Redactor
) -> None:
    line = "2026-01-02 03:04:05,678 INFO weir.x key=value"
    journalctl.write_text(
        f"#!/bin/sh\necho '{line}' $5 token={SECRET}\necho '{PROMPT}'\n"
        'case "$*" in *--lines=7*) ;; *) exit 1 ;; esac\n'
    )
    logs = {log.name: log for log in node_logs(config, redactor, 7)}
    assert set(logs) == {"admission.log", "agent.log"}
    for part in ("admission", "agent"):
        log = logs[f"{part}.log"]
        assert log.missing is None
        assert log.text.startswith(f"{line} _SYSTEMD_UNIT=weir-icu-{part}.service token=[removed]")
        assert PROMPT not in log.text and "1 lines of another shape left out" in log.text
    folder = config.state / "log"
    folder.mkdir(parents=True)
    (folder / "agent.log").write_text("2026-01-02 03:04:05,678 INFO weir.agent of_the_file\n")
    assert "of_the_file" in next(
        log.text for log in node_logs(config, redactor, 7) if log.name == "agent.log"
    )


@pytest.mark.parametrize("told", ["nothing", "why", "no command"])
def test_a_log_that_is_nowhere_is_told_of(
    config: Config, journalctl: Path, redactor: Redactor, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    why = "No journal files were opened" if told == "why" else ""
    journalctl.write_text(f"#!/bin/sh\necho '{why}' >&2\n")
    if told == "no command":
        monkeypatch.setenv("PATH", str(config.state))
    for log in node_logs(config, redactor, 7):
        assert log.missing and f"there is no {config.state}/log/{log.name}" in log.missing
        assert f"weir-icu-{log.name.removesuffix('.log')}.service" in log.missing
        assert why in log.missing and log.text == f"[{log.missing}]"


def told_of(told: Told) -> list[str]:
    return [each.what for each in of_service(told, "http://a", "weir.yml", "no service answers")]


def test_a_service_that_is_away_is_one_finding() -> None:
    assert told_of(Told(errors={"health": ServiceError("refused")})) == ["no service answers"]


def test_every_fault_of_a_service_has_its_finding() -> None:
    node = {"name": "vm", "memory": None, "tailer": None, "silent": False, "silent_s": 0.1}
    backend = {"name": "g", "max_streams": 3, "max_tokens": 5, "state": "active"}
    told = Told(
        parts={
            "health": {},
            "pools": [{"name": "p", "backends": [
                {**backend, "configured": {**backend, "max_streams": 25}},
                {**backend, "name": "h", "state": "draining"}, backend,
                {**backend, "name": "j", "configured": {**backend, "state": "draining"}},
                {**backend, "name": "k", "max_tokens": 9,
                 "configured": {**backend, "state": "disabled"}},
                {**backend, "name": "i", "unreachable": True, "url": "http://e"}]}],
            "nodes": [
                node, {**node, "name": "gone", "silent": True, "silent_s": 90.0},
                {**node, "name": "full",
                 "memory": {"state": "full", "used_bytes": 9, "limit_bytes": 9,
                            "leak_suspected": True}},
                {**node, "name": "late", "tailer": {"lag_seconds": 60, "lag_bytes": 5_000_000}},
            ],
            "leases": {"oldest": [{"id": "old", "age_s": 7_200}]},
            "history": {"points": [{"granted": 1, "refused": {"streams_exhausted": 9}}]},
            "config": {"file": "w.yml", "reload_error": "w.yml: nonsense: is not a known key"},
        },
        errors={"ready": ServiceError("x", 503, "drift", "restart it"),
                "audit": ServiceError("x", 403, "forbidden", "needs operate")},
        metrics="weir_lease_drift 3.0\nweir_audit_failures_total 2.0\n",
        skew_s=-90.0,
    )  # fmt: skip
    found = "\n".join(told_of(told))
    for part in (
        "told no audit", "p/i cannot be connected to: http://e",
        "refuses what its file says now: w.yml", "could not be written: 2",
        "admits nothing (drift)", "differs from this machine's by 1m30s",
        "live is 3.0", "p/g was changed live; weir.yml says streams 25", "p/h is draining",
        "agent of gone has not been heard for 1m30s", "memory of full is at its full mark",
        "tailer of late is behind: 1m00s", "stream old runs for 2h00m",
        "memory of full grows", "more was refused than granted",
    ):  # fmt: skip
        assert part in found
    assert len(told_of(told)) == 17
    remedies = {each.what.split()[0]: each.remedy for each in of_service(told, "", "", "")}
    assert remedies["p/g"] == "weir limit p/g --reset"
    assert remedies["p/h"] == "weir activate p/h"
    assert remedies["p/j"] == "weir drain p/j", "--reset is of limits"
    assert remedies["p/k"] == "weir limit p/k --reset; weir disable p/k"


def test_nginx_is_rendered_anew_as_whom_the_state_folder_belongs_to(config: Config) -> None:
    told = Told(parts={"config": {"version": config.version}})
    config.state.mkdir()
    for uid, remedy in ((os.geteuid(), "weir render -c weir.yml, then"), (65_534, "playbook")):
        if uid != os.geteuid() and os.geteuid() != 0:
            continue
        os.chown(config.state, uid, -1)
        [found] = of_versions(config, "weir.yml", told, "0123456789ab")
        assert remedy in found.remedy and "0123456789ab" in found.what


def test_a_sound_service_has_none() -> None:
    assert told_of(Told(parts={"health": {}}, metrics="weir_lease_drift 0.0\n", skew_s=0.0)) == []
