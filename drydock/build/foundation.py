"""Builds a plan into an OCI layout, reusing the foundation: the image without the entrypoint, built once and kept. IO.

The Dockerfile's stage `foundation`, with everything from wheels and vendors, is exported by itself. Later builds use
that layout in place of the stage, as the image named by FROM: they need neither BuildKit's cache nor the wheels, and
BuildKit copies its layers without reading them. The result is bit for bit the image that the plan builds in one run;
`verify` compares them. One text in it is made the same for all versions of BuildKit. Where a project's own lines make
the export set times (`bake_plan.choose_export`), it does so only above the foundation; in one run, the layers below
would be described as changed, too.

Sources: Dockerfile reference, FROM, on named contexts that replace a stage; BuildKit's
exporter/containerimage/writer.go (rewriteRemoteWithEpoch) on which layers it keeps, and exporter/oci/export.go on
attributes of an export.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from drydock.build.bake_plan import escape_hcl
from drydock.build.buildx import Bake
from drydock.core.console import log
from drydock.core.files import link_or_copy, parse_any_json, write_atomically
from drydock.model.variant import Variant
from drydock.oci import image_layout

STAGE = "foundation"
REST = "\nFROM base AS entrypoint\n"
"""The line of a Dockerfile that ends the foundation."""
BASE_CONFIG = "containerimage.base.config"
"""Tells an export which layers are the base's. The Dockerfile frontend sets it for images, not for stages."""


class DamagedError(Exception):
    """A layer of the foundation was changed on the disk."""


def extract_recipe(dockerfile: str) -> str:
    """Return the instructions that make the foundation."""
    stages, _, _ = dockerfile.partition(REST)
    return "\n".join(line for line in stages.splitlines() if line and not line.startswith("#"))


def list_foundation_contexts(variant: Variant) -> tuple[str, ...]:
    """Return the named contexts that only the foundation reads."""
    return ("wheels", *(source.name for source in variant.sources), *(item.name for item in variant.supplied))


def build_foundation(plan: Mapping[str, Any], layout: Path, bake: Bake) -> None:
    """Build the foundation of a plan of one target into a folder."""
    edited = copy.deepcopy(dict(plan))
    (target,) = edited["target"].values()
    target |= {"target": STAGE, "output": [f"{_read_export_options(target)},dest={escape_hcl(str(layout))}"]}
    bake(edited)


def complete_image(plan: Mapping[str, Any], layout: Path, foundation: Path, bake: Bake) -> None:
    """Build a plan of one target into the folder `layout`, on top of a foundation that is `oci.sized`.

    Raises DamagedError: its layers are hashed while BuildKit works, which does not read them.
    """
    edited = copy.deepcopy(dict(plan))
    (target,) = edited["target"].values()
    config = image_layout.read_config(foundation)
    base = json.dumps({"rootfs": config["rootfs"], "history": config["history"]}).replace('"', '""')
    target["contexts"][STAGE] = escape_hcl(f"oci-layout://{foundation}@{image_layout.read_digest(foundation)}")
    destination = escape_hcl(f'"{BASE_CONFIG}={base}",dest={layout}')
    target["output"] = [f"{_read_export_options(target)},{destination}"]
    _link_foundation_blobs(layout, foundation)
    with ThreadPoolExecutor(max_workers=1) as executor:
        sound = executor.submit(image_layout.is_sound_layout, foundation)
        bake(edited)
    if not sound.result():
        raise DamagedError
    if not _settle_layers(layout, foundation):
        log("this BuildKit changes the times of files in its base image: building without the kept foundation")
        _empty_folder(layout)
        bake(plan)
    _settle_history(layout)
    _remove_unnamed_blobs(layout)


def _read_export_options(target: Mapping[str, Any]) -> str:
    return str(target["output"][0].rpartition(",dest=")[0])


def _link_foundation_blobs(layout: Path, foundation: Path) -> None:
    """Link the foundation's blobs into a layout: BuildKit does not send a blob that exists."""
    (layout / "blobs" / "sha256").mkdir(parents=True)
    # A set, because two layers may be equal.
    for digest in {descriptor["digest"] for descriptor in image_layout.read_descriptors(foundation)}:
        link_or_copy(image_layout.path_of_blob(foundation, digest), image_layout.path_of_blob(layout, digest))


def _settle_layers(layout: Path, foundation: Path) -> bool:
    """Describe the foundation's layers as an export in one run does.

    The difference is an annotation which says that their times were changed. Returns false if the layers differ.
    """
    manifest, below = image_layout.read_manifest(layout), image_layout.read_manifest(foundation)["layers"]
    above = manifest["layers"][len(below) :]
    if [layer["digest"] for layer in manifest["layers"]] != [layer["digest"] for layer in (*below, *above)]:
        return False
    manifest["layers"] = [*below, *above]
    _write_manifest(layout, manifest)
    return True


def _settle_history(layout: Path) -> None:
    """Word the image's history as BuildKit 0.25 does: ports of earlier ones, and the healthcheck of those from 0.30."""
    manifest, config = image_layout.read_manifest(layout), image_layout.read_config(layout)
    data = image_layout.path_of_blob(layout, manifest["config"]["digest"]).read_bytes()
    steps = [step.get("created_by", "") for step in config["history"]]
    reworded = data
    for old, new in (*_reword_ports(steps), *_reword_healthcheck(steps, config.get("config", {}))):
        before, middle, after = reworded.rpartition(_in_json(old))
        reworded = before + _in_json(new) + after if middle else reworded
    if reworded != data:
        manifest["config"] |= _write_blob(layout, reworded)
        _write_manifest(layout, manifest)


def _reword_ports(steps: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the step that exposes ports, as BuildKit 0.13 words it, and as 0.25 does. A base may have one before."""
    step = next((text for text in reversed(steps) if text.startswith("EXPOSE ")), "")
    if match := re.fullmatch(r"EXPOSE map\[([^\]]*)\]", step):
        yield step, f"EXPOSE [{match[1].replace(':{}', '')}]"


def _reword_healthcheck(steps: Sequence[str], settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the step with the healthcheck, and how BuildKit 0.25 words it."""
    check = settings.get("Healthcheck", {})
    step = next((text for text in reversed(steps) if text.startswith("HEALTHCHECK ")), "")
    if step and check.keys() == {"Test", *TIMES}:
        times = " ".join(f'"{_format_go_duration(check[name])}"' for name in TIMES)
        yield step, f"HEALTHCHECK &{{[{' '.join(map(json.dumps, check['Test']))}] {times} '\\x00'}}"


TIMES = ("Interval", "Timeout", "StartPeriod", "StartInterval")
"""Keys of a healthcheck, in nanoseconds. Source: moby/buildkit, dockerfile2llb/convert.go, dispatchHealthcheck."""


def _format_go_duration(nanoseconds: int) -> str:
    """Return whole seconds as Go prints them: 10s, 2m0s, 1h0m0s."""
    minutes, seconds = divmod(nanoseconds // 10**9, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _in_json(text: str) -> bytes:
    """Return a string as Go writes it into JSON."""
    text = json.dumps(text, ensure_ascii=False)
    for character in "&<>":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def _remove_unnamed_blobs(layout: Path) -> None:
    """Remove blobs that a layout does not name."""
    digests = {item["digest"].removeprefix("sha256:") for item in image_layout.read_descriptors(layout)}
    for blob in (layout / "blobs" / "sha256").iterdir():
        if blob.name not in digests:
            blob.unlink()


def _write_manifest(layout: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest, and name it in the layout's index."""
    descriptor = _write_blob(
        layout, json.dumps(manifest, indent=2, ensure_ascii=False).encode()
    )  # as BuildKit formats it
    index = layout / "index.json"
    content = parse_any_json(index.read_bytes())
    content["manifests"][0] |= descriptor
    write_atomically(index, json.dumps(content, separators=(",", ":")))


def _write_blob(layout: Path, data: bytes) -> dict[str, Any]:
    """Write a blob; return its digest and size, as a descriptor has them."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    write_atomically(image_layout.path_of_blob(layout, digest), data)  # buildx makes its blobs read-only
    return {"digest": digest, "size": len(data)}


def _empty_folder(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
