"""What tests have shown of each variant, in images/<variant>/proof.json. Only tests write it. IO.

A test that shows something carries the marker `proves(variant, tier)`. A tier counts as shown when every test that
carries it passed in one run, for the digest that was tested.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from pathlib import Path

from drydock.core.errors import StaleError
from drydock.core.files import dumps, loads
from drydock.core.project import Project
from drydock.model.record import Record, dump

TIERS = ("rendered", "stand-in", "packages", "hardware")
"""Weakest first: renders and lints; builds and starts on stand-ins; built from the real packages; served a model."""


class Proof(Record):
    """images/<variant>/proof.json: the tests that showed something of one variant."""

    date: str
    """Day of the run, UTC: 2026-11-21."""
    digest: str
    """Of the image that was tested; empty if only stand-ins were tested."""
    inputs_sha256: str
    """The inputs that were tested; for other inputs nothing has been shown."""
    shown: Mapping[str, tuple[str, ...]]
    """Tier → the tests that showed it, by file and name."""

    def tier(self) -> str:
        """Return the strongest tier that was shown, or none."""
        return next((tier for tier in reversed(TIERS) if self.shown.get(tier)), "none")

    def count(self) -> int:
        """Return the number of tests."""
        return sum(len(tests) for tests in self.shown.values())


def path_of(project: Project, variant: str) -> Path:
    """Return the path of a variant's proof."""
    return project / f"images/{variant}/proof.json"


def read_proof(project: Project, variant: str) -> Proof | None:
    """Return what was shown of a variant; None if nothing was."""
    path = path_of(project, variant)
    try:
        return Proof.model_validate(loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
    except ValueError as error:
        raise StaleError(f"{path}: invalid proof: {error}", hint="./inv test --record") from error


def write_proof(project: Project, variant: str, proof: Proof) -> bool:
    """Write what a run of the tests showed; return whether the file changed."""
    return project.write(f"images/{variant}/proof.json", dumps(dump(proof))) is not None


def shown(outcomes: Iterable[tuple[str, str, bool]]) -> dict[str, tuple[str, ...]]:
    """Return tier → tests, given (tier, test, passed); a tier with a test that did not pass was not shown. Pure."""
    found: dict[str, dict[str, bool]] = {}
    for tier, test, passed in outcomes:
        tests = found.setdefault(tier, {})
        tests[test] = tests.get(test, True) and passed
    return {tier: tuple(sorted(tests)) for tier, tests in found.items() if all(tests.values())}


def today() -> str:
    """Return the day, UTC: 2026-11-21."""
    return dt.datetime.now(dt.UTC).date().isoformat()


def joined(old: Proof | None, new: Proof, tried: Iterable[str] = ()) -> Proof:
    """Add to a proof what was shown of the same inputs before, except for the tiers that were tested again. Pure."""
    again = set(tried)
    same = old if old and old.inputs_sha256 == new.inputs_sha256 and old.digest in ("", new.digest) else None
    kept = {tier: tests for tier, tests in same.shown.items() if tier not in again} if same else {}
    tests = {tier: {*kept.get(tier, ()), *new.shown.get(tier, ())} for tier in {*kept, *new.shown}}
    return new.model_copy(update={"shown": {tier: tuple(sorted(names)) for tier, names in tests.items()}})
