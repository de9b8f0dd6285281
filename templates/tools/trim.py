"""Remove unused parts of an installed distribution: files by glob, and symbols that only debuggers use.

RECORD is updated: dropped files are removed from it, stripped files get their new hash and size. strip of binutils
would do the same, but would have to be installed in every vendor's base.
Source: Python packaging specifications, "Recording installed projects"; System V ABI, gABI 4.1, chapters 4 and 5.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import struct
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

SHF_ALLOC = 2
SHT_NOBITS = 8


class Section(NamedTuple):
    """A section header of a 64-bit ELF file, with the fields in file order."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int

    @property
    def end(self) -> int:
        """Return the offset in the file where its bytes end."""
        return self.offset + (0 if self.type == SHT_NOBITS else self.size)


EMPTY = Section(*[0] * 10)


def stripped(content: bytes) -> bytes:
    """Return a 64-bit ELF file without sections that are not loaded; any other file is returned unchanged.

    Loaded parts keep their offset and bytes, so only the end of the file is cut. Symbols and debugging information are
    there, unless a tool has moved other sections behind them.
    """
    try:
        smaller = _cut(content) if content[:5] == b"\x7fELF\x02" else content
    except (struct.error, IndexError, OverflowError):  # an invalid ELF file
        return content
    return smaller if len(smaller) < len(content) else content


def _cut(content: bytes) -> bytes:
    """Return the file up to the last loaded section, then the section names, then the headers up to that section.

    Headers keep their numbers, because other headers refer to them. A removed section leaves an empty header.
    """
    order = "<" if content[5] == 1 else ">"
    program, table = struct.unpack_from(f"{order}QQ", content, 32)
    program_size, programs, _, count, names = struct.unpack_from(f"{order}5H", content, 54)
    sections = [Section(*struct.unpack_from(f"{order}IIQQQQIIQQ", content, table + 64 * i)) for i in range(count)]
    segments = [struct.unpack_from(f"{order}QQQQ", content, program + program_size * i + 8) for i in range(programs)]
    last = max((number for number, section in enumerate(sections) if section.flags & SHF_ALLOC), default=0)
    ends = [program + program_size * programs, *(offset + size for offset, _, _, size in segments)]
    end = max([*ends, *(section.end for section in sections if section.flags & SHF_ALLOC)])
    text = sections[names]
    kept = [s._replace(link=s.link if s.link <= last else 0) if s.flags & SHF_ALLOC else EMPTY for s in sections]
    result = bytearray(memoryview(content)[:end])  # hundreds of megabytes: copy them only once
    result += content[text.offset : text.end]
    result += bytes(-len(result) % 8)
    headers = [*kept[: last + 1], text._replace(offset=end)]
    struct.pack_into(f"{order}Q", result, 40, len(result))
    struct.pack_into(f"{order}HH", result, 60, len(headers), len(headers) - 1)
    result += b"".join(struct.pack(f"{order}IIQQQQIIQQ", *header) for header in headers)
    return bytes(result)


def trim(site: Path, record: Path, drop: list[str], strip: list[str]) -> tuple[int, int]:
    """Trim the distribution of a RECORD in its site-packages folder; return the dropped and the stripped bytes.

    Patterns are matched against the paths in RECORD. `*` also matches slashes.
    """
    rows, dropped, cut, folders = [], 0, 0, set()
    for path, checksum, size in csv.reader(record.read_text().splitlines()):
        file = site / path
        if any(fnmatchcase(path, pattern) for pattern in drop):
            dropped += file.stat().st_size
            file.unlink()
            folders.add(file.parent)
        elif any(fnmatchcase(path, pattern) for pattern in strip):
            before, after = strip_file(file)
            cut += before - len(after)
            rows.append((path, f"sha256={_encoded(after)}", str(len(after))))
        else:
            rows.append((path, checksum, size))
    if not dropped and not cut:  # do not write RECORD: the layer would contain it again
        return 0, 0
    remove_empty(folders, site)
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows(rows)
    record.write_text(lines.getvalue())
    return dropped, cut


def record_of(site: Path, distribution: str) -> Path | None:
    """Return the RECORD of a distribution by its normalised name; None if it is not installed."""
    for folder in site.glob("*.dist-info"):
        if re.sub(r"[-_.]+", "-", folder.name.partition("-")[0]).lower() == distribution:
            return folder / "RECORD"
    return None


def remove_empty(folders: set[Path], site: Path) -> None:
    """Remove the empty folders among these, then their parents that have become empty."""
    while folders:
        empty = {folder for folder in folders if folder != site and not any(folder.iterdir())}
        for folder in empty:
            folder.rmdir()
        folders = {folder.parent for folder in empty}


def strip_file(file: Path) -> tuple[int, bytes]:
    """Strip a file in place and keep its mode; return its old size and its new content."""
    content = file.read_bytes()
    after = stripped(content)
    if len(after) == len(content):
        return len(content), content
    new = file.with_name(f"{file.name}.stripped")
    new.write_bytes(after)
    new.chmod(file.stat().st_mode)
    new.replace(file)
    return len(content), after


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def trim_installed(site: Path, distribution: str, drop: list[str], strip: list[str]) -> None:
    """Trim a distribution by its normalised name, and say what that saved."""
    record = record_of(site, distribution)
    if record is None:
        sys.stderr.write(f"{distribution}: not installed, nothing to trim\n")
        return
    dropped, cut = trim(site, record, drop, strip)
    sys.stderr.write(f"{distribution}: {dropped / 1e6:.1f} MB dropped, {cut / 1e6:.1f} MB stripped\n")
