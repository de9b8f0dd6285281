"""A build's plan in, its OCI layout out, without making again what the build before it made. IO.

BuildKit's cache holds layers with the times at which their files were written. Each export gives them other times
(rewrite-timestamp), which means to unpack, change and compress the whole image, even where only its last layer is new.
So a layout remembers of each layer what BuildKit held in its place (`rewritten.json`). The next export tells BuildKit
that those layers belong to the base, whose times it leaves alone; in the manifest that it makes, their descriptors are
then exchanged for the remembered ones. The image is the same, bit for bit; `verify` compares it with one made whole.

Sources: BuildKit's exporter/containerimage/writer.go (rewriteRemoteWithEpoch) on what it leaves alone, and
exporter/oci/export.go on attributes of an export standing in for what the Dockerfile's frontend said of the base.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from drydock import buildx, oci
from drydock.console import log
from drydock.errors import BuildError
from drydock.files import checksum
from drydock.record import Digest, Record, dump

MEMORY = "rewritten.json"
"""Of a layout, beside its blobs."""
WORTH_ASKING = 8_000_000
"""Bytes of layers to be made again, from which BuildKit is asked first what it holds of them: that takes a second."""
Bake = Callable[..., Mapping[str, Any]]
"""Builds a plan, and returns what is said of each target."""
REWRITE = "rewrite-timestamp=true"
BASE_CONFIG = "containerimage.base.config"
"""What the Dockerfile's frontend tells an export of the image below FROM."""
MARK = "buildkit/rewritten-timestamp"
"""How BuildKit annotates a layer whose times it changed."""


class Layer(Record):
    """A layer of an image, and what BuildKit's cache holds in its place."""

    before: Digest
    """Its blob in BuildKit's cache."""
    before_unpacked: Digest | None
    """The same, unpacked; null where BuildKit was not asked."""
    descriptor: Mapping[str, Any]
    """In the image's manifest."""
    unpacked: Digest


class Memory(Record):
    """The layers of a layout."""

    made_by: str
    """Checksum of what decides how layers are changed: their base, the export, its epoch."""
    layers: tuple[Layer, ...]

    @property
    def usable(self) -> tuple[Layer, ...]:
        """Return the layers that BuildKit can be told to leave alone: the first ones, up to one that is not known."""
        found = []
        for layer in self.layers:
            if layer.before_unpacked is None:
                break
            found.append(layer)
        return tuple(found)


def export(
    plan: Mapping[str, Any],
    layout: Path,
    like: Path | None = None,
    *,
    builder: str | None = None,
    no_cache: bool = False,
    bake: Bake = buildx.bake,
) -> None:
    """Bake a plan of one target into a folder, its output; layers that `like` has as well are taken from there.

    Raises BuildError, DiskFullError or EngineError.
    """
    made_by = _made_by(plan)
    known: tuple[Layer, ...] = ()
    if like:
        known = _known(plan, like, made_by, lambda asked: bake(asked, builder=builder))
        seed(layout, like)
        stand_in(layout, (layer.before for layer in known))
    history = oci.read_config(like)["history"] if like else ()
    said = bake(_leaving(plan, known, history), builder=builder, no_cache=no_cache)
    settle(layout, known)
    layers = _layers(layout, known, next(iter(said.values()), {}))
    memory = dump(Memory(made_by=made_by, layers=layers))
    (layout / MEMORY).write_text(json.dumps(memory, indent=2))  # unsorted: a manifest's digest knows the keys' order


def _known(plan: Mapping[str, Any], like: Path, made_by: str, bake: Bake) -> tuple[Layer, ...]:
    memory = read(like, made_by)
    if memory and _unasked(memory) >= WORTH_ASKING:
        memory = _ask(plan, like.parent, memory, bake)
    return memory.usable if memory else ()


def read(layout: Path, made_by: str) -> Memory | None:
    """Return what a layout remembers, if it was made in the same way."""
    with contextlib.suppress(FileNotFoundError, ValidationError):
        memory = Memory.model_validate_json((layout / MEMORY).read_bytes())
        return memory if memory.made_by == made_by else None
    return None


def seed(layout: Path, like: Path) -> None:
    """Link another layout's blobs into this one: BuildKit does not send a blob whose name is there.

    Blobs that were cut short are not taken over.
    """
    stand_in(layout, ())
    for descriptor in oci.descriptors(like):
        blob = oci.blob(like, descriptor["digest"])
        if blob.is_file() and blob.stat().st_size == descriptor["size"]:
            os.link(blob, oci.blob(layout, descriptor["digest"]))


def stand_in(layout: Path, digests: Iterable[str]) -> None:
    """Let empty files stand in for blobs that nobody wants, so that BuildKit does not send them."""
    (layout / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    for digest in digests:
        blob = oci.blob(layout, digest)
        if not blob.exists():
            blob.touch()


def settle(layout: Path, known: Sequence[Layer]) -> None:
    """Exchange the layers that BuildKit left alone in a layout's manifest and config, and drop what neither names."""
    manifest = oci.read_manifest(layout)
    config = oci.blob(layout, manifest["config"]["digest"]).read_bytes()
    found: list[str] = json.loads(config)["rootfs"]["diff_ids"]
    left_alone = [layer if layer.before_unpacked == name else None for layer, name in zip(known, found, strict=False)]
    if any(left_alone):
        exchange = list(zip_longest(left_alone, manifest["layers"], found))
        manifest["layers"] = [dict(layer.descriptor) if layer else item for layer, item, _ in exchange]
        config = _exchanged(config, found, [layer.unpacked if layer else name for layer, _, name in exchange])
        manifest["config"] |= {"digest": _write(layout, config), "size": len(config)}
        _name(layout, json.dumps(manifest, indent=2, ensure_ascii=False).encode())
    wanted = {item["digest"].removeprefix("sha256:") for item in oci.descriptors(layout)}
    for blob in (layout / "blobs" / "sha256").iterdir():
        if blob.name not in wanted:
            blob.unlink()


def _exchanged(config: bytes, found: list[str], wanted: list[str]) -> bytes:
    """Return a config with other diff_ids; nothing else in it changes, down to its escapes. Raises BuildError."""
    old, new = (json.dumps(names, separators=(",", ":")).encode() for names in (found, wanted))
    if config.count(old) != 1:
        raise BuildError("docker buildx bake: the config is not written as BuildKit writes it", hint="try --no-cache")
    return config.replace(old, new)


def _name(layout: Path, manifest: bytes) -> None:
    """Write a manifest, and let the layout's index name it."""
    index = json.loads((layout / "index.json").read_bytes())
    index["manifests"][0] |= {"digest": _write(layout, manifest), "size": len(manifest)}
    (layout / "index.json").write_text(json.dumps(index, separators=(",", ":")))


def _write(layout: Path, data: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    oci.blob(layout, digest).write_bytes(data)
    return digest


def _layers(layout: Path, known: Sequence[Layer], said: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Return a layout's layers with what BuildKit held before; only the known ones where it did not say clearly."""
    layers = oci.read_manifest(layout)["layers"]
    blobs = held(said, len(layers))
    if blobs is None:
        return tuple(known)
    remembered = {layer.descriptor["digest"]: layer for layer in known}
    unpacked = oci.read_config(layout)["rootfs"]["diff_ids"]
    each = zip(layers, blobs, unpacked, strict=True)
    return tuple(remembered.get(item["digest"]) or _layer(item, before, diff_id) for item, before, diff_id in each)


def _layer(descriptor: Mapping[str, Any], before: str, unpacked: str) -> Layer:
    if MARK in descriptor.get("annotations", {}):
        return Layer(before=before, before_unpacked=None, descriptor=descriptor, unpacked=unpacked)
    return Layer(before=descriptor["digest"], before_unpacked=unpacked, descriptor=descriptor, unpacked=unpacked)


def held(said: Mapping[str, Any], count: int) -> list[str] | None:
    """Return the blobs that BuildKit held of an image of so many layers, by its account of what it did."""
    steps = said.get("buildx.build.provenance", {}).get("metadata", {})
    layers = steps.get("https://mobyproject.org/buildkit@v1#metadata", {}).get("layers", {})
    chains = {tuple(item["digest"] for item in chain) for step in layers.values() for chain in step}
    found = [list(chain) for chain in chains if len(chain) == count]
    return found[0] if len(found) == 1 else None


def _unasked(memory: Memory) -> int:
    """Return the bytes of the layers that BuildKit cannot be told to leave alone yet."""
    return sum(layer.descriptor["size"] for layer in memory.layers[len(memory.usable) :])


def _ask(plan: Mapping[str, Any], folder: Path, memory: Memory, bake: Bake) -> Memory:
    """Ask BuildKit for the layers of a plan as it holds them, and complete what is remembered of the same ones."""
    log("asking BuildKit for the layers as it holds them")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".asked-") as name:
        asked = Path(name)
        stand_in(asked, (layer.before for layer in memory.layers))
        bake(_exported(plan, lambda text: text.replace(REWRITE, "rewrite-timestamp=false"), asked))
        blobs = (item["digest"] for item in oci.read_manifest(asked)["layers"])
        unpacked = dict(zip(blobs, oci.read_config(asked)["rootfs"]["diff_ids"], strict=True))
    layers = [layer.model_copy(update={"before_unpacked": unpacked.get(layer.before)}) for layer in memory.layers]
    return memory.model_copy(update={"layers": tuple(layers)})


def _leaving(plan: Mapping[str, Any], known: Sequence[Layer], history: Sequence[Any]) -> dict[str, Any]:
    """Return a plan whose export leaves the known layers as they are, as if they were the base's."""
    if not known:
        return dict(plan)
    layers = {"type": "layers", "diff_ids": [layer.before_unpacked for layer in known]}
    base = json.dumps({"rootfs": layers, "history": history}).replace('"', '""')
    return _exported(plan, lambda text: f'{text},"{BASE_CONFIG}={base}"')


def _exported(plan: Mapping[str, Any], change: Callable[[str], str], folder: Path | None = None) -> dict[str, Any]:
    """Return a plan with another export, and into another folder."""
    changed = copy.deepcopy(dict(plan))
    for target in changed["target"].values():
        export, _, own = target["output"][0].rpartition(",dest=")
        target["output"] = [f"{change(export)},dest={folder or own}"]
    return changed


def _made_by(plan: Mapping[str, Any]) -> str:
    (target,) = plan["target"].values()
    export = target["output"][0].rpartition(",dest=")[0]
    return checksum({"base": target["contexts"].get("base"), "export": export, "args": target["args"]})
