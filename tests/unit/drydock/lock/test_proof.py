"""A proof says of which foundation and of which image something was shown, and when."""

from __future__ import annotations

from drydock.lock import proof

DIGEST = "sha256:" + "a" * 64
TODAY, EARLIER = "b" * 64, "c" * 64


def evidence(inputs: str = TODAY, date: str = "2026-11-26", tests: tuple[str, ...] = ("a test",)) -> proof.Evidence:
    return proof.Evidence(commit="f" * 40, date=date, digest=DIGEST, inputs_sha256=inputs, tests=tests)


def test_the_strongest_tier_of_foundation_and_image_counts_with_its_newest_date() -> None:
    two_subjects = proof.Proof(
        foundation={"packages": evidence(date="2026-11-25"), proof.REPRODUCED: evidence()},
        image={"packages": evidence(date="2026-11-26")},
    )

    assert proof.strongest_tier(two_subjects) == ("packages", "2026-11-26")
    assert proof.strongest_tier(proof.Proof(foundation={proof.REPRODUCED: evidence()})) == proof.NOT_SHOWN
    assert proof.strongest_tier(two_subjects, proof.Proof(image={"hardware": evidence()})).tier == "hardware"
    assert proof.strongest_tier() == proof.NOT_SHOWN


def test_an_edit_of_the_entrypoint_leaves_what_was_shown_of_the_foundation() -> None:
    old_proof = proof.Proof(foundation={"packages": evidence()}, image={"hardware": evidence(EARLIER)})
    current = proof.select_current(old_proof, TODAY, "d" * 64)

    assert current == proof.Proof(foundation={"packages": evidence()})
    assert proof.strongest_tier(current).tier == "packages"


def test_the_digest_that_was_tested_is_that_of_the_same_inputs() -> None:
    image_proof = proof.Proof(image={"hardware": evidence()})

    assert proof.tested_digest(image_proof, TODAY) == DIGEST
    assert proof.tested_digest(image_proof, EARLIER) == proof.tested_digest(proof.Proof(), TODAY) == ""
