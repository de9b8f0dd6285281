"""Generated tables replace the text between their markers and nothing else; pages of the reference are whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.core.errors import StaleError
from drydock.pages import docs

TABLE = docs.format_begin_marker("accelerators")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{TABLE}old\n{docs.END}\nafter\n")
    return path


def test_a_table_replaces_the_text_between_its_markers(page: Path) -> None:
    assert docs.fill_tables(page, {"accelerators": "new\n"}) == f"before\n{TABLE}new\n{docs.END}\nafter\n"


def test_a_page_without_markers_is_an_error(page: Path) -> None:
    with pytest.raises(StaleError, match="missing marker lines"):
        docs.fill_tables(page, {"other": "new\n"})


def test_a_missing_page_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StaleError, match="page not found"):
        docs.fill_tables(tmp_path / "none.md", {"checks": "new\n"})
