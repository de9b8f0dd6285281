"""All errors of the build side, with their exit codes. They are in one file so that the codes form one table."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from drydock.core.ownership import find_foreign_place, user_name
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


class NetworkSettingsError(DrydockError):
    """A variable or file that says how this machine reaches servers is wrong: certificates, a proxy, pip's keyring.

    No subclass of InputError or FetchError: a lock records those as an input that cannot be had here.
    """

    code = 2


class StaleError(DrydockError):
    """A generated file does not match its inputs, or was edited by hand."""

    code = 3


class CommandRefusedError(DrydockError):
    """`review`: a command would not start with the vLLM of its image."""

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


class BlockedError(DrydockError):
    """`compare`: the other version of vLLM refuses the command, as an image does with the same exit code."""

    code = 14


class DriftError(DrydockError):
    """Locking again would give a different lock."""

    code = 15


class NotAskedError(DrydockError):
    """Neither drift nor a vulnerability was found, but not everything could be checked."""

    code = 16


class UncertainError(DrydockError):
    """`compare` found nothing that breaks, but cannot tell of every part of the command."""

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


class ManualError(DrydockError):
    """`compare`: a person must change the command for the other version of vLLM, or decide what it shall mean."""

    code = 21


UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""Error numbers of a write to a folder that is not writable."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a disk without space, and of a user who has used a quota up."""
_BROKEN_DISK = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT)
"""Error numbers of a disk that fails, and of a network file system whose server does not answer."""


def raise_all_errors(errors: Sequence[DrydockError]) -> None:
    """Raise one error with every problem and every hint, each once; its exit code is that of the first."""
    if errors:
        problems = dict.fromkeys(problem for error in errors for problem in error.problems)
        hints = dict.fromkeys(error.hint for error in errors if error.hint)
        raise type(errors[0])(*problems, hint="\n".join(hints))


def explain_os_error(error: OSError, path: str | os.PathLike[str] = "") -> DrydockError:
    """Return an error of the operating system as one of drydock's; `path` is what was accessed if it does not say."""
    if error.errno is None:  # not of the operating system: a library's, such as one of requests
        return DrydockError(str(error) or type(error).__name__)
    where, reason = str(error.filename or path or "a file"), error.strerror
    if error.errno in FULL:
        return DiskFullError(
            f"{path or where}: no space left on the disk ({reason})",
            hint="free some space and run the same command again: finished files are kept, half-written ones are not",
        )
    if error.errno == errno.EACCES and _is_noexec(where):
        hint = "DRYDOCK_CACHE and TMPDIR name folders whose file system allows programs"
        return InputError(f"{where}: {reason}: its file system is mounted noexec", hint=hint)
    if error.errno in (errno.EACCES, errno.EPERM) and (foreign := find_foreign_place(Path(where).absolute())):
        user, owner = user_name(os.geteuid()), user_name(foreign.lstat().st_uid)
        hint = f"as root: `chown --recursive {user} {foreign}`; DRYDOCK_CACHE can name another folder for the cache"
        return InputError(f"{where}: {reason}: {foreign} belongs to the user {owner}", hint=hint)
    if error.errno in (*UNWRITABLE, errno.EEXIST):  # EEXIST: a file or a link where mkdir makes a folder
        hint = "choose a folder that you can write to; DRYDOCK_CACHE names drydock's own"
    elif error.errno in _BROKEN_DISK:
        hint = "check the disk, or the server of the network file system"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        hint = "raise the limit: ulimit -n 4096"
    else:
        hint = "check this path, what it links to, and its file system; DRYDOCK_CACHE names drydock's own folder"
    return InputError(f"{where}: {reason}", hint=hint)


def _is_noexec(path: str) -> bool:
    """Tell whether a path is a program's on a file system that runs none."""
    try:
        return Path(path).is_file() and bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


def join_hints(first: str, second: str) -> str:
    """Return two hints as one line."""
    return f"{first}{' ' if first.endswith('?') else '; '}{second}"


def suggest_nearest(word: str, known_words: Iterable[str], otherwise: str = "") -> str:
    """Return "did you mean 'x'?" for the closest known word; else `otherwise`, or the list of known words.

    A word of the same letters is closer than all others: --modle is --model, not --modules.
    """
    names = sorted(known_words)
    same_letters = [name for name in names if sorted(name) == sorted(word)]
    matches = same_letters or difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if matches:
        return f"did you mean {matches[0]!r}?"
    if otherwise:
        return otherwise
    return f"known: {', '.join(names)}" if names else "none is known"
