"""Nodes apart from their admission service: over TLS, with certificates and tokens."""

import os
import signal
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from control.cli import main
from tests.harness.apart import Authority, ServiceForNodes
from tests.harness.client import Client, chat_body, error_of
from tests.harness.node import Engine, Node, free_port, wait_for

QA = {"X-Medical-Scene": "QA"}
TOKEN = "node-token-of-32-characters-here"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("token") / "node"
    file.write_text(TOKEN + "\n")
    return str(file)


@pytest.fixture(scope="module")
def service(
    engine: Engine, ca: Authority, token_file: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceForNodes]:
    tls = {**ca.issue("service", "localhost", "127.0.0.1"), "client_ca": str(ca.file)}
    tokens = [{"name": "n", "file": token_file}]
    folder = tmp_path_factory.mktemp("service")
    service = ServiceForNodes(folder, engine.url, 3, tls=tls, tokens=tokens)
    yield service
    assert "Traceback" not in service.log.read_text()
    service.stop()


def apart(folder: Path, engine: Engine, service: ServiceForNodes, **admission: Any) -> Node:
    """A node of its own, whose service is elsewhere."""
    url = f"https://{admission.pop('host', 'localhost')}:{service.nodes_port}"
    node = Node(
        folder, [engine.url], limits={"max_streams": 3},
        admission={"url": url, "budget": "2s", **admission}, node="apart", nginx={"workers": 2},
    )  # fmt: skip
    node.admin = service.url
    return node


def streams(node: Node) -> bool:
    """Whether a request is granted, and answered."""
    with Client(node.port) as client:
        return client.request(chat_body(2), headers=QA)[0].status == 200


@pytest.fixture(scope="module")
def own(ca: Authority, token_file: str) -> dict[str, Any]:
    """What a node is known by."""
    return {"ca": str(ca.file), **ca.issue("node", "node-1"), "token": {"file": token_file}}


@pytest.fixture(scope="module")
def node(
    engine: Engine,
    service: ServiceForNodes,
    own: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Node]:
    node = apart(tmp_path_factory.mktemp("node"), engine, service, **own)
    yield node
    node.settled()
    node.stop()


def test_a_node_apart_streams_refuses_and_gives_back(node: Node, service: ServiceForNodes) -> None:
    assert not (node.state / "run" / "admission.sock").exists(), "no service runs here"
    clients = [Client(node.port).post(chat_body(1_000, 20), headers=QA) for _ in range(3)]
    for client in clients:
        assert client.head().status == 200
        client.events(2)
    assert node.in_use()[0] == 3
    with Client(node.port) as refused:
        response, body = refused.request(chat_body(2), headers=QA)
        assert (response.status, error_of(body)["weir"]["reason"]) == (429, "streams_exhausted")
    clients.pop().rst()
    wait_for(lambda: node.in_use()[0] == 2)
    for client in clients:
        client.fin()
    node.settled()


def test_it_is_the_agents_service_too(node: Node) -> None:
    [told] = node.get("/v1/nodes")["nodes"]
    assert told["name"] == "apart"
    assert told["agent"]


def test_each_worker_tells_which_configuration_it_runs(
    node: Node, service: ServiceForNodes
) -> None:
    said = (node.state / "nginx" / "weir.json").read_text()
    workers = {str(pid) for pid in node.workers("nginx")}
    sessions = wait_for(
        lambda: [s for s in service.sessions() if s["id"].split("/")[1] in workers and s["config"]]
    )
    for session in sessions:
        assert f'"version": "{session["config"]}"' in said
        assert (
            f"# Configuration: {session['config']}"
            in (node.state / "nginx" / "nginx.conf").read_text()
        )


def test_no_secret_is_rendered(node: Node) -> None:
    for file in (node.state / "nginx").iterdir():
        assert TOKEN not in file.read_text()


def test_it_survives_the_services_being_killed(node: Node, service: ServiceForNodes) -> None:
    client = Client(node.port).post(chat_body(100, 50), headers=QA)
    assert client.head().status == 200
    client.events(2)
    service.kill()
    with Client(node.port) as refused:
        response, body = refused.request(chat_body(2), headers=QA)
        assert (response.status, error_of(body)["weir"]["reason"]) == (503, "admission_down")
    service.start()
    assert client.rest().endswith(b"data: [DONE]\n\n")
    node.settled(10)
    wait_for(lambda: streams(node))


def test_a_new_certificate_is_served_after_a_sighup(
    node: Node, service: ServiceForNodes, ca: Authority
) -> None:
    def served() -> str:
        # By who may not come in: the service shows itself first.
        return ssl.get_server_certificate(("127.0.0.1", service.nodes_port), timeout=5)

    old = served()
    ca.issue("service", "localhost", "127.0.0.1")
    service.reload()
    assert served() != old
    wait_for(lambda: streams(node))


def test_a_broken_certificate_is_refused_at_sighup_and_the_old_one_served(
    node: Node, service: ServiceForNodes, ca: Authority, tmp_path: Path
) -> None:
    file = Path(ca.issue("service", "localhost", "127.0.0.1")["certificate"])
    sound = file.read_text()
    file.write_text("no certificate")
    service.reload()
    assert "reload_refused" in service.log.read_text()
    assert "admission.tls.certificate" in service.get("/v1/config")["reload_error"]
    file.write_text(sound)
    wait_for(lambda: streams(node))


def test_one_who_hangs_up_before_the_handshake_is_no_defect(
    node: Node, service: ServiceForNodes
) -> None:
    os.kill(service.worker(), signal.SIGSTOP)
    for sent in (b"", b"hello"):
        with socket.create_connection(("127.0.0.1", service.nodes_port)) as client:
            client.sendall(sent)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.kill(service.worker(), signal.SIGCONT)
    wait_for(lambda: streams(node))
    assert "Traceback" not in service.log.read_text()


STRANGERS = {
    "wrong-authority": ({"ca": "other"}, "certificate"),
    "wrong-name": ({"host": "127.0.0.1"}, "certificate host mismatch"),
    "no-certificate": ({"certificate": None, "key": None}, "after the handshake"),
    "wrong-token": ({"token": "other"}, "401 unauthorized"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_node_or_a_service_that_is_not_known_grants_nothing_and_says_why(
    stranger: str, engine: Engine, service: ServiceForNodes, own: dict[str, Any], tmp_path: Path
) -> None:
    changed, told = STRANGERS[stranger]
    other = Authority(tmp_path / "other")
    (tmp_path / "token").write_text("another-token")
    values = {"ca": str(other.file), "token": {"file": str(tmp_path / "token")}}
    settings = {
        **own, **{key: values[key] if value == "other" else value for key, value in changed.items()}
    }  # fmt: skip
    settings = {key: value for key, value in settings.items() if value is not None}
    granted = _granted(service)
    node = apart(tmp_path / "node", engine, service, **settings)
    try:
        with Client(node.port) as client:
            response, body = client.request(chat_body(2), headers=QA)
            assert (response.status, error_of(body)["weir"]["reason"]) == (503, "admission_down")
        wait_for(
            lambda: any(
                "admission_unreachable" in line and told in line
                for line in node.errors().splitlines()
            )
        )
        assert _granted(service) == granted
    finally:
        # Its workers would go on trying to deliver what they have to say.
        node.tolerated = ("open socket", "aborting")
        node.process.send_signal(signal.SIGINT)
        node.stop()
    if "certificate" in changed:
        assert "handshake_failed plane=data from=127.0.0.1" in service.log.read_text()


def test_a_service_may_be_named_by_its_address_where_its_certificate_is_for_that_alone(
    engine: Engine, service: ServiceForNodes, own: dict[str, Any], ca: Authority, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """nginx verifies names: an address counts where it is the common name, and no name is there."""
    ca.issue("service", "127.0.0.1")
    service.reload()
    node = apart(tmp_path, engine, service, host="127.0.0.1", **own)
    wait_for(lambda: streams(node))
    wait_for(lambda: node.get("/v1/nodes/apart")["agent"]["pid"] == node.pid("agent"))
    node.settled()
    node.stop()
    place = f"https://localhost:{service.nodes_port}"
    assert main(["pools", "--admin", place, "--ca", str(ca.file)]) == 1
    assert "call it by a name of its certificate" in capsys.readouterr().err
    ca.issue("service", "localhost", "127.0.0.1")
    service.reload()


def _granted(service: ServiceForNodes) -> str:
    text = requests.get(f"{service.url}/metrics", timeout=5).text
    [line] = [x for x in text.splitlines() if x.startswith("weir_leases_granted_total")]
    return line


# -- commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ((), "name the authority that vouches for its certificate with --ca FILE"),
        (("--ca",), "name it with --cert FILE and --key FILE"),
        (("--ca", "--cert", "--key"), "it may not know the authority of your --cert"),
        (("--ca", "--cert"), "--ca, --cert and --key must be PEM files"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_that_does_not_come_through_tls_says_what_it_lacks(
    service: ServiceForNodes, ca: Authority, tmp_path: Path,
    shown: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stranger = Authority(tmp_path / "stranger").issue("stranger", "node-1")
    files = {"--ca": str(ca.file), "--cert": stranger["certificate"], "--key": stranger["key"]}
    given = [part for name in shown for part in (name, files[name])]
    place = f"https://localhost:{service.nodes_port}"
    assert main(["pools", "--admin", place, *given]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"weir: no TLS connection to {place} (") and told in error
    assert main(["pools", "--admin", place.replace("https", "http"), *given]) == 1
    assert capsys.readouterr().err.endswith(": where it speaks TLS say https://\n")


def test_on_a_node_apart_a_command_says_that_the_service_is_elsewhere(
    service: ServiceForNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "weir.yml"
    file.write_text(
        f"admin: {{listen: '127.0.0.1:{free_port()}'}}\n"
        f"admission: {{url: 'https://localhost:{service.nodes_port}'}}\n"
        "pools: {default: {backends: [{name: gpu-0, url: 'http://127.0.0.1:8000'}]}}\n"
    )
    assert main(["pools", "-c", str(file)]) == 1
    assert "this node's service is elsewhere; name its admin plane" in capsys.readouterr().err
