"""Every link of a page leads to a heading of a file that exists, and every request that a page shows is whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from tests.evidence.manual_steps import anchors

OTHERS = {"docs/build-repro.md"}
"""Pages of other projects that comments name."""
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def dead(page: Path, text: str) -> list[str]:
    """Return the links of a page that lead nowhere."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not leads(page, target)]


def leads(page: Path, target: str) -> bool:
    """Tell whether a link of a page leads somewhere; addresses of other hosts are not tried."""
    if re.match(r"[a-z]+:", target):
        return True
    name, _, heading = target.partition("#")
    path = page.parent / name if name else page
    return path.exists() and (not heading or heading in anchors(path.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_its_target(page: Path) -> None:
    assert dead(page, page.read_text()) == []


def test_a_dead_link_is_found() -> None:
    text = "[a](CHANGELOG.md) [b](nothing.md) [c](#no-heading) [d](docs/run.md#no-heading) [e](https://example.org)"
    assert dead(ROOT / "README.md", text) == ["nothing.md", "#no-heading", "docs/run.md#no-heading"]


def test_a_page_that_a_program_names_exists() -> None:
    """Messages, templates and comments name pages as docs/build.md or docs/fit.md#several-hosts."""
    sources = [
        path
        for folder in ("drydock", "entrypoints", "templates", "bench", "examples", "tests/manuals", "tests/evidence")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".yaml", ".j2") or path.name == "Dockerfile"
    ]
    references = {
        (path, target.rstrip("."))
        for path in [*sources, ROOT / "tasks.py", ROOT / "pyproject.toml"]
        for target in re.findall(
            r"(?<![\w/.-])docs/(?:reference/(?:manuals/)?)?[a-z0-9_-]+\.md(?:#[\w-]+)?", path.read_text()
        )
    }
    assert len(references) > 20
    assert [
        (str(path), target)
        for path, target in sorted(references)
        if not leads(ROOT / "README.md", target) and target not in OTHERS
    ] == []


def test_a_test_file_that_security_names_exists() -> None:
    test_files = set(re.findall(r"`([\w/]+/test_\w+\.py)`", (ROOT / "docs" / "security.md").read_text()))
    assert len(test_files) > 40
    assert [name for name in sorted(test_files) if not (ROOT / "tests" / name).is_file()] == []


PATH = re.compile(r"`((?:[a-z_]\w*/)+[\w.-]+\.(?:py|md|yaml|toml|json|sh|j2))(?:::\w+)?`")
"""A path of files in backticks, as pages, comments and docstrings write it."""
FOLDERS = ("", "drydock", "entrypoints", "tests")
"""What a path may be relative to: a table names its folder once."""
EXAMPLES = re.compile(r"abacus|[A-Z]{4}")
"""Paths that a reader makes, or that stand for several."""


def list_missing_paths(text: str) -> list[str]:
    """Return the paths in backticks that no folder of FOLDERS has, though one has the path's first folder."""
    paths = [path for path in PATH.findall(text) if not EXAMPLES.search(path) and _exists(path.partition("/")[0])]
    return [path for path in paths if not _exists(path)]


def _exists(path: str) -> bool:
    return any((ROOT / folder / path).exists() for folder in FOLDERS)


def test_each_path_in_backticks_exists() -> None:
    folders = ("drydock", "entrypoints", "bench", "tests")
    sources = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    missing = {
        str(path.relative_to(ROOT)): list_missing_paths(path.read_text())
        for path in (*PAGES, *sources)
        if path != Path(__file__)
    }
    assert len(missing) > 500
    assert {name: paths for name, paths in missing.items() if paths} == {}


def test_a_path_that_does_not_exist_is_listed() -> None:
    text = "`drydock/core/paths.py`, `core/paths.py`, `core/no_such_path.py` and `images/IMAGE/lock.json`"
    assert list_missing_paths(text) == ["core/no_such_path.py"]


ASKING_PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md") if "chat/completions" in path.read_text())
BODY = re.compile(r"-d '(\{.*?\})'$|<<END\n(.*?)\n    END$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ASKING_PAGES)
def test_a_request_is_json_with_a_model_and_parts_that_name_their_type(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    bodies = [json.loads(quoted or here) for quoted, here in BODY.findall(text)]

    assert len(bodies) == len(re.findall(r"curl [^\n]*chat/completions", text))
    for body in bodies:
        assert body["model"]
        contents = [message["content"] for message in body["messages"]]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        assert all(part["type"] in part for part in parts)
