"""Loads an OCI layout into the engine, sending only the blobs that the engine lacks. IO.

An engine with the containerd image store accepts an archive without the blobs that it already has. drydock knows these
from images that the engine has completely and whose layouts are on disk. The classic image store gets all blobs.
Sources: Docker's Engine API 1.47, GET /images/json with `manifests`; containerd's core/images/archive/importer.go.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests

from drydock.core.console import Step, log, show_step
from drydock.core.errors import EngineError
from drydock.core.files import parse_any_json
from drydock.engine.connection import UNPACKED_WITHIN, connect_engine, inspect_images
from drydock.oci import image_layout

_Content = io.BufferedReader | io.BytesIO
LABEL = "io.drydock.variant"
"""Every image of drydock has this label."""
API = "1.47"
"""First version of the engine's API that tells which manifests of an image are complete."""


def load_layout(layout: Path, reference: str, other_layouts: Iterable[Path] = ()) -> None:
    """Load an OCI layout into the engine under a name; the digest stays.

    `other_layouts` are layouts that it may already have.

    The layout on disk does not change: the name is only in the stream. Raises EngineError, also for a damaged layout
    and if the engine then lacks a part of the image.
    """
    present = list_held_blobs(other_layouts)
    if present:
        _check_blobs(layout, present)
        try:
            send_layout(layout, reference, present)
        except EngineError as error:
            log(f"{error}; sending all blobs")
        else:
            if is_whole(image_layout.read_digest(layout), reference):
                return
    _check_blobs(layout, ())
    send_layout(layout, reference, ())
    if not is_whole(image_layout.read_digest(layout), reference):
        raise EngineError(
            f"docker load {reference}: the engine accepted {image_layout.read_digest(layout)}, but lacks parts of it",
            hint=f"docker image rm {reference}, then run the same command again",
        )


def _check_blobs(layout: Path, present: Collection[str]) -> None:
    """Raise EngineError if a blob that is to be sent is damaged."""
    if not image_layout.is_sound_layout(layout, present):
        raise EngineError(
            f"{layout}: damaged: a blob is missing or does not match its digest; nothing was loaded",
            hint="`./inv build` makes the image again",
        )


def is_whole(digest: str, image: str) -> bool:
    """Tell whether the engine has every blob of an image of this name and digest; true if the engine cannot tell.

    `docker load` accepts an archive that lacks blobs without an error.
    """
    complete = _all_complete_manifests(image)
    return complete is None or digest in complete


def has_complete_image(image: str, digest: str) -> bool:
    """Tell whether the engine has a complete image of this name and digest."""
    return any(_is_complete(candidate, digest) for candidate in _query_images(image))


def _is_complete(candidate: Mapping[str, Any], digest: str) -> bool:
    digests = (candidate["Id"], *(name.rpartition("@")[2] for name in candidate.get("RepoDigests") or ()))
    complete = _complete_manifests(candidate)
    return digest in digests and (complete is None or digest in complete)


def list_names_if_running(image: str, digest: str) -> frozenset[str]:
    """Return the names, of this one and `latest`, of a complete image of a digest; none if no engine answers."""
    try:
        candidates = _query_images(image, name_latest(image))
    except docker.errors.DockerException:
        return frozenset()
    complete = (candidate for candidate in candidates if _is_complete(candidate, digest))
    return frozenset(name for candidate in complete for name in candidate.get("RepoTags") or ())


def name_latest(image: str) -> str:
    """Return the name `latest` of an image's repository. Pure."""
    return f"{image.rpartition(':')[0]}:latest"


def tag_latest(image: str) -> None:
    """Move the tag `latest` of an image's repository to it."""
    connect_engine().api.tag(image, image.rpartition(":")[0], "latest")


def remove_image_name(name: str) -> bool:
    """Remove an image's name, and the image with its last name; return whether it is gone: a container may use it."""
    try:
        connect_engine(seconds=UNPACKED_WITHIN).images.remove(name)
    except docker.errors.ImageNotFound:
        return True
    except requests.Timeout:
        log(f"{name}: not removed: the engine did not answer within {UNPACKED_WITHIN // 60} minutes")
        return False
    except docker.errors.APIError as error:
        log(f"{name}: not removed: {error.explanation}")
        return False
    return True


def list_held_blobs(layouts: Iterable[Path]) -> frozenset[str]:
    """Return the blobs of those layouts whose image the engine has completely."""
    complete = _all_complete_manifests() or frozenset()
    blobs: set[str] = set()
    for layout in layouts:
        # Another run has removed it, or it is damaged: then it tells nothing.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if image_layout.read_digest(layout) in complete:
                blobs |= {item["digest"] for item in image_layout.read_descriptors(layout)}
    return frozenset(blobs)


def _all_complete_manifests(*names: str) -> frozenset[str] | None:
    """Return the manifests of all images, or of some, of which the engine has every blob; None if it cannot tell."""
    manifests: set[str] = set()
    for image in _query_images(*names):
        complete = _complete_manifests(image)
        if complete is None:
            return None
        manifests |= complete
    return frozenset(manifests)


def _complete_manifests(image: Mapping[str, Any]) -> set[str] | None:
    """Return the manifests of an image of which the engine has every blob; None if the engine cannot tell."""
    manifests = image.get("Manifests")
    return {item["ID"] for item in manifests if item["Available"]} if manifests else None


def _query_images(*names: str) -> list[dict[str, Any]]:
    """Return what the engine reports about its images, or those of some names; with their manifests if it can."""
    params = {"manifests": "true", "filters": json.dumps({"reference": names} if names else {})}
    # An engine that does not answer raises requests' own error here, and DockerException below.
    with contextlib.suppress(OSError), contextlib.closing(connect_engine(API)) as client:
        answer = client.api.get(f"{client.api.base_url}/v{API}/images/json", params=params)
        if answer.ok:
            images: list[dict[str, Any]] = answer.json()
            return images
    with contextlib.closing(connect_engine()) as client:
        return [image for name in names or ("",) for image in inspect_images(client, name)]


def send_layout(layout: Path, reference: str, present: Collection[str]) -> None:
    """Stream a layout to the engine, without the blobs that are `present` there. Raises EngineError."""
    process = subprocess.Popen(
        ["docker", "load", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    blobs = _list_missing_blobs(layout, present)
    broken = ""
    with show_step("load", sum(path.stat().st_size for path in blobs)) as progress, _stopped_early(process):
        try:
            _stream_files(_named_layout(layout, reference, blobs), process, progress)
        except (BrokenPipeError, ConnectionResetError) as error:
            broken = str(error)
        progress.note("the engine unpacks it")
        _, stderr = process.communicate()
    if process.returncode or broken:
        reason = stderr.decode(errors="replace").strip() or broken
        raise EngineError(f"docker load {reference}: {reason}", hint="run `./inv engine`, then the same command again")


@contextlib.contextmanager
def _stopped_early(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process if the block ends early, so that the engine does not keep half an image."""
    try:
        yield
    except BaseException:
        process.kill()
        process.wait()
        raise


def _stream_files(files: Iterable[tuple[str, _Content]], process: subprocess.Popen[bytes], progress: Step) -> None:
    with tarfile.open(fileobj=process.stdin, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = content.seek(0, os.SEEK_END)
            content.seek(0)
            archive.addfile(entry, _Counted(content, progress))


class _Counted(io.RawIOBase):
    """A file whose read bytes are counted."""

    def __init__(self, file: _Content, progress: Step) -> None:
        self._file, self._shown = file, progress

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._shown.advance(len(data))
        return data


def _list_missing_blobs(layout: Path, present: Collection[str]) -> list[Path]:
    """Return the files of the blobs that are not `present`."""
    files = sorted((layout / "blobs" / "sha256").iterdir())
    return [file for file in files if f"sha256:{file.name}" not in present]


def _named_layout(layout: Path, reference: str, blobs: Iterable[Path]) -> Iterator[tuple[str, _Content]]:
    index = parse_any_json((layout / "index.json").read_bytes())
    for manifest in index["manifests"]:
        manifest["annotations"] = {
            "io.containerd.image.name": f"docker.io/{reference}",
            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        }
    yield "oci-layout", io.BytesIO((layout / "oci-layout").read_bytes())
    yield "index.json", io.BytesIO(json.dumps(index).encode())
    for blob in blobs:
        with blob.open("rb") as file:
            yield f"blobs/sha256/{blob.name}", file
