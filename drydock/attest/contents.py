"""What is really in an image: its files as a container sees them, its packages, and whose each file is. IO.

Read from the layers themselves, never from the lock, so that the two can be compared. Sources: OCI image specification
1.1, layer.md ("Whiteouts"); dpkg(1) and deb-control(5) for the package database; the "Recording installed projects"
page of the Python packaging specifications for RECORD.
"""

from __future__ import annotations

import csv
import fnmatch
import functools
import hashlib
import posixpath
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
)
"""Files whose text is wanted."""
LONGEST = 4 << 20
"""Bytes of a text that is kept."""
GENERATED = ("etc/", "var/", "run/", "cache/", "tmp/", "root/", "usr/share/info/", "usr/share/mime/", "usr/local/")
"""Where maintainer scripts and the build itself write what no package carries."""
OWN = ("opt/drydock/", "opt/venv/bin/", "opt/venv/pyvenv.cfg", "opt/venv/lib64")
"""What drydock itself puts into an image; of the environment, what Python's venv makes."""


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
    """Of a Debian package."""
    place: str
    """Folder of a Python distribution's metadata, or dpkg's."""
    fields: Mapping[str, tuple[str, ...]]
    """What its own metadata says of licences."""
    within: str = ""
    """Name of the Python distribution that carries it in its own wheel, as setuptools carries jaraco.text."""

    @property
    def owner(self) -> str:
        """Return the name that files are filed under."""
        return f"{self.kind}:{self.name}"


class ImageContents(NamedTuple):
    """An image's files and packages."""

    files: Mapping[str, File]
    packages: tuple[Package, ...]
    owners: Mapping[str, str]
    """File → deb:NAME, pypi:NAME, drydock, generated, or "" for what nothing accounts for."""
    texts: Mapping[str, str]

    def unaccounted(self) -> tuple[str, ...]:
        """Return the files that no package brought and no step of the build is known to write."""
        return tuple(path for path, owner in self.owners.items() if not owner)


def read_contents(manifest: Mapping[str, Any], blob: Callable[[str], Path]) -> ImageContents:
    """Return what an image holds, given where its blobs lie. Reads every layer once."""
    files: dict[str, File] = {}
    texts: dict[str, str] = {}
    for entry in layers.entries(manifest, blob):
        if entry.hides:
            layers.hide(files, entry)
        elif not entry.info.isdir():
            files[entry.path] = _file(files, texts, entry)
    present = {path: text for path, text in texts.items() if path in files}
    packages = tuple(sorted((*debs(present), *_distributions(present)), key=lambda package: package[:5]))
    return ImageContents(files, packages, owners(files, present), present)


def owners(files: Mapping[str, File], texts: Mapping[str, str]) -> dict[str, str]:
    """Say for each file which package brought it. Pure."""
    resolve = functools.cache(functools.partial(_canonical, {path: file.link for path, file in files.items()}))
    known = {resolve(path): f"deb:{name}" for name, path in _listed(texts)}
    known |= {resolve(path): f"pypi:{name}" for name, path in _recorded(texts)}
    return {path: known.get(path) or _generated(path, files[path].link, known) for path in sorted(files)}


def _file(files: Mapping[str, File], texts: dict[str, str], entry: layers.Entry) -> File:
    info, number = entry.info, entry.layer
    if info.islnk():
        target = files.get(layers.target(info))
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


def debs(texts: Mapping[str, str]) -> Iterator[Package]:
    """Return the installed Debian packages, given the texts of dpkg's database by path. Pure."""
    for path, text in texts.items():
        if path != "var/lib/dpkg/status" and not path.startswith("var/lib/dpkg/status.d/"):
            continue
        for stanza in text.split("\n\n"):
            fields = HeaderParser().parsestr(stanza)
            installed = fields.get("Status", "install ok installed").endswith(" installed")
            if fields["Package"] and installed:
                name, licences = str(fields["Package"]), _copyright(texts, str(fields["Package"]))
                found = {"License": licences} if licences else {}
                yield Package("deb", name, str(fields["Version"]), str(fields["Architecture"]), path, found)


def _copyright(texts: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the short names of a machine-readable copyright file (DEP-5); none where it is prose."""
    text = texts.get(f"usr/share/doc/{name}/copyright", "")
    if "copyright-format" not in text[:400]:
        return ()
    lines = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("License:"))
    return tuple(sorted({line for line in lines if line}))


def _distributions(texts: Mapping[str, str]) -> Iterator[Package]:
    bundled = _bundled(texts)
    for path, text in texts.items():
        if not path.endswith(".dist-info/METADATA") or path.startswith(OWN):  # the plugin for vLLM is drydock's own
            continue
        fields = HeaderParser().parsestr(text)
        wanted = ("License-Expression", "License", "Classifier", "License-File")
        found = {key: tuple(str(value) for value in fields.get_all(key, [])) for key in wanted}
        name, place = canonicalize_name(str(fields["Name"])), posixpath.dirname(path)
        yield Package("pypi", name, str(fields["Version"]), "", place, found, bundled.get(place, ""))


# --- which file is whose --------------------------------------------------------------------------------------------


def _listed(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for path, text in texts.items():
        if path.startswith("var/lib/dpkg/info/"):
            name = posixpath.basename(path).removesuffix(".list").partition(":")[0]
            yield from (
                (name, line.strip().lstrip("/")) for line in text.splitlines() if line.strip() not in ("", "/.")
            )


def _recorded(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    bundled = _bundled(texts)
    for path, text in texts.items():
        info = posixpath.dirname(path)
        if path.endswith(".dist-info/RECORD") and info not in bundled:
            yield from ((_distribution(info), listed) for listed in _record(info, text))


def _bundled(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata folders that another distribution's RECORD lists, with its name."""
    listed = (
        (posixpath.dirname(path), posixpath.dirname(record))
        for record, text in texts.items()
        if record.endswith(".dist-info/RECORD")
        for path in _record(posixpath.dirname(record), text)
        if path.endswith(".dist-info/METADATA")
    )
    return {info: _distribution(claimant) for info, claimant in listed if info != claimant}


def _record(info: str, text: str) -> Iterator[str]:
    site = posixpath.dirname(info)
    yield from (posixpath.normpath(posixpath.join(site, row[0])) for row in csv.reader(text.splitlines()) if row)


def _distribution(info: str) -> str:
    return str(canonicalize_name(posixpath.basename(info).partition("-")[0]))


def _canonical(links: Mapping[str, str], path: str) -> str:
    """Return a path with the links among its folders followed, as /bin/sh lies in /usr/bin today."""
    done = ""
    for part in path.split("/")[:-1]:
        done = posixpath.join(done, part)
        link = links.get(done)
        if link:
            done = (
                link.lstrip("/")
                if link.startswith("/")
                else posixpath.normpath(posixpath.join(posixpath.dirname(done), link))
            )
    return posixpath.join(done, posixpath.basename(path))


def _generated(path: str, link: str, known: Mapping[str, str]) -> str:
    """Say who made a file that no package lists; "" where nothing is known to."""
    folder, _, name = path.rpartition("/")
    if name.endswith(".pyc"):
        source = f"{folder.removesuffix('/__pycache__')}/{name.partition('.')[0]}.py"
        if source in known:
            return known[source]
    if path.startswith(OWN):
        return "drydock"
    return "generated" if path.startswith(GENERATED) or link.startswith("/etc/alternatives/") else ""
