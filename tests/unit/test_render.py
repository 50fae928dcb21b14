"""nginx's configuration as it is rendered: by the real nginx accepted, by crossplane read."""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crossplane
import pytest

import control.config
import control.render
from control.config import Config
from control.config.load import parse
from control.config.units import seconds
from control.nginx import Nginx, NginxError, find_nginx
from control.places import LUA, TEMPLATES
from control.render import REROUTED_S, render, variables, worker_count

OLD = Nginx(Path("/usr/sbin/nginx"), (1, 22, 1), (Path("/m/ndk.so"), Path("/m/lua.so")))
NEW = Nginx(Path("/usr/sbin/nginx"), (1, 27, 0), ())
ENGINES_KEEPALIVE_S = 5.0
"""vLLM's uvicorn and llama.cpp close an idle connection after it."""

Directive = dict[str, Any]


def config(state: Path, **settings: Any) -> Config:
    raw = {
        "state": str(state / "s"),
        "listen": "127.0.0.1:18080",
        "admin": {"listen": "127.0.0.1:18081"},
        "pools": {
            "default": {
                "backends": [
                    {"name": "gpu-0", "url": "http://127.0.0.1:8000"},
                    {"name": "gpu-1", "url": "http://127.0.0.1:8001", "keepalive": "2s"},
                ],
                "stall": "12s",
                "silence": "90s",
            },
            "other": {"backends": [{"name": "gpu-0", "url": "http://[::1]:8002"}]},
        },
        "routes": [
            {"path": "/api/v1/chat/stream", "pool": "default"},
            {"path": "/v1/chat/completions", "pool": "other"},
        ],
        **settings,
    }
    return parse(raw, "test")


class Block:
    """A directive with those below it; ``above`` is the block it stands in."""

    def __init__(self, directive: Directive, above: "Block | None") -> None:
        self.name = directive["directive"]
        self.args: list[str] = directive["args"]
        self.above = above
        self.below = [Block(each, self) for each in directive.get("block", [])]

    def __repr__(self) -> str:
        return f"<{self.name} {' '.join(self.args)}>"

    def own(self, name: str) -> list[list[str]]:
        """The arguments of each ``name`` that stands here."""
        return [each.args for each in self.below if each.name == name]

    def inherited(self, name: str) -> list[list[str]]:
        """The same as nginx inherits it: from the nearest block that has it."""
        return self.own(name) or (self.above.inherited(name) if self.above else [])

    def all(self, name: str) -> Iterator["Block"]:
        """Every ``name`` here and below."""
        for each in self.below:
            if each.name == name:
                yield each
            yield from each.all(name)


def read(conf: Path) -> Block:
    parsed = crossplane.parse(str(conf), combine=True)
    assert parsed["status"] == "ok", parsed["errors"]
    [whole] = parsed["config"]
    return Block({"directive": "main", "args": [], "block": whole["parsed"]}, None)


@pytest.fixture(scope="module")
def nginx() -> Nginx:
    try:
        return find_nginx("auto")
    except NginxError as exc:
        pytest.skip(str(exc))


@pytest.fixture
def conf(tmp_path: Path, nginx: Nginx) -> Path:
    """The main file of a rendering that nginx -t has accepted."""
    return render(config(tmp_path), nginx).conf


@pytest.fixture
def main(conf: Path) -> Block:
    return read(conf)


def streaming(main: Block) -> list[Block]:
    return [location for location in main.all("location") if location.own("proxy_pass")]


def text(configuration: Config, nginx: Nginx, folder: Path) -> str:
    """Everything that would be rendered for an nginx that need not be installed."""
    folder.mkdir(parents=True, exist_ok=True)
    control.render._write(folder, variables(configuration, nginx, folder))
    return "\n".join(file.read_text() for file in sorted(folder.glob("*.conf")))


# -- streams -----------------------------------------------------------------------------------


def test_each_route_streams_on_the_outer_server_and_on_the_one_behind_it(main: Block) -> None:
    paths = [location.args for location in streaming(main)]
    assert sorted(paths) == sorted(
        [["=", "/api/v1/chat/stream"], ["=", "/v1/chat/completions"]] * 2
    )


@pytest.mark.parametrize(
    ("directive", "value"),
    [
        ("proxy_buffering", ["off"]), ("proxy_request_buffering", ["off"]), ("gzip", ["off"]),
        ("proxy_http_version", ["1.1"]), ("proxy_cache", ["off"]), ("tcp_nodelay", ["on"]),
    ],
)  # fmt: skip
def test_nothing_on_a_streams_way_gathers(main: Block, directive: str, value: list[str]) -> None:
    for location in streaming(main):
        assert location.inherited(directive) == [value], location


def test_no_block_turns_buffering_or_compression_on(main: Block) -> None:
    for name in ("proxy_buffering", "proxy_request_buffering", "gzip"):
        assert {tuple(each.args) for each in main.all(name)} == {("off",)}
    for name in ("postpone_output", "limit_rate", "aio", "directio", "brotli"):
        assert not list(main.all(name)), name


def test_an_engine_cannot_turn_buffering_on(main: Block) -> None:
    for location in streaming(main):
        [ignored] = location.inherited("proxy_ignore_headers")
        assert "X-Accel-Buffering" in ignored and "X-Accel-Redirect" in ignored


def test_what_an_engine_may_have_seen_is_sent_to_no_other(main: Block) -> None:
    for location in streaming(main):
        [when] = location.inherited("proxy_next_upstream")
        assert set(when) <= {"error", "timeout", "off"}, location
        assert "non_idempotent" not in when


def test_times_are_those_of_the_routes_pool(main: Block) -> None:
    expected = {"/api/v1/chat/stream": ("12s", "90s"), "/v1/chat/completions": ("30s", "180s")}
    silences = defaultdict(set)
    for location in streaming(main):
        stall, _ = (seconds(part) for part in expected[location.args[-1]])
        assert _seconds(location.inherited("send_timeout")) == stall, "casebook 12"
        silences[location.args[-1]].add(_seconds(location.inherited("proxy_read_timeout")))
        assert _seconds(location.inherited("proxy_connect_timeout")) <= 10
    # Who was sent a request on waits longer than who sent it.
    assert silences == {
        path: {seconds(silence), seconds(silence) + REROUTED_S}
        for path, (_, silence) in expected.items()
    }


def _seconds(arguments: list[list[str]]) -> float:
    [[duration]] = arguments
    return seconds(duration)


def test_every_stream_asks_for_admission_first(main: Block) -> None:
    for location in streaming(main):
        [[hook]] = location.own("auth_request")
        server = location.above
        assert server is not None
        [target] = [each for each in server.below if each.name == "location" and hook in each.args]
        assert target.own("internal") == [[]]
        assert target.own("client_max_body_size") == [["0"]], "casebook 30"


def test_headers_of_ours_and_those_that_detach_a_stream_do_not_pass(tmp_path: Path) -> None:
    raw = {
        "pools": {
            "default": {
                "backends": [{"name": "g", "url": "http://127.0.0.1:1"}],
                "strip_headers": ["X-Detach", "X-Conversation-Id"],
            }
        },
        "routes": [{"path": "/x", "pool": "default"}],
    }
    rendered = text(config(tmp_path, **raw), OLD, tmp_path / "out")
    for header in (*control.render.OWN_HEADERS, "X-Detach", "X-Conversation-Id", "Accept-Encoding"):
        assert rendered.count(f'proxy_set_header {header} "";') == 2, header


# -- the rest ----------------------------------------------------------------------------------


def test_the_error_log_quotes_no_request(main: Block, conf: Path) -> None:
    [[file, level]] = main.own("error_log")
    assert level == "crit"
    assert file.startswith(str(conf.parent.parent))
    assert len(list(main.all("error_log"))) == 1 + len(streaming(main))
    for location in streaming(main):
        assert location.own("error_log") == [[file, "emerg"]], location


def test_an_error_log_that_is_to_quote_requests_does(tmp_path: Path, nginx: Nginx) -> None:
    nginx_settings = {"error_level": "error"}
    main = read(render(config(tmp_path, nginx=nginx_settings), nginx).conf)
    assert {level for log in main.all("error_log") for level in log.args[1:]} == {"error"}


def test_the_access_log_is_written_at_once_and_without_a_query(main: Block) -> None:
    """Casebook 26 f."""
    logs = [log.args for log in main.all("access_log")]
    assert [args for args in logs if args != ["off"]], "there is one"
    for args in logs:
        assert not [part for part in args if part.startswith(("buffer", "flush", "gzip"))]
    [log_format] = main.all("log_format")
    named = set(re.findall(r"\$(\w+)", " ".join(log_format.args)))
    assert not named & {"request", "request_uri", "uri", "args", "query_string", "request_body"}
    assert not [name for name in named if name.startswith(("http_", "arg_", "cookie_"))]
    assert {"request_id", "request_completion", "weir_grant", "weir_verdict"} <= named


def test_there_are_two_workers_at_least(
    main: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [[workers]] = main.own("worker_processes")
    assert int(workers) >= 2
    monkeypatch.setattr(control.render.os, "cpu_count", lambda: 1)
    assert worker_count(config(tmp_path)) == 2
    assert worker_count(config(tmp_path, nginx={"workers": 1})) == 1, "where it is asked for"


def test_connections_to_engines_are_closed_before_the_engines_close_them(main: Block) -> None:
    upstreams = list(main.all("upstream"))
    assert len(upstreams) == 3
    for upstream in upstreams:
        assert _seconds(upstream.own("keepalive_timeout")) < ENGINES_KEEPALIVE_S, upstream
        [[count]] = upstream.own("keepalive")
        assert int(count) >= 1
        names = [each.name for each in upstream.below]
        assert names.index("server") < names.index("keepalive")


def test_every_backend_has_an_upstream_that_lua_names(main: Block, conf: Path) -> None:
    for_lua = json.loads((conf.parent / "weir.json").read_text())
    targets = {
        backend["upstream"]
        for pool in for_lua["pools"].values()
        for backend in pool["backends"].values()
    }
    upstreams = {f"http://{upstream.args[0]}" for upstream in main.all("upstream")}
    assert targets == upstreams
    servers = {upstream.own("server")[0][0] for upstream in main.all("upstream")}
    assert servers == {"127.0.0.1:8000", "127.0.0.1:8001", "[::1]:8002"}


def test_a_worker_has_room_for_all_its_connections(main: Block) -> None:
    [[nofile]] = main.own("worker_rlimit_nofile")
    [events] = main.all("events")
    [[connections]] = events.own("worker_connections")
    assert int(connections) < int(nofile)


def test_the_service_is_reached_through_the_state_folder_only(conf: Path, tmp_path: Path) -> None:
    for_lua = json.loads((conf.parent / "weir.json").read_text())
    assert for_lua["admission"] == {"host": f"unix:{tmp_path}/s/run/admission.sock"}


def test_two_instances_have_no_path_in_common(tmp_path: Path, nginx: Nginx) -> None:
    """Casebook 43e."""
    written = []
    for name in ("one", "two"):
        folder = render(config(tmp_path / name), nginx).conf.parent
        everything = "\n".join(file.read_text() for file in folder.iterdir())
        written.append(set(re.findall(rf"(?:unix:)?({tmp_path}/[^\s;\"]+)", everything)))
    assert written[0] and written[0].isdisjoint(written[1])


# -- HTTP/2 ------------------------------------------------------------------------------------


def test_cleartext_http_2_has_a_port_of_its_own_on_an_old_nginx(tmp_path: Path) -> None:
    rendered = text(config(tmp_path, listen_h2c="127.0.0.1:18082"), OLD, tmp_path / "out")
    assert re.search(r"listen 127\.0\.0\.1:18082 http2\b.*;", rendered)
    assert not re.search(r"listen 127\.0\.0\.1:18080 .*http2", rendered)
    assert "http2 on;" not in rendered


def test_cleartext_http_2_is_a_directive_on_a_new_nginx(tmp_path: Path) -> None:
    rendered = text(config(tmp_path, listen_h2c="127.0.0.1:18082"), NEW, tmp_path / "out")
    assert rendered.count("http2 on;") == 1
    assert re.search(r"listen 127\.0\.0\.1:18082 ", rendered)
    assert not re.search(r"listen .*\bhttp2\b", rendered)


@pytest.mark.parametrize("nginx_here", [OLD, NEW], ids=["old", "new"])
def test_tls_speaks_http_2(tmp_path: Path, nginx_here: Nginx) -> None:
    tls = {"listen": "127.0.0.1:18443", "certificate": "c.pem", "key": "k.pem"}
    rendered = text(config(tmp_path, tls=tls), nginx_here, tmp_path / "out")
    old = nginx_here is OLD
    assert bool(re.search(r"listen 127\.0\.0\.1:18443 ssl http2\b", rendered)) is old
    assert ("http2 on;" in rendered) is not old
    assert re.search(r"ssl_certificate /.*/c\.pem;", rendered), "absolute: nginx has its own prefix"


@pytest.mark.parametrize(
    ("version", "directive"),
    [((1, 22, 1), False), ((1, 25), False), ((1, 25, 0), False), ((1, 25, 1), True),
     ((1, 27, 1, 2), True)],
)  # fmt: skip
def test_the_directive_is_known_since_1_25_1(version: tuple[int, ...], directive: bool) -> None:
    assert Nginx(Path("nginx"), version, ()).has_http2_directive is directive


def test_modules_are_loaded_where_lua_is_not_built_in(tmp_path: Path) -> None:
    rendered = text(config(tmp_path), OLD, tmp_path / "old")
    assert rendered.index("load_module /m/ndk.so;") < rendered.index("load_module /m/lua.so;")
    assert "load_module" not in text(config(tmp_path), NEW, tmp_path / "new")


# -- safety ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a..b", "a" * 80])
def test_an_engines_name_that_none_can_have_is_told(tmp_path: Path, name: str) -> None:
    pools = {"default": {"backends": [{"name": "gpu-0", "url": f"http://{name}:80"}]}}
    with pytest.raises(NginxError, match=f"engine's name {name} cannot be looked up"):
        variables(
            config(tmp_path, pools=pools, routes=[{"path": "/a", "pool": "default"}]), OLD, tmp_path
        )


def files_of(folder: Path) -> dict[str, tuple[str, int]]:
    return {file.name: (file.read_text(), file.stat().st_ino) for file in folder.iterdir()}


@pytest.mark.parametrize(
    "break_it",
    [
        lambda text: text + "\nnonsense_directive on;\n",
        lambda text: text + "\n}\n",
        lambda text: text + "\n{{ no_such_variable }}\n",
        lambda text: text + "\n{% if %}\n",
        lambda text: text + "\ninit_by_lua_block { error('no') }\n",
    ],
    ids=["directive", "brace", "variable", "syntax", "lua"],
)
def test_a_broken_template_raises_and_leaves_what_was_rendered_before(
    tmp_path: Path, nginx: Nginx, monkeypatch: pytest.MonkeyPatch, break_it: Any
) -> None:
    """Casebook 43b."""
    wanted = config(tmp_path)
    folder = render(wanted, nginx).conf.parent
    before = files_of(folder)
    templates = tmp_path / "templates"
    shutil.copytree(TEMPLATES, templates)
    broken = templates / "basics.conf.j2"
    broken.write_text(break_it(broken.read_text()))
    monkeypatch.setattr(control.render, "TEMPLATES", templates)
    with pytest.raises(NginxError) as caught:
        render(wanted, nginx)
    assert str(caught.value)
    assert files_of(folder) == before
    assert sorted(child.name for child in folder.parent.iterdir()) == ["log", "nginx", "run", "tmp"]


def test_rendering_again_changes_nothing(tmp_path: Path, nginx: Nginx) -> None:
    wanted = config(tmp_path)
    folder = render(wanted, nginx).conf.parent
    before = files_of(folder)
    assert not render(wanted, nginx).changed
    assert files_of(folder) == before


def test_the_stamp_names_all_that_nginx_loads(
    tmp_path: Path, nginx: Nginx, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = render(config(tmp_path), nginx)
    assert first.changed
    assert first.stamp in (first.conf.parent / "stamp.conf").read_text()
    second = render(config(tmp_path, nginx={"max_body": "21m"}), nginx)
    assert second.changed and second.stamp != first.stamp
    token = tmp_path / "token"
    token.write_text("one")
    place = {"url": "http://127.0.0.1:18443", "token": {"file": str(token)}}
    apart = config(tmp_path, admission=place)
    third = render(apart, nginx)
    token.write_text("two")
    fourth = render(apart, nginx)
    assert len({third.stamp, fourth.stamp}) == 2
    lua = tmp_path / "lua"
    shutil.copytree(LUA, lua)
    (lua / "weir/clock.lua").open("a").write("-- another\n")
    monkeypatch.setattr(control.render, "LUA", lua)
    assert render(config(tmp_path), nginx).stamp not in (first.stamp, second.stamp)


def test_what_is_rendered_is_readable_and_not_writable_by_others(conf: Path) -> None:
    assert conf.parent.stat().st_mode & 0o777 == 0o755
    for file in conf.parent.iterdir():
        assert file.stat().st_mode & 0o022 == 0, file


def test_words_of_the_configuration_cannot_end_a_string_of_luas(
    tmp_path: Path, nginx: Nginx
) -> None:
    message = 'a "quoted" \\ message\nof two lines; } { $uri 并发'
    conf = render(config(tmp_path, refusal={"message": message}), nginx).conf
    assert json.loads((conf.parent / "weir.json").read_text())["message"] == message
    assert "quoted" not in "".join(f.read_text() for f in conf.parent.glob("*.conf"))


@pytest.mark.parametrize(
    "change",
    [
        {"routes": [{"path": "/x\n", "pool": "default"}]},
        {"scenes": {"header": "X-Scene\n"}},
        {"node": "n\n"},
        {"nginx": {"user": "root\n"}},
        {"listen": "127.0.0.1\n:18080"},
        {"pools": {"default\n": {"backends": [{"name": "g", "url": "http://127.0.0.1:1"}]}},
         "routes": [{"path": "/x", "pool": "default\n"}]},
        {"pools": {"default": {"backends": [{"name": "g\n", "url": "http://127.0.0.1:1"}]}},
         "routes": [{"path": "/x", "pool": "default"}]},
    ],
    ids=["path", "header", "node", "user", "listen", "pool", "backend"],
)  # fmt: skip
def test_no_name_brings_a_line_feed_into_the_files(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(control.config.ConfigError):
        config(tmp_path, **change)
