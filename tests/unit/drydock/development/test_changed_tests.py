"""Which tests a changed file leads to, and which engine tests run side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.development import changed_tests
from tests.support.git import git

pytestmark = pytest.mark.checkout


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("LICENSE", ()),
        ("docs/project.md", ("tests/contracts/test_site.py",)),
        ("drydock/oci/layers.py", ("tests/unit/drydock/oci", "tests/unit/drydock/examine/test_audit.py")),
        ("drydock/topology/preflight/node.py", ("tests/unit/drydock/topology/preflight",)),
        ("drydock/verbs/lock_verb.py", ("tests/unit/drydock/cli", "tests/unit/test_tasks.py")),
        ("entrypoints/decide/parallelism/fit.py", ("tests/unit/entrypoints/decide/parallelism",)),
        ("entrypoints/decide/cuda.py", ("tests/unit/entrypoints/decide", "tests/models/test_models.py")),
        ("entrypoints/core/tar.py", ("tests/unit/entrypoints/core", "tests/contracts/test_startup.py")),
        ("templates/tools/layer.py", ("tests/unit/templates",)),
        ("tests/unit/drydock/oci/test_layers.py", ("tests/unit/drydock/oci/test_layers.py",)),
        ("tests/support/supervisor_process.py", ("tests/unit/entrypoints/serve",)),
        ("tests/support/fake_registry.py", ("tests/unit/drydock/build/test_pins.py",)),
    ],
)
def test_a_changed_file_leads_to_its_tests(file: str, tests: tuple[str, ...]) -> None:
    selected = changed_tests.select_tests(ROOT, [file])

    assert {"tests/contracts/test_hosts.py", "tests/contracts/test_links.py", *tests} <= {*selected}
    assert ("tests/contracts/test_site.py" in selected) == file.startswith("docs/")
    assert "tests/unit" not in selected


def test_each_folder_and_subject_has_tests() -> None:
    for subject, tests in changed_tests.SUBJECTS.items():
        assert [path for path in (subject, *tests) if not (ROOT / path).exists()] == [], subject
    for side in ("drydock", "entrypoints"):
        folders = [path for path in (ROOT / side).iterdir() if (path / "__init__.py").is_file()]
        assert len(folders) > 10
        for folder in folders:
            file = f"{side}/{folder.name}/changed.py"
            selected = changed_tests.select_tests(ROOT, [file])
            assert any("unit" in path for path in selected), f"{file}: add a line to SUBJECTS"


def test_commits_since_main_edits_and_new_files_are_changes(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    for name in ("same", "edited", "removed"):
        (tmp_path / name).touch()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "checkout", "-q", "-b", "work")
    (tmp_path / "committed").touch()
    git(tmp_path, "rm", "-q", "removed")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "second")
    (tmp_path / "edited").write_text("text")
    (tmp_path / "new").touch()

    assert changed_tests.list_changed_files(tmp_path) == ("committed", "edited", "new", "removed")


def test_a_folder_that_is_no_checkout_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--changed"):
        changed_tests.list_changed_files(tmp_path)
