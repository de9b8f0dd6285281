"""A machine's device files, driver files and groups, which containers may get. Read-only IO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from drydock.model.running import DeviceNode

FIRST_RENDER_NODE = 128
"""The kernel numbers /dev/dri/renderD… from here on (drivers/gpu/drm/drm_drv.c, render minors)."""

_PLACEHOLDER = re.compile(r"\[0-9\]\*|\[0-9\]|\*|\?")


class Machine:
    """The machine whose files are below `root`: tests use other roots."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def matches(self, pattern: str) -> tuple[str, ...]:
        """Return the paths that match a shell pattern, davinci2 before davinci10."""
        paths = self.root.glob(pattern.lstrip("/"))
        return tuple(sorted((f"/{path.relative_to(self.root)}" for path in paths), key=make_natural_key))

    def has(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return (self.root / path.lstrip("/")).exists()

    def number(self, path: str) -> int | None:
        """Return the number in a file; None without such a file or number."""
        file = self.root / path.lstrip("/")
        text = file.read_text(errors="replace").strip() if file.is_file() else ""
        return int(text) if text.isdecimal() else None

    @property
    def pci(self) -> frozenset[str]:
        """Return vendor and device of everything on the PCI bus: 1da3:1021."""
        folders = (self.root / "sys" / "bus" / "pci" / "devices").glob("*")
        return frozenset(f"{_pci_id(folder / 'vendor')}:{_pci_id(folder / 'device')}" for folder in folders)

    def group(self, name: str) -> str:
        """Return a group's number as text; empty if /etc/group has no such group."""
        path = self.root / "etc" / "group"
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        fields = (line.split(":") for line in lines)
        return next((field[2] for field in fields if field[0] == name and len(field) > 2), "")  # noqa: PLR2004 - the gid


def _pci_id(file: Path) -> str:
    return file.read_text(errors="replace").strip().removeprefix("0x") if file.is_file() else ""


def make_natural_key(path: str) -> list[str]:
    """Return a key that sorts numbers in text by their value."""
    return [part.zfill(20) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def is_pattern(path: str) -> bool:
    """Return whether a path is a pattern."""
    return bool(_PLACEHOLDER.search(path))


def assume_device_files(node: DeviceNode, numbers: Sequence[int]) -> tuple[str, ...]:
    """Return the device files that a machine with this accelerator usually has."""
    if not is_pattern(node.path):
        return (node.path,)
    if not node.each:
        return ()
    first = FIRST_RENDER_NODE if "renderD" in node.path else 0
    return tuple(_PLACEHOLDER.sub(str(first + number), node.path, count=1) for number in numbers)


def pick_device_files(paths: Sequence[str], chosen_numbers: Sequence[int]) -> tuple[dict[int, str], list[int]]:
    """Choose device files by number; return number → file, and the numbers without a file.

    A file's number is the last number in its name if these start at 0 (128 for render nodes), because drivers keep it
    when a card is missing. Otherwise, as for VFIO groups, it is the file's position.
    """
    ends = [int(digits[-1]) if (digits := re.findall(r"\d+", path)) else -1 for path in paths]
    first = FIRST_RENDER_NODE if any("renderD" in path for path in paths) else 0
    is_numbered = bool(ends) and min(ends) == first and len(set(ends)) == len(ends)
    numbers = [end - first for end in ends] if is_numbered else range(len(paths))
    files_by_number = dict(zip(numbers, paths, strict=True))
    return {number: files_by_number[number] for number in chosen_numbers if number in files_by_number}, [
        n for n in chosen_numbers if n not in files_by_number
    ]
