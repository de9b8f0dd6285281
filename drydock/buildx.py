"""Runs `docker buildx bake`, shows its progress, and loads the OCI layout it made into the engine. IO."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from drydock.console import ERRORS, log
from drydock.errors import BuildError, DiskFullError, EngineError
from drydock.files import dumps
from drydock.plan import folders


def bake(plan: Mapping[str, Any], *, builder: str | None = None, no_cache: bool = False) -> None:
    """Build a plan; progress goes to standard error. Raises BuildError, DiskFullError or EngineError."""
    with tempfile.TemporaryDirectory(prefix="drydock-plan-") as folder:
        file = Path(folder) / "docker-bake.json"
        file.write_text(dumps(plan))
        options = [*_given("--builder", builder), *(["--no-cache"] if no_cache else [])]
        options += [f"--allow=fs={path}" for path in folders(plan)]
        code, lines = _follow(["docker", "buildx", "bake", "--file", str(file), "--progress", _progress(), *options])
    if code:
        _fail(code, lines)


def load(layout: Path, reference: str) -> None:
    """Load an OCI layout into the engine under a name, keeping its digest.

    The layout on disk stays as it is: only the stream carries the name. Raises EngineError.
    """
    process = subprocess.Popen(
        ["docker", "load", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    broken = ""
    try:
        _stream(layout, reference, process)
    except (BrokenPipeError, ConnectionResetError) as error:
        broken = str(error)
    _, stderr = process.communicate()
    if process.returncode or broken:
        reason = stderr.decode(errors="replace").strip() or broken
        raise EngineError(f"docker load {reference}: {reason}", hint="invoke engine; then run the same command again")


def _stream(layout: Path, reference: str, process: subprocess.Popen[bytes]) -> None:
    with tarfile.open(fileobj=process.stdin, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content in _named_layout(layout, reference):
            entry = tarfile.TarInfo(name)
            entry.size = content.seek(0, os.SEEK_END)
            content.seek(0)
            archive.addfile(entry, content)


def _named_layout(layout: Path, reference: str) -> Iterator[tuple[str, io.BufferedReader | io.BytesIO]]:
    index = json.loads((layout / "index.json").read_bytes())
    for manifest in index["manifests"]:
        manifest["annotations"] = {
            "io.containerd.image.name": f"docker.io/{reference}",
            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        }
    yield "oci-layout", io.BytesIO((layout / "oci-layout").read_bytes())
    yield "index.json", io.BytesIO(json.dumps(index).encode())
    for blob in sorted((layout / "blobs" / "sha256").iterdir()):
        with blob.open("rb") as file:
            yield f"blobs/sha256/{blob.name}", file


def _follow(command: Sequence[str]) -> tuple[int, list[str]]:
    """Run a command whose progress people watch; on a terminal buildx draws it itself, and nothing is collected."""
    if ERRORS.is_terminal:
        return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode, []
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        for line in process.stderr or ():
            lines.append(line.rstrip())
            log(lines[-1])
    return process.returncode, lines


def _fail(code: int, lines: Sequence[str]) -> NoReturn:
    text = "\n".join(lines)
    if "no space left on device" in text:
        raise DiskFullError(
            "docker buildx: no space left on the disk", hint="free some space (docker builder prune) and build again"
        )
    if (
        "Cannot connect to the Docker daemon" in text
        or "error reading from server" in text
        or "connection reset" in text
    ):
        raise EngineError(
            "docker buildx: the engine went away during the build", hint="invoke engine; then build again"
        )
    errors = [line for line in lines if line.startswith(("ERROR", "error"))]
    reason = errors[-1] if errors else f"exit {code}"
    raise BuildError(f"docker buildx bake: {reason}", hint="the failing step's output stands above")


def _progress() -> str:
    return "auto" if ERRORS.is_terminal else "plain"


def _given(option: str, value: str | None) -> list[str]:
    return [option, value] if value else []
