"""A proof is what tests have shown, and README says no more."""

from __future__ import annotations

from drydock import proof

DIGEST = "sha256:" + "a" * 64


def test_a_tier_is_shown_only_if_all_its_tests_passed() -> None:
    outcomes = [("packages", "a", True), ("hardware", "b", True), ("hardware", "c", False), ("packages", "d", True)]

    assert proof.shown(outcomes) == {"packages": ("a", "d")}


def test_a_test_that_failed_in_one_phase_failed() -> None:
    assert proof.shown([("hardware", "a", True), ("hardware", "a", False)]) == {}


def test_the_strongest_tier_is_the_one_that_counts() -> None:
    shown = {"packages": ("a",), "hardware": ("b",)}

    assert proof.Proof(date="2026-11-21", digest=DIGEST, inputs_sha256="b" * 64, shown=shown).tier() == "hardware"
    assert proof.Proof(date="2026-11-21", digest=DIGEST, inputs_sha256="b" * 64, shown={}).tier() == "none"
