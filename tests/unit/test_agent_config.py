"""The section ``agent`` of ``weir.yml``."""

from typing import Any

import pytest

from control.config import Config, ConfigError
from control.config.load import parse

POOLS = {"default": {"backends": [{"name": "gpu-0", "url": "http://127.0.0.1:8000"}]}}


def read(**agent: Any) -> Config:
    return parse({"pools": POOLS, "agent": agent}, "weir.yml")


def faults(**agent: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        read(**agent)
    return {fault.path: fault.message for fault in caught.value.faults}


def test_the_defaults_are_mission_000s() -> None:
    agent = read().agent
    assert (agent.memory_limit, agent.service_memory, agent.webhook) == ("auto", 512 << 20, None)
    assert (agent.memory_resume, agent.memory_alarm, agent.memory_full) == (0.80, 0.85, 0.92)


@pytest.mark.parametrize(("written", "limit"), [("auto", "auto"), ("8g", 8 << 30), (4096, 4096)])
def test_the_limit_is_found_or_a_size(written: Any, limit: Any) -> None:
    assert read(memory_limit=written).agent.memory_limit == limit


@pytest.mark.parametrize(
    "agent",
    [
        {"memory_limit": "lots"}, {"memory_limit": 0}, {"memory_limit": -1},
        {"memory_limit": None}, {"memory_limit": True}, {"memory_limit": "1.5g"},
        {"memory_alarm": 0}, {"memory_full": 1.01}, {"memory_resume": "most"},
        {"memory_full": float("nan")}, {"service_memory": 0}, {"service_memory": "512 MB"},
        {"webhook": "nowhere"}, {"webhook": "ftp://x/y"}, {"webhook": "http://"},
        {"webhook": "http://x:99999/"}, {"webhook": 7}, {"web_hook": "http://x/"},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_path(agent: dict[str, Any]) -> None:
    [key] = agent
    assert f"agent.{key}" in faults(**agent)


@pytest.mark.parametrize(
    ("agent", "fault"),
    [
        ({"memory_alarm": 0.95}, "memory_full"), ({"memory_full": 0.85}, "memory_full"),
        ({"memory_resume": 0.85}, "memory_alarm"), ({"memory_alarm": 0.5}, "memory_alarm"),
        ({"memory_resume": 0.9, "memory_alarm": 0.95, "memory_full": 0.95}, "memory_full"),
    ],
    ids=str,
)  # fmt: skip
def test_marks_out_of_order_are_refused_in_words(agent: dict[str, Any], fault: str) -> None:
    found = faults(**agent)
    assert set(found) == {f"agent.{fault}"}
    assert "must be above agent.memory_" in found[f"agent.{fault}"]
