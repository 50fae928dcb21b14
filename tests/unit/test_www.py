"""The chat page and the dashboard: where they are served, and their modules in node."""

import shutil
import subprocess
from pathlib import Path

import pytest

from control.api.ui import SHARED
from control.nginx import NginxError, find_nginx
from control.places import WWW
from control.render import render
from tests.unit.test_render import config, read

TESTS = Path(__file__).parent / "www"
NODE = shutil.which("node") or shutil.which("nodejs")


@pytest.mark.parametrize("demo", [False, True])
def test_page_is_served_only_where_it_is_asked_for(demo: bool, tmp_path: Path) -> None:
    try:
        nginx = find_nginx("auto")
    except NginxError as exc:
        pytest.skip(str(exc))
    main = read(render(config(tmp_path), nginx, demo=demo).conf)
    pages = [place for place in main.all("location") if place.own("root")]
    assert [page.own("root") for page in pages] == ([[[str(WWW)]]] if demo else [])
    [rest] = [place for place in main.all("location") if place.args == ["/"]][:1]
    assert rest.own("return") == [["404"]]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules and tests where node takes ``.js`` for modules: older ones want to be told."""
    folder = tmp_path_factory.mktemp("www")
    shutil.copytree(WWW, folder / "nginx/www")
    for name in SHARED:
        shutil.copy(WWW / name, folder / "nginx/www/ui")
    shutil.copytree(TESTS, folder / "tests/unit/www")
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.parametrize("name", sorted(test.name for test in TESTS.glob("*.test.js")))
def test_module(name: str, checkout: Path) -> None:
    done = subprocess.run(
        [str(NODE), "--test", str(checkout / "tests/unit/www" / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
