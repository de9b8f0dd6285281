"""The Python files of the vLLM and the transformers in an image of others, and what they say. In memory.

They are kept while the image's layers arrive, and read by the program that reads wheels (templates/tools/read_vllm.py).
Nothing is written to a disk, imported or executed.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, cast

from drydock.core.errors import InputError
from drydock.core.process import call_limited
from drydock.lock import vllm_lists
from drydock.oci.layers import Entry, LayeredPaths, apply_whiteout, find_link_target

LARGEST_PACKAGE: Mapping[str, int] = MappingProxyType({"vllm": 64 << 20, "transformers": 192 << 20})
"""Bytes that are kept of a package's files. vLLM 0.32 has 19 MB of them, transformers 5.24 has 42."""
OF_TRANSFORMERS = ("models/",)
"""Where transformers has what read_vllm.py reads of it."""
MAIN_FILE = {"vllm": "engine/arg_utils.py", "transformers": "models/auto/configuration_auto.py"}
"""File by which a package's folder is found: each version has it."""
_DISTRIBUTION = re.compile(r"(?P<site>.+/)(?P<name>[^/]+?)-\d[^/]*\.(?:dist-info/METADATA|egg-info(?:/PKG-INFO)?)")
_PLUGIN = re.compile(
    r"^\[(?:vllm\.platform_plugins|vllm\.general_plugins)\]\s*\n((?:[^\[\n].*\n?|\s*\n)*)", re.MULTILINE
)
"""Groups of entry points by which vLLM finds plugins (its docs/design/plugin_system.md)."""


class Installed(NamedTuple):
    """Where an image has its vLLM."""

    sites: tuple[str, ...]
    """Folders of its Python's packages, each with a slash at its end; the first one has vLLM."""
    has_other_paths: bool = False
    """Whether a variable of the image names further folders."""


class _SourceFile(NamedTuple):
    """A Python file of a layer."""

    layer: int
    package: str
    root: str
    """The folder in which the package is, with a slash at its end."""
    content: bytes


class SourceFiles:
    """The files of vLLM and transformers that have lists, wherever they are in an image."""

    def __init__(self, program: ModuleType) -> None:
        self._places = {"vllm": program.PLACES, "transformers": OF_TRANSFORMERS}
        self._program = program
        self._files = LayeredPaths[_SourceFile]()
        self._sizes = dict.fromkeys(LARGEST_PACKAGE, 0)

    def note(self, entry: Entry) -> None:
        """Keep a file that has lists, or forget those that a whiteout hides. Raises tarfile.ReadError for too many."""
        if entry.hides:
            apply_whiteout(self._files, entry)
            return
        place = self._find_place(entry.path)
        if not place:
            return
        package, root = place
        if entry.info.islnk() and (target := self._files.get(find_link_target(entry.info))):
            content: bytes = target.content
        elif entry.content is None or entry.info.size > self._program.FILE_AT_MOST:
            self._files.pop(entry.path, None)
            return
        else:
            content = entry.content.read(self._program.FILE_AT_MOST)
        self._sizes[package] += len(content)
        if self._sizes[package] > LARGEST_PACKAGE[package]:
            raise tarfile.ReadError(f"more than {LARGEST_PACKAGE[package]} bytes of Python files of {package}")
        self._files[entry.path] = _SourceFile(entry.layer, package, root, content)

    def _find_place(self, path: str) -> tuple[str, str] | None:
        """Return the package that a file belongs to, and the folder that the package is in; None for another file."""
        if not path.endswith(".py"):
            return None
        parts = path.split("/")
        for number, part in enumerate(parts):
            if part in self._places and "/".join(parts[number + 1 :]).startswith(self._places[part]):
                return part, "".join(f"{folder}/" for folder in parts[:number])
        return None

    def read_lists(self, installed: Installed, files: Mapping[str, str], where: str) -> tuple[dict[str, Any], str]:
        """Return the lists of the image's vLLM, and why it may have more; no lists if its files are not in the image.

        `files` are those that say what the image is (path → text). Raises InputError for files that are no Python, and
        for those of a newer Python than this one.
        """
        if not self._find_root("vllm", installed):
            return {}, ""
        try:
            lists = call_limited(lambda: self._read_packages(installed), f"{where}: its vLLM's files cannot be read")
        except InputError as error:
            hint = "name what is in the image: --vllm, --python, --python-version; then no list of its vLLM is known"
            raise InputError(*error.problems, hint=hint) from error
        if plugins := _list_plugins(installed, files):
            shared = vllm_lists.choose_assumed(lists) | {"processors": lists.get("processors", {})}
            return self._program.join_lists(shared), f"of its vLLM alone: {', '.join(plugins)} may add to them"
        if not installed.has_other_paths:
            names = {name for name, site in _list_distributions(files) if site in installed.sites}
            lists["packages"] = sorted(names.intersection(self._program.OPTIONAL))
        return self._program.join_lists(lists), ""

    def _read_packages(self, installed: Installed) -> dict[str, Any]:
        lists: dict[str, Any] = self._program.read_package(self._pack("vllm", installed))
        lists |= self._program.read_library(self._pack("transformers", installed))
        return lists

    def _find_root(self, package: str, installed: Installed) -> str:
        """Return the folder in which a package is: of the interpreter, else the only other one; else empty.

        A package that is installed as editable stays where its source code is.
        """
        roots = {
            file.root for path, file in self._files.items() if path == f"{file.root}{package}/{MAIN_FILE[package]}"
        }
        of_interpreter = [site for site in installed.sites if site in roots]
        if of_interpreter:
            return of_interpreter[0]
        return roots.pop() if len(roots) == 1 else ""

    def _pack(self, package: str, installed: Installed) -> Path:
        """Return a package's files as the wheel that read_vllm.py expects."""
        root = self._find_root(package, installed)
        wheel = _WheelInMemory()
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, file in sorted(self._files.items()):
                if root and (file.package, file.root) == (package, root):
                    archive.writestr(path.removeprefix(root), file.content)
        return cast("Path", wheel)


class _WheelInMemory(io.BytesIO):
    """A zip file in memory, where a path of a file or a folder is expected."""

    def is_dir(self) -> bool:
        return False


def _list_distributions(files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield name and folder of each distribution in an image. Names are as on an index, in lower case with hyphens."""
    for path in files:
        if match := _DISTRIBUTION.fullmatch(path):
            yield re.sub(r"[-_.]+", "-", match["name"]).lower(), match["site"]


def _list_plugins(installed: Installed, files: Mapping[str, str]) -> list[str]:
    """Return the modules that are plugins of vLLM, apart from those in vLLM itself."""
    sites: Collection[str] = installed.sites
    names: set[str] = set()
    for path, text in files.items():
        folder, _, name = path.rpartition("/")
        if name != "entry_points.txt" or f"{folder.rpartition('/')[0]}/" not in sites:
            continue
        for group in _PLUGIN.finditer(f"{text}\n"):
            modules = re.findall(r"^[^=\n]+=[ \t]*([A-Za-z_]\w*)", group[1], re.MULTILINE)
            names.update(module for module in modules if module != "vllm")
    return sorted(names)
