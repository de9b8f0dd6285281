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
    """Return the lines of a page's blocks, which nested lists are not. Comments and diagrams may be translated."""
    blocks = re.findall(r"^ *```.*?^ *```|^ {4}(?!- ).*?$", text, re.MULTILINE | re.DOTALL)
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


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "zh" / "glossary.md"], ids=lambda page: str(page.name))
def test_a_link_to_an_english_page_says_so(page: Path) -> None:
    links = re.findall(r"\[([^\]\n]*)\]\(([^)#\s]+\.md)[^)\s]*\)(（英文）)?", page.read_text(encoding="utf-8"))
    english_links = [
        (text, mark)
        for text, target, mark in links
        if "://" not in target and not (page.parent / target).resolve().is_relative_to(ROOT / "docs" / "zh")
    ]
    assert [text for text, mark in english_links if not mark and text != "English"] == []


def count_rows(text: str) -> list[int]:
    """Return the number of rows of each table of a page."""
    return [len(table.splitlines()) for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


OTHER_TABLES = {"README.md"}
"""The Chinese start page lists pages instead of images, which are on one English page."""


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in OTHER_TABLES], ids=lambda page: page.name)
def test_a_chinese_page_has_all_rows_of_the_english_one(page: Path) -> None:
    assert count_rows(page.read_text(encoding="utf-8")) == count_rows(english(page).read_text(encoding="utf-8"))
