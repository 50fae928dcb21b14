"""What lets others reach the service, and a node reach it elsewhere: settings and files."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.agent.daemon import build_client
from control.config import ConfigError
from control.config.load import parse
from control.listeners import listeners
from control.tls import client_faults, server_faults
from tests.harness.apart import Authority

POOLS = {"default": {"backends": [{"name": "gpu-0", "url": "http://127.0.0.1:8000"}]}}
FAR = "10.0.0.5:8443"
URL = "https://weir.example.org:8443"
PAIR = {"certificate": "/c.pem", "key": "/c.key"}
TLS = {**PAIR}
TOKENS = [{"name": "node-1", "env": "T"}]


def faults(**admission: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse({"pools": POOLS, "admission": admission}, "weir.yml")
    return {fault.path: fault.message for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("admission", "path"),
    [
        ({"listen": FAR}, "admission.listen"),
        ({"listen": FAR, "tokens": TOKENS}, "admission.listen"),
        ({"listen": FAR, "tls": TLS}, "admission.tokens"),
        ({"listen": "0.0.0.0:8443", "tls": TLS, "tokens": []}, "admission.tokens"),
        ({"listen": "127.0.0.1:8081"}, "admission.listen"),
        ({"listen": FAR, "tls": {"certificate": "/c.pem"}, "tokens": TOKENS}, "admission.tls.key"),
        ({"listen": "127.0.0.1:1", "tokens": [{"name": "n"}]}, "admission.tokens[0]"),
        ({"tls": TLS}, "admission.tls"),
        ({"tokens": TOKENS}, "admission.tokens"),
        ({"ca": "/ca.pem"}, "admission.ca"),
        ({"token": {"env": "T"}}, "admission.token"),
        ({"url": URL}, "admission.token"),
        ({"url": URL, "certificate": "/c.pem"}, "admission.key"),
        ({"url": URL, "key": "/c.key"}, "admission.certificate"),
        ({"url": URL, **PAIR, "listen": "127.0.0.1:8443"}, "admission.listen"),
        ({"url": "http://weir.example.org:8443", "token": {"env": "T"}}, "admission.url"),
        ({"url": "http://127.0.0.1:8443", "ca": "/ca.pem"}, "admission.ca"),
        ({"url": "ftp://weir:1", **PAIR}, "admission.url"),
        ({"url": f"{URL}/v1", **PAIR}, "admission.url"),
        ({"url": "https://[::1", **PAIR}, "admission.url"),
    ],
)
def test_what_would_be_open_or_makes_no_sense_is_refused(
    admission: dict[str, Any], path: str
) -> None:
    assert path in faults(**admission)


@pytest.mark.parametrize(
    "admission",
    [
        {"listen": "127.0.0.1:8443"},
        {"listen": FAR, "tls": TLS, "tokens": TOKENS},
        {"listen": FAR, "tls": {**TLS, "client_ca": "/ca.pem"}},
        {"url": URL, "token": {"file": "/t"}},
        {"url": URL, **PAIR, "ca": "/ca.pem"},
        {"url": "https://localhost:8443"},
        {"url": "http://127.0.0.1:8443"},
    ],
)
def test_what_is_closed_or_this_machines_own_is_accepted(admission: dict[str, Any]) -> None:
    parse({"pools": POOLS, "admission": admission}, "weir.yml")


def test_a_node_apart_has_its_service_elsewhere() -> None:
    config = parse({"pools": POOLS, "admission": {"url": "https://Weir.example.org", **PAIR}}, "")
    assert config.is_apart and config.admission_address == "https://weir.example.org:443"
    with pytest.raises(ConfigError, match=r"admission\.url: the service of this node is at"):
        listeners(config, "weir.yml")
    here = parse({"pools": POOLS}, "")
    assert not here.is_apart and here.admission_address.startswith("unix:/")


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def _serving(**tls: Any) -> Any:
    return parse({"pools": POOLS, "admin": {"listen": "127.0.0.1:8081", "tls": tls}}, "weir.yml")


def test_files_that_are_sound_have_no_fault(ca: Authority) -> None:
    pair = ca.issue("sound", "localhost")
    config = _serving(**pair, client_ca=str(ca.file))
    assert server_faults(config) == []
    assert [listener.tls is not None for listener in listeners(config, "")] == [False, True]
    node = {"url": "https://localhost:1", "ca": str(ca.file), **pair}
    assert client_faults(parse({"pools": POOLS, "admission": node}, "")) == []


@pytest.mark.parametrize(
    ("broken", "path", "told"),
    [
        ("missing", "admin.tls.certificate", "cannot be read (No such file or directory)"),
        ("no-key", "admin.tls.key", "cannot be read"),
        ("nonsense", "admin.tls.certificate", "are no PEM certificate and key"),
        ("of-another", "admin.tls.key", "is not the key of"),
        ("with-passphrase", "admin.tls.certificate", "without a passphrase"),
        ("client-ca", "admin.tls.client_ca", "has no PEM certificate of an authority"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    ca: Authority, tmp_path: Path, broken: str, path: str, told: str
) -> None:
    tls: dict[str, str] = {**ca.issue("broken", "localhost"), "client_ca": str(ca.file)}
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("-----BEGIN NONSENSE-----")
    match broken:
        case "missing":
            tls["certificate"] = str(tmp_path / "none")
        case "no-key":
            tls["key"] = str(tmp_path / "none")
        case "nonsense":
            tls["certificate"] = str(nonsense)
        case "of-another":
            tls["key"] = ca.issue("another", "localhost")["key"]
        case "with-passphrase":
            locked = tmp_path / "locked.key"
            command = ["openssl", "rsa", "-aes256", "-passout", "pass:secret"]
            if "EC" in Path(tls["key"]).read_text():
                command[1] = "ec"
            subprocess.run(
                [*command, "-in", tls["key"], "-out", str(locked)], check=True, capture_output=True
            )
            tls["key"] = str(locked)
        case "client-ca":
            tls["client_ca"] = str(nonsense)
    [fault] = server_faults(_serving(**tls))
    assert fault.path == path and told in fault.message
    with pytest.raises(ConfigError, match=rf"weir\.yml: {path}: "):
        listeners(_serving(**tls), "weir.yml")


def test_a_nodes_own_files_are_looked_at_too(ca: Authority, tmp_path: Path) -> None:
    node = {"url": "https://localhost:1", "ca": str(tmp_path / "none"), **PAIR}
    found = client_faults(parse({"pools": POOLS, "admission": node}, ""))
    assert [fault.path for fault in found] == [
        "admission.ca", "admission.certificate", "admission.key",
    ]  # fmt: skip


def test_an_agent_without_its_token_says_which(tmp_path: Path) -> None:
    node = {"url": "https://localhost:1", "token": {"file": str(tmp_path / "none")}}
    with pytest.raises(ConfigError, match=r"admission\.token\.file: .*none cannot be read"):
        build_client(parse({"pools": POOLS, "admission": node}, ""))


@pytest.mark.parametrize("command", ["admission", "check"])
def test_the_commands_say_it_in_one_go_and_without_a_traceback(
    tmp_path: Path, command: str
) -> None:
    raw = {
        "state": str(tmp_path / "s"), "listen": "127.0.0.1:18089", "pools": POOLS,
        "admin": {"listen": "127.0.0.1:18088", "tls": {**PAIR, "client_ca": "/ca.pem"}},
    }  # fmt: skip
    file = tmp_path / "weir.yml"
    file.write_text(yaml.safe_dump(raw))
    done = subprocess.run(
        [sys.executable, "-m", "control", command, "-c", str(file)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for key in ("certificate", "key", "client_ca"):
        assert f"admin.tls.{key}: /" in done.stderr
