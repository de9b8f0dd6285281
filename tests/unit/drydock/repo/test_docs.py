"""Generated tables replace the text between their markers and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.build.job import prepare
from drydock.config.matrix import read_matrix
from drydock.core.errors import DiskFullError, StaleError
from drydock.core.paths import ROOT
from drydock.model.running import Run
from drydock.repo import docs
from tests.support import containers

TABLE = docs.begin("proofs")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{TABLE}old\n{docs.END}\nafter\n")
    return path


def test_a_table_replaces_the_text_between_its_markers(page: Path) -> None:
    assert docs.filled(page, {"proofs": "new\n"}) == f"before\n{TABLE}new\n{docs.END}\nafter\n"


def test_a_page_without_markers_is_an_error(page: Path) -> None:
    with pytest.raises(StaleError, match="missing marker lines"):
        docs.filled(page, {"other": "new\n"})


def test_a_missing_page_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StaleError, match="page not found"):
        docs.filled(tmp_path / "none.md", {"checks": "new\n"})


def test_the_table_of_proofs_shows_tier_and_date() -> None:
    table = docs.proofs(ROOT, [prepare("cpu").variant])

    assert table.startswith("| variant | accelerator | vLLM | base |")
    assert "| cpu-vllm0.32 | cpu | 0.32.0 | debian:bookworm | linux/amd64 | yes | yes | " in table


def test_an_accelerators_line_lists_its_targets() -> None:
    variant = prepare("cpu").variant
    older = variant.model_copy(
        update={"vllm": variant.vllm.model_copy(update={"version": "0.9.10"}), "aliases": ("x",)}
    )
    table = docs.accelerators([variant, older])

    assert table.splitlines()[2:] == ["| [CPU](docs/cpu.md) | 2 | 0.9.10 to 0.32.0 | `cpu`, `cpu-x86`, `x` |"]


def test_the_table_lists_every_check_with_its_fix() -> None:
    variant = prepare("cpu").variant
    table = docs.checks([variant])

    assert len(table.splitlines()) == len(variant.checks) + 2
    assert all(f"| {check.id} |" in table for check in variant.checks)


def test_a_record_is_in_the_table_once_with_its_stacks() -> None:
    first = containers.variant(containers.RUNTIME)
    second = first.model_copy(update={"stack": "other"})
    nothing = containers.variant(Run()).model_copy(update={"stack": "plain"})

    assert "| `--cap-add SYS_NICE` | all | SYS_NICE is needed | a manual |" in docs.run([first, second])
    assert "| `--cap-add SYS_NICE` | cpu-0.32, other |" in docs.run([first, second, nothing])
    assert "| `no further options` | plain |" in docs.run([first, second, nothing])


def test_the_oldest_engine_is_in_the_table_with_its_reason() -> None:
    plain = containers.variant(containers.RUNTIME)
    said = {"algorithm": "gzip", "because": "Their users have old ones.", "source": "a manual"}
    other = plain.model_copy(update={"stack": "other", "compression": plain.compression.model_copy(update=said)})

    table = docs.run([plain, other])
    assert "| `engine: Docker 23.0 or containerd 1.5, or later` | cpu-0.32 | layers are zstd. |  |" in table
    old = "| `engine: Docker 20.10 or containerd 1.4, or later` | other | layers are gzip. Their users have old ones. |"
    assert f"{old} a manual |" in table


@pytest.mark.golden
def test_each_exit_code_is_in_the_table_once() -> None:
    rows = docs.exit_codes().splitlines()[2:]
    codes = [int(row.split("|")[1]) for row in rows]
    assert codes == sorted({0, DiskFullError.code, *codes})
    assert f"| {DiskFullError.code} | No space left on the disk. Half-written files were not kept. |" in rows


def test_the_committed_tables_are_the_generated_ones() -> None:
    docs.check(ROOT, read_matrix(ROOT))
