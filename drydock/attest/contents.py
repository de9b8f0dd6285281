"""The contents of an image: files as a container sees them, packages, and the owner of each file. IO.

Read from the layers only, so that the result can be compared with the lock. Sources: OCI image specification 1.1,
layer.md ("Whiteouts"); dpkg(1) and deb-control(5) for the package database; the "Recording installed projects" page of
the Python packaging specifications for RECORD.
"""

from __future__ import annotations

import csv
import fnmatch
import functools
import hashlib
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

from drydock.oci import layers

KEPT = (
    "var/lib/dpkg/status",
    "var/lib/dpkg/status.d/*",
    "var/lib/dpkg/info/*.list",
    "*.dist-info/METADATA",
    "*.dist-info/RECORD",
    "usr/share/doc/*/copyright",
    "opt/drydock/profile.json",
    "etc/passwd",
)
"""Files whose text is kept in memory."""
ENVIRONMENT = "opt/venv/"
"""The Python environment: everything that drydock adds to a base is installed here."""
LONGEST = 4 << 20
"""Maximum size in bytes of a text that is kept."""
MOST_LINKS = 40
"""Links that a path may lead through; Linux has the same limit."""
LONGEST_LINE = 8192
"""Characters of a line of RECORD; a longer one names no path that Linux can have."""
USERS = "etc/passwd"
GENERATED = (USERS,)
"""Files outside the base that the build writes and that belong to no package."""
CONVERSIONS = "opt/drydock/conversions/"
OWN = ("opt/drydock/entrypoints/", CONVERSIONS)
"""Folders that only drydock writes to."""
OWN_FILES = frozenset(
    {f"opt/drydock/{name}.json" for name in ("profile", "failures", "recipes", "vllm", "environment")}
    | {f"opt/venv/bin/{name}" for name in ("activate", "activate.csh", "activate.fish", "Activate.ps1")}
    | {"opt/venv/pyvenv.cfg"}
)
"""Files that drydock writes, and files of the environment that Python's venv writes."""
OWN_LINKS = re.compile(r"opt/venv/(?:bin/python[0-9.]*|lib64)")
"""Links that Python's venv makes."""


class File(NamedTuple):
    """A file or link as a container sees it."""

    layer: int
    size: int
    sha256: str
    """Empty for a link."""
    link: str
    mode: int


class Package(NamedTuple):
    """An installed package."""

    kind: str
    """deb or pypi."""
    name: str
    version: str
    architecture: str
    """Debian packages only."""
    place: str
    """Metadata folder of a Python distribution, or dpkg's status file."""
    fields: Mapping[str, tuple[str, ...]]
    """Fields of its metadata about licences."""
    within: str = ""
    """Name of the Python distribution whose wheel contains this one, as setuptools contains jaraco.text."""

    @property
    def owner(self) -> str:
        """Return the owner of its files, as in `Contents.owners`."""
        return f"{self.kind}:{self.name}"


class ImageContents(NamedTuple):
    """An image's files and packages."""

    files: Mapping[str, File]
    packages: tuple[Package, ...]
    owners: Mapping[str, str]
    """File → deb:NAME, pypi:NAME, drydock, generated, base, or "" if the origin is unknown."""
    texts: Mapping[str, str]

    def unaccounted(self) -> tuple[str, ...]:
        """Return the files that belong to no package and to no known step of the build."""
        return tuple(path for path, owner in self.owners.items() if not owner)


def read_contents(manifest: Mapping[str, Any], blob: Callable[[str], Path], base_layers: int = 0) -> ImageContents:
    """Return the contents of an image; `blob` returns a blob's file. Reads every layer once.

    The lowest `base_layers` layers are known to be those of the base, so that whatever is in them belongs to it.
    """
    files = layers.LayeredPaths[File]()
    texts: dict[str, str] = {}
    links: dict[str, str] = {}
    for raw_entry in layers.read_layer_entries(manifest, blob):
        entry = raw_entry._replace(
            path=resolve_links(links, raw_entry.path)
        )  # containerd, too, follows links among the folders
        if entry.hides:
            before = len(files)
            layers.apply_whiteout(files, entry)
            if len(files) != before:
                links = {path: link for path, link in links.items() if path in files}
            if base_layers and not entry.path.startswith(ENVIRONMENT):  # no step of the build removes such files
                files[entry.path] = File(entry.layer, 0, "", "", entry.info.mode)
        elif not entry.info.isdir():
            files[entry.path] = _read_entry(files, texts, entry)
            links.pop(entry.path, "")
            if entry.info.issym():
                links[entry.path] = entry.info.linkname
        elif links.pop(entry.path, ""):
            del files[entry.path]
    present = {path: text for path, text in texts.items() if path in files}
    packages = tuple(
        sorted((*list_installed_debs(present), *_list_distributions(present)), key=lambda package: package[:5])
    )
    owned = find_owners(files, present, base_layers)
    return ImageContents(files, packages, owned, present)


def find_owners(files: Mapping[str, File], texts: Mapping[str, str], base_layers: int = 0) -> dict[str, str]:
    """Return the owner of each file. Pure."""
    owner_by_path = _find_listed_owners(files, texts)
    if not base_layers:
        return owner_by_path
    return {path: _above_base(path, owner, files[path].layer < base_layers) for path, owner in owner_by_path.items()}


def _above_base(path: str, owner: str, of_base: bool) -> str:
    """Return the owner of a file if the base is known: no step of the build changes a file of a Debian package."""
    if of_base:
        return owner or "base"
    return "" if owner.startswith("deb:") and not path.endswith(".pyc") else owner


def _find_listed_owners(files: Mapping[str, File], texts: Mapping[str, str]) -> dict[str, str]:
    resolved = functools.cache(functools.partial(resolve_links, {path: file.link for path, file in files.items()}))
    owner_by_path = {resolved(path): f"deb:{name}" for name, path in _deb_files(texts)}
    owner_by_path |= {resolved(path): f"pypi:{name}" for name, path in _wheel_files(texts)}
    return {
        path: owner_by_path.get(path) or _unlisted_owner(path, files[path].link, owner_by_path)
        for path in sorted(files)
    }


def _read_entry(files: Mapping[str, File], texts: dict[str, str], entry: layers.Entry) -> File:
    info, number = entry.info, entry.layer
    if info.islnk():
        target = files.get(layers.find_link_target(info))
        if target:
            return target._replace(layer=number)
    if entry.content is None:
        return File(number, 0, "", info.linkname, info.mode)
    if info.size <= LONGEST and any(fnmatch.fnmatch(entry.path, pattern) for pattern in KEPT):
        data = entry.content.read()
        texts[entry.path] = data.decode(errors="replace")
        return File(number, info.size, hashlib.sha256(data).hexdigest(), "", info.mode)
    return File(number, info.size, hashlib.file_digest(entry.content, "sha256").hexdigest(), "", info.mode)


# --- packages -------------------------------------------------------------------------------------------------------


def list_installed_debs(texts: Mapping[str, str]) -> Iterator[Package]:
    """Yield the installed Debian packages, given the texts of dpkg's database by path. Pure."""
    for path, text in texts.items():
        if path != "var/lib/dpkg/status" and not path.startswith("var/lib/dpkg/status.d/"):
            continue
        for stanza in text.split("\n\n"):
            fields = HeaderParser().parsestr(stanza)
            installed = fields.get("Status", "install ok installed").endswith(" installed")
            if fields["Package"] and installed:
                name = str(fields["Package"])
                licences = _read_copyright(texts, name)
                metadata = {"License": licences} if licences else {}
                yield Package("deb", name, str(fields["Version"]), str(fields["Architecture"]), path, metadata)


def _read_copyright(texts: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the licence names in a machine-readable copyright file (DEP-5); none if it is free text."""
    text = texts.get(f"usr/share/doc/{name}/copyright", "")
    if "copyright-format" not in text[:400]:
        return ()
    names = {line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("License:")}
    return tuple(sorted(names - {""}))


def _list_distributions(texts: Mapping[str, str]) -> Iterator[Package]:
    bundled = _find_bundled(texts)
    for path, text in texts.items():
        if not path.endswith(".dist-info/METADATA") or path.startswith(OWN):  # drydock's plugin for vLLM is no package
            continue
        fields = HeaderParser().parsestr(text)
        keys = ("License-Expression", "License", "Classifier", "License-File")
        metadata = {key: tuple(str(value) for value in fields.get_all(key, [])) for key in keys}
        name, place = canonicalize_name(str(fields["Name"])), posixpath.dirname(path)
        yield Package("pypi", name, str(fields["Version"]), "", place, metadata, bundled.get(place, ""))


# --- owners of files ------------------------------------------------------------------------------------------------


def _deb_files(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield package name and path for each line of dpkg's file lists."""
    for path, text in texts.items():
        if path.startswith("var/lib/dpkg/info/"):
            name = posixpath.basename(path).removesuffix(".list").partition(":")[0]
            for line in text.splitlines():
                if line.strip() not in ("", "/."):
                    yield name, line.strip().lstrip("/")


def _wheel_files(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield distribution name and path for each line of a RECORD."""
    bundled = _find_bundled(texts)
    for path, text in texts.items():
        info = posixpath.dirname(path)
        if _is_record(path, texts) and info not in bundled:
            for listed in read_record(info, text):
                yield _parse_distribution(info), listed


def _is_record(path: str, texts: Mapping[str, str]) -> bool:
    """Tell whether a file is the RECORD of a distribution, which `_distributions` compares with the lock."""
    info = path.removesuffix("/RECORD")
    return path.endswith(".dist-info/RECORD") and f"{info}/METADATA" in texts and not path.startswith(OWN)


def _find_bundled(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata folders that another distribution's RECORD lists: folder → name of that distribution."""
    owner_by_folder = {}
    for record, text in texts.items():
        if not _is_record(record, texts):
            continue
        owner = posixpath.dirname(record)
        for path in read_record(owner, text):
            info = posixpath.dirname(path)
            if path.endswith(".dist-info/METADATA") and info != owner:
                owner_by_folder[info] = _parse_distribution(owner)
    return owner_by_folder


def read_record(info: str, text: str) -> list[str]:
    """Return the paths that the RECORD in a metadata folder lists, relative to the root."""
    site = posixpath.dirname(info)
    rows = (row for row in csv.reader(line for line in text.splitlines() if len(line) <= LONGEST_LINE) if row)
    return [posixpath.normpath(posixpath.join(site, row[0])) for row in rows]


def _parse_distribution(info: str) -> str:
    return str(canonicalize_name(posixpath.basename(info).partition("-")[0]))


def resolve_links(links: Mapping[str, str], path: str) -> str:
    """Return a path with links among its folders resolved: bin/sh becomes usr/bin/sh if bin is a link to usr/bin."""
    *pending, name = path.split("/")
    folder: list[str] = []
    for _ in range(MOST_LINKS):
        while pending:
            part = pending.pop(0)
            folder = folder[:-1] if part == ".." else [*folder, *([part] if part not in ("", ".") else [])]
            link = links.get("/".join(folder), "") if part != ".." else ""
            if link:
                folder = [] if link.startswith("/") else folder[:-1]
                pending = [*link.split("/"), *pending]
                break
    return "/".join([*folder, *pending, name])


def _unlisted_owner(path: str, link: str, owner_by_path: Mapping[str, str]) -> str:
    """Return the owner of a file that no package lists, or "" if it is unknown."""
    folder, _, name = path.rpartition("/")
    if name.endswith(".pyc"):
        source = f"{folder.removesuffix('/__pycache__')}/{name.partition('.')[0]}.py"
        if source in owner_by_path:
            return owner_by_path[source]
    if path.startswith(OWN) or path in OWN_FILES or (link and OWN_LINKS.fullmatch(path)):
        return "drydock"
    return "generated" if path in GENERATED or link.startswith("/etc/alternatives/") else ""
