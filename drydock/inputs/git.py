"""Runs git: with the user's configuration to reach a repository, and without any to read what came from it. IO."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from drydock.config.mirrors import git_environment, read_mirrors
from drydock.config.server_access import Access, redact_url
from drydock.core.commit import REPOSITORY_VARIABLES
from drydock.core.errors import DiskFullError, FetchError, InputError
from drydock.inputs.downloads import run_patiently

TIMEOUT = 1800
"""Seconds for one git command: fetching PyTorch takes minutes on a slow connection."""
SETTINGS = (
    *("-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "maintenance.auto=false"),
    *("-c", "protocol.ext.allow=never", "-c", "protocol.fd.allow=never"),
)
"""No setting of the user's may run a hook or a clean-up; no address may be a command (`ext::…`)."""
LIMITED = re.compile(r"unable to access '(?P<url>https?://[^']+)': The requested URL returned error: (?P<status>\d{3})")
"""How git says that a server refuses a request. The address is the one that it asked, after `insteadOf`."""
LARGEST_ALLOCATION = str(4 << 30)
"""Bytes that git may allocate at once, so that a small pack cannot fill the memory."""


class Limits(NamedTuple):
    """What one git command may take."""

    seconds: float = TIMEOUT
    largest: int = 0
    """Bytes of each file that it writes, where the program prlimit exists; 0 for any size."""

    def around(self, command: list[str]) -> list[str]:
        """Return a command that the kernel holds to the limit."""
        prlimit = shutil.which("prlimit") if self.largest else None
        return [prlimit, f"--fsize={self.largest}", *command] if prlimit else command


NO_LIMITS = Limits()


class UnprovenError(FetchError):
    """Git refuses objects, or lacks some; a git that is missing or too slow is another error."""


class BareRepository(NamedTuple):
    """A temporary bare repository, in which git reads no other configuration and runs no program but itself."""

    folder: Path
    name: str
    """Name of the source code, for messages."""
    search: str
    """PATH."""

    def run(self, *words: str, data: bytes = b"", output: IO[bytes] | None = None, tree: Path | None = None) -> bytes:
        """Run git; with `tree`, on the files of that folder. Raises FetchError or DiskFullError."""
        env = self.environment | ({"GIT_WORK_TREE": str(tree)} if tree else {})
        return run_limited_git(words, self.name, env, cwd=tree or self.folder, data=data, output=output)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which git runs on this repository."""
        nowhere = {"HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": os.devnull}
        alone = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1", "GIT_ALLOC_LIMIT": LARGEST_ALLOCATION}
        return {**nowhere, **alone, "PATH": self.search, "LC_ALL": "C", "GIT_DIR": str(self.folder)}


def network_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which git uses the user's configuration and mirrors, and never prompts."""
    variables = {name: value for name, value in env.items() if name not in REPOSITORY_VARIABLES}
    variables |= git_environment(read_mirrors(env), env)
    return variables | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def in_checkout(folder: Path, *words: str) -> str:
    """Return what git prints in the user's own checkout; raise as `run_limited_git` does."""
    return run_limited_git(words, f"git {words[0]}", network_environment(os.environ), cwd=folder).decode()


def run_limited_git(  # noqa: PLR0913 - the last four have defaults
    words: Iterable[str],
    name: str,
    env: Mapping[str, str],
    *,
    cwd: Path | None = None,
    data: bytes = b"",
    output: IO[bytes] | None = None,
    limits: Limits = NO_LIMITS,
) -> bytes:
    """Run git; raise FetchError with the last line of its error output, or DiskFullError.

    Raises InputError for a repository of another user, which git refuses (git-config(1), safe.directory).
    """
    command = limits.around(["git", *SETTINGS, *words])
    command_text = " ".join(redact_url(word) if "://" in word else word for word in command[-2:])
    out, err = output or subprocess.PIPE, subprocess.PIPE

    def run_once() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            env=env,
            cwd=cwd,
            input=data,
            stdout=out,
            stderr=err,
            check=False,
            timeout=limits.seconds,
            umask=0o022,
        )

    try:
        result = run_patiently(run_once, LIMITED, name, Access())
    except FileNotFoundError as error:
        raise FetchError(f"{name}: git is not installed", hint="apt-get install git") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{name}: no answer from git within {limits.seconds:g} s: {command_text}") from error
    _refuse_signal(f"{name}: {command_text}", result.returncode)
    if result.returncode and limits.largest and re.search(rb"invalid index-pack output|signal 25", result.stderr):
        raise FetchError(f"{name}: {command_text}: more than {limits.largest >> 20} MiB, or damaged")
    if result.returncode:
        _raise_git_error(
            f"{name}: {command_text}", result.stderr.decode(errors="replace").strip() or f"exit {result.returncode}"
        )
    return result.stdout or b""


def _refuse_signal(where: str, status: int) -> None:
    """Raise FetchError if something killed git, which says nothing about the objects."""
    if status < 0:
        raise FetchError(f"{where}: git was killed by signal {-status}", hint="run the same command again")


def _raise_git_error(where: str, output: str) -> None:
    message = re.sub(r"//[^/\s@]+@", "//", output.splitlines()[-1])
    if "No space left on device" in output:
        raise DiskFullError(f"{where}: {message}", hint="free some space and run the same command again")
    if trust := re.search(r"git config --global --add safe\.directory \S+", output):
        first = output.splitlines()[0].removeprefix("fatal: ")
        raise InputError(f"{where}: {first}", hint=f"if you trust its owner: {trust[0]}")
    raise UnprovenError(
        f"{where}: {message}", hint="to use a mirror, set `git` in mirrors.yaml or git's own url.<mirror>.insteadOf"
    )
