"""A proof is what tests have shown, and README says no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock import build, proof
from drydock.errors import StaleError

DIGEST = "sha256:" + "a" * 64


def test_a_tier_is_shown_only_if_all_its_tests_passed() -> None:
    outcomes = [("packages", "a", True), ("hardware", "b", True), ("hardware", "c", False), ("packages", "d", True)]

    assert proof.shown(outcomes) == {"packages": ("a", "d")}


def test_a_test_that_failed_in_one_phase_failed() -> None:
    assert proof.shown([("hardware", "a", True), ("hardware", "a", False)]) == {}


def test_the_strongest_tier_is_the_one_that_counts() -> None:
    shown = {"packages": ("a",), "hardware": ("b",)}

    assert proof.Proof(digest=DIGEST, inputs_sha256="b" * 64, shown=shown).tier() == "hardware"
    assert proof.Proof(digest=DIGEST, inputs_sha256="b" * 64, shown={}).tier() == "none"


def test_the_table_is_written_between_its_markers_and_checked(tmp_path: Path) -> None:
    variant = build.prepare("cpu").variant
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{proof.BEGIN}old\n{proof.END}\nafter\n")
    found = proof.Proof(digest=DIGEST, inputs_sha256="b" * 64, shown={"hardware": ("t",)})
    proof.write_proof(tmp_path, variant.id, found)

    with pytest.raises(StaleError, match="not what the tests have shown"):
        proof.check_readme(tmp_path, [variant])
    proof.write_readme(tmp_path, [variant])
    proof.check_readme(tmp_path, [variant])

    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert f"| {variant.id} |" in text
    assert "| hardware | 1 | `sha256:aaaaaaaaaaaa` |" in text


def test_a_readme_without_markers_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine\n")

    with pytest.raises(StaleError, match="expected the markers"):
        proof.write_readme(tmp_path, [])
    assert (tmp_path / "README.md").read_text() == "mine\n"
