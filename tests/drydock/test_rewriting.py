"""An export that leaves out what the one before it made is the same, byte for byte, as one that makes all of it."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from drydock import oci, rewriting
from tests.drydock import layouts

EPOCH = "1795219200"
BASE = b"base"
MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"


def diff_id(layer: bytes) -> str:
    return f"sha256:{hashlib.sha256(layer).hexdigest()}"


class BuildKit:
    """What the real one does with an export, for layers that are any bytes; "rewriting" one writes them twice."""

    def __init__(self, *layers: bytes) -> None:
        self.layers: Sequence[bytes] = layers
        self.rewritten: list[bytes] = []
        self.sent: list[str] = []
        self.talks = True
        self.calls = 0

    def __call__(self, plan: Mapping[str, Any], **_: object) -> dict[str, Any]:
        """Export."""
        self.calls += 1
        ((name, target),) = plan["target"].items()
        ((words),) = csv.reader(target["output"])
        options = dict(word.split("=", 1) for word in words)
        base = json.loads(options.get("containerimage.base.config", "{}"))
        immutable = base.get("rootfs", {}).get("diff_ids", [diff_id(BASE)])
        rewrite = options["rewrite-timestamp"] == "true"
        self._export(Path(options["dest"]), immutable, rewrite=rewrite)
        return {name: self._said()} if self.talks else {}

    def _export(self, folder: Path, immutable: Sequence[str], *, rewrite: bool) -> None:
        described, unpacked, diverged = [], [], False
        for number, layer in enumerate((BASE, *self.layers)):
            diverged = diverged or diff_id(layer) not in immutable[number : number + 1]
            final = layer * 2 if rewrite and diverged else layer
            unpacked.append(diff_id(final))
            described.append(self._layer(folder, final))
            if rewrite and diverged:
                self.rewritten.append(layer)
                described[-1]["annotations"] = {rewriting.MARK: EPOCH}
        steps = [{"created_by": "RUN a && b > c"}] * len(described)
        text = layouts.dumped({"history": steps, "rootfs": {"diff_ids": unpacked, "type": "layers"}})
        config = {"mediaType": "config", **self._send(folder, text.replace(b"&", rb"\u0026"))}
        layouts.name(folder, {"schemaVersion": 2, "config": config, "layers": described})

    def _layer(self, folder: Path, layer: bytes) -> dict[str, Any]:
        return {"mediaType": MEDIA_TYPE, **self._send(folder, zstandard.compress(layer))}

    def _send(self, folder: Path, data: bytes) -> dict[str, Any]:
        digest = diff_id(data)
        if oci.blob(folder, digest).exists():
            return {"digest": digest, "size": len(data)}
        self.sent.append(digest)
        return layouts.put(folder, data)

    def _said(self) -> dict[str, Any]:
        chain = [{"digest": diff_id(BASE)}, *({"digest": diff_id(zstandard.compress(layer))} for layer in self.layers)]
        steps = {"step0:0": [chain[:1]], "step1:0": [chain]}
        metadata = {"https://mobyproject.org/buildkit@v1#metadata": {"layers": steps}}
        return {"buildx.build.provenance": {"metadata": metadata}}


def plan(folder: Path, base: str = "oci-layout:///base@sha256:1") -> dict[str, Any]:
    target = {
        "contexts": {"base": base},
        "args": {"SOURCE_DATE_EPOCH": EPOCH},
        "output": [f"type=oci,tar=false,rewrite-timestamp=true,dest={folder}"],
    }
    return {"target": {"small": target}}


def export(buildkit: BuildKit, folder: Path, like: Path | None = None, **changes: str) -> Path:
    folder.mkdir()
    buildkit.rewritten, buildkit.sent = [], []
    rewriting.export(plan(folder, **changes), folder, like, bake=buildkit)
    return folder


def content(layout: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (layout / "blobs" / "sha256").iterdir()}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "WORTH_ASKING", 1)  # the layers here are of a few bytes


def same_as_whole(buildkit: BuildKit, layout: Path, whole: Path) -> bool:
    export(buildkit, whole)
    return (content(layout), oci.read_digest(layout)) == (content(whole), oci.read_digest(whole))


def test_after_an_edit_only_the_new_layer_is_rewritten_and_sent(tmp_path: Path) -> None:
    buildkit = BuildKit(b"torch", b"vllm", b"entrypoint")
    first = export(buildkit, tmp_path / "first")
    buildkit.layers = (b"torch", b"vllm", b"edited")
    second = export(buildkit, tmp_path / "second", first)

    assert buildkit.rewritten == [b"edited"]
    assert oci.read_digest(second) != oci.read_digest(first)
    assert same_as_whole(buildkit, second, tmp_path / "whole")


def test_what_was_asked_once_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "WORTH_ASKING", 30)  # more than the last layer alone
    buildkit, calls = BuildKit(b"torch", b"vllm", b"one"), []
    like = export(buildkit, tmp_path / "one")
    for word in (b"two", b"three"):
        buildkit.layers = (b"torch", b"vllm", word)
        buildkit.calls = 0
        like = export(buildkit, tmp_path / word.decode(), like)
        calls.append(buildkit.calls)

    assert calls == [2, 1]
    assert buildkit.rewritten == [b"three"]
    assert same_as_whole(buildkit, like, tmp_path / "whole")


def test_a_layer_that_changes_below_others_is_followed_by_new_ones(tmp_path: Path) -> None:
    buildkit = BuildKit(b"torch", b"vllm", b"entrypoint")
    first = export(buildkit, tmp_path / "first")
    buildkit.layers = (b"torch", b"newer", b"entrypoint")
    second = export(buildkit, tmp_path / "second", first)

    assert buildkit.rewritten == [b"newer", b"entrypoint"]
    assert same_as_whole(buildkit, second, tmp_path / "whole")


def test_a_step_that_ran_anew_and_differs_is_not_mistaken_for_the_old_one(tmp_path: Path) -> None:
    buildkit = BuildKit(b"torch", b"vllm", b"entrypoint")
    first = export(buildkit, tmp_path / "first")
    buildkit.layers = (b"torch, a minute later", b"vllm", b"entrypoint")
    second = export(buildkit, tmp_path / "second", first)

    assert len(buildkit.rewritten) == 3
    assert same_as_whole(buildkit, second, tmp_path / "whole")


def test_another_base_or_a_buildkit_that_says_nothing_means_a_whole_export(tmp_path: Path) -> None:
    buildkit = BuildKit(b"torch", b"entrypoint")
    first = export(buildkit, tmp_path / "first")
    export(buildkit, tmp_path / "based", first, base="oci-layout:///base@sha256:2")
    assert buildkit.rewritten == [b"torch", b"entrypoint"]

    buildkit.talks = False
    silent = export(buildkit, tmp_path / "silent")
    again = export(buildkit, tmp_path / "again", silent)
    assert buildkit.rewritten == [b"torch", b"entrypoint"]
    assert same_as_whole(buildkit, again, tmp_path / "whole")


def test_a_blob_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    buildkit = BuildKit(b"torch", b"entrypoint")
    first = export(buildkit, tmp_path / "first")
    layer = oci.read_manifest(first)["layers"][1]
    oci.blob(first, layer["digest"]).write_bytes(b"")
    (first / rewriting.MEMORY).unlink()
    again = export(buildkit, tmp_path / "again", first)

    assert oci.blob(again, layer["digest"]).stat().st_size == layer["size"]
    assert same_as_whole(buildkit, again, tmp_path / "whole")


def test_a_memory_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / rewriting.MEMORY).write_text('{"made_by": "x", "layers": [1]}')

    assert rewriting.read(tmp_path, "x") is None
    assert rewriting.read(tmp_path / "absent", "x") is None
