"""requirements.txt of a project: this drydock and all that it needs, by hash. IO.

Whoever owns a name in an index decides what is installed by that name, and the public index has another project called
drydock. So the file names a wheel by its hash, and pip's --require-hashes refuses whatever has no hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from drydock.ci import own_wheel, workflow
from drydock.ci.own_wheel import OwnWheel
from drydock.cli.version import DISTRIBUTION, read_own_version
from drydock.core.commit import read_commit
from drydock.core.errors import InputError, StaleError
from drydock.core.files import read_bounded, write_atomically
from drydock.core.paths import ROOT
from drydock.core.project import Project

NAME = workflow.REQUIREMENTS
STRANGER = "drydock"
"""The name of another project on the public index; `init` once wrote it."""
OWN = "# Your own requirements, each with a hash. `drydock project upgrade --write` keeps what is below this line."
_HEAD = """\
# What CI installs: pip install --require-hashes --requirement requirements.txt
# `drydock project init` and `drydock project upgrade --write` write it. The project drydock of the public Python
# index is another program: this one is known by its hash. If the wheel is on a server of yours, name it so, with the
# same hash:
# {distribution} @ https://HOST/PATH/{filename}
"""
_NEEDS = "\n# What drydock needs, in the versions that it was tested with.\n"
_OLD_HEAD = "# What CI installs: `pip install -r requirements.txt`."
HINT = "`./inv project upgrade --write` writes the wheel of this drydock with its hash, and keeps what you added"
_INCLUDES = re.compile(r"(?:-r|--requirement)[ =]*(?P<file>[^\s=]\S*)")
_AT_MOST = 4 << 20
"""Bytes of a file of requirements: a project is read before anyone has reviewed it."""


class RequirementLine(NamedTuple):
    """A requirement of a file, which may go over several lines that end with a backslash."""

    file: Path
    number: int
    """Its first line, from 1."""
    text: str
    """Without comments."""

    @property
    def requirement(self) -> str:
        """Return it without the options that follow it."""
        return re.split(r"\s--", self.text, maxsplit=1)[0].strip(" \\\n")

    @property
    def place(self) -> str:
        """Return the path or address that it names; for one that names neither, what it says."""
        return self.requirement.partition(" @ ")[2].strip() or self.requirement

    @property
    def wheel(self) -> tuple[str, str]:
        """Return distribution and version of the wheel that it names; empty texts for another requirement."""
        try:
            name, version, *_ = parse_wheel_filename(unquote(urlsplit(self.place).path).rpartition("/")[2])
        except (InvalidWheelFilename, InvalidVersion, ValueError):
            return "", ""
        return str(name), str(version)

    @property
    def name(self) -> str:
        """Return the distribution that it names; empty if it names none."""
        if self.wheel[0] and self.place == self.requirement:  # a file's name is a valid name of a distribution, too
            return self.wheel[0]
        try:
            return str(canonicalize_name(Requirement(self.requirement).name))
        except InvalidRequirement:
            return ""

    @property
    def version(self) -> str:
        """Return the version that it names; empty if it names none."""
        return self.wheel[1] or self.requirement.partition("==")[2].split(";")[0].strip()

    @property
    def hashes(self) -> set[tuple[str, str]]:
        """Return algorithm and hash of each file that it allows, in either of pip's two spellings."""
        return {*re.findall(r"(?:--hash[= ]|#|&)(sha256|sha384|sha512)[:=]([0-9a-f]+)\b", self.text)}

    def allows(self, path: Path) -> bool:
        """Return whether a file has one of the hashes: then it is the one that is meant."""
        content = path.read_bytes() if path.is_file() else b""
        return any(hashlib.new(algorithm, content).hexdigest() == value for algorithm, value in self.hashes)


# --- writing --------------------------------------------------------------------------------------------------------


def make_requirement_files(wheel: OwnWheel | None, project_lines: str = "") -> Mapping[str, bytes]:
    """Return the wheel unless it has an address, and the requirements.txt of a project that names it.

    Without a wheel it names no drydock, and CI stops at the first command. `project_lines` is what the project adds.
    """
    filename = wheel.filename if wheel else f"{own_wheel.WHEEL_NAME}-{read_own_version()}-py3-none-any.whl"
    drydock_line = ""
    if wheel:
        place = f"{DISTRIBUTION} @ {wheel.address}" if wheel.address else f"./{wheel.filename}"
        drydock_line = f"{place} \\\n    --hash=sha256:{wheel.sha256}\n"
    head = _HEAD.format(distribution=DISTRIBUTION, filename=filename)
    text = f"{head}{drydock_line}{_NEEDS}{_read_pins()}\n{OWN}\n{project_lines}"
    content = {wheel.filename: wheel.content} if wheel and wheel.content else {}
    return {**content, NAME: text.encode()}


def write_requirements(project: Project, wheel: OwnWheel) -> list[Path]:
    """Write requirements.txt and the wheel, remove the wheel that it named before; return what changed.

    Raises InputError for a file that cannot be read.
    """
    path = project.root / NAME
    lines = [*_read_lines(path)] if path.is_file() else []
    contents = make_requirement_files(wheel, _own_text(path, lines) if path.is_file() else "")
    changed_paths = [
        project.root / name for name, data in contents.items() if write_atomically(project.root / name, data)
    ]
    for line in _of_drydock(lines):
        old = project.root / line.place
        if old.name not in contents and old.suffix == ".whl" and line.allows(old):
            old.unlink()
            changed_paths.append(old)
    return changed_paths


def _own_text(path: Path, lines: Sequence[RequirementLine]) -> str:
    """Return what a project added to the file: what is below our last comment, or else what we did not write."""
    text = path.read_text(encoding="utf-8")
    if f"{OWN}\n" in text:
        return text.partition(f"{OWN}\n")[2]
    names = {STRANGER, DISTRIBUTION, *own_wheel.parse_pins(_read_pins())}
    ours = {
        line.number + more
        for line in lines
        if line.file == path and line.name in names
        for more in range(line.text.count("\n") + 1)
    }
    numbered_lines = enumerate(text.splitlines(keepends=True), 1)
    return "".join(line for place, line in numbered_lines if place not in ours and not line.startswith(_OLD_HEAD))


def _read_pins() -> str:
    return (ROOT / own_wheel.INSTALL_REQUIREMENTS).read_text(encoding="utf-8")


# --- checking -------------------------------------------------------------------------------------------------------


def find_problems(project: Project) -> tuple[str, ...]:
    """Return what is wrong with the drydock that a project's CI installs; nothing without a file and without CI.

    Raises InputError for a file that cannot be read.
    """
    path = project.root / NAME
    if not path.is_file():
        return (
            (f"{NAME}: file not found: CI installs drydock from it",)
            if workflow.list_present_workflows(project)
            else ()
        )
    lines = [*_of_drydock(_read_lines(path))]
    if not lines:
        return (f"{NAME}: names no {DISTRIBUTION}: CI cannot start drydock",)
    return tuple(problem for line in lines for problem in _problems_of(project, line))


def check_requirements(project: Project) -> None:
    """Raise StaleError if a project's CI installs another drydock than this one, or whatever an index has."""
    if project.below and (problems := find_problems(project)):
        raise StaleError(*problems, hint=HINT)


def _problems_of(project: Project, line: RequirementLine) -> Iterator[str]:
    """Yield what is wrong with a line that names drydock."""
    where = f"{project.name_of(line.file)}:{line.number}: {line.requirement}"
    if line.name == STRANGER and not line.hashes:
        yield f"{where}: on the public Python index this is another project, which CI would install and run"
    elif not line.hashes:
        yield f"{where}: has no hash: whoever owns the name or the address decides what CI runs"
    elif line.name == STRANGER or line.version not in ("", read_own_version()):
        yield f"{where}: this drydock is {DISTRIBUTION} {read_own_version()}"
    elif line.place.endswith(".whl") and "://" not in line.place:
        yield from _problems_of_file(project.root / line.place, line, where)


def _problems_of_file(path: Path, line: RequirementLine, where: str) -> Iterator[str]:
    """Yield what is wrong with the wheel in a project. pip takes a path from the folder that it runs in: the root."""
    made_of, commit = own_wheel.read_wheel_commit(path), read_commit(ROOT)
    if not path.is_file():
        yield f"{where}: file not found"
    elif not line.allows(path):
        yield f"{where}: the file has another hash"
    elif made_of and commit and made_of != commit:
        yield f"{where}: made of commit {made_of[:12]}, and this drydock is of {commit[:12]}"


def _of_drydock(lines: Iterable[RequirementLine]) -> Iterator[RequirementLine]:
    """Yield the lines that name drydock, by this name or by the one that another project has."""
    return (line for line in lines if line.name in (DISTRIBUTION, STRANGER))


def _read_lines(path: Path, including: tuple[Path, ...] = ()) -> Iterator[RequirementLine]:
    """Yield the requirements of a file and of those that it includes. Raises InputError."""
    try:
        text = read_bounded(path, _AT_MOST).decode().replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise InputError(f"{path}: {reason}", hint=f"correct it; or remove it: {HINT}") from error
    for match in re.finditer(r"^(?:.*\\\n)*.*$", text, re.MULTILINE):
        content = re.sub(r"(^|[ \t])#.*", "", match[0], flags=re.MULTILINE)
        line = RequirementLine(path, text.count("\n", 0, match.start()) + 1, content)
        included = _INCLUDES.match(line.text.strip())
        if included and path not in including:
            yield from _read_lines(path.parent / included["file"], (*including, path))
        elif line.text.strip():
            yield line
