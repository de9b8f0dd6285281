"""An ordinary user to run tests as: uid 1000 in group docker, with a home and a Python of its own. IO, as root."""

from __future__ import annotations

import grp
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from drydock.core.errors import InputError
from drydock.core.files import link_or_copy
from drydock.core.paths import CACHE, cache_home
from drydock.development import other_pythons

UID = 1000
"""The first user that Debian gives a login: FIRST_UID of adduser.conf(5)."""
PARENT = Path("/var/tmp")  # noqa: S108 - a folder in it is made by mkdtemp
"""Where homes are made: a folder that every user can reach, on a disk with room for a store."""
FETCHED = ("store", "bases", "foundations", "images", "models")
"""Folders of the cache that the tests of an ordinary user start with: they are large, and checked before each use."""
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
"""An ordinary user's PATH, which lacks /usr/sbin."""


class OrdinaryUser(NamedTuple):
    """A user that has nothing but a home, and may use the engine."""

    home: Path
    python: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of its processes: those of this one, but for what names root's own folders."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DRYDOCK_"))}
        user_variables = {
            "HOME": str(self.home),
            "PATH": SEARCH_PATH,
            CACHE: str(self.home / "cache"),
            "TMPDIR": str(self.home),
        }
        return inherited | user_variables

    def run(self, command: Sequence[str], folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; the options are those of subprocess.run."""
        return subprocess.run(
            command, cwd=folder, env=self.environment, text=True, check=False, **_make_identity_options(), **options
        )

    def give_folder(self, folder: Path, *, files: bool = True) -> None:
        """Give a folder and what is in it to the user; without `files`, only folders: files may have other names."""
        for parent, _, names in os.walk(folder):
            for path in (Path(parent), *(Path(parent, name) for name in (names if files else ()))):
                os.chown(path, UID, UID, follow_symlinks=False)

    def take_checkout(self, root: Path) -> Path:
        """Put a copy of a checkout into the user's home, and what its cache has of inputs and images; return it."""
        checkout = self.home / "checkout"
        ignore = shutil.ignore_patterns(".venv", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(root, checkout, symlinks=True, ignore=ignore)
        self.give_folder(checkout)
        for folder in (cache_home() / name for name in FETCHED):
            if folder.is_dir():
                self.take_copy(folder, self.home / "cache" / folder.name)
        self.give_folder(self.home / "cache", files=False)
        return checkout

    def take_copy(self, source: Path, target: Path) -> None:
        """Put a copy of a folder, whose files it can read, below the user's home; lock files must be its own."""
        ignore = shutil.ignore_patterns("lock", "*.lock")
        shutil.copytree(source, target, symlinks=True, copy_function=link_or_copy, ignore=ignore, dirs_exist_ok=True)
        self.give_folder(target, files=False)


@contextmanager
def ordinary_user() -> Iterator[OrdinaryUser]:
    """Yield an ordinary user; its home is removed afterwards. Raises InputError if there is no Python that it can run.

    Only root can become another user.
    """
    with tempfile.TemporaryDirectory(prefix="drydock-user-", dir=PARENT) as name:
        user = OrdinaryUser(Path(name), Path(name, "python", "bin", "python"))
        user.home.chmod(0o755)
        user.take_copy(_reachable_environment(), user.home / "python")
        user.give_folder(user.home, files=False)
        yield user


def _reachable_environment() -> Path:
    """Return the environment whose Python the user can run: this one, or that of the distribution's Python."""
    if _can_run(Path(sys.executable).resolve()):
        return Path(sys.prefix)
    python = other_pythons.distribution_python()
    if python is None or not _can_run(python):
        raise InputError(
            f"{Path(sys.executable).resolve()}: an ordinary user cannot run it", hint="as root: apt-get install python3"
        )
    return other_pythons.interpreter_of(python).parent.parent


def _can_run(python: Path) -> bool:
    try:
        result = subprocess.run(
            [str(python), "-I", "-c", ""], cwd="/", capture_output=True, check=False, **_make_identity_options()
        )
    except PermissionError:
        return False
    return result.returncode == 0


def _make_identity_options() -> Mapping[str, Any]:
    """Return the options of subprocess that make a process the user's."""
    return {"user": UID, "group": UID, "extra_groups": [grp.getgrnam("docker").gr_gid]}
