"""Runs the playbook as an operator does, against machines of a test."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.machine import Machine

ANSIBLE = Path(__file__).parents[2] / "ansible"
BIN = Path(sys.executable).parent
BUILD = Path(__file__).parents[2] / "build/wheelhouse"


class Play(NamedTuple):
    """What came of a run. ``changed`` and ``failed`` of all hosts together."""

    code: int
    said: str

    def count(self, word: str) -> int:
        return sum(int(n) for n in re.findall(rf"\b{word}=(\d+)", self.said))

    @property
    def changed_tasks(self) -> list[str]:
        """The names of tasks that have changed something."""
        tasks = re.split(r"^TASK \[", self.said, flags=re.MULTILINE)
        return [task.split("]")[0] for task in tasks if re.search(r"^changed:", task, re.M)]


class Site:
    """An inventory: hosts by name, each a machine with variables of its own, all in one or in
    the groups that are named."""

    def __init__(self, folder: Path, **common: Any) -> None:
        self._file = folder / "inventory.json"
        self._common = common
        self._groups: dict[str, dict[str, Any]] = {"weir_nodes": {}, "weir_admission": {}}

    def add(
        self,
        name: str,
        machine: Machine,
        groups: tuple[str, ...] = ("weir_nodes", "weir_admission"),
        **variables: Any,
    ) -> None:
        for group in groups:
            self._groups[group][name] = {**machine.variables(), **variables}

    def play(self, *options: str, **variables: Any) -> Play:
        """Run it; ``variables`` are of this run alone, and stronger than all others."""
        inventory: Mapping[str, Any] = {
            "all": {"vars": self._common},
            **{group: {"hosts": hosts} for group, hosts in self._groups.items()},
        }
        self._file.write_text(json.dumps(inventory))
        done = subprocess.run(
            [BIN / "ansible-playbook", "-i", self._file, "-e", json.dumps(variables), "site.yml",
             *options],
            cwd=ANSIBLE, env=environment(self._file.parent), capture_output=True, text=True,
            timeout=600, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Play(done.returncode, done.stdout + done.stderr)


def environment(home: Path) -> dict[str, str]:
    """Ansible's own settings come from ansible/ansible.cfg, and from nowhere of this user's."""
    passed = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_")) or "proxy" in k}
    return {
        **passed,
        "PATH": f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "ANSIBLE_NOCOLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }
