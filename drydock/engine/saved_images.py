"""Writes an image of the engine as an OCI layout. IO.

`docker save` writes one since Docker 25: the blobs that the engine has, of the platforms that it has. With the
containerd image store these are the blobs of the registry; the classic store writes its layers uncompressed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import IO, Any, cast

from drydock.core.errors import EngineError
from drydock.core.files import parse_any_json
from drydock.core.tar import members, open_tar
from drydock.oci import image_layout

_BLOB = re.compile(r"blobs/sha256/[0-9a-f]{64}")
INDEX = "index.json"
READ = 1 << 20
"""Bytes read at once."""


def save_image(image: str, folder: Path) -> str:
    """Write an image of the engine into an empty folder as an OCI layout; return its digest.

    Raises EngineError for an image that the engine does not have whole, and for an engine before Docker 25.
    """
    command = ["docker", "save", image]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            index = _write_blobs(cast("IO[bytes]", process.stdout), folder)
        except (tarfile.TarError, OSError, ValueError) as error:
            process.kill()
            reason = process.communicate()[1].decode(errors="replace").strip()
            raise EngineError(f"{' '.join(command)}: {reason or error}", hint="`docker images` lists names") from error
        reason = process.communicate()[1].decode(errors="replace").strip()
    if process.returncode:
        raise EngineError(f"{' '.join(command)}: {reason}", hint="`docker images` lists names")
    entries = index.get("manifests") or []
    if len(entries) != 1:
        problem = f"{' '.join(command)}: found no image in the form of OCI, which Docker writes since version 25"
        raise EngineError(problem, hint="push the image to a registry, and adopt it there")
    image_layout.write_index(folder, {name: entries[0][name] for name in ("mediaType", "digest", "size")})
    if not image_layout.is_intact_layout(folder):
        problem = f"{image}: the engine has not all of its blobs, or others than their digests say"
        raise EngineError(problem, hint=f"docker pull {image}")
    return image_layout.read_digest(folder)


def _write_blobs(stream: IO[bytes], folder: Path) -> dict[str, Any]:
    """Write the blobs of an archive into a layout; return its index. Raises TarError, OSError or ValueError.

    They are compared with their digests when the layout is whole.
    """
    (folder / "blobs/sha256").mkdir(parents=True)
    index: dict[str, Any] = {}
    with open_tar(stream, "r|") as archive:
        for member in members(archive):
            content = archive.extractfile(member) if member.isreg() else None
            if content and _BLOB.fullmatch(member.name):
                with (folder / member.name).open("xb") as file:
                    shutil.copyfileobj(content, file, READ)
            elif content and member.name == INDEX:
                index = dict(parse_any_json(content.read(image_layout.LARGEST)))
    return index
