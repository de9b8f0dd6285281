"""Every error the build side shows, with its exit code. One file, so that the codes are one table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DrydockError(Exception):
    """An error for people: `problems` say what was found, what was expected and where; `hint` what to do."""

    code = 1

    def __init__(self, *problems: str, hint: str = "") -> None:
        super().__init__(*problems)
        self.problems = problems
        self.hint = hint

    def __str__(self) -> str:
        text = "\n".join(self.problems)
        return f"{text}\n\nhint: {self.hint}" if self.hint else text


class InputError(DrydockError):
    """A file of the user's is wrong: matrix.yaml, a stack, accelerator.yaml, a template, an option."""

    code = 2


class TargetError(DrydockError):
    """`--target` names nothing that exists."""

    code = 2


class StaleError(DrydockError):
    """A generated file does not match what it was generated from, or was edited by hand."""

    code = 3


class FetchError(DrydockError):
    """A pinned file cannot be had, or its bytes are not the pinned ones."""

    code = 4


class GoneError(FetchError):
    """Every place that might serve a pinned file says that it does not have it: locking anew is what is left."""


class UnresolvedError(FetchError):
    """A lock could not pin something, and says why."""


class EngineError(DrydockError):
    """No usable Docker engine, BuildKit or buildx, or it failed."""

    code = 5


class BuildError(DrydockError):
    """A build ran and failed."""

    code = 6


class NotReproducibleError(DrydockError):
    """Two builds of the same inputs differ."""

    code = 7


class DiskFullError(DrydockError):
    """No space left; nothing half-written was kept."""

    code = 8


class HostError(DrydockError):
    """What a container needs is not on this machine: a device, a driver's file, the image."""

    code = 9


class RegistryError(DrydockError):
    """A registry does not answer, or refuses what it is asked."""

    code = 10


class CredentialsError(RegistryError):
    """A registry wants credentials, or does not take those it was given."""

    code = 11


class TagError(RegistryError):
    """A release tag names another image already, and release tags never move."""

    code = 12


class UntrustedError(DrydockError):
    """What a registry holds of an image is not what its publisher signed or says it is."""

    code = 13


class LicenceError(DrydockError):
    """The licence policy does not let an image be published."""

    code = 14


class DriftError(DrydockError):
    """A lock is no longer what locking anew would give."""

    code = 15


class NotAskedError(DrydockError):
    """Nothing that could be asked has drifted, and something could not be asked."""

    code = 16


class HardeningError(DrydockError):
    """An image holds what the hardening policy does not let into one."""

    code = 17


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'?" for the closest known word, or the list of what is known."""
    names = sorted(known)
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if matches:
        return f"did you mean {matches[0]!r}?"
    return f"known: {', '.join(names)}" if names else "none is known"
