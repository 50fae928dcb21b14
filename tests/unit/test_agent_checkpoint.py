"""Where the agent has come to, kept over any kind of end."""

import json
import os
from pathlib import Path

import pytest

from control.agent.checkpoint import Checkpoint
from control.agent.log_file import HEAD_BYTES, Position

HEAD = bytes(range(HEAD_BYTES))
POSITIONS = {
    "access.log": [Position(1, 2, 3, b"\xff\x00a"), Position(1, 3, 1 << 40, HEAD)],
    "error.log": [],
}


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint.json")
    assert checkpoint.load() == {}
    checkpoint.save(POSITIONS)
    assert Checkpoint(tmp_path / "checkpoint.json").load() == POSITIONS
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.json"]


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.json"
    checkpoint = Checkpoint(file)
    checkpoint.save(POSITIONS)
    file.unlink()
    checkpoint.save(POSITIONS)
    assert not file.exists()
    checkpoint.save({})
    assert file.exists()


def test_a_process_that_dies_while_it_saves_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.json"
    Checkpoint(file).save(POSITIONS)
    file.with_suffix(".new").write_text('{"logs": {"access.log": [{"dev')
    assert Checkpoint(file).load() == POSITIONS
    Checkpoint(file).save({"access.log": []})
    assert Checkpoint(file).load() == {"access.log": []}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b"{}", b"\0" * 100, b"\xff\xfe", b"[" * 100_000,
        b'{"logs": []}', b'{"logs": {"access.log": [{}]}}',
        *(
            json.dumps(
                {"logs": {"access.log": [
                    {"device": 1, "inode": 2, "offset": 3, "head": "616263", **change}
                ]}}
            ).encode()
            for change in (
                {"offset": -1}, {"offset": "3"}, {"offset": 1.5}, {"offset": None},
                {"head": "zz"}, {"head": "61"}, {"head": "61" * (HEAD_BYTES + 1)}, {"more": 1},
            )
        ),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_told_and_treated_as_none(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "checkpoint.json"
    file.write_bytes(content)
    assert Checkpoint(file).load() == {}
    assert "checkpoint_damaged" in caplog.text


def test_a_disk_that_takes_nothing_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "agent"
    checkpoint = Checkpoint(folder / "checkpoint.json")
    checkpoint.save(POSITIONS)
    checkpoint.save(POSITIONS)
    assert caplog.text.count("checkpoint_unsaved") == 1
    os.mkdir(folder)  # noqa: PTH102
    checkpoint.save(POSITIONS)
    assert checkpoint.load() == POSITIONS
