"""The role that installs rules and dashboard, into folders of the test's."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.harness.prometheus import BINARIES, Prometheus, promtool
from tests.monitoring.rules import FILES, ROOT, alerts

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
        env={"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8",
             "ANSIBLE_ROLES_PATH": str(ROOT / "ansible/roles"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


class Watched:
    """A Prometheus of the rules' folder; systemd, which reloads it or does not, is played."""

    def __init__(self, folder: Path) -> None:
        (folder / "rules").mkdir()
        (folder / "bin").mkdir()
        self.prometheus = Prometheus(folder / "p", folder / "rules/*.yml", {})
        self.systemctl = folder / "bin/systemctl"
        self.reloads(f"kill -HUP {self.prometheus.process.pid}")

    def reloads(self, command: str) -> None:
        said = "printf 'LoadState=loaded\\nActiveState=active\\n'"
        self.systemctl.write_text(
            f"#!/bin/sh\ncase $* in *reload*) {command} ;; *) {said} ;; esac\n"
        )
        self.systemctl.chmod(0o755)

    def rules(self) -> set[str]:
        groups = self.prometheus.rules()
        return {rule["name"] for group in groups for rule in group["rules"]}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.prometheus.stop()


def test_rules_are_loaded_in_the_end_though_a_run_failed_in_between(
    tmp_path: Path, folders: dict[str, str], watched: Watched
) -> None:
    """Casebook 43 a."""
    folders |= {
        "monitoring_prometheus_service": "prometheus",
        "monitoring_prometheus_url": watched.prometheus.url,
    }
    watched.reloads("true")  # asked for, and never done
    code, said = play(tmp_path, {**folders, "monitoring_patience": "1"})
    assert code != 0 and f"has not loaded {tmp_path}/rules/weir.rules.yml" in said, said
    assert watched.rules() == set()

    watched.reloads(f"kill -HUP {watched.prometheus.process.pid}")
    code, said = play(tmp_path, folders)
    assert code == 0 and "changed=1 " in said, said
    assert watched.rules() == alerts().keys()
    code, said = play(tmp_path, folders)
    assert code == 0 and "changed=0 " in said, said


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
