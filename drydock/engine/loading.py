"""An OCI layout in, an image of the engine out: only what the engine lacks is sent. IO.

An engine that keeps its images in containerd takes an archive without the blobs that it has already. Whether it has
them is known of images that it holds whole and whose layouts lie here; the classic image store is sent everything.
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

from drydock.core.console import log
from drydock.core.errors import EngineError
from drydock.oci import layout as oci

API = "v1.47"
"""Of the engine: the first to say which of an image's manifests are there whole."""


def load(layout: Path, reference: str, others: Iterable[Path] = ()) -> None:
    """Load an OCI layout into the engine under a name, keeping its digest; `others` are layouts it may hold already.

    The layout on disk stays as it is: only the stream carries the name. Raises EngineError.
    """
    there = held(others)
    if there:
        try:
            send(layout, reference, there)
        except EngineError as error:
            log(f"{error}: sending all of it")
        else:
            if is_whole(oci.read_digest(layout)):
                return
    send(layout, reference, ())


def is_whole(digest: str) -> bool:
    """Tell whether the engine has every blob of an image that it knows; true where it does not say.

    It takes an archive that lacks blobs without a word.
    """
    whole = _whole()
    return whole is None or digest in whole


def has(image: str, digest: str) -> bool:
    """Tell whether the engine holds an image whole, under its name and by its digest."""
    for found in _images(image):
        known = (found["Id"], *(name.rpartition("@")[2] for name in found.get("RepoDigests") or ()))
        whole = _available(found)
        if digest in known and (whole is None or digest in whole):
            return True
    return False


def holds(image: str, digest: str) -> bool:
    """Tell as `has` does, but false where no engine answers."""
    try:
        return has(image, digest)
    except docker.errors.DockerException:
        return False


def supersede(image: str) -> None:
    """Move the tag latest, and drop the images of the same variant that it replaces, except where a container runs."""
    images = docker.from_env().images
    repository = image.rpartition(":")[0]
    images.get(image).tag(repository, "latest")
    for old in images.list(name=repository):
        for tag in set(old.tags) - {image, f"{repository}:latest"}:
            try:
                images.remove(tag)
            except docker.errors.APIError as error:
                log(f"{tag}: kept, {error.explanation}")


def held(layouts: Iterable[Path]) -> frozenset[str]:
    """Return the blobs of those layouts that the engine holds whole."""
    whole, found = _whole() or (), set()
    for layout in layouts:
        with contextlib.suppress(FileNotFoundError):  # another run has dropped it
            if oci.read_digest(layout) in whole:
                found |= {item["digest"] for item in oci.descriptors(layout)}
    return frozenset(found)


def _whole() -> frozenset[str] | None:
    """Return the manifests whose blobs the engine has all of; none where it does not say."""
    found: set[str] = set()
    for image in _images():
        whole = _available(image)
        if whole is None:
            return None
        found |= whole
    return frozenset(found)


def _available(image: Mapping[str, Any]) -> set[str] | None:
    """Return an image's manifests whose blobs are all there; none where the engine does not say."""
    manifests = image.get("Manifests")
    return {item["ID"] for item in manifests if item["Available"]} if manifests else None


def _images(name: str | None = None) -> list[dict[str, Any]]:
    """Return what the engine says of its images, or of one; of each one's manifests too, where it can."""
    params = {"manifests": "true", "filters": json.dumps({"reference": [name]} if name else {})}
    with contextlib.closing(docker.from_env()) as client:
        answer = client.api.get(f"{client.api.base_url}/{API}/images/json", params=params)
        return answer.json() if answer.ok else [image.attrs for image in client.images.list(name)]


def send(layout: Path, reference: str, there: Collection[str]) -> None:
    """Stream a layout to the engine without some of its blobs. Raises EngineError."""
    process = subprocess.Popen(
        ["docker", "load", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    broken = ""
    try:
        _stream(_named_layout(layout, reference, there), process)
    except (BrokenPipeError, ConnectionResetError) as error:
        broken = str(error)
    _, stderr = process.communicate()
    if process.returncode or broken:
        reason = stderr.decode(errors="replace").strip() or broken
        raise EngineError(f"docker load {reference}: {reason}", hint="invoke engine; then run the same command again")


def _stream(files: Iterable[tuple[str, io.BufferedReader | io.BytesIO]], process: subprocess.Popen[bytes]) -> None:
    with tarfile.open(fileobj=process.stdin, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = content.seek(0, os.SEEK_END)
            content.seek(0)
            archive.addfile(entry, content)


def _named_layout(
    layout: Path, reference: str, there: Collection[str]
) -> Iterator[tuple[str, io.BufferedReader | io.BytesIO]]:
    index = json.loads((layout / "index.json").read_bytes())
    for manifest in index["manifests"]:
        manifest["annotations"] = {
            "io.containerd.image.name": f"docker.io/{reference}",
            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        }
    yield "oci-layout", io.BytesIO((layout / "oci-layout").read_bytes())
    yield "index.json", io.BytesIO(json.dumps(index).encode())
    for blob in sorted((layout / "blobs" / "sha256").iterdir()):
        if f"sha256:{blob.name}" not in there:
            with blob.open("rb") as file:
                yield f"blobs/sha256/{blob.name}", file
