"""Generated tables replace the text between their markers and nothing else; pictures show what commands print."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import StaleError
from drydock.pages import docs, pictures
from drydock.prove.demo import EXPECTED, QUESTION

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


def test_the_demo_has_the_digest_of_the_lock_or_the_one_that_it_printed() -> None:
    recorded = (DRYDOCK / pictures.DEMO).read_text()
    text = pictures.read_demo_output(DRYDOCK, f"sha256:{'ab' * 32}")
    question, answer, image, digest, _ = (line.split(maxsplit=1)[1] for line in text.splitlines())
    assert (question, EXPECTED in answer) == (QUESTION, True)
    assert (image, digest) == ("drydock/cpu-vllm0.32:abababababab", f"sha256:{'ab' * 32} (as committed)")
    assert pictures.read_demo_output(DRYDOCK, "") == recorded


def test_a_picture_is_a_terminal_without_fonts_from_elsewhere() -> None:
    pages = pictures.render_pictures(DRYDOCK)
    assert pages
    for path, text in pages.items():
        assert "url(&" not in text
        assert 'url("' not in text
        assert "<svg" in text
        assert "./inv&#160;" in text, path
