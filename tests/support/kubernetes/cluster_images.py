"""Archives of images that a node imports: those of an OCI layout, and others of the same layers. IO."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

from drydock.build.standins import SERVED
from drydock.core.files import format_compact_json
from drydock.oci import image_layout
from tests.support.kubernetes.cluster_node import SANDBOX

REPOSITORY = "registry.example/vllm"
"""No node can reach it: each pod uses what was imported."""
SLEEPS = "import signal; signal.sigwait([signal.SIGTERM, signal.SIGINT])"
"""What the container does that holds a pod's namespaces."""


class Image(NamedTuple):
    """An image of a layout's layers."""

    descriptor: dict[str, Any]
    added: dict[str, bytes]
    """Digest → blob that the layout lacks."""
    name: str = ""

    @property
    def reference(self) -> str:
        return self.name or f"{REPOSITORY}@{self.descriptor['digest']}"


def own(layout: Path) -> Image:
    (descriptor,) = json.loads((layout / "index.json").read_text())["manifests"]
    return Image(descriptor, {})


def serving(layout: Path, **config: Any) -> Image:
    """Return the small stand-in's image, in which vLLM's stand-in runs at once, with other fields in its configuration.

    All else in it, such as the entrypoint and its supervisor, is as published.
    """
    env = image_layout.read_config(layout)["config"]["Env"]
    return changed(layout, Env=[*env, f"{SERVED}=1"], **config)


def changed(layout: Path, name: str = "", **config: Any) -> Image:
    """Return a layout's image with other fields in its configuration, and so with another digest."""
    manifest, whole = image_layout.read_manifest(layout), image_layout.read_config(layout)
    new_config = format_compact_json({**whole, "config": {**whole["config"], **config}}).encode()
    new_manifest = format_compact_json({**manifest, "config": manifest["config"] | _described(new_config)}).encode()
    added = {_described(data)["digest"]: data for data in (new_config, new_manifest)}
    return Image({"mediaType": manifest["mediaType"], **_described(new_manifest)}, added, name)


def sandbox(layout: Path) -> Image:
    """Return the image of the container that holds a pod's namespaces."""
    return changed(layout, SANDBOX, Entrypoint=["/usr/bin/python3", "-I", "-S", "-c", SLEEPS], Cmd=[], User="0")


def write_archive(path: Path, layout: Path, *images: Image) -> None:
    index = [{**image.descriptor, "annotations": {"io.containerd.image.name": image.reference}} for image in images]
    texts = {"oci-layout": (layout / "oci-layout").read_bytes()}
    texts["index.json"] = json.dumps({"schemaVersion": 2, "manifests": index}).encode()
    for image in images:
        texts |= {f"blobs/{digest.replace(':', '/')}": data for digest, data in image.added.items()}
    with tarfile.open(path, "w") as archive:
        for name, data in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        archive.add(layout / "blobs", "blobs")


def _described(data: bytes) -> dict[str, Any]:
    return {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
