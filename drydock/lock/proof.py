"""Evidence of what was shown of a variant: by tests, by `prove` and by `verify --record`. Pure.

image_record.py reads and writes it. Each piece of evidence belongs to what it tested. That an image was built from the
real packages, and that these import together, is evidence of its foundation, which no change to the entrypoint touches.
What the entrypoint does is evidence of the image. Evidence of other inputs than today's stays until newer evidence
replaces it, and is shown with its date.

A test that shows something carries the marker `proves(variant, tier)`, and `of_foundation` if it tests the foundation
alone. A tier is shown if all its tests of one subject passed in one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import model_validator

from drydock.model.record import Record

TESTED = ("rendered", "stand-in")
"""Tiers that tests of each release show, and no record has: renders and lints; builds and starts on stand-ins."""
TIERS = (*TESTED, "packages", "hardware")
"""Weakest first. The last two: built from the real packages; served a model."""
REPRODUCED = "reproduced"
"""Shown of a foundation in addition to its tier: two builds without cache had the same digest."""


IMPORTED = "imported"
"""Shown of a foundation in addition to its tier: vLLM and what it needs import in it, without a device."""


class Evidence(Record):
    """The tests of one run that passed, and what they tested."""

    commit: str
    """Of the checkout, with a + if its files differed from that commit; empty if unknown."""
    date: str
    """Day of the run, UTC: 2026-11-21."""
    digest: str
    """Of what was tested; empty if stand-ins were tested."""
    inputs_sha256: str
    """Checksum of the inputs of what was tested."""
    tests: tuple[str, ...]
    """By file and name; or the command that showed it."""


class Proof(Record):
    """What was shown of an image's foundation, and of the whole image. `publish` attaches it to the image."""

    foundation: Mapping[str, Evidence] = {}
    """Tier, or `reproduced` → evidence about the layers that come from packages and vendors."""
    image: Mapping[str, Evidence] = {}
    """Tier → evidence about the whole image, with the entrypoint and its profile."""

    @model_validator(mode="before")
    @classmethod
    def _read_earlier_form(cls, data: Any) -> Any:
        """Read the form of before December 2026, which had one date and one checksum for all tiers of an image."""
        if not (isinstance(data, Mapping) and isinstance(data.get("shown"), Mapping)):
            return data
        common = {"commit": "", **{key: data.get(key) for key in ("date", "digest", "inputs_sha256")}}
        return {"image": {tier: {**common, "tests": tests} for tier, tests in data["shown"].items()}}


class ShownTier(NamedTuple):
    """The strongest tier of some evidence."""

    tier: str
    date: str


NOT_SHOWN = ShownTier("none", "")


def leave_out_tested_tiers(proof: Proof) -> Proof:
    """Return a proof without the tiers that tests of each release show, which were recorded until 0.2.0. Pure."""
    image = {tier: evidence for tier, evidence in proof.image.items() if tier not in TESTED}
    return proof.model_copy(update={"image": image})


def select_current(proof: Proof, foundation_key: str, inputs_sha256: str) -> Proof:
    """Return the evidence that is of these inputs of a foundation and of an image. Pure."""
    return Proof(
        foundation={
            tier: evidence for tier, evidence in proof.foundation.items() if evidence.inputs_sha256 == foundation_key
        },
        image={tier: evidence for tier, evidence in proof.image.items() if evidence.inputs_sha256 == inputs_sha256},
    )


def strongest_tier(*proofs: Proof) -> ShownTier:
    """Return the strongest tier of some proofs, with the newest date of its evidence. Pure."""
    parts = [part for proof in proofs for part in (proof.foundation, proof.image)]
    for tier in reversed(TIERS):
        dates = [part[tier].date for part in parts if tier in part]
        if dates:
            return ShownTier(tier, max(dates))
    return NOT_SHOWN


def tested_digest(proof: Proof, inputs_sha256: str) -> str:
    """Return the digest of the image that was tested with these inputs; empty if none was. Pure."""
    evidence = proof.image.values()
    return next((item.digest for item in evidence if item.digest and item.inputs_sha256 == inputs_sha256), "")
