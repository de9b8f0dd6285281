"""What BuildKit does with stages and exports, for layers that are any bytes."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from drydock.build import foundation
from drydock.oci import image_layout
from tests.support import layouts

EPOCH = "1795219200"
BASE = b"base"
CONFIG = {
    "Healthcheck": {
        "Test": ["CMD", "python3", "health"],
        "Interval": 10 * 10**9,
        "Timeout": 90 * 10**9,
        "StartPeriod": 7200 * 10**9,
        "StartInterval": 2 * 10**9,
    }
}
HEALTHCHECK = r"""HEALTHCHECK &{["CMD" "python3" "health"] "10s" "1m30s" "2h0m0s" "2s" '\x00'}"""
PORTS = "EXPOSE [8000/tcp 8001/tcp]"
"""Both as BuildKit 0.25 words them."""
MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"


def diff_id(layer: bytes) -> str:
    return f"sha256:{hashlib.sha256(layer).hexdigest()}"


class BuildKit:
    """What the real one does with stages and exports, for layers that are any bytes; "rewriting" one doubles them."""

    def __init__(self, below: Sequence[bytes], above: Sequence[bytes]) -> None:
        self.below, self.above = below, above
        self.rewritten: list[bytes] = []
        self.sent: list[bytes] = []
        self.heeds_base = True
        self.healthcheck, self.ports = HEALTHCHECK, PORTS
        self.asked: list[Mapping[str, object]] = []

    def __call__(self, plan: Mapping[str, Any], **how: object) -> None:
        self.asked.append(how)
        (target,) = plan["target"].values()
        (words,) = csv.reader(target["output"])
        options = dict(word.split("=", 1) for word in words)
        layers = [BASE, *self.below]
        if foundation.STAGE in target["contexts"]:
            folder, _, digest = target["contexts"][foundation.STAGE].removeprefix("oci-layout://").partition("@")
            assert image_layout.read_digest(Path(folder)) == digest
            layers = held(Path(folder))
        if target.get("target") != foundation.STAGE:
            layers += self.above
        base = json.loads(options.get(foundation.BASE_CONFIG, "{}")) if self.heeds_base else {}
        self._export(Path(options["dest"]), layers, base.get("rootfs", {}).get("diff_ids", [diff_id(BASE)]))

    def _export(self, folder: Path, layers: Sequence[bytes], immutable: Sequence[str]) -> None:
        described, unpacked, diverged = [], [], False
        for number, layer in enumerate(layers):
            diverged = diverged or diff_id(layer) not in immutable[number : number + 1]
            final = layer * 2 if diverged else layer
            unpacked.append(diff_id(final))
            described.append({"mediaType": MEDIA_TYPE, **self._send(folder, zstandard.compress(final))})
            if diverged:
                self.rewritten.append(layer)
                described[-1]["annotations"] = {"buildkit/rewritten-timestamp": EPOCH}
        runs = [{"created_by": "EXPOSE map[80/tcp:{}]"}, *[{"created_by": "RUN a && b > c"}] * len(described)]
        steps = [*runs, {"created_by": self.ports}, {"created_by": self.healthcheck}]
        text = layouts.dumped({"config": CONFIG, "history": steps, "rootfs": {"diff_ids": unpacked, "type": "layers"}})
        config = {"mediaType": "config", **self._send(folder, text.replace(b"&", rb"\u0026"))}
        layouts.name(folder, {"schemaVersion": 2, "config": config, "layers": described})
        for blob in (folder / "blobs" / "sha256").iterdir():
            blob.chmod(0o444)  # as containerd's content store leaves them

    def _send(self, folder: Path, data: bytes) -> dict[str, Any]:
        digest = diff_id(data)
        if image_layout.path_of_blob(folder, digest).exists():
            return {"digest": digest, "size": len(data)}
        self.sent.append(data)
        return layouts.put(folder, data)


def held(layout: Path) -> list[bytes]:
    blobs = (image_layout.path_of_blob(layout, item["digest"]) for item in image_layout.read_manifest(layout)["layers"])
    return [zstandard.decompress(blob.read_bytes()) for blob in blobs]
