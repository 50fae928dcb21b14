"""``weir.yml``: every fault at once, each with its path and a remedy."""

from pathlib import Path

import pytest
import yaml

from control.config import Config, ConfigError, for_engines, load
from control.config.load import parse
from control.config.schema import Config as Schema
from control.config.schema import Section
from control.config.units import address, seconds, size_bytes

GOOD = {"pools": {"default": {"backends": [{"name": "gpu-0", "url": "http://127.0.0.1:8000"}]}}}


def faults(raw: object) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse(raw, "weir.yml")
    found = {fault.path: fault.message for fault in caught.value.faults}
    assert len(found) == len(caught.value.faults), "one fault a path"
    return found


def test_the_defaults_are_the_contracts() -> None:
    config = parse(GOOD, "weir.yml")
    pool = config.pools["default"]
    assert (pool.session_ttl, pool.drain, pool.stall) == (15.0, 0.1, 30.0)
    assert (pool.backends[0].max_streams, pool.backends[0].max_tokens) == (25, 80_000)
    assert config.scenes.expected_output == {"Record_Gen": 6_000, "QA": 1_000}
    assert config.estimate.tokens_per_char == 0.6
    assert [r.path for r in config.routes] == ["/api/v1/chat/stream", "/v1/chat/completions"]
    assert str(config.listen) == "127.0.0.1:8080" and str(config.admin.listen) == "127.0.0.1:8081"


def test_every_fault_is_reported_with_its_path_and_a_remedy() -> None:
    found = faults(
        {
            "stat": "./var",
            "listen": 8080,
            "admin": {"listen": "0.0.0.0:8081"},
            "admission": {"workers": 4, "budget": 10, "store": "redis://h:1/0"},
            "nginx": {"workers": 0, "max_body": "20 MB"},
            "scenes": {"default": "Foo"},
            "estimate": {"tokens_per_char": float("nan")},
            "pools": {
                "qwen": {
                    "session_ttl": 15,
                    "backends": [
                        {"name": "a", "url": "http://x:1", "max_streams": True},
                        {"name": "a", "url": "http://y:1/v1", "max_tokens": 0, "max_stream": 3},
                    ],
                }
            },
            "routes": [{"path": "v1", "pool": "nope"}, {"path": "/x"}],
        }
    )
    assert set(found) == {
        "stat", "listen", "admin.listen", "admission.budget", "admission.store",
        "nginx.workers", "nginx.max_body", "scenes.default", "estimate.tokens_per_char",
        "pools.qwen.session_ttl", "pools.qwen.backends[0].max_streams",
        "pools.qwen.backends[1].url", "pools.qwen.backends[1].max_tokens",
        "pools.qwen.backends[1].max_stream", "pools.qwen.backends[1].name",
        "routes[0].path", "routes[0].pool", "routes[1].pool",
    }  # fmt: skip
    assert found["pools.qwen.backends[1].max_tokens"].startswith("must be at least 1")
    assert "did you mean state?" in found["stat"]
    assert "did you mean max_streams?" in found["pools.qwen.backends[1].max_stream"]
    assert "there are: qwen" in found["routes[0].pool"]


def test_more_than_one_deciding_process_is_refused() -> None:
    assert "use 1" in faults({**GOOD, "admission": {"workers": 4}})["admission.workers"]


@pytest.mark.parametrize(
    "value", [-5, 0, 10**20, 1.5, float("nan"), float("inf"), True, "100", None, [], {}]
)
def test_no_limit_but_a_positive_whole_number(value: object) -> None:
    """Casebook 32."""
    for limit in ("max_streams", "max_tokens"):
        backend = {"name": "a", "url": "http://x:1", limit: value}
        found = faults({"pools": {"default": {"backends": [backend]}}})
        assert set(found) == {f"pools.default.backends[0].{limit}"}


@pytest.mark.parametrize("size", [0, "1025g"])
def test_a_body_has_a_largest_size_that_the_service_can_be_told(size: object) -> None:
    """nginx's own 0 is no limit, and a body without a length counts as the largest."""
    raw = {**GOOD, "nginx": {"max_body": size}}
    assert str(size) in faults(raw)["nginx.max_body"]


@pytest.mark.parametrize("raw", [None, [], "text", 5, {}, {"pools": {}}, {"pools": []}])
def test_what_is_no_configuration_is_refused(raw: object) -> None:
    assert faults(raw)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pools: [", "is not YAML"),
        ("a: 1\na: 2", "stands twice"),
        ("1: 2", "is not text"),
        ("\x00", "is not YAML"),
        ("!!python/object:os.system {}", "is not YAML"),
        ("node: 2026-13-45", "is not YAML"),
        ("node: 0x_", "is not YAML"),
        ("node: !!bool x", "is not YAML"),
        ('state: "/a\\0"', "that no text of ours can have, line 1, column 8"),
        ('admin: {tokens: [{name: a, file: "/\\ud800"}]}', "that no text of ours can have"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "weir.yml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "missing.yml")


@pytest.mark.parametrize(
    "setting",
    [
        "agent: {webhook: 'hooks.example.org/s3cret'}",
        "agent: {webhook: ftp://hooks.example.org/s3cret}",
        "agent:\n  webhook: https://hooks.example.org/s3cret: x",
        "tracing: {endpoint: 'http://collector:4318?key=s3cret'}",
        "admission: {url: 'https://u:s3cret-that-is-longer-than-what-is-shown-of-it@h:8443/x'}",
        "admission: {url: 'https://h:8443?key=s3cret'}",
    ],
)
def test_a_fault_repeats_no_secret_of_the_file(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "weir.yml"
    file.write_text("pools: {default: {backends: [{name: a, url: 'http://h:1'}]}}\n" + setting)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert "s3cret" not in str(caught.value)


def test_engines_on_the_command_line_make_the_same_as_a_file(tmp_path: Path) -> None:
    config, text = for_engines(["http://h:1", "http://h:2"], {"state": str(tmp_path)})
    file = tmp_path / "weir.yml"
    file.write_text(text)
    assert load(file) == config
    _, text = for_engines(["http://h:1"], {})
    assert yaml.safe_load(text)["state"] == str(Path("var").absolute()), "wherever it is read"
    assert [b.name for b in config.pools["default"].backends] == ["gpu-0", "gpu-1"]


def test_the_version_is_of_what_is_set_and_not_of_how_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "weir.yml"
    file.write_text("pools: {default: {backends: [{url: 'http://127.0.0.1:8000', name: gpu-0}]}}")
    version = parse(GOOD, "weir.yml").version
    assert load(file).version == version
    assert len(version) == 12 and int(version, 16) >= 0
    assert parse({**GOOD, "listen": "127.0.0.1:8079"}, "weir.yml").version != version
    assert parse({**GOOD, "listen": "127.0.0.1:8080"}, "weir.yml").version == version


def test_units() -> None:
    assert [seconds(t) for t in ("250ms", "10s", "5m", "1.5h")] == [0.25, 10.0, 300.0, 5400.0]
    assert [size_bytes(t) for t in ("64k", "20m", "1G", 512)] == [65536, 20 << 20, 1 << 30, 512]
    assert str(address("[::1]:80")) == "[::1]:80" and address("[::1]:80").is_loopback
    for wrong in ("10", "s", "-1s", "1 s", 5, None, True, "1e3s"):
        with pytest.raises(ValueError, match="duration"):
            seconds(wrong)
    for wrong in ("host", "h:0", "h:70000", "h:000080800", ":80", "h h:80", "[x]:80", 80, "h:８０"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            address(wrong)


def _settings(section: type[Section], prefix: str = "") -> set[str]:
    found = set()
    for name, field in section.model_fields.items():
        inner = _section_in(field.annotation)
        found.add(f"{prefix}{name}")
        if inner:
            found |= _settings(inner, f"{prefix}{name}.")
    return found


def _section_in(annotation: object) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for arg in getattr(annotation, "__args__", ()):
        if inner := _section_in(arg):
            return inner
    return None


def test_every_setting_is_documented_and_nothing_else_is() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    documented = {
        line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("| `")
    }
    assert documented == _settings(Schema)
    assert Schema is Config
