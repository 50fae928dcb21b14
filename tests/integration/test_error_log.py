"""What nginx's error log keeps of a request whose query carries a prompt: nothing."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import requests
import yaml

from tests.harness.node import WEIR, Engine, Node, reload, wait_for

PROMPT = "patient-with-fever"
LUA = Path(__file__).parents[2] / "lua" / "weir"


def test_a_route_that_the_service_does_not_know_yet_is_told_of_without_its_query(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    node = start_node([start_engine().url], nginx={"error_level": "crit"})
    routes = [{"path": path, "pool": "default"} for path in ("/v1/chat/completions", "/v1/new")]
    node.file.write_text(yaml.safe_dump({**node.config, "routes": routes}))
    subprocess.run([*WEIR, "render", "-c", str(node.file)], check=True, stdout=subprocess.PIPE)
    reload(node)

    def is_rejected() -> bool:
        answer = requests.get(f"{node.url}/v1/new?prompt={PROMPT}", timeout=10)
        return answer.status_code == 503

    wait_for(is_rejected)  # an old worker may answer still
    wait_for(lambda: "weir: operation_rejected message=route: '/v1/new'" in node.errors())
    assert PROMPT not in node.errors()
    node.settled()


def test_what_nginx_itself_complains_of_on_the_way_to_an_engine_has_no_query(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    routes = [{"path": "/v1/beating", "pool": "default", "heartbeat": "1s"}]
    node = start_node([start_engine().url], routes=routes, nginx={"error_level": "crit"})
    (node.state / "run/relay.sock").unlink()
    answer = requests.get(f"{node.url}/v1/beating?prompt={PROMPT}", timeout=10)
    assert (answer.status_code, answer.headers["x-weir-reason"]) == (503, "no_backend")
    node.settled()
    assert PROMPT not in node.errors()


def test_lua_says_what_is_wrong_without_the_request_in_which_it_is() -> None:
    found = [
        file.name
        for file in LUA.glob("*.lua")
        if re.search(r"ngx\.log\b|\braw_log\b", file.read_text())
    ]
    assert found == ["log.lua"]
