"""A Chinese page has the commands and the sections of its English page, so that it cannot go stale unseen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drydock.core.paths import ROOT

ONLY_CHINESE = {"glossary.md"}
PAGES = [path for path in sorted((ROOT / "docs" / "zh").rglob("*.md")) if path.name not in ONLY_CHINESE]


def english(page: Path) -> Path:
    name = page.relative_to(ROOT / "docs" / "zh")
    return ROOT / name if name == Path("README.md") else ROOT / "docs" / name


def commands(text: str) -> list[str]:
    """Return the lines of a page's blocks; comments may be in another language, and so may diagrams."""
    blocks = re.findall(r"^ *```.*?^ *```|^ {4}.*?$", text, re.MULTILINE | re.DOTALL)
    return [
        re.sub(r" *(?<!\S)# .*", "", line)
        for block in blocks
        if "```mermaid" not in block
        for line in block.splitlines()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_a_chinese_page_has_the_commands_and_sections_of_the_english_one(page: Path) -> None:
    ours, theirs = (path.read_text(encoding="utf-8") for path in (page, english(page)))

    assert commands(ours) == commands(theirs)
    assert re.findall("^#+", ours, re.MULTILINE) == re.findall("^#+", theirs, re.MULTILINE)


def test_another_option_is_seen_and_another_comment_is_not() -> None:
    page = "Text\n\n    ./inv demo   # tries it\n    echo $#\n\n```sh\n./inv test\n```\n"

    assert commands(page) == ["    ./inv demo", "    echo $#", "```sh", "./inv test", "```"]
    assert commands(page) == commands(page.replace("tries it", "试用"))
    assert commands(page) != commands(page.replace("test", "test --all"))
