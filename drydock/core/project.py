"""A project: a folder whose files lie over those of lower layers. IO.

drydock's own files are the lowest layer, and this repository is a project with nothing below it. A file of a higher
layer stands for the file of the same name below; what YAML files of several layers say is merged in
config/project_layers.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from drydock import INSTALLED
from drydock.core.errors import InputError
from drydock.core.files import has_file, hold_lock_file, write_together
from drydock.core.ownership import find_writer, find_writers
from drydock.core.paths import ROOT, cache_home

LOWEST = "drydock"
"""Name of drydock's own layer. NAME/ROW is a row of the layer NAME where a project's files name it."""
ENTRYPOINT = ("*.py", "*.sh", "*.html", "*.json", "*.dist-info/*")
"""Files of entrypoints/ that are in an image: modules, scripts, pages, lists, the plugin's metadata."""


SHOWN_WRITERS = 5
"""Files in one error about other users: the first ones suffice to find the rest."""


def list_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that match, sorted, without hidden ones.

    Editors keep those next to a file that is open (Emacs: .#NAME, a link to nothing), macOS on shares (._NAME).
    """
    return [path for path in sorted(folder.glob(pattern)) if not path.name.startswith(".")]


@dataclass(frozen=True)
class Project:
    """The folders of a project. `/` and `glob` are those of a path, through all layers.

    What every image depends on is read once: another record of the same project reads it again.
    """

    root: Path
    """The highest layer, where files are written."""
    below: tuple[Path, ...] = ()
    """Lower layers, the nearest first: those of others, then drydock's own. They are only read."""
    others: tuple[str, ...] = ()
    """Names of the layers of others, the nearest first."""
    is_discovered: bool = field(default=False, compare=False)
    """Whether no option or variable named the root. Then it has no file that another user could have written."""

    @property
    def layers(self) -> tuple[Path, ...]:
        """Return all layers, the highest first."""
        return (self.root, *self.below)

    @property
    def lower(self) -> Project:
        """Return the project of the layers below; there must be one."""
        return Project(self.below[0], self.below[1:], self.others[1:])

    @property
    def named(self) -> dict[str, Path]:
        """Return all layers by name, the lowest first; the highest has an empty one."""
        names = ("", *self.others, LOWEST)
        return dict(reversed([*zip(names, self.layers, strict=False)]))

    def __truediv__(self, name: str) -> Path:
        """Return the file of this name in the highest layer that has it; if none has it, where to write it."""
        return next((layer / name for layer in self.layers if (layer / name).is_file()), self.root / name)

    def list_layer_files(self, name: str) -> list[Path]:
        """Return the files of this name in all layers, the lowest first."""
        return [layer / name for layer in reversed(self.layers) if has_file(layer / name)]

    def glob(self, pattern: str) -> Iterator[Path]:
        """Yield the files that match in any layer, by name; of one name only that of the highest layer."""
        paths = {
            path.relative_to(layer): path for layer in reversed(self.layers) for path in list_files(layer, pattern)
        }
        yield from (paths[name] for name in sorted(paths))

    @cached_property
    def entrypoint(self) -> Mapping[str, bytes]:
        """Return the files of the entrypoint that every image gets, by path; read once for all images."""
        paths = sorted(path for pattern in ENTRYPOINT for path in self.glob(f"entrypoints/**/{pattern}"))
        return {self.name_of(path).removeprefix("entrypoints/"): path.read_bytes() for path in paths}

    @cached_property
    def entrypoint_hashes(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of the entrypoint."""
        return {f"entrypoints/{name}": hashlib.sha256(content).hexdigest() for name, content in self.entrypoint.items()}

    @cached_property
    def tools(self) -> Mapping[str, bytes]:
        """Return the programs that run while an image is built, by name; read once for all images."""
        return {path.name: path.read_bytes() for path in self.glob("templates/tools/*.py")}

    @property
    def is_installed(self) -> bool:
        """Return whether this is an installed drydock alone, whose files are only read."""
        return INSTALLED and self.root == ROOT

    @contextlib.contextmanager
    def hold_files(self) -> Iterator[None]:
        """Hold a lock while files that people write are read, changed and written: a second run would undo the first.

        Logs a message if it has to wait. Raises InputError where the cache has no locks.
        """
        name = hashlib.sha256(os.fsencode(self.root.resolve())).hexdigest()
        with hold_lock_file(cache_home() / "projects" / f"{name}.lock"):
            yield

    def check_writers(self, names: Sequence[str], folders: Sequence[Path] = ()) -> None:
        """Raise InputError if the project was found, and another user could have written files of it, or to folders.

        Files are named in the root; a folder among them counts with all that is in it.
        """
        if not self.is_discovered:
            return
        above = [self.root / folder for name in names for folder in Path(name).parents]
        alone = map(find_writer, dict.fromkeys((*folders, *above)))
        writers = [*dict.fromkeys((*filter(None, alone), *find_writers(self.root / name for name in names)))]
        if writers:
            more_count = len(writers) - SHOWN_WRITERS
            more = (f"and {more_count} more",) if more_count > 0 else ()
            raise InputError(*writers[:SHOWN_WRITERS], *more, hint=self._hint_at_option())

    def _hint_at_option(self) -> str:
        return (
            "a project's files run code, and this one was found in the current folder or above it; if you trust who can"
            f" write to it, name it: ./inv --project {shlex.quote(str(self.root))} TASK; if it is yours alone, chown it"
            " and run chmod -R go-w; otherwise start in another folder"
        )

    def check_writable(self, name: str) -> None:
        """Raise InputError for an installed drydock: before long work whose result is written."""
        if self.is_installed:
            raise InputError(
                f"{name}: cannot be written: {self.root} is the installed drydock, which is only read",
                hint="`./inv project init DIR` makes a project; run this in it",
            )

    def write(self, name: str, content: str) -> Path | None:
        """Write a file into the highest layer, unless the project has this content by this name; return the file.

        Raises InputError for an installed drydock.
        """
        return next(iter(self.write_together({name: content})), None)

    def write_together(self, contents: Mapping[str, str]) -> list[Path]:
        """Write files, named as in `write`, that only fit together; return those that changed."""
        changed = {
            name: content
            for name, content in contents.items()
            if not (self / name).is_file() or (self / name).read_bytes() != content.encode()
        }
        for name in changed:
            self.check_writable(name)
        return write_together({self.root / name: content for name, content in changed.items()})

    def is_own(self, path: Path) -> bool:
        """Return whether a file is in the highest layer."""
        return self._layer_of(path) == self.root

    def name_of(self, path: Path) -> str:
        """Return the name of a file in its layer; the whole path of one that is in none."""
        layer = self._layer_of(path)
        return str(path.relative_to(layer)) if layer else str(path)

    def shown(self, path: Path) -> str:
        """Return how messages name a file: one of a lower layer by its path, so that the reader can open it."""
        return self.name_of(path) if self.is_own(path) else str(path)

    def recorded(self, path: Path, after: str = "/") -> str:
        """Return how documents name a file, on every machine: after drydock/, or another's name, in a lower layer."""
        owner = self.owner_of(path)
        return f"{owner}{after if owner else ''}{self.name_of(path)}"

    def owner_of(self, path: Path) -> str:
        """Return the name of the layer that a file is in."""
        owning_layer = self._layer_of(path)
        return next((name for name, layer in self.named.items() if layer == owning_layer), LOWEST)

    def _layer_of(self, path: Path) -> Path | None:
        """Return the layer of a file: the innermost one, as a layer may lie in another."""
        layers = [layer for layer in self.layers if path.is_relative_to(layer)]
        return max(layers, key=lambda layer: len(layer.parts), default=None)
