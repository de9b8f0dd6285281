"""A row with a kept foundation of a few bytes, and a registry that serves it as it is or with one fault."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from drydock.build.build_job import Job
from drydock.lock.image_record import PlatformRecord, VerifiedFoundation, VerifiedImage
from drydock.oci import image_layout, strict
from tests.support import layouts
from tests.support.fake_registry import Answer, Fake, Seen
from tests.support.local_registry import PLATFORMS, LocalRepository

REPOSITORY = "acme/foundations"
LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
Change = Callable[[dict[str, Any]], object]
"""What a maker of a wrong foundation does to its manifest or its config."""


def unchanged(_: dict[str, Any]) -> None:
    """Change nothing."""


def write(
    folder: Path, platform: str = "linux/amd64", *, config: Change = unchanged, manifest: Change = unchanged
) -> str:
    """Write the layout of a foundation with two layers; return its digest."""
    system, _, architecture = platform.partition("/")
    layers = [layouts.tar([(name, name.encode() * 500, {"mtime": 0})]) for name in ("base", "vllm")]
    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    settings: dict[str, Any] = {"os": system, "architecture": architecture, "config": {}, "history": []}
    settings["rootfs"] = {"type": "layers", "diff_ids": diff_ids}
    config(settings)
    described = [{"mediaType": LAYER, **layouts.put(folder, zstandard.compress(layer))} for layer in layers]
    content: dict[str, Any] = {"schemaVersion": 2, "mediaType": strict.MANIFEST, "layers": described}
    content["config"] = {"mediaType": image_layout.CONFIG, **layouts.put(folder, layouts.dumped(settings))}
    manifest(content)
    descriptor = {"mediaType": strict.MANIFEST, **layouts.put(folder, json.dumps(content).encode())}
    image_layout.write_index(folder, descriptor)
    return str(descriptor["digest"])


def row_without_foundation(folder: Path) -> Job:
    """Return the job of a row whose lock has no digest, in a repository and a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRYDOCK_CACHE", str(folder / "cache"))
        local = LocalRepository(folder, platforms=PLATFORMS[:1])
        local.forget(PLATFORMS[0])
        return local.job(PLATFORMS[0])


def record(job: Job, digest: str, key: str = "") -> Job:
    """Return a job whose record has the digest of a foundation, as `verify --record` writes it."""
    foundation = VerifiedFoundation(digest=digest, key=key or job.foundation_key)
    image = VerifiedImage(digest=digest, inputs_sha256="0" * 64, buildkit="v1", buildx="v1", foundation=foundation)
    recorded_job = replace(job)
    recorded_job.__dict__["record"] = PlatformRecord(verified=image)  # instead of the file
    return recorded_job


class Shared(Fake):
    """Serves a foundation under its digest and some tags; `faults` maps a part to what is answered in its place.

    Parts are manifest, config and layer (the last one).
    """

    def __init__(self, layout: Path, *tags: str) -> None:
        self.tags = tags
        self.faults: dict[str, Callable[[Answer], Answer]] = {}
        self.served: dict[str, tuple[str, Answer]] = {}
        self.serve(layout, *tags)
        super().__init__(self._answer)

    def serve(self, layout: Path, *tags: str) -> None:
        """Serve another one too."""
        manifest, config, *layers = image_layout.read_descriptors(layout)
        for name in (manifest["digest"], *tags):
            data = image_layout.path_of_blob(layout, manifest["digest"]).read_bytes()
            self.served[f"manifests/{name}"] = "manifest", Answer(200, {"Content-Type": strict.MANIFEST}, data)
        for part, item in (("config", config), *(("below", layer) for layer in layers[:-1]), ("layer", layers[-1])):
            path = image_layout.path_of_blob(layout, item["digest"])
            self.served[f"blobs/{item['digest']}"] = part, Answer(200, {}, path.read_bytes() if path.is_file() else b"")

    def _answer(self, request: Seen) -> Answer:
        name = request.path.removeprefix(f"/v2/{REPOSITORY}/")
        if name not in self.served:
            return Answer(404)
        part, answer = self.served[name]
        return self.faults.get(part, lambda same: same)(answer)

    @property
    def where(self) -> str:
        """Return what is written after --foundations."""
        return f"{self.host}/{REPOSITORY}"


def left(job: Job) -> list[str]:
    """Return what lies where foundations of a job's row are kept."""
    return sorted(path.name for path in job.foundation.parent.iterdir()) if job.foundation.parent.is_dir() else []
