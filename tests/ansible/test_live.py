"""What the role `admission` asks of a service that runs. Of the machine only systemd is played."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.config import load
from tests.harness.admission import Service
from tests.harness.playbook import ANSIBLE, BIN, Play, environment

FIRST, SECOND = "a-first-token-of-the-operators", "a-second-token-of-the-operators"
SYSTEMCTL = """#!/bin/sh
case $* in
    *reload*) echo reload >>{told}; kill -HUP {pid} ;;
    *) printf 'LoadState=loaded\\nActiveState=active\\n' ;;
esac
"""


class Asked:
    """A service whose admin token is in a file, and plays of the role's last part against it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token, self.told = folder / "token", folder / "systemctl.log"
        self.token.write_text(f"{FIRST}\n")
        for each in ("etc/tokens", "etc/tls", "bin"):
            (folder / each).mkdir(parents=True)
        self.service = Service(folder / "n", admin={"tokens": [self.entry()]})
        self.version = load(self.service.file).version
        systemctl = folder / "bin/systemctl"
        systemctl.write_text(SYSTEMCTL.format(told=self.told, pid=self.service.process.pid))
        systemctl.chmod(0o755)

    def entry(self, **other: Any) -> dict[str, Any]:
        return {"name": "ops", "role": "admin", "file": str(self.token), **other}

    def reloads(self) -> int:
        return self.told.read_text().count("reload") if self.told.exists() else 0

    def play(self, **variables: Any) -> Play:
        part = {"name": "admission", "tasks_from": "live.yml"}
        book = [{"hosts": "localhost", "connection": "local", "gather_facts": False,
                 "tasks": [{"ansible.builtin.include_role": part}]}]  # fmt: skip
        given = {
            "ansible_python_interpreter": sys.executable,
            "weir_instance": "weir",
            "weir_etc": str(self.folder / "etc"),
            "weir_admin": {"listen": f"127.0.0.1:{self.service.port}", "tokens": [self.entry()]},
            "weir_admission": {},
            "weir_checked": {"stdout": self.version},
            **variables,
        }
        file = self.folder / "site.yml"
        file.write_text(yaml.safe_dump(book))
        known = environment(self.folder)
        done = subprocess.run(
            [BIN / "ansible-playbook", "-i", "localhost,", "-e", json.dumps(given), file],
            env={**known, "PATH": f"{self.folder}/bin:{known['PATH']}",
                 "ANSIBLE_ROLES_PATH": str(ANSIBLE / "roles")},
            capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Play(done.returncode, done.stdout + done.stderr)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    asked = Asked(tmp_path)
    yield asked
    asked.service.stop()


def test_a_token_in_a_file_is_what_the_service_is_asked_with_and_is_exchanged(asked: Asked) -> None:
    play = asked.play()
    assert play.code == 0 and play.count("changed") == 0, play.said
    assert asked.reloads() == 0

    asked.token.write_text(f"{SECOND}\n")
    play = asked.play()
    assert play.code == 0 and asked.reloads() == 1, play.said
    assert asked.service.ask("GET", "/v1/whoami", SECOND).status_code == 200
    play = asked.play()
    assert play.code == 0 and play.count("changed") == 0, play.said
    assert FIRST not in play.said and SECOND not in play.said


def test_a_service_that_refuses_the_token_fails_the_play_in_a_line_that_says_so(
    asked: Asked,
) -> None:
    strange = asked.folder / "strange"
    strange.write_text(SECOND)
    admin = {
        "listen": f"127.0.0.1:{asked.service.port}",
        "tokens": [asked.entry(file=str(strange))],
    }
    play = asked.play(weir_admin=admin, admission_patience=1)
    assert play.code != 0 and f"refuses the token of {strange} with 401" in play.said, play.said
    assert SECOND not in play.said


def test_a_reload_that_the_service_refuses_says_why(asked: Asked) -> None:
    asked.service.config["pools"]["default"]["backends"][0]["max_streams"] = 0
    asked.service.write_config()
    play = asked.play(weir_checked={"stdout": "000000000000"})
    assert play.code != 0 and "the service refuses what it was given" in play.said, play.said
    assert "max_streams" in play.said and FIRST not in play.said
