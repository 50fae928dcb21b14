"""The Chinese README says what the English one says: the same commands, settings and links."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ENGLISH, CHINESE = (
    Path(name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
)
BLOCK = re.compile(r"^```(?:sh|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)]+)\)")


def without_comments(text: str) -> list[str]:
    return [line.partition(" #")[0].strip() for line in text.splitlines()]


@pytest.mark.parametrize(
    "part",
    [
        lambda text: [without_comments(block) for block in BLOCK.findall(text)],
        lambda text: re.findall("^#+ ", text, re.MULTILINE),
        lambda text: len(re.findall(r"^\|", text, re.MULTILINE)),
        lambda text: {each.partition("#")[0] for each in LINK.findall(text)} - {"README.md"},
    ],
    ids=["commands and settings", "headings", "rows", "links"],
)
def test_both_readmes_have_the_same(part: Callable[[str], object]) -> None:
    english = ENGLISH.replace("(README.zh-CN.md)", "(README.md)")
    assert part(CHINESE) == part(english)
