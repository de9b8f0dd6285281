"""The verdicts on a command, and on each part of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

AS_THE_RELEASE = "if its vLLM is as the release"


class Verdict(IntEnum):
    """What happens to a command, or to a part of it, in the other version: the worst one is the command's."""

    SAFE = 0
    """The parser takes it, and it means the same."""
    UNKNOWN = 1
    """Lists cannot tell."""
    MANUAL = 2
    """A person must decide; what to write is said."""
    BLOCKED = 3
    """The other version refuses it."""

    @property
    def word(self) -> str:
        """Return the verdict as it is printed."""
        return self.name.lower()


class Judgment(NamedTuple):
    """The verdict on one part of the command."""

    kind: str
    """What it is: model, flag, key, variable."""
    name: str
    """The part as it is written; secrets are hidden."""
    verdict: Verdict
    because: str
    instead: str = ""
    """What to write; empty if nothing has to change."""


def worst_of(judgments: Iterable[Judgment]) -> Verdict:
    """Return the verdict on the whole command."""
    return max((judgment.verdict for judgment in judgments), default=Verdict.SAFE)


def soften_judgment(judgment: Judgment, assumed: str) -> Judgment:
    """Return a judgment by lists that are only assumed: they prove nothing, and refuse nothing."""
    if not assumed or judgment.verdict in (Verdict.MANUAL, Verdict.UNKNOWN):
        return judgment
    verdict = Verdict.MANUAL if judgment.verdict is Verdict.BLOCKED else Verdict.UNKNOWN
    return judgment._replace(verdict=verdict, because=f"{judgment.because}, {AS_THE_RELEASE}")
