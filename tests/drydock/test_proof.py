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

    assert proof.Proof(digest=DIGEST, inputs_sha256="b" * 64, shown=shown).tier() == "hardware"
    assert proof.Proof(digest=DIGEST, inputs_sha256="b" * 64, shown={}).tier() == "none"


def test_what_was_shown_of_the_same_image_before_stays_and_of_another_goes() -> None:
    old = proof.Proof(digest=DIGEST, inputs_sha256="b" * 64, shown={"hardware": ("h",), "packages": ("old",)})
    new = proof.Proof(digest=DIGEST, inputs_sha256="b" * 64, shown={"packages": ("new",)})

    assert proof.joined(old, new).shown == {"hardware": ("h",), "packages": ("new", "old")}
    assert proof.joined(old, new.model_copy(update={"inputs_sha256": "c" * 64})).shown == {"packages": ("new",)}
    assert proof.joined(None, new) == new


def test_a_tier_that_failed_this_time_does_not_stay_from_before() -> None:
    old = proof.Proof(digest=DIGEST, inputs_sha256="b" * 64, shown={"hardware": ("h",), "packages": ("p",)})
    new = proof.Proof(digest=DIGEST, inputs_sha256="b" * 64, shown={})

    assert proof.joined(old, new, ["packages"]).shown == {"hardware": ("h",)}
