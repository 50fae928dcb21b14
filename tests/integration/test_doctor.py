"""``weir doctor`` beside a real node: what it finds, and that it tells no secret."""

import json
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.cli import main
from control.client import AdminClient
from tests.harness.client import Client, chat_body
from tests.harness.node import Engine, Node, free_port

SECRET = "sesame-0p3n-tok3n"
PROMPT = "发热三天 fever-for-three-days"


@pytest.fixture
def doctor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[dict[str, Any], dict[str, str]]]:
    """Runs it: what it printed, and the archive's members."""
    for name in ("WEIR_ADMIN", "WEIR_ADMIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[dict[str, Any], dict[str, str]]:
        capsys.readouterr()
        archive = tmp_path / "bug.tar.gz"
        assert main(["doctor", "--json", "-o", str(archive), *arguments]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert stat.S_IMODE(archive.stat().st_mode) == 0o600
        with tarfile.open(archive) as tar:
            members = {
                member.name.split("/", 1)[1]: tar.extractfile(member).read().decode()  # type: ignore[union-attr]
                for member in tar
            }
        return json.loads(out), members

    return run


def found(told: dict[str, Any]) -> str:
    return "\n".join(f"{each['what']} -> {each['remedy']}" for each in told["findings"])


def state_of(node: Node) -> dict[str, tuple[int, float]]:
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime)
        for folder in ("nginx", "run", "agent")
        for path in (node.state / folder).rglob("*")
        if path.name not in ("checkpoint.json", "checkpoint.new")
    }


def test_no_secret_and_no_prompt_is_in_the_archive(
    start_node: Callable[..., Node], engine: Engine, tmp_path: Path,
    doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WEIR_TEST_TOKEN", SECRET)
    hook = f"https://user:{SECRET}@127.0.0.1:{free_port()}/T0/{SECRET}"
    admin = f"127.0.0.1:{free_port()}"
    node = start_node(
        [engine.url],
        admin={"listen": admin, "tokens": [{"name": "ops", "env": "WEIR_TEST_TOKEN"}]},
        agent={"webhook": hook},
        nginx={"error_level": "info"},
    )
    with Client(node.port) as client:
        body = chat_body(2, prompt=PROMPT)
        client.request(body, path="/v1/chat/completions?q=fever-for-three-days")
    with Client(node.port) as client:
        client.request(b"", path="/nowhere?q=fever-for-three-days", method="GET")
    for name, lines in (
        ("error.log", [
            f'2026/01/02 03:04:05 [crit] 7#7: *9 bad, request: "GET /x?q={PROMPT} HTTP/1.1"',
            f'{{"messages":[{{"content":"{PROMPT}"}}]}}', f"Authorization: Bearer {SECRET}",
        ]),
        ("admission.log", [
            f"ValueError: {PROMPT}", f"2026-01-02 03:04:05,678 INFO weir.x k={SECRET}",
        ]),
        ("agent.log", [PROMPT, SECRET]),
        ("access.log", [f'GET /?q={PROMPT} {SECRET}']),
    ):  # fmt: skip
        with (node.state / "log" / name).open("a") as log:
            log.writelines(f"{line}\n" for line in lines)
    before = state_of(node)
    told, members = doctor("-c", str(node.file))
    assert state_of(node) == before, "it only looks"
    text = json.dumps(told, ensure_ascii=False) + "".join(members.values())
    for planted in (SECRET, PROMPT, "发热", "fever-for-three-days", "user:"):
        assert planted not in text, [name for name, each in members.items() if planted in each]
    assert told["reachable"]
    assert {
        "findings.txt", "versions.json", "machine.json", "journal.json", "configuration.json",
        "metrics.txt", "files.txt", "log/access.log", "log/error.log", "log/admission.log",
        "log/agent.log", "nginx/nginx.conf", "nginx/weir.json", "service/pools.json",
        "service/nodes.json", "service/sessions.json", "service/leases.json",
    } <= members.keys()  # fmt: skip
    assert json.loads(members["configuration.json"])["agent"]["webhook"] == (
        "https://127.0.0.1/[removed]"
    )
    assert json.loads(members["journal.json"])["check"] == "ok"
    assert "nginx version" in json.loads(members["versions.json"])["nginx"]
    assert "weir_lease_drift 0.0" in members["metrics.txt"]
    assert '"route": "/v1/chat/completions"' in members["log/access.log"]


def test_what_is_wrong_is_found_with_its_remedy(node: Node, doctor: Callable[..., Any]) -> None:
    told, _ = doctor("-c", str(node.file))
    assert "default/gpu-0" not in found(told) and told["reachable"]
    with AdminClient(node.admin, timeout_s=10) as client:
        client.set_limits("default", "gpu-0", max_streams=7)
        text = node.file.read_text()
        try:
            node.file.write_text(text.replace("nginx:", "nginx:\n  max_body: 1m"))
            told, members = doctor("-c", str(node.file))
        finally:
            node.file.write_text(text)
            client.set_limits("default", "gpu-0", max_streams=25)
    assert "default/gpu-0 was changed live; weir.yml says streams 25" in found(told)
    assert "nginx's files are of version" in found(told) and "kill -HUP" in found(told)
    assert members["findings.txt"].count("->") == len(told["findings"])


def test_without_a_file_it_looks_at_the_one_that_the_service_has_read(
    node: Node, doctor: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told, members = doctor("--admin", node.admin)
    assert told["reachable"] and {"log/agent.log", "nginx/nginx.conf"} <= set(members)
    assert json.loads(members["journal.json"])["check"] == "ok"


def test_a_service_that_is_down_is_said_so_and_the_rest_collected(
    engine: Engine, tmp_path: Path, doctor: Callable[..., Any]
) -> None:
    node = Node(tmp_path / "n", [engine.url])
    node.stop()
    told, members = doctor("-c", str(node.file))
    assert not told["reachable"]
    assert f"no service answers at {node.admin}" in found(told) and "weir up -c" in found(told)
    assert json.loads(members["journal.json"])["check"] == "ok"
    assert "agent_started" in members["log/agent.log"]

    with (node.state / "journal.db").open("r+b") as journal:
        journal.seek(100)
        journal.write(os.urandom(8_000))
    told, _ = doctor("-c", str(node.file))
    assert "journal.db is not sound" in found(told)

    (node.state / "log/agent.log").unlink()
    _, members = doctor("-c", str(node.file))
    assert members["log/agent.log"].startswith(f"[there is no {node.state}/log/agent.log, and no")


def test_without_a_file_or_with_a_faulty_one_it_tells_what_it_can(
    tmp_path: Path, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nowhere = f"http://127.0.0.1:{free_port()}"
    told, members = doctor("--admin", nowhere)
    assert nowhere in found(told) and "versions.json" in members
    file = tmp_path / "weir.yml"
    file.write_text(yaml.safe_dump({"listen": SECRET, "nonsense": SECRET, "pools": {}}))
    told, members = doctor("--admin", nowhere, "-c", str(file))
    assert "listen: " in found(told) and SECRET not in found(told) + "".join(members.values())


def test_an_archive_that_cannot_be_written_is_an_error(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "-c", str(node.file), "-o", "/nowhere/bug.tar.gz"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "/nowhere/bug.tar.gz" in err and "-o FILE" in err
