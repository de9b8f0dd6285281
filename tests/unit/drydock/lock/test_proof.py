"""A proof is what tests have shown, and README says no more."""

from __future__ import annotations

from drydock.lock import proof

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


def shows(digest: str = DIGEST, inputs: str = "b", **tiers: tuple[str, ...]) -> proof.Proof:
    return proof.Proof(date="2026-11-21", digest=digest, inputs_sha256=inputs * 64, shown=tiers)


def test_what_was_shown_of_the_same_image_before_stays_and_of_another_goes() -> None:
    old, new = shows(hardware=("h",), packages=("old",)), shows(packages=("new",))

    assert proof.joined(old, new).shown == {"hardware": ("h",), "packages": ("new", "old")}
    assert proof.joined(old, shows(inputs="c", packages=("new",))).shown == {"packages": ("new",)}
    assert proof.joined(old, shows(digest="sha256:" + "d" * 64, packages=("new",))).shown == {"packages": ("new",)}
    assert proof.joined(shows(digest="", hardware=("h",)), new).shown["hardware"] == ("h",)  # stand-ins have none
    assert proof.joined(None, new) == new


def test_a_tier_that_failed_this_time_does_not_stay_from_before() -> None:
    old = shows(hardware=("h",), packages=("p",))

    assert proof.joined(old, shows(), ["packages"]).shown == {"hardware": ("h",)}
