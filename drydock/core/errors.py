"""All errors of the build side, with their exit codes. They are in one file so that the codes form one table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from entrypoints.core.redact import redact_text


class DrydockError(Exception):
    """An error shown to the user: `problems` say what was found, what was expected and where; `hint` what to do.

    Passwords and tokens are removed from both: errors quote URLs, and what other programs print.
    """

    code = 1

    def __init__(self, *problems: str, hint: str = "") -> None:
        self.problems = tuple(redact_text(problem) for problem in problems)
        self.hint = redact_text(hint)
        super().__init__(*self.problems)

    def __str__(self) -> str:
        text = "\n".join(self.problems)
        return f"{text}\n\nhint: {self.hint}" if self.hint else text


class InputError(DrydockError):
    """Invalid user input: matrix.yaml, a stack, accelerator.yaml, a template or an option."""

    code = 2


class TargetError(DrydockError):
    """`--target` matches nothing."""

    code = 2


class StaleError(DrydockError):
    """A generated file does not match its inputs, or was edited by hand."""

    code = 3


class FetchError(DrydockError):
    """A pinned file cannot be fetched, or its content does not match the pinned hash."""

    code = 4


class IndexFailedError(FetchError):
    """A package index does not answer, or answers with an error: whether it has a file is not known."""


class GoneError(FetchError):
    """No configured server has a pinned file any more; the remedy is to lock again."""


class UnresolvedError(FetchError):
    """A lock has no pin for an input, and records why."""


class EngineError(DrydockError):
    """No usable Docker engine, BuildKit or buildx was found, or one of them failed."""

    code = 5


class BuildError(DrydockError):
    """A build ran and failed."""

    code = 6


class NotReproducibleError(DrydockError):
    """Two builds of the same inputs differ."""

    code = 7


class DiskFullError(DrydockError):
    """No space left on the disk. Half-written files were not kept."""

    code = 8


class HostError(DrydockError):
    """A container needs something that this machine lacks: a device, a driver's file or the image."""

    code = 9


class RegistryError(DrydockError):
    """A registry does not answer, or refuses a request."""

    code = 10


class CredentialsError(RegistryError):
    """A registry requires credentials, or rejects those it was given."""

    code = 11


class TagError(RegistryError):
    """A release tag already names another image; release tags never move."""

    code = 12


class UntrustedError(DrydockError):
    """An image in a registry does not match what its publisher signed or declared."""

    code = 13


class LicenceError(DrydockError):
    """The licence policy does not allow an image to be published."""

    code = 14


class DriftError(DrydockError):
    """Locking again would give a different lock."""

    code = 15


class NotAskedError(DrydockError):
    """Neither drift nor a vulnerability was found, but not everything could be checked."""

    code = 16


class HardeningError(DrydockError):
    """An image contains something that the hardening policy forbids."""

    code = 17


class AdvisoryError(DrydockError):
    """A lock pins a version with a known vulnerability."""

    code = 18


class VerifyError(DrydockError):
    """The servers of a topology are not ready, or do not exchange what they must."""

    code = 19


class PreflightError(DrydockError):
    """A machine of a topology is not as its plan needs it."""

    code = 20


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'?" for the closest known word, or the list of known words."""
    names = sorted(known)
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if matches:
        return f"did you mean {matches[0]!r}?"
    return f"known: {', '.join(names)}" if names else "none is known"
