"""Tokens from the environment and from files: an empty password is no password."""

from pathlib import Path
from typing import Any

import pytest

from control.config import Config, ConfigError, load_with_tokens
from control.config.load import parse
from control.config.secrets import read_tokens, weaknesses

POOLS = {"default": {"backends": [{"name": "gpu-0", "url": "http://127.0.0.1:8000"}]}}


def config(*tokens: Any) -> Config:
    return parse({"pools": POOLS, "admin": {"tokens": list(tokens)}}, "weir.yml")


def faults(*tokens: Any) -> dict[str, str]:
    return {fault.path: fault.message for fault in read_tokens(config(*tokens))[1]}


def refused(raw: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse({"pools": POOLS, **raw}, "weir.yml")
    return {fault.path: fault.message for fault in caught.value.faults}


def test_tokens_come_from_the_environment_and_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPS", "from-the-environment")
    file = tmp_path / "token"
    file.write_text("from-a-file\r\n")
    tokens, wrong = read_tokens(
        config({"name": "ops", "env": "OPS"}, {"name": "eyes", "file": str(file), "role": "read"})
    )
    assert not wrong
    assert [(t.name, t.role, t.value) for t in tokens] == [
        ("ops", "admin", "from-the-environment"), ("eyes", "read", "from-a-file"),
    ]  # fmt: skip
    assert "from-" not in repr(tokens)


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot be read"), (b"", "is empty"), (b" \r\n\t", "is empty"), (b"a b", "printable"),
     (b"a\nb", "printable"), ("schlüssel".encode(), "printable"), (b"x" * 5_000, "larger than")],
)  # fmt: skip
def test_a_file_without_a_token_is_refused(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    found = faults({"name": "ops", "file": str(file)})
    assert set(found) == {"admin.tokens[0].file"} and told in found["admin.tokens[0].file"]


def test_a_variable_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"name": "ops", "env": "WEIR_T"}
    monkeypatch.delenv("WEIR_T", raising=False)
    assert "WEIR_T is not set: set it" in faults(entry)["admin.tokens[0].env"]
    monkeypatch.setenv("WEIR_T", "")
    assert "WEIR_T is empty: set it" in faults(entry)["admin.tokens[0].env"]
    monkeypatch.setenv("WEIR_T", "  ")
    assert "printable" in faults(entry)["admin.tokens[0].env"]


def test_one_token_has_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "same")
    monkeypatch.setenv("B", "same")
    found = faults({"name": "a", "env": "A"}, {"name": "b", "env": "B", "role": "read"})
    assert found == {"admin.tokens[1]": "has the same token as a: give each its own"}
    twice = refused({"admin": {"tokens": [{"name": "a", "env": "A"}, {"name": "a", "env": "B"}]}})
    assert set(twice) == {"admin.tokens[1].name"}


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"name": "a"}, "admin.tokens[0]"),
        ({"name": "a", "env": "A", "file": "/x"}, "admin.tokens[0]"),
        ({"name": "a", "env": None, "file": None}, "admin.tokens[0]"),
        ({"name": "a", "env": ""}, "admin.tokens[0].env"),
        ({"name": "a", "env": "A", "role": "root"}, "admin.tokens[0].role"),
        ({"env": "A"}, "admin.tokens[0].name"),
    ],
)
def test_a_token_has_one_source_a_name_and_a_known_role(entry: Any, path: str) -> None:
    assert set(refused({"admin": {"tokens": [entry]}})) == {path}


def test_a_token_that_was_written_into_the_file_itself_is_not_repeated() -> None:
    for tokens in (["s3cret"], "s3cret", [{"name": "s3cret !", "env": "A"}]):
        told = str(refused({"admin": {"tokens": tokens}}))
        assert "s3cret" not in told, told


def test_weak_tokens_are_told_and_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT", "x" * 15)
    monkeypatch.setenv("LONG", "y" * 16)
    file = tmp_path / "token"
    file.write_text("z" * 32)
    file.chmod(0o644)
    given = config(
        {"name": "short", "env": "SHORT"}, {"name": "long", "env": "LONG"},
        {"name": "file", "file": str(file)},
    )  # fmt: skip
    tokens, wrong = read_tokens(given)
    assert not wrong and len(tokens) == 3
    told = list(weaknesses(given, tokens))
    assert len(told) == 2 and "short" in told[0] and str(file) in told[1]
    assert not any(secret in str(told) for secret in ("xxx", "zzz"))
    file.unlink()
    assert len(list(weaknesses(given, tokens))) == 1, "that it is gone is told elsewhere"


def test_the_service_does_not_start_without_a_token_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "weir.yml"
    file.write_text(
        "pools: {default: {backends: [{name: a, url: 'http://h:1'}]}}\n"
        f"admin: {{tokens: [{{name: ops, file: {tmp_path}/none}}]}}\n"
    )
    with pytest.raises(ConfigError, match=r"admin.tokens\[0\].file: .*none cannot be read"):
        load_with_tokens(file)


@pytest.mark.parametrize(
    "place",
    ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "weir.example:1", "[::ffff:127.0.0.1]:1",
     "[::ffff:10.0.0.1]:1", "127.1:1", "0:1", "localhost.example:1", "[::ffff:0.0.0.0]:1",
     "2130706433:1", "0x7f000001:1", "169.254.0.1:1", "[fe80::1]:1"],
)  # fmt: skip
def test_without_tokens_nothing_but_loopback_is_listened_on(place: str) -> None:
    found = refused({"admin": {"listen": place}})
    assert "add a token" in found["admin.listen"]
    for tokens in ([], None):
        assert "admin.listen" in refused({"admin": {"listen": place, "tokens": tokens}})


@pytest.mark.parametrize("place", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_loopback_needs_no_token(place: str) -> None:
    parse({"pools": POOLS, "admin": {"listen": place}}, "weir.yml")
