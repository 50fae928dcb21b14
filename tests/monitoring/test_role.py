"""The role that installs rules and dashboard, into folders of the test's."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.harness.prometheus import BINARIES, promtool
from tests.monitoring.rules import FILES, ROOT

PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    return {
        "monitoring_rules_folder": str(tmp_path / "rules"),
        "monitoring_dashboards_folder": str(tmp_path / "dashboards"),
        "monitoring_promtool": str(BINARIES / "promtool"),
        "monitoring_prometheus_service": "",
    }


def play(folder: Path, variables: dict[str, str], *options: str) -> tuple[int, str]:
    """Exit code and output of a playbook with the role, on this machine."""
    role = {"role": "monitoring", "vars": variables}
    book = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "roles": [role]}]
    file = folder / "site.yml"
    file.write_text(yaml.safe_dump(book))
    done = subprocess.run(
        [PLAYBOOK, "-i", "localhost,", "-e", f"ansible_python_interpreter={sys.executable}",
         file, *options],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8",
             "ANSIBLE_ROLES_PATH": str(ROOT / "ansible/roles"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_it_installs_both_once_and_a_second_run_changes_nothing(
    tmp_path: Path, folders: dict[str, str]
) -> None:
    code, said = play(tmp_path, folders, "--check")
    assert code == 0 and not (tmp_path / "rules").exists(), said
    code, said = play(tmp_path, folders)
    assert code == 0 and re.search(r"changed=3 ", said), said
    promtool("check", "rules", tmp_path / "rules/weir.rules.yml")
    installed = json.loads((tmp_path / "dashboards/weir.json").read_text())
    assert installed == json.loads((FILES / "weir.dashboard.json").read_text())
    code, said = play(tmp_path, folders)
    assert code == 0 and "changed=0 " in said, said


def test_rules_that_promtool_refuses_take_nobodys_place(
    tmp_path: Path, folders: dict[str, str]
) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/weir.rules.yml").write_text("groups: []\n")
    nowhere = {"monitoring_promtool": "/bin/false", "monitoring_dashboards_folder": ""}
    code, _ = play(tmp_path, {**folders, **nowhere})
    assert code != 0
    assert not (tmp_path / "dashboards").exists(), "no folder, no dashboard"
    assert (tmp_path / "rules/weir.rules.yml").read_text() == "groups: []\n"
