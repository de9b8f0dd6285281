"""A small image as another team would publish it, pushed with requests alone: of any shape, also of wrong ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import requests
import zstandard

from tests.support import layouts

OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.oci.image.index.v1+json"
SITE = "usr/local/lib/python3.12/dist-packages"
FILES: Mapping[str, bytes] = {
    "etc/os-release": b'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n',
    "usr/bin/python3": b"#!/bin/sh\n",
    f"{SITE}/vllm-0.33.0.dist-info/METADATA": b"Name: vllm\nVersion: 0.33.0\n",
    f"{SITE}/vllm/__init__.py": b"",
}
"""What vLLM's docker/Dockerfile leaves: Ubuntu's Python, vLLM in its packages."""
SETTINGS: Mapping[str, Any] = {
    "Entrypoint": ["vllm", "serve"],
    "Env": [
        "PATH=/usr/local/cuda/bin:/usr/bin:/bin",
        "CUDA_VERSION=13.0.1",
        "LD_LIBRARY_PATH=/usr/local/nvidia/lib64",
        "VLLM_USAGE_SOURCE=production-docker-image",
    ],
    "WorkingDir": "/vllm-workspace",
    "User": "2000:0",
    "Volumes": {"/data": {}},
    "StopSignal": "SIGKILL",
    "Labels": {"org.opencontainers.image.ref.name": "ubuntu", "org.opencontainers.image.version": "24.04"},
}


class Layer(NamedTuple):
    """A layer: its blob, the digest of its content, and its descriptor."""

    blob: bytes
    diff_id: str
    descriptor: dict[str, Any]


def make_layer(files: Mapping[str, bytes], media_type: str = OCI_LAYER, *, salt: str = "") -> Layer:
    """Return a layer of files, compressed as its media type says."""
    tar = layouts.tar(
        [(name, data, {"mode": 0o755}) for name, data in {**files, **({salt: b""} if salt else {})}.items()]
    )
    return wrap_layer(tar, media_type)


def wrap_layer(tar: bytes, media_type: str = OCI_LAYER) -> Layer:
    """Return a layer of a tar file, or of what is none."""
    if media_type.endswith("zstd"):
        blob = zstandard.ZstdCompressor().compress(tar)
    else:
        blob = gzip.compress(tar, mtime=0) if media_type.endswith("gzip") else tar
    return Layer(blob, digest_of(tar), {"mediaType": media_type, "digest": digest_of(blob), "size": len(blob)})


def link(name: str, target: str) -> tuple[str, bytes, dict[str, Any]]:
    """Return a symbolic link for `layouts.tar`."""
    return name, b"", {"type": tarfile.SYMTYPE, "linkname": target}


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Upstream:
    """A repository of another team."""

    def __init__(self, host: str, name: str) -> None:
        self.host, self.name = host, name

    def put_blob(self, data: bytes) -> dict[str, Any]:
        """Upload a blob; return its digest and size."""
        begun = requests.post(f"http://{self.host}/v2/{self.name}/blobs/uploads/", timeout=10)
        begun.raise_for_status()
        address = f"{begun.headers['Location']}&digest={digest_of(data)}"
        headers = {"Content-Type": "application/octet-stream"}
        requests.put(address, data=data, headers=headers, timeout=10).raise_for_status()
        return {"digest": digest_of(data), "size": len(data)}

    def put_manifest(self, content: Mapping[str, Any], tag: str) -> str:
        data = json.dumps(content).encode()
        address = f"http://{self.host}/v2/{self.name}/manifests/{tag}"
        requests.put(address, data=data, headers={"Content-Type": content["mediaType"]}, timeout=10).raise_for_status()
        return digest_of(data)

    def push(  # noqa: PLR0913 - each is what some image has otherwise
        self,
        tag: str,
        layers: Sequence[Layer] = (),
        settings: Mapping[str, Any] = SETTINGS,
        *,
        platform: str = "linux/amd64",
        media_type: str = OCI_MANIFEST,
        config: Mapping[str, Any] | None = None,
        manifest: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Push an image; return the descriptor by which an index names it. `config` and `manifest` replace keys."""
        layers = layers or [make_layer(FILES)]
        system, _, architecture = platform.partition("/")
        described: dict[str, Any] = {
            "os": system,
            "architecture": architecture,
            "config": dict(settings),
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created_by": f"step {number}"} for number, _ in enumerate(layers)],
            **(config or {}),
        }
        for layer in layers:
            self.put_blob(layer.blob)
        kind = "application/vnd.oci.image.config.v1+json"
        if media_type == DOCKER_MANIFEST:
            kind = "application/vnd.docker.container.image.v1+json"
        content = {
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": {"mediaType": kind, **self.put_blob(json.dumps(described).encode())},
            "layers": [layer.descriptor for layer in layers],
            **(manifest or {}),
        }
        digest = self.put_manifest(content, tag)
        size = len(json.dumps(content).encode())
        runs_on = {"os": system, "architecture": architecture}
        return {"mediaType": media_type, "digest": digest, "size": size, "platform": runs_on}

    def push_index(self, tag: str, entries: Sequence[Mapping[str, Any]]) -> str:
        return self.put_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": [*entries]}, tag)
