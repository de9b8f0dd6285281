"""A project: a folder whose files lie over those of lower layers. IO.

drydock's own files are the lowest layer, and this repository is a project with nothing below it. A file of a higher
layer stands for the file of the same name below; what YAML files of several layers say is merged in config/layers.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Project:
    """The folders of a project. `/` and `glob` are those of a path, through all layers."""

    root: Path
    """The highest layer, where files are written."""
    below: tuple[Path, ...] = ()
    """Lower layers, the nearest first. They are only read."""

    @property
    def layers(self) -> tuple[Path, ...]:
        """Return all layers, the highest first."""
        return (self.root, *self.below)

    def __truediv__(self, name: str) -> Path:
        """Return what the highest layer has by this name; where to write it if none has it."""
        return next((layer / name for layer in self.layers if (layer / name).exists()), self.root / name)

    def each(self, name: str) -> list[Path]:
        """Return the files of this name in all layers, the lowest first."""
        return [layer / name for layer in reversed(self.layers) if (layer / name).is_file()]

    def glob(self, pattern: str) -> Iterator[Path]:
        """Yield the files that match in any layer, by name; of one name only that of the highest layer."""
        found = {path.relative_to(layer): path for layer in reversed(self.layers) for path in layer.glob(pattern)}
        yield from (found[name] for name in sorted(found))

    def name_of(self, path: Path) -> str:
        """Return the name of a file in its layer; the whole path of one that is in none."""
        layer = next((layer for layer in self.layers if path.is_relative_to(layer)), None)
        return str(path.relative_to(layer)) if layer else str(path)
