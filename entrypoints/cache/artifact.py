"""Cache entries ↔ an OCI image layout, a folder or one tar file, that any registry tool can push and pull. IO.

Each entry is one layer, with the same paths as in a cache folder. So an artifact that is mounted as a volume (image
volumes of Kubernetes) is a cache folder for DRYDOCK_CACHE_FROM. It has the configuration of an image, for tools that
accept only images. Source: OCI image specification 1.1, image layout, manifest, configuration.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import IO, Any, Literal

from entrypoints.cache.entries import (
    COMPILED,
    LOCK,
    MANIFEST,
    KeptEntry,
    judge_entry,
    parse_manifest,
    quarantine_entry,
    read_entry_manifest,
)
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.folders import list_files, make_executable, make_folder, read_bounded, read_regular, remove_folder
from entrypoints.core.parse import name_oci_architecture, parse_untrusted_json
from entrypoints.core.tar import members, open_tar

KIND = "application/vnd.drydock.cache.v1"
_OCI = "application/vnd.oci.image"
_LAYER, _PLAIN, _ZIPPED = f"{_OCI}.layer.v1.tar", ("tar", "rootfs.diff.tar"), "gzip"
ENTRY = "io.drydock.cache.entry"
_CHUNK = 1 << 20
_JSON_AT_MOST = 4 << 20
"""Bytes of an index or manifest: what the specification requires of registries."""
_FILES, _BLOBS = (("index.json",), ("oci-layout",)), ("blobs", "sha256")
"""Files of an image layout."""
_AT_MOST = 256 << 30
"""Bytes of an artifact, unpacked: far above the compiled code of any model."""
_MOST, _LEVELS, _DEEPEST = 10_000, 2, 64
"""Descriptors in a list, indexes in indexes, and folders in a path."""
_SHA256, _GZIP = 64, b"\x1f\x8b"
_LATEST = 1 << 33
"""Seconds: a time in the year 2242, which every file system can store."""
_EXPECTED = "expected an OCI image layout, as `cache export` writes it"
_LEVEL = 1
"""Level of gzip: it halves compiled code; a higher level would take minutes."""


# --- export ---------------------------------------------------------------------------------------------------------


def export_entries(entries: Iterable[KeptEntry], folder: str) -> str:
    """Write entries as an image layout into a new folder; return the manifest's digest. Raises OSError."""
    os.makedirs(f"{folder}/blobs/sha256")
    layers, contents = [], []
    for entry in entries:
        layer, content = _write_layer(entry, folder)
        layers.append(layer)
        contents.append(content)
    system = {"architecture": name_oci_architecture(os.uname().machine), "os": "linux"}
    config = _write_json_blob(folder, {**system, "config": {}, "rootfs": {"type": "layers", "diff_ids": contents}})
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "artifactType": KIND,
        "config": {"mediaType": f"{_OCI}.config.v1+json", **config},
        "layers": layers,
    }
    described = {"mediaType": manifest["mediaType"], "artifactType": KIND, **_write_json_blob(folder, manifest)}
    index_entry = {**described, "annotations": {"org.opencontainers.image.ref.name": "cache"}}
    _write_json(
        f"{folder}/index.json", {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [index_entry]}
    )
    _write_json(f"{folder}/oci-layout", {"imageLayoutVersion": "1.0.0"})
    return str(described["digest"])


def _write_layer(entry: KeptEntry, folder: str) -> tuple[dict[str, Any], str]:
    """Write one entry as a layer; return its descriptor and the digest of the tar inside."""
    name = os.path.basename(entry.path)
    temporary = f"{folder}/blobs/.{name}"
    with open(temporary, "wb") as file:
        outer = _Hashing(file)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=outer, mtime=0) as zipped:
            inner = _Hashing(zipped)
            with tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                _pack_entry(tar, entry, f"{COMPILED}/{name}")
    os.replace(temporary, f"{folder}/blobs/sha256/{outer.digest()}")
    described = {"digest": f"sha256:{outer.digest()}", "size": outer.size, "annotations": {ENTRY: name}}
    return {"mediaType": f"{_LAYER}+gzip", **described}, f"sha256:{inner.digest()}"


def _pack_entry(tar: tarfile.TarFile, entry: KeptEntry, below: str) -> None:
    manifest = json.dumps({**entry.manifest, "attempts": 0}, indent=1, sort_keys=True, ensure_ascii=False).encode()
    _add_file(tar, f"{below}/{MANIFEST}", io.BytesIO(manifest), len(manifest), 0o640, entry.manifest.get("ready", 0))
    for name, status in list_files(entry.path):
        if name != LOCK and not name.startswith(MANIFEST):
            with open(f"{entry.path}/{name}", "rb") as file:
                size = os.fstat(file.fileno()).st_size
                mode = 0o750 if status.st_mode & 0o100 else 0o640
                _add_file(tar, f"{below}/{name}", file, size, mode, int(status.st_mtime))


def _add_file(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int, mode: int, when: int) -> None:
    """Add a file, owned by root. Modification times are kept, because build tools compare them."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, mode, when
    tar.addfile(member, file)


class _Hashing(io.RawIOBase):
    """Writes to a file and hashes what it writes."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        """Return true."""
        return True

    def write(self, data: Any) -> int:
        """Write all of the data."""
        self._hash.update(data)
        self._file.write(data)
        self.size += len(data)
        return len(data)

    def digest(self) -> str:
        """Return the digest so far."""
        return self._hash.hexdigest()


def _write_json_blob(folder: str, value: Any) -> dict[str, Any]:
    """Write JSON as a blob; return its digest and size."""
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(data).hexdigest()
    with open(f"{folder}/blobs/sha256/{digest}", "wb") as file:
        file.write(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _write_json(path: str, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, sort_keys=True)


def pack_layout(folder: str, file: IO[bytes]) -> None:
    """Write an image layout as one tar file."""
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, status in list_files(folder):
            with open(f"{folder}/{name}", "rb") as content:
                _add_file(tar, name, content, status.st_size, 0o644, 0)


# --- import ---------------------------------------------------------------------------------------------------------


def unpack_layout(path: str, folder: str) -> None:
    """Unpack an image layout from one tar file. Raises USAGE if it is invalid."""
    try:
        with _open_archive(path) as tar:
            for member in members(tar, _AT_MOST):
                parts = _split_member_path(member.name)
                if parts in _FILES or (parts[:2] == _BLOBS and len(parts) == len(_BLOBS) + 1):
                    _check_room(folder, member.size)
                    _extract_file(tar, member, folder, parts)
    except (tarfile.TarError, OSError) as error:
        raise EntrypointError(USAGE, f"{path}: {_format_error_reason(error)}", _EXPECTED) from error


@contextlib.contextmanager
def _open_archive(path: str) -> Iterator[tarfile.TarFile]:
    """Open a plain or gzip-compressed tar file. Raises OSError or tarfile.TarError."""
    mode: Literal["r:", "r:gz"] = "r:gz" if read_regular(path, 2) == _GZIP else "r:"
    with open(path, "rb") as file, open_tar(file, mode) as tar:
        yield tar


def _format_error_reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def import_entries(layout: str, root: str) -> Iterator[str]:
    """Add the entries of an image layout to a cache folder; yield the result of each. Raises USAGE or HOST.

    Each blob is checked against its digest. Only plain files below an entry are extracted; an entry appears atomically.
    """
    index = _read_json_object(f"{layout}/index.json")
    layers = [
        layer for manifest in _read_manifests(layout, index, 0) for layer in _parse_descriptors(manifest, "layers")
    ]
    if not layers:
        raise EntrypointError(USAGE, f"{layout}: no layers", _EXPECTED)
    for layer in layers:
        yield from _import_layer(layout, layer, root)


def _read_manifests(layout: str, index: Mapping[str, Any], level: int) -> Iterator[Mapping[str, Any]]:
    for descriptor in _parse_descriptors(index, "manifests"):
        inner = _read_json_object(_verify_blob(layout, descriptor))
        if "manifests" not in inner:
            yield inner
        elif level < _LEVELS:
            yield from _read_manifests(layout, inner, level + 1)
        else:
            raise EntrypointError(USAGE, f"{layout}: more than {_LEVELS} nested indexes", _EXPECTED)


def _parse_descriptors(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return a list of descriptors; empty if there is none. Raises USAGE."""
    items = value.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items) or len(items) > _MOST:
        raise EntrypointError(USAGE, f"{key}: expected a list of at most {_MOST} descriptors", _EXPECTED)
    return items


def _import_layer(layout: str, layer: Mapping[str, Any], root: str) -> Iterator[str]:
    """Unpack the entries of one layer that are to be added next to the others, then rename each into place."""
    path, folder, staging = (
        _verify_blob(layout, layer),
        f"{root}/{COMPILED}",
        f"{root}/{COMPILED}/.import.{os.getpid()}",
    )
    try:
        sizes, manifests = _measure_layer(path, str(layer.get("mediaType", "")))
        reasons = {name: _explain_skip(manifests.get(name), f"{folder}/{name}") for name in sorted(sizes)}
        yield from (f"{name}: skipped: {why}" for name, why in reasons.items() if why)
        new_names = [name for name, why in reasons.items() if not why]
        make_folder(staging)
        _check_room(staging, sum(sizes[name] for name in new_names))
        _unpack_layer(path, new_names, staging)
        for name in new_names:
            yield _place_entry(f"{staging}/{name}", f"{folder}/{name}")
    except (tarfile.TarError, OSError) as error:
        message = f"{layer.get('digest')}: cannot be unpacked: {_format_error_reason(error)}"
        raise EntrypointError(HOST, message, "export it again") from error
    finally:
        remove_folder(staging)


def _measure_layer(path: str, kind: str) -> tuple[dict[str, int], dict[str, Mapping[str, Any] | None]]:
    """Return the size of each entry of a layer, unpacked, and its entry.json; nothing is written.

    Raises OSError or tarfile.TarError.
    """
    if not kind.endswith((*_PLAIN, _ZIPPED)):
        raise tarfile.ReadError(f"layer of type {kind}, expected {_LAYER} or {_LAYER}+gzip")
    sizes: dict[str, int] = {}
    manifests: dict[str, Mapping[str, Any] | None] = {}
    with _open_archive(path) as tar:
        for member, name, rest in _list_entry_members(tar):
            sizes[name] = sizes.get(name, 0) + member.size
            if rest == (MANIFEST,) and (content := tar.extractfile(member)):
                manifests[name] = parse_manifest(content.read(_JSON_AT_MOST).decode(errors="replace"))
    return sizes, manifests


def _list_entry_members(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str, tuple[str, ...]]]:
    """Yield the members in entries, each with the entry's name and its path there. Raises tarfile.TarError."""
    for member in members(tar, _AT_MOST):
        parts = _split_member_path(member.name)
        if parts[:1] == (COMPILED,) and len(parts) > 1:
            yield member, parts[1], parts[2:]


def _explain_skip(manifest: Mapping[str, Any] | None, target: str) -> str:
    """Return why an entry is not added; empty if it is."""
    if not manifest or judge_entry(manifest, manifest["factors"], empty=False).kind != "hit":
        return "no server became ready with it"
    there = read_entry_manifest(target) if os.path.exists(target) else {}
    return "already present" if there and there["ready"] else ""


def _place_entry(source: str, target: str) -> str:
    name, why = os.path.basename(target), _explain_skip(read_entry_manifest(source), target)
    if why:
        return f"{name}: skipped: {why}"
    if os.path.exists(target):
        quarantine_entry(target)
    os.rename(source, target)
    return f"{name}: imported"


def _check_room(folder: str, required_bytes: int) -> None:
    """Raise HOST if a folder's disk lacks the space: a few bytes of gzip can stand for gigabytes."""
    figures = os.statvfs(folder)
    free = figures.f_bavail * figures.f_frsize
    if required_bytes > free:
        message = f"{folder}: {required_bytes / 1e9:.2f} GB needed, {free / 1e9:.2f} GB free"
        raise EntrypointError(HOST, message, "nothing was added: free some space, or mount a larger volume")


def _unpack_layer(path: str, names: Collection[str], folder: str) -> None:
    with _open_archive(path) as tar:
        for member, name, rest in _list_entry_members(tar):
            if name in names:
                _extract_file(tar, member, folder, (name, *rest))


def _split_member_path(name: str) -> tuple[str, ...]:
    """Return the parts of a member's path. Raises tarfile.ReadError for a path outside it or too deep."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise tarfile.ReadError(f"{name[:200]!r} points outside the folder")
    if len(parts) > _DEEPEST:
        raise tarfile.ReadError(f"{name[:200]!r} has more than {_DEEPEST} folders")
    return parts


def _extract_file(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: str, parts: tuple[str, ...]) -> None:
    """Extract one plain file; links, devices and others are ignored."""
    if not member.isfile() or member.issparse() or not parts:
        return
    target = os.path.join(folder, *parts)
    make_folder(os.path.dirname(target))
    source = tar.extractfile(member)
    if source is None:
        return
    with open(target, "xb") as file:
        while data := source.read(_CHUNK):
            file.write(data)
    if member.mode & 0o100:
        make_executable(target)
    when = min(max(0, member.mtime), _LATEST)
    os.utime(target, (when, when))


def _read_json_object(path: str) -> dict[str, Any]:
    """Read a JSON object. Raises USAGE."""
    try:
        value = parse_untrusted_json(read_bounded(path, _JSON_AT_MOST))
    except (OSError, ValueError) as error:
        raise EntrypointError(USAGE, f"{path}: {_format_error_reason(error)}", _EXPECTED) from error
    if not isinstance(value, dict):
        raise EntrypointError(USAGE, f"{path}: expected a JSON object, found {type(value).__name__}", _EXPECTED)
    return value


def _verify_blob(layout: str, descriptor: Mapping[str, Any]) -> str:
    """Check a blob against its digest and return its path. Raises USAGE."""
    digest = str(descriptor.get("digest", ""))
    algorithm, _, expected = digest.partition(":")
    path = f"{layout}/blobs/{algorithm}/{expected}"
    if algorithm != "sha256" or len(expected) != _SHA256 or not set(expected) <= set("0123456789abcdef"):
        raise EntrypointError(USAGE, f"{layout}: digest {digest[:80]!r}, expected sha256:…", _EXPECTED)
    try:
        actual = _hash_blob(path)
    except OSError as error:
        raise EntrypointError(
            USAGE, f"{path}: {error.strerror}", "the layout is incomplete: export it again"
        ) from error
    if actual != expected:
        raise EntrypointError(USAGE, f"{path}: found the digest {actual}", "the file is damaged: fetch it again")
    return path


def _hash_blob(path: str) -> str:
    digest = hashlib.sha256()
    read_regular(path, 0)  # not a pipe or a device, which may never end
    with open(path, "rb") as file:
        while data := file.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()
