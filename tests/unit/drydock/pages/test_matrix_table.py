"""The state that `matrix` shows for a variant."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.build.build_job import Job
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.lock import lockfile
from drydock.lock.image_record import PlatformRecord, make_evidence, name_of_record, write_platform_record
from drydock.model.variant import Variant
from drydock.pages import matrix_table


@pytest.fixture
def variant() -> Variant:
    return next(variant for variant in read_matrix(DRYDOCK) if variant.id == "cpu-vllm0.32")


@pytest.fixture
def root(tmp_path: Path, variant: Variant) -> Path:
    """A repository with the committed images, without records."""
    for folder in ("images", "entrypoints", "templates"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / name_of_record(variant.id)).unlink()
    return tmp_path


def test_a_row_has_the_promised_keys(variant: Variant) -> None:
    state = matrix_table.State(False, ("base",), "packages", "2026-11-21", "", reproduced=False, digest="sha256:1")
    changes = {"id": "cpu-new", "aliases": ("newest",), "stack": "new", "python": "3.11"}
    assert matrix_table.describe_variant(variant.model_copy(update=changes), state) == {
        "id": "cpu-new",
        "accelerator": "cpu",
        "aliases": ["newest"],
        "stack": "new",
        "vllm": "0.32.0",
        "python": "3.11",
        "base": "debian:bookworm",
        "platforms": ["linux/amd64"],
        "hermetic": True,
        "support": "",
        "oldest_engine": {"docker": "23.0", "containerd": "1.5"},
        "locked": False,
        "unresolved": ["base"],
        "proof": "packages",
        "date": "2026-11-21",
        "earlier_proof": "",
        "reproduced": False,
        "digest": "sha256:1",
    }


def shown(root: Path, variant: Variant) -> tuple[bool, str]:
    row = matrix_table.make_matrix_rows(Project(root), [variant])[0]
    return row["locked"], row["proof"]


def test_tests_show_stand_ins_of_drydocks_own_rows_only(root: Path, variant: Variant, tmp_path: Path) -> None:
    assert shown(root, variant) == (True, "stand-in")
    above = tmp_path / "project"
    shutil.copytree(root / "images" / variant.id, above / "images" / variant.id)
    (row,) = matrix_table.make_matrix_rows(Project(above, (root,)), [variant])
    assert row["proof"] == "rendered"


def write_full_proof(root: Path, variant: Variant) -> str:
    """Write that the image served, and that its foundation was built from the packages; return the date."""
    project = Project(root)
    lock = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
    job = Job(variant=variant, lock=lock, platform=variant.platforms[0], project=project)
    digest = f"sha256:{'1' * 64}"
    image = make_evidence(project, digest, job.inputs_sha256, ["test_it"])
    foundation = make_evidence(project, digest, job.foundation_key, ["test_it"])
    record = PlatformRecord(foundation={"packages": foundation}, image={"hardware": image})
    write_platform_record(project, variant.id, job.platform, record)
    return image.date


def test_an_edit_of_the_entrypoint_keeps_the_proof_of_the_packages(root: Path, variant: Variant) -> None:
    date = write_full_proof(root, variant)
    assert shown(root, variant) == (True, "hardware")
    (root / "entrypoints" / "__main__.py").write_text("changed = True\n")
    row = matrix_table.make_matrix_rows(Project(root), [variant])[0]
    assert (row["proof"], row["earlier_proof"]) == ("packages", f"hardware, {date}")
    words = matrix_table.format_matrix_table([row]).split()
    assert " ".join(words).endswith(f"packages (hardware, {date}; inputs changed since)")
    (page_row,) = matrix_table.make_recorded_rows(Project(root), [variant])
    assert (page_row["proof"], page_row["date"], page_row["earlier_proof"]) == ("hardware", date, "")


def test_a_change_to_the_foundation_leaves_the_date_of_its_proof(root: Path, variant: Variant) -> None:
    date = write_full_proof(root, variant)
    tool = root / "templates" / "tools" / "layer.py"
    tool.write_text(tool.read_text() + "# changed\n")
    row = matrix_table.make_matrix_rows(Project(root), [variant])[0]
    assert (row["proof"], row["date"], row["earlier_proof"]) == ("stand-in", "", f"hardware, {date}")


def test_without_a_lock_there_is_no_tier(root: Path, variant: Variant) -> None:
    lockfile.path_of_lock(Project(root), variant.id).unlink()
    assert shown(root, variant) == (False, "none")


@pytest.mark.parametrize("change", [{"requirements": ("other==1",)}, {"epoch": 1}])
def test_a_lock_of_other_inputs_does_not_count(root: Path, variant: Variant, change: dict[str, object]) -> None:
    assert shown(root, variant.model_copy(update=change)) == (False, "none")


def test_without_a_dockerfile_there_is_no_tier(root: Path, variant: Variant) -> None:
    (root / "images" / variant.id / "Dockerfile").unlink()
    assert shown(root, variant) == (True, "none")


def test_the_table_has_the_same_values_as_text(root: Path, variant: Variant) -> None:
    heading, line = matrix_table.format_matrix_table(
        matrix_table.make_matrix_rows(Project(root), [variant])
    ).splitlines()
    assert heading.split() == list(matrix_table.COLUMNS)
    names = [variant.id, *variant.aliases]
    assert line.replace(",", " ").split() == [*names, variant.vllm.version, "amd64", "yes", "stand-in"]


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_table_fits_the_terminal_and_cuts_nothing_off(columns: int) -> None:
    rows = matrix_table.make_matrix_rows(DRYDOCK, read_matrix(DRYDOCK))

    table_text = matrix_table.format_matrix_table(rows, columns)

    assert max(map(len, table_text.splitlines())) <= min(columns, matrix_table.WIDEST)
    words = set(table_text.replace(",", " ").split())
    assert {row["id"] for row in rows} <= words
    assert {alias for row in rows for alias in row["aliases"] if not alias.startswith(row["id"])} <= words
    assert {row["proof"] for row in rows} <= words
    earlier_words = {word.strip(",") for row in rows for word in row["earlier_proof"].split()}
    assert earlier_words <= {word.strip("(;") for word in words}


def test_rows_are_selected_by_accelerator_proof_and_lock() -> None:
    rows = matrix_table.make_matrix_rows(DRYDOCK, read_matrix(DRYDOCK))
    some = matrix_table.select_rows(rows, matrix_table.Filter("habana", "", unlocked=True))

    assert {row["accelerator"] for row in some} == {"habana"}
    assert all(row["unresolved"] for row in some)
    proven = rows[0]["proof"]
    assert {row["proof"] for row in matrix_table.select_rows(rows, matrix_table.Filter(proof=proven))} == {proven}


@pytest.mark.parametrize("row_filter", [matrix_table.Filter(accelerator="cdua"), matrix_table.Filter(proof="packges")])
def test_an_unknown_accelerator_or_tier_names_the_nearest(row_filter: matrix_table.Filter) -> None:
    with pytest.raises(InputError) as raised:
        matrix_table.select_rows(matrix_table.make_matrix_rows(DRYDOCK, read_matrix(DRYDOCK)), row_filter)
    assert raised.value.hint in ("did you mean 'cuda'?", "did you mean 'packages'?")


@pytest.mark.parametrize("module", ["drydock.pages.matrix_table", "drydock.upgrade.row_record_file"])
def test_what_only_reads_imports_nothing_that_speaks_to_servers(module: str) -> None:
    code = f"import sys, tasks, {module}; print(sorted({{'requests', 'docker', 'debian'}} & {{*sys.modules}}))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
