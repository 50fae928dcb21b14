"""What can be said of the roles without a machine."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.playbook import ANSIBLE, BIN, environment

ROLES = sorted(role.name for role in (ANSIBLE / "roles").iterdir())
OURS = [role for role in ROLES if role != "monitoring"]


def run(folder: Path, *command: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=ANSIBLE, env=environment(folder), capture_output=True, text=True, timeout=110,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_ansible_lint_finds_nothing_in_its_production_profile(tmp_path: Path) -> None:
    code, said = run(tmp_path, "ansible-lint", "--offline", "--strict", "--profile=production")
    assert code == 0, said


def test_the_example_inventory_is_one_that_the_playbook_accepts(tmp_path: Path) -> None:
    example = str(ANSIBLE / "inventory.example.yml")
    code, said = run(tmp_path, "ansible-playbook", "-i", example, "site.yml", "--list-hosts")
    assert code == 0 and "gpu-1" in said, said


@pytest.mark.parametrize("role", OURS)
def test_every_default_of_a_role_is_typed_and_described(role: str) -> None:
    def described(options: dict[str, Any]) -> None:
        for name, option in options.items():
            assert option.get("type") and option.get("description"), name
            described(option.get("options", {}))

    folder = ANSIBLE / "roles" / role
    options = yaml.safe_load((folder / "meta/argument_specs.yml").read_text())["argument_specs"]
    described(options["main"]["options"])
    defaults = yaml.safe_load((folder / "defaults/main.yml").read_text())
    assert set(defaults) <= set(options["main"]["options"])
    stated = {n: o["default"] for n, o in options["main"]["options"].items() if "default" in o}
    assert stated == {name: value for name, value in defaults.items() if name in stated}


def test_every_variable_of_a_role_is_in_the_installation_guide() -> None:
    guide = (ANSIBLE.parent / "docs/installation.md").read_text()
    names = re.findall(r"^\| (`[^|]*`) \|", guide.split("## Variables")[1], re.MULTILINE)
    told = {name for cell in names for name in re.findall(r"`(\w+)`", cell)}
    options = set()
    for role in OURS:
        spec = yaml.safe_load((ANSIBLE / "roles" / role / "meta/argument_specs.yml").read_text())
        options |= set(spec["argument_specs"]["main"]["options"])
    assert options == told


def test_a_wrong_type_stops_the_play_before_anything_is_looked_at(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yml"
    host = {"gpu-1": {"ansible_connection": "local", "weir_nofile": "many", "weir_pools": {}}}
    inventory.write_text(yaml.safe_dump({"weir_nodes": {"hosts": host}}))
    code, said = run(tmp_path, "ansible-playbook", "-i", str(inventory), "site.yml")
    assert code != 0 and "weir_nofile" in said, said
    assert "changed=0" in said and not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    "given",
    [
        {"weir_admin": {"tokens": [{"name": "ops", "role": "admin", "env": "WEIR_ADMIN_TOKEN"}]}},
        {"weir_admission": {"tokens": [{"name": "node-1", "env": "WEIR_NODE_1"}]}},
        {"weir_admission": {"url": "https://192.0.2.1:8443", "token": {"env": "WEIR_NODE_TOKEN"}}},
    ],
)
def test_a_token_from_the_environment_is_refused_with_what_to_do_instead(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    inventory = tmp_path / "inventory.yml"
    machine = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    host = {"gpu-1": {**machine, **given, "weir_pools": {"default": {}}}}
    inventory.write_text(yaml.safe_dump({"weir_nodes": {"hosts": host}}))
    code, said = run(tmp_path, "ansible-playbook", "-i", str(inventory), "site.yml")
    assert code != 0 and "weir_tokens, or name its file, instead of env" in said, said
    assert "changed=0" in said and not (tmp_path / "build").exists()


def test_every_kernel_setting_has_its_reason() -> None:
    text = (ANSIBLE / "roles/host/files/60-weir.conf").read_text()
    for paragraph in text.strip().split("\n\n")[1:]:
        assert paragraph.startswith("#") and "=" in paragraph, paragraph
