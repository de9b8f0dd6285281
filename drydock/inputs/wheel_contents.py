"""What wheels contain, read when they are locked: their metadata, and the paths that they install. IO; checks are pure.

Of a wheel on a server only its directory and its metadata are read, with range requests. Sources: the binary
distribution format (https://packaging.python.org/en/latest/specifications/binary-distribution-format/); RFC 9110, 14.
"""

from __future__ import annotations

import configparser
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from drydock.config.server_access import Access
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import open_regular
from drydock.inputs.device_code import DeviceCode, read_device_code

WINDOW = 256 << 10
"""Bytes that are requested at once: the end of most wheels, with the whole directory and the metadata."""
LARGEST_DIRECTORY = 64 << 20
"""Bytes of a wheel's directory, and of one file of metadata. PyTorch's directory has 2 MB."""
CODE_WINDOW = 8 << 20
"""Bytes that are requested at once of a library's code; PyTorch's has 500 million."""
CODE_FILES = re.compile(r"\.so(?:\.[0-9.]+)?$|\.cubin$|\.fatbin$")
"""Files that may have code for devices."""
MOST_CODE_FILES = 100_000
"""Such files of a wheel; flashinfer-cubin has tens of thousands."""
SHOWN = 3
"""Paths that an error names."""
PATCHES = 50
"""More than any Python has releases with the same two first numbers."""
PREFIX = {"purelib": "site-packages/", "platlib": "site-packages/", "scripts": "bin/", "data": ""}
"""Folder below NAME.data → where its files are installed, relative to the environment. Both libs are one folder."""
SHARED_HINT = (
    "the wheels of a layer are installed in parallel, so either may win, and the image may not be reproducible: leave "
    "one out (the stack's `exclude`), or name one in another of the stack's `layers`: the later layer then wins"
)


DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    LookupError,
    RuntimeError,
    ValueError,
)
"""What zipfile raises for a damaged archive, and for one with a password or an unknown compression."""


class WheelContents(NamedTuple):
    """What a wheel says and installs."""

    filename: str
    name: str
    version: str
    """Name and version in METADATA."""
    paths: Mapping[str, str]
    """Path in the environment → what tells its content from another's: size and CRC-32, or an entry point."""
    requires: tuple[str, ...] = ()
    """What it requires, as its METADATA says it."""
    requires_python: str = ""
    """Versions of Python that METADATA allows, such as >=3.9,<3.13; empty for any."""

    @property
    def required_names(self) -> frozenset[str]:
        """Normalised names of the distributions that METADATA names, whatever the condition."""
        names = (re.match(r"[A-Za-z0-9._-]+", line.strip()) for line in self.requires)
        return frozenset(canonicalize_name(name[0]) for name in names if name)

    def allows_python(self, python: str) -> bool:
        """Tell whether METADATA allows any release of a Python such as 3.11; pip, too, ignores what it cannot read."""
        try:
            allowed = SpecifierSet(self.requires_python)
        except InvalidSpecifier:
            return True
        return any(allowed.contains(f"{python}.{patch}") for patch in range(PATCHES))


class ReadLimits(NamedTuple):
    """How a file on a server is read in ranges."""

    window: int
    """Bytes that are requested at once."""
    most: int
    """Bytes that are requested together."""
    name: str
    """What these bytes are, for an error."""


DIRECTORY_LIMITS = ReadLimits(WINDOW, LARGEST_DIRECTORY, "its directory")


class NoRangesError(Exception):
    """A server sends whole files only. Never shown to the user."""


# --- reading --------------------------------------------------------------------------------------------------------


def read_local_wheel(path: Path, filename: str) -> WheelContents:
    """Read a wheel on this machine. Raises InputError for a file that is no wheel."""
    with open_regular(path) as file:
        return _read_wheel(file, filename)


def read_remote_wheel(url: str, filename: str, size: int, access: Access) -> WheelContents:
    """Read a wheel on a server. Raises FetchError, InputError for a file that is no wheel, and NoRangesError."""
    with io.BufferedReader(_open_remote(url, filename, size, access), 1 << 12) as file:
        return _read_wheel(file, filename)


def read_local_code(path: Path, filename: str) -> dict[str, DeviceCode]:
    """Return path → its code for devices, of the files of a wheel that have some. Raises InputError."""
    with open_regular(path) as file:
        return _read_code(file, filename)


def read_remote_code(url: str, filename: str, size: int, access: Access) -> dict[str, DeviceCode]:
    """Return the same of a wheel on a server; of its bytes none is stored. Raises as read_remote_wheel does."""
    limits = ReadLimits(CODE_WINDOW, most=2 * size + LARGEST_DIRECTORY, name="what was read of it")
    with io.BufferedReader(_open_remote(url, filename, size, access, limits), 1 << 16) as file:
        return _read_code(file, filename)


def _open_remote(
    url: str, filename: str, size: int, access: Access, limits: ReadLimits = DIRECTORY_LIMITS
) -> _RemoteFile:
    from drydock.inputs.downloads import read_answer  # noqa: PLC0415 - what only checks wheels speaks to no server

    def read_range(start: int, end: int) -> bytes:
        answer = read_answer(url, filename, access, end - start, {"Range": f"bytes={start}-{end - 1}"})
        if answer.status != 206 or len(answer.body) != end - start:  # noqa: PLR2004 - Partial Content
            raise NoRangesError
        return answer.body

    return _RemoteFile(read_range, size, limits)


class _RemoteFile(io.RawIOBase):
    """A file that is read in ranges; the last one is kept."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int, limits: ReadLimits) -> None:
        super().__init__()
        self._read_range, self._size, self._limits = read_range, size, limits
        self._position, self._start, self._window, self._received = 0, 0, b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, origin: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[origin]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(buffer), self._size - self._position))
        end = self._position + count
        if count and not self._start <= self._position < end <= self._start + len(self._window):
            window = self._limits.window
            self._start = max(0, min(self._position, self._size - window))
            self._receive(min(self._size, max(end, self._start + window)))
        offset = self._position - self._start
        buffer[:count] = self._window[offset : offset + count]
        self._position = end
        return count

    def _receive(self, end: int) -> None:
        self._received += end - self._start
        if self._received > self._limits.most:
            raise zipfile.BadZipFile(f"{self._limits.name} has more than {self._limits.most >> 20} MiB")
        self._window = self._read_range(self._start, end)


def _read_wheel(file: IO[bytes], filename: str) -> WheelContents:
    try:
        with zipfile.ZipFile(file) as archive:
            return _read_archive(archive, filename)
    except DAMAGED as error:
        raise InputError(
            f"{filename}: not a wheel that can be read: {error}", hint="name another build of it"
        ) from error


def _read_code(file: IO[bytes], filename: str) -> dict[str, DeviceCode]:
    """Return path → its code for devices, of the libraries in a wheel. Raises InputError."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if CODE_FILES.search(name)]
            if len(names) > MOST_CODE_FILES:
                raise ValueError(f"{len(names)} files that may have code for devices, expected {MOST_CODE_FILES}")
            return dict(_read_members(archive, names))
    except DAMAGED as error:
        raise InputError(
            f"{filename}: not a wheel that can be read: {error}", hint="name another build of it"
        ) from error


def _read_members(archive: zipfile.ZipFile, names: Iterable[str]) -> Iterator[tuple[str, DeviceCode]]:
    for name in names:
        with archive.open(name) as member:
            code = read_device_code(member)
        if code.counts:
            yield name, code


def _read_archive(archive: zipfile.ZipFile, filename: str) -> WheelContents:
    folder = _find_metadata_folder(archive, filename)
    fields = HeaderParser().parsestr(_read_text(archive, f"{folder}/METADATA"))
    paths = {_installed_path(entry.filename): f"{entry.file_size} {entry.CRC:08x}" for entry in archive.infolist()}
    paths = {path: content for path, content in paths.items() if path and not path.endswith("/")}
    if f"{folder}/entry_points.txt" in archive.NameToInfo:
        paths |= _read_scripts(_read_text(archive, f"{folder}/entry_points.txt"))
    requires = tuple(str(line) for line in fields.get_all("Requires-Dist", ()))
    python = str(fields.get("Requires-Python", ""))
    return WheelContents(filename, str(fields["Name"]), str(fields["Version"]), paths, requires, python)


def _find_metadata_folder(archive: zipfile.ZipFile, filename: str) -> str:
    """Return the wheel's own .dist-info; a wheel may contain others, of packages that are vendored."""
    folders = [name.rpartition("/")[0] for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    top = [folder for folder in folders if "/" not in folder]
    name = canonicalize_name(filename.partition("-")[0])
    matching = [folder for folder in top if canonicalize_name(folder.partition("-")[0]) == name] or top
    if len(matching) != 1:
        raise ValueError(f"expected one folder NAME-VERSION.dist-info with METADATA, found {len(matching)}")
    return matching[0]


def _read_text(archive: zipfile.ZipFile, name: str) -> str:
    with archive.open(name) as file:
        data = file.read(LARGEST_DIRECTORY + 1)
    if len(data) > LARGEST_DIRECTORY:
        raise ValueError(f"{name} has more than {LARGEST_DIRECTORY >> 20} MiB")
    return data.decode()


def _installed_path(path: str) -> str:
    """Return where a file of a wheel is installed, relative to the environment; "" for one of headers."""
    top, _, rest = path.partition("/")
    if not top.endswith(".data") or not rest:
        return f"site-packages/{path}"
    kind, _, rest = rest.partition("/")
    if kind not in PREFIX or not rest:
        return ""  # headers have a folder for each distribution
    return re.sub(r"^lib(64)?/python3\.\d+/site-packages/", "site-packages/", f"{PREFIX[kind]}{rest}")


def _read_scripts(text: str) -> dict[str, str]:
    """Return the programs that are made of entry points: bin/NAME → what it calls."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[method-assign,assignment] # names keep their case
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(f"entry_points.txt: {error.message}") from error
    groups = [parser[group] for group in ("console_scripts", "gui_scripts") if parser.has_section(group)]
    return {f"bin/{name}": f"entry point {target}" for group in groups for name, target in group.items()}


# --- checks ---------------------------------------------------------------------------------------------------------


def check_wheels(wheels: Sequence[WheelContents], layers: Sequence[Sequence[str]] = ()) -> None:
    """Raise InputError for wheels whose name or version is not their file's; warn of two that install the same path.

    `layers` has the distributions of each layer that names some; all others are in one layer. A shared path is no
    error: flashinfer-python and torch-c-dlpack-ext both install a build_backend.py that nothing imports.
    """
    if problems := [problem for wheel in wheels for problem in _metadata_problems(wheel)]:
        hint = (
            "pip refuses such a wheel, and an image with it cannot be published: name another version, or give the "
            "file the name that its METADATA has and put it into a folder of pip's find-links"
        )
        raise InputError(*problems, hint=hint)
    numbers = {canonicalize_name(name): number for number, names in enumerate(layers) for name in names}
    groups: dict[int, list[WheelContents]] = {}
    for wheel in wheels:
        groups.setdefault(numbers.get(canonicalize_name(wheel.name), -1), []).append(wheel)
    for problem in (problem for group in groups.values() for problem in _shared_path_problems(group)):
        log(f"warning: {problem}: {SHARED_HINT}")


def _metadata_problems(wheel: WheelContents) -> Iterator[str]:
    """Yield how METADATA differs from the file's name, by PEP 440: 1.0 is 1.0.0, and 1.0+cu130 is not 1.0."""
    try:
        name, version, _, _ = parse_wheel_filename(wheel.filename)
    except InvalidWheelFilename as error:
        yield str(error)
        return
    if name != canonicalize_name(wheel.name):
        yield f"{wheel.filename}: its METADATA is of {wheel.name}, expected {name}"
    try:
        has_same_version = version == Version(wheel.version)
    except InvalidVersion:
        has_same_version = False
    if not has_same_version:
        yield f"{wheel.filename}: its METADATA has version {wheel.version}, expected {version}"


def _shared_path_problems(wheels: Iterable[WheelContents]) -> Iterator[str]:
    """Yield which wheels install one path with different content. The same content, as of a namespace, does no harm."""
    installed: dict[str, list[tuple[WheelContents, str]]] = {}
    for wheel in wheels:
        for path, content in wheel.paths.items():
            installed.setdefault(path, []).append((wheel, content))
    shared: dict[tuple[str, ...], list[str]] = {}
    for path, owners in installed.items():
        if len({content for _, content in owners}) > 1:
            shared.setdefault(tuple(sorted(wheel.filename for wheel, _ in owners)), []).append(path)
    for filenames, paths in sorted(shared.items()):
        more_count = len(paths) - SHOWN
        names = ", ".join(sorted(paths)[:SHOWN]) + (f" and {more_count} more paths" if more_count > 0 else "")
        yield f"{' and '.join(filenames)}: each installs its own {names}"
