"""docs/reference/variables.md has each variable that code reads, and no variable of drydock's own that none reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from drydock.core.paths import ROOT
from drydock.pages.reference_pages import FOLDER

pytestmark = pytest.mark.checkout

PAGE = (ROOT / FOLDER / "variables.md").read_text()
NAMED = set(re.findall(r"`([A-Za-z_][A-Za-z0-9_]*)`", PAGE))
OWN = re.compile(r"\bDRYDOCK_[A-Z0-9_]*[A-Z0-9]\b")
READ = re.compile(r"""(?:environ|env|environment|whole)(?:\.get\(|\[)["']([A-Za-z_][A-Za-z0-9_]*)["']""")
STEMS = {"DRYDOCK_RUNNER", "DRYDOCK_RELEASE_RUNNER"}
"""CI files add the architecture."""


def read_by_code() -> Iterator[str]:
    for folder in ("bench", "drydock", "entrypoints", "templates"):
        for path in (path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".j2", ".yml")):
            text = path.read_text()
            yield from OWN.findall(text)
            if folder in ("drydock", "entrypoints"):
                yield from READ.findall(text)


def test_the_page_has_each_variable_that_code_reads_and_no_other_of_drydock() -> None:
    code_variables = set(read_by_code()) - STEMS
    assert {"DRYDOCK_CACHE", "DRYDOCK_OFFLINE", "HF_TOKEN", "TMPDIR"} <= code_variables
    assert code_variables - NAMED == set()
    assert set(OWN.findall(PAGE)) - code_variables == set()


def test_each_place_of_a_table_is_filled() -> None:
    assert re.findall(r"^\{.*\}$", PAGE, re.MULTILINE) == []
