"""The commands that talk to a running service, against a real node."""

import codecs
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from control.cli import main
from control.client import AdminClient, ServiceError
from tests.harness.client import Client, chat_body
from tests.harness.node import WEIR, Engine, Node, free_port, wait_for

QA = {"X-Medical-Scene": "QA"}
BACKEND = "default/gpu-0"


@pytest.fixture(autouse=True)
def no_place_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables that name a service."""
    for name in ("WEIR_ADMIN", "WEIR_ADMIN_TOKEN", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def weir(node: Node, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs one command against the node: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([*arguments, "--admin", node.admin])
        except SystemExit as exc:
            code = int(exc.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture
def streams(node: Node) -> Iterator[Callable[[int], list[Client]]]:
    """Starts streams that run until the test is over."""
    clients: list[Client] = []

    def start(count: int) -> list[Client]:
        before = node.in_use()[0]
        for _ in range(count):
            client = Client(node.port)
            client.post(chat_body(10_000, gap_ms=50), headers=QA).head()
            clients.append(client)
        wait_for(lambda: node.in_use()[0] == before + count)
        return clients

    yield start
    for client in clients:
        client.fin()
    node.settled()


def as_json(done: tuple[int, str, str]) -> Any:
    code, out, err = done
    assert (code, err) == (0, "")
    return json.loads(out)


# -- looking -----------------------------------------------------------------------------------

Weir = Callable[..., tuple[int, str, str]]
Streams = Callable[[int], list[Client]]


def test_json_is_what_the_api_says(weir: Weir, node: Node, streams: Streams) -> None:
    streams(2)
    assert as_json(weir("pools", "--json")) == node.get("/v1/pools")
    assert as_json(weir("pools", "default", "--json")) == node.pool()
    leases = as_json(weir("leases", "--json"))["leases"]
    assert [lease["id"] for lease in leases] == [lease["id"] for lease in node.leases()]
    assert as_json(weir("sessions", "--json")).keys() == {"sessions"}
    [told] = as_json(weir("nodes", "--json"))["nodes"]
    assert told["streams"] == 2 and told["memory"]["state"] == "ok"
    assert as_json(weir("nodes", told["name"], "--json"))["name"] == told["name"]
    _, out, _ = weir("nodes", told["name"])
    assert "PROCESS" in out and "admission-master" in out and "0 gaps, 0 broken lines" in out
    assert as_json(weir("top", "--json")).keys() == {"pools", "nodes", "leases"}


def test_tables_say_the_same_to_people(weir: Weir, node: Node, streams: Streams) -> None:
    streams(2)
    _, out, _ = weir("pools")
    head, row = out.splitlines()
    assert head.split()[:4] == ["POOL/BACKEND", "STATE", "STREAMS", "TOKENS"]
    assert row.split()[:4] == [BACKEND, "active", "2/25", f"{node.in_use()[1]:,}/80,000"]
    _, out, _ = weir("leases")
    for lease, row in zip(node.leases(), out.splitlines()[1:], strict=True):
        assert row.split()[:4] == [lease["id"], BACKEND, "QA", f"{lease['tokens']:,}"]
        assert row.split()[4].endswith("s")
    for command in ("nodes", "sessions", "top"):
        code, out, err = weir(command)
        assert (code, err) == (0, "") and out.count("\n") > 1


def test_leases_are_filtered_and_limited(weir: Weir, node: Node, streams: Streams) -> None:
    streams(3)
    code, out, err = weir("leases", "--limit", "2")
    assert code == 0 and len(out.splitlines()) == 3 and "there are more" in err
    code, out, err = weir("leases", "--limit", "3")
    assert code == 0 and len(out.splitlines()) == 4 and err == ""
    assert len(as_json(weir("leases", "--all", "--pool", "default", "--json"))["leases"]) == 3
    assert as_json(weir("leases", "--state", "draining", "--json"))["leases"] == []
    code, out, err = weir("leases", "--pool", "defualt")
    assert (code, out) == (1, "") and "no pool 'defualt'; there are: default" in err


def test_a_narrow_terminal_leaves_columns_out_and_never_an_id(
    weir: Weir, node: Node, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams(1)
    [lease] = node.leases()
    for width in (1, 20, 41, 60, 80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        for command in ("pools", "leases", "nodes", "sessions", "top"):
            code, out, _ = weir(command)
            assert code == 0
            if width > 40:
                assert all(len(line) <= width for line in out.splitlines())
            if width > 40 and command == "leases":
                assert lease["id"] in out and len(out.splitlines()) == 2


# -- ending ------------------------------------------------------------------------------------


def test_kill_ends_the_stream_and_sees_its_lease_gone(
    weir: Weir, node: Node, streams: Streams
) -> None:
    [client] = streams(1)
    [lease] = node.leases()
    code, out, err = weir("kill", lease["id"])
    assert (code, err) == (0, "") and f"{lease['id']}: stream ended" in out
    with pytest.raises(ConnectionError):  # and never ends as if it were whole
        client.rest()
    node.settled()
    code, out, err = weir("kill", "nothing")
    assert (code, out) == (1, "") and "no live lease 'nothing'" in err


def test_kill_without_cut_gives_the_room_back_only(
    weir: Weir, node: Node, streams: Streams
) -> None:
    [client] = streams(1)
    [lease] = node.leases()
    told = as_json(weir("kill", "--no-cut", "--json", lease["id"]))
    assert told == {"leases": [{"id": lease["id"], "outcome": "released", "gone": True}]}
    wait_for(lambda: node.in_use() == (0, 0))
    assert client.events(2)


# -- changing ----------------------------------------------------------------------------------


@pytest.fixture
def as_configured(node: Node) -> Iterator[None]:
    """The backend's limits and state are the file's again at the end."""
    yield
    with AdminClient(node.admin, timeout_s=10) as client:
        client.set_limits("default", "gpu-0", max_streams=25, max_tokens=80_000)
        client.set_state("default", "gpu-0", "active")


def test_drain_waits_until_the_backend_is_empty(
    weir: Weir, node: Node, streams: Streams, as_configured: None
) -> None:
    clients = streams(3)
    code, out, err = weir("drain", BACKEND, "--wait", "--timeout", "100ms")
    assert code == 1 and "3 streams may finish" in out
    assert "3 streams left" in err and "see weir leases" in err
    with Client(node.port) as late:
        assert late.request(chat_body(1), headers=QA)[0].status == 503
    for client in clients:
        client.fin()
    code, out, err = weir("drain", BACKEND, "--wait")
    assert code == 0 and f"{BACKEND}: empty" in err
    code, out, _ = weir("activate", BACKEND)
    assert code == 0 and "active: admits up to 25 streams" in out
    assert node.pool()["backends"][0]["state"] == "active"


def test_drain_waits_over_a_restart_of_the_service(
    weir: Weir, node: Node, streams: Streams, as_configured: None
) -> None:
    clients = streams(2)
    command = subprocess.Popen(
        [*WEIR, "drain", BACKEND, "--wait", "--admin", node.admin],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert command.stdout is not None and "2 streams may finish" in command.stdout.readline()
    os.kill(node.pid("admission"), signal.SIGKILL)
    for client in clients:
        client.fin()
    out, err = command.communicate(timeout=30)
    assert command.returncode == 0 and f"{BACKEND}: empty" in err, (out, err)
    wait_for(lambda: _answers(node), 20)
    weir("activate", BACKEND)


def test_disable_and_activate(weir: Weir, node: Node, as_configured: None) -> None:
    assert as_json(weir("disable", BACKEND, "--json"))["state"] == "disabled"
    assert node.pool()["backends"][0]["state"] == "disabled"
    assert as_json(weir("activate", BACKEND, "--json"))["state"] == "active"


def test_limit_says_what_becomes_of_what_runs(
    weir: Weir, node: Node, streams: Streams, as_configured: None
) -> None:
    streams(3)
    code, out, _ = weir("limit", BACKEND, "--streams", "2", "--dry-run")
    assert code == 0 and "streams 25 -> 2" in out and "nothing was changed" in out
    assert node.pool()["backends"][0]["max_streams"] == 25
    code, out, _ = weir("limit", BACKEND, "--streams", "2", "--tokens", "9000")
    assert code == 0
    assert "streams 25 -> 2, tokens 80,000 -> 9,000" in out
    assert "3 streams are in use of 2: nothing is cut" in out
    assert "weir.yml says streams 25, tokens 80000" in out
    assert node.in_use()[0] == 3
    _, out, _ = weir("pools")
    assert "streams 25, tokens 80000" in out


def test_a_reset_goes_back_to_what_the_file_says(weir: Weir, node: Node) -> None:
    weir("limit", BACKEND, "--streams", "2")
    code, out, _ = weir("limit", BACKEND, "--reset", "--dry-run")
    assert code == 0 and "streams 2 -> 25" in out
    code, out, _ = weir("limit", BACKEND, "--reset")
    assert code == 0 and "streams 2 -> 25" in out and "weir.yml says" not in out
    assert "configured" not in node.pool()["backends"][0]
    code, out, _ = weir("limit", BACKEND, "--reset")
    assert code == 0 and "nothing to change" in out


def test_a_change_against_what_is_no_longer_so_is_refused(node: Node, as_configured: None) -> None:
    with AdminClient(node.admin, timeout_s=10) as client:
        _, etag = client.backend("default", "gpu-0")
        client.set_limits("default", "gpu-0", max_streams=20)
        with pytest.raises(ServiceError) as caught:
            client.set_limits("default", "gpu-0", max_streams=10, etag=etag)
        assert caught.value.status == 412 and caught.value.code
        assert client.backend("default", "gpu-0")[0]["max_streams"] == 20


def test_changes_are_in_the_audit(weir: Weir, node: Node, as_configured: None) -> None:
    weir("limit", BACKEND, "--streams", "7")
    entries = as_json(weir("audit", "--limit", "3", "--json"))["entries"]
    assert len(entries) <= 3 and entries[0]["after"]["max_streams"] == 7
    code, out, _ = weir("audit", "--limit", "1")
    assert code == 0 and f"max_streams {entries[0]['before']['max_streams']} -> 7" in out


def test_the_configuration_in_force_is_told_with_what_was_changed_live(
    weir: Weir, node: Node, as_configured: None
) -> None:
    weir("limit", BACKEND, "--streams", "7")
    told = as_json(weir("config", "--json"))
    assert told["version"] in (node.state / "nginx/nginx.conf").read_text()
    code, out, err = weir("config")
    assert (code, err) == (0, "")
    assert f"version {told['version']}" in out and "max_streams 7 (file: 25)" in out
    shown = yaml.safe_load(out[out.index("state:") :])
    assert shown["pools"]["default"]["backends"][0]["name"] == "gpu-0"


def test_leases_by_filter_and_age(weir: Weir, node: Node, streams: Streams) -> None:
    streams(2)
    oldest = [lease["id"] for lease in node.leases()]
    ids = {
        sort: [each["id"] for each in as_json(weir("leases", "--sort", sort, "--json"))["leases"]]
        for sort in ("oldest", "youngest")
    }
    assert ids == {"oldest": oldest, "youngest": oldest[::-1]}
    for option, value, many in (
        ("--backend", "gpu-0", 2), ("--backend", "gpu-1", 0), ("--scene", "QA", 2),
        ("--scene", "Record_Gen", 0), ("--session", "nobody/1/1", 0),
    ):  # fmt: skip
        assert len(as_json(weir("leases", option, value, "--json"))["leases"]) == many


def test_the_client_takes_leases_page_by_page(node: Node, streams: Streams) -> None:
    streams(5)
    with AdminClient(node.admin, timeout_s=10) as client:
        ids = [lease["id"] for lease in client.leases(page=2)]
        assert ids == [lease["id"] for lease in node.leases()]
        first = next(client.leases(page=1, sort="age"))
        assert first["id"] == ids[-1]
        assert client.end_session(first["session"])


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("pools", "nope"), "no pool 'nope'; there are: default"),
        (("drain", "nope/gpu-0"), "there are: default"),
        (("drain", "default/nope"), "there are: gpu-0"),
        (("nodes", "nope"), "no node 'nope'"),
        (("leases", "--state", "draining", "--admin", "nonsense"), "http(s)://HOST:PORT"),
        (("pools", "--token-file", "/none"), "--token-file: /none cannot be read"),
        (("pools", "--ca", "/none"), "/none cannot be read: name a PEM file"),
        (("pools", "--admin", "http://127.0.0.1:99999"), "must be http(s)://HOST:PORT"),
        (("pools", "--admin", "http://ops:word@127.0.0.1:1"), "must be http(s)://HOST:PORT"),
        (("pools", "-c", "/none.yml"), "/none.yml: cannot be read: No such file"),
        (("limit", BACKEND, "--streams", "9000000"), "max_streams: 9000000 must be a whole number"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_error_is_one_line_on_stderr(weir: Weir, arguments: tuple[str, ...], told: str) -> None:
    if {"--admin", "-c"} & set(arguments):
        code, out, err = told_by(*arguments)
    else:
        code, out, err = weir(*arguments)
    assert (code, out) == (1, "")
    assert told in err and err.startswith("weir: ") and err.count("\n") == 1


def told_by(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """A command as a process of its own."""
    done = subprocess.run(
        [*WEIR, *arguments], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **environ},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("kill",), ("drain",), ("drain", "gpu-0"), ("drain", "a/b/c"), ("limit", BACKEND),
        ("limit", BACKEND, "--reset", "--streams", "1"), ("limit", BACKEND, "--streams", "0"),
        ("leases", "--limit", "0"), ("leases", "--limit", "x"), ("leases", "--state", "x"),
        ("leases", "--all", "--limit", "1"), ("completion", "powershell"), ("completion",),
        ("top", "--every", "1"), ("events", "--since-id", "x"),
        ("leases", "--limit", "1" * 23), ("audit", "--limit", "1" * 5_000),
        ("simulate", "--listen", "127.0.0.1:000080800"), ("simulate", "--step", "0s"),
        ("simulate", "--keepalive", "0ms"), ("simulate", "--kv-tokens", "0"),
        ("top", "--every", "0s"),
        # No UTF-8, as Python has such arguments.
        ("kill", "\udcff"), ("pools", "\udcff"), ("leases", "--pool", "\udcff"),
        ("drain", "\udcff/a"), ("events", "--kind", "\udcff"), ("sessions", "--node", "\udcff"),
        ("up", "--engine", "http://\udcff"),
    ],
    ids=lambda value: ascii(" ".join(value))[:40],
)  # fmt: skip
def test_wrong_usage_is_exit_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as exc:
        code = exc.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and err.strip() and err.count("\n") == 1


def test_a_name_is_utf8_in_any_locale(node: Node) -> None:
    poor = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code, _, err = told_by("pools", "发热", "--admin", node.admin, **poor)
    assert (code, err.count("\n")) == (1, 1) and "no pool '\\u53d1\\u70ed'" in err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("pools >&-", "standard output is closed"), ("kill x >&- <&-", "standard output is closed"),
        ("pools >/dev/full", "standard output cannot be written: No space left on device"),
        ("pools --json >/dev/full", "standard output cannot be written: No space left on device"),
        ("pools --help >/dev/full", "standard output cannot be written: No space left on device"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_written_is_one_line(node: Node, command: str, told: str) -> None:
    code, _, err = in_shell(command, node)
    assert (code, err.count("\n")) == (1, 1) and told in err, err


def test_a_closed_descriptor_that_is_not_needed_is_no_error(node: Node) -> None:
    code, out, err = in_shell("top <&-", node)
    assert (code, err) == (0, "") and BACKEND in out
    code, out, _ = in_shell("pools 2>&- <&-", node)
    assert code == 0 and BACKEND in out
    assert in_shell("pools nope >&- 2>&- <&-", node) == (1, "", "")


def in_shell(command: str, node: Node) -> tuple[int, str, str]:
    """``NAME … REDIRECTIONS``, with Python's output as it is by default."""
    name, *redirections = command.split(" ")
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        " ".join([*WEIR, name, "--admin", node.admin, *redirections]),
        shell=True, capture_output=True, text=True, timeout=60, check=False, env=environ,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_service_that_is_not_there_is_named_with_what_starts_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    for command in (["pools"], ["top"], ["events"], ["kill", "x"], ["drain", BACKEND]):
        assert main([*command, "--admin", nowhere]) == 1
        out, err = capsys.readouterr()
        assert out == "" and nowhere in err and "weir up" in err and err.count("\n") == 1


@pytest.mark.parametrize("command", ["admission", "agent", "render"])
def test_a_state_folder_that_cannot_be_is_named_in_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    state = tmp_path / "file" / "var"
    file = tmp_path / "weir.yml"
    file.write_text(
        f"state: {state}\nlisten: 127.0.0.1:{free_port()}\n"
        f"admin: {{listen: '127.0.0.1:{free_port()}'}}\n"
        f"pools: {{default: {{backends: [{{name: g, url: 'http://127.0.0.1:{free_port()}'}}]}}}}\n"
    )
    code, _, err = told_by(command, "-c", str(file))
    [told] = [line for line in err.splitlines() if str(state) in line]
    assert code == 1 and told.endswith("Not a directory: mend that, or name another place")
    assert "Traceback" not in err and "Errno" not in err


@pytest.mark.parametrize("token", ["令牌", "sesame\r", "ses ame\nx"])
def test_a_token_with_characters_that_none_has_is_refused_and_not_shown(token: str) -> None:
    code, out, err = told_by("pools", "--admin", "http://127.0.0.1:1", WEIR_ADMIN_TOKEN=token)
    assert (code, out, err.count("\n")) == (1, "", 1) and "ses" not in err
    assert err.startswith("weir: WEIR_ADMIN_TOKEN: holds characters that no token has")


def test_what_answers_and_is_no_admin_plane_is_said_to_be_none(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pools", "--admin", f"http://127.0.0.1:{node.port}"]) == 1
    assert main(["pools", "--admin", node.admin.replace("http:", "https:")]) == 1
    clients, plain = capsys.readouterr().err.splitlines()
    assert "not as Weir's admin plane does (404): name the admin plane with --admin" in clients
    assert plain.endswith("(wrong version number): it speaks no TLS: say http://")


# -- where the service is ----------------------------------------------------------------------


def test_the_service_is_found_by_file_variable_or_folder(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert main(["pools", "-c", str(node.file)]) == 0
    monkeypatch.setenv("WEIR_ADMIN", node.admin)
    assert main(["pools"]) == 0
    monkeypatch.setenv("WEIR_ADMIN", "http://127.0.0.1:1")
    assert main(["pools"]) == 1
    assert main(["pools", "-c", str(node.file)]) == 0, "what is typed wins over the variable"
    monkeypatch.delenv("WEIR_ADMIN")
    monkeypatch.chdir(node.file.parent)
    assert main(["pools"]) == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weir.yml").write_text("nonsense: 1\n")
    capsys.readouterr()
    assert main(["pools"]) == 1
    assert "nonsense: is not a known key" in capsys.readouterr().err


def test_a_role_that_does_not_suffice_is_named(
    start_node: Callable[..., Node], engine: Engine, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("reader", "operator"):
        (tmp_path / name).write_text(f"{name}-sesame-open-0123456789\n")
    admin = f"127.0.0.1:{free_port()}"
    tokens = [
        {"name": "reader", "file": str(tmp_path / "reader"), "role": "read"},
        {"name": "operator", "file": str(tmp_path / "operator"), "role": "operate"},
    ]
    node = start_node([engine.url], admin={"listen": admin, "tokens": tokens})
    reader = ["-c", str(node.file), "--token-file", str(tmp_path / "reader")]
    assert main(["pools", *reader]) == 0
    for command in (["drain", BACKEND], ["limit", BACKEND, "--streams", "1"], ["kill", "x"]):
        capsys.readouterr()
        assert main([*command, *reader]) == 1
        out, err = capsys.readouterr()
        assert out == "" and "read" in err and "--token-file" in err and err.count("\n") == 1
    assert main(["drain", BACKEND, "-c", str(node.file)]) == 0, "the file's strongest token"
    capsys.readouterr()
    assert main(["whoami", "-c", str(node.file)]) == 0
    assert capsys.readouterr().out == "operator: operate\n"


def test_a_token_is_asked_for_by_name_and_never_an_argument(
    start_node: Callable[..., Node], engine: Engine, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WEIR_TEST_TOKEN", "sesame-open")
    node = start_node(
        [engine.url],
        admin={
            "listen": f"127.0.0.1:{free_port()}",
            "tokens": [{"name": "ops", "env": "WEIR_TEST_TOKEN"}],
        },
    )
    admin = f"http://{node.config['admin']['listen']}"
    assert main(["pools", "--admin", admin]) == 1
    assert "set WEIR_ADMIN_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("WEIR_ADMIN_TOKEN", "wrong")
    assert main(["pools", "--admin", admin]) == 1
    assert "does not know the token of WEIR_ADMIN_TOKEN" in capsys.readouterr().err
    file = tmp_path / "token"
    file.write_text("sesame-open\n")
    assert main(["pools", "--admin", admin, "--token-file", str(file)]) == 0
    monkeypatch.setenv("WEIR_ADMIN_TOKEN", "sesame-open")
    assert main(["pools", "--admin", admin]) == 0
    monkeypatch.delenv("WEIR_ADMIN_TOKEN")
    assert main(["pools", "-c", str(node.file)]) == 0, "the service's own file says where it is"
    for bad in ("", "two tokens\n", "a\nb\n", "蓝\n"):
        file.write_text(bad)
        assert main(["pools", "--admin", admin, "--token-file", str(file)]) == 1


# -- terminals ---------------------------------------------------------------------------------


def test_a_reader_that_has_had_enough_is_no_error(node: Node) -> None:
    done = subprocess.run(
        f"{' '.join(WEIR)} pools --admin {node.admin} | true; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_any_locale_and_no_colour(node: Node, streams: Streams) -> None:
    streams(1)
    poor = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "NO_COLOR": "1"}
    for command in (["top"], ["leases"], ["config"], ["config", "--json"]):
        code, out, err = told_by(*command, "--admin", node.admin, **poor)
        assert (code, err) == (0, "") and out.isascii() and "\x1b" not in out
        if "--json" in command:
            assert json.loads(out)["effective"] == node.get("/v1/config")["effective"]


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str, rows: int = 30, columns: int = 100) -> None:
        pid, self.file = pty.fork()
        if pid == 0:
            os.environ |= {"TERM": "xterm", "LINES": str(rows), "COLUMNS": str(columns)}
            os.execv(sys.executable, [*WEIR, *arguments])
        self.pid = pid
        self.seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def _read(self) -> bool:
        """More of what it says; False at its end."""
        try:
            data = os.read(self.file, 65_536)
        except OSError:
            return False
        self.seen += self._decoder.decode(data)
        return bool(data)

    def until(self, text: str, timeout_s: float = 15.0) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} not in {self.seen[-3_000:]!r}"
            if select.select([self.file], [], [], left)[0]:
                self._read()

    def press(self, key: str) -> None:
        self.seen = ""
        os.write(self.file, key.encode())

    def ended(self, timeout_s: float = 10.0) -> int:
        deadline = time.monotonic() + timeout_s
        while True:
            if select.select([self.file], [], [], 0.02)[0]:
                self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while select.select([self.file], [], [], 0)[0] and self._read():
                    pass
                local = termios.tcgetattr(self.file)[3]
                assert local & termios.ICANON and local & termios.ECHO, "as it was found"
                os.close(self.file)
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, self.seen[-2_000:]


def test_top_shows_takes_keys_and_quits(node: Node, streams: Streams) -> None:
    streams(2)
    lease = node.leases()[0]
    terminal = Terminal("top", "--admin", node.admin, "--every", "100ms")
    terminal.until(lease["id"])
    terminal.until("q quit")
    for key, told in (
        ("n", "newest streams"), ("o", "oldest streams"), ("p", "oldest streams of default"),
        ("d", "oldest streams of default, draining"), (" ", "paused"),
    ):  # fmt: skip
        terminal.press(key)
        terminal.until(told)
    terminal.press("q")
    assert terminal.ended() == 0
    assert "\x1b[?1049l" in terminal.seen, "the screen is put back"


def test_top_on_ctrl_c_puts_the_terminal_back(node: Node) -> None:
    terminal = Terminal("top", "--admin", node.admin, rows=6, columns=40)
    terminal.until("q quit")
    terminal.press("\x03")
    assert terminal.ended() == 0
    assert "\x1b[?1049l" in terminal.seen and "Traceback" not in terminal.seen


# -- completion --------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_sound_script_with_all_commands(shell: str, tmp_path: Path) -> None:
    code, script, err = told_by("completion", shell)
    assert (code, err) == (0, "")
    for command in ("up", "pools", "leases", "kill", "drain", "limit", "top", "events", "check"):
        assert command in script
    file = tmp_path / "script"
    file.write_text(script)
    if shell != "bash" and not any(Path(folder, shell).exists() for folder in ("/bin", "/usr/bin")):
        return
    subprocess.run([shell, "-n", str(file)], check=True, timeout=30)


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_text(told_by("completion", "bash")[1])
    for typed, offered in (("dr", "drain"), ("leases --sta", "--state"), ("drain --w", "--wait")):
        ask = (
            f"source {file}; COMP_WORDS=(weir {typed}); COMP_CWORD={len(typed.split())}; "
            "_shtab_weir; echo ${COMPREPLY[@]}"
        )
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
        assert offered in done.stdout.split(), done


# -- check -------------------------------------------------------------------------------------


def test_check_tells_every_fault_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "weir.yml"
    file.write_text(
        "stat: x\npools: {default: {backends: [{name: a, url: 'http://x:1', max_tokens: 0}]}}\n"
    )
    assert main(["check", "--json", "-c", str(file)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["sound"], told["version"]) == (False, None)
    assert {"stat", "pools.default.backends[0].max_tokens"} <= {f["path"] for f in told["faults"]}
    assert all(fault["problem"] for fault in told["faults"])


def test_check_tells_the_version_that_nginx_runs(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", "--json", "-c", str(node.file)])
    version = json.loads(capsys.readouterr().out)["version"]
    assert version in (node.state / "nginx/nginx.conf").read_text()


# -- events ------------------------------------------------------------------------------------


def test_events_are_followed_over_a_restart_of_the_service(
    node: Node, streams: Streams, tmp_path: Path
) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as out_file, err.open("w") as err_file:
        process = subprocess.Popen(
            [*WEIR, "events", "--json", "--admin", node.admin], stdout=out_file, stderr=err_file
        )

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in out.read_text().split("\n")[:-1]]

    def told(kind: str) -> list[dict[str, Any]]:
        return [each for each in lines() if each["event"] == kind]

    def streamed_until_granted(count: int) -> None:
        wait_for(lambda: len(told("granted")) > count or (_stream_once(node) and False), 30)

    try:
        streamed_until_granted(0)
        [first, *_] = told("granted")
        assert {"id", "pool", "backend", "scene", "tokens", "at"} <= first["data"].keys()
        wait_for(lambda: told("ended"))
        arbiter = node.pid("admission")
        os.kill(arbiter, signal.SIGTERM)
        wait_for(lambda: "trying again" in err.read_text(), 20)
        wait_for(lambda: node.serves() and _answers(node), 30)
        before = len(told("granted"))
        streamed_until_granted(before)
        ids = [each["id"] for each in lines() if each["id"]]
        assert ids == sorted(set(ids))
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert "Traceback" not in err.read_text()
    finally:
        process.kill()
        process.wait(10)


def _answers(node: Node) -> bool:
    try:
        return requests.get(f"{node.admin}/readyz", timeout=1).ok
    except requests.RequestException:
        return False


def _stream_once(node: Node) -> bool:
    with Client(node.port) as client:
        return client.request(chat_body(2, gap_ms=1), headers=QA)[0].status == 200


def test_events_read_as_lines(node: Node) -> None:
    with AdminClient(node.admin, timeout_s=10) as client:
        newest = client.history()["points"][-1]["at"]
    terminal = Terminal(
        "events", "--kind", "granted,ended", "--kind", "alarm", "--pool", "default",
        "--since-id", str(int(newest * 1_000_000) - 3_600_000_000), "--admin", node.admin,
        columns=200,
    )  # fmt: skip
    assert _stream_once(node)
    terminal.until("verdict=completed")
    assert "granted" in terminal.seen and BACKEND in terminal.seen
    terminal.press("\x03")
    assert terminal.ended() == 0


def test_an_unknown_kind_of_event_is_named(weir: Weir) -> None:
    code, out, err = weir("events", "--kind", "nonsense")
    assert (code, out) == (1, "") and "'nonsense' must be" in err


def test_history_is_a_row_a_minute(weir: Weir, node: Node) -> None:
    assert _stream_once(node)
    told = as_json(weir("history", "--json"))
    assert told["step_s"] == 60 and sum(point["granted"] for point in told["points"]) >= 1
    code, out, _ = weir("history")
    after = as_json(weir("history", "--json"))  # a minute may have turned
    assert code == 0
    assert len(told["points"]) <= len(out.splitlines()) - 1 <= len(after["points"])
