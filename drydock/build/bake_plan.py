"""(Variant, Lock) → docker-bake.json, which stock `docker buildx bake -f` accepts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drydock.model.locked import Lock, LockedPlatform
from drydock.model.variant import Variant

EXPORT = "type=oci,tar=false,force-compression=true,oci-mediatypes=true"
"""An OCI layout: the only export that the engine's own BuildKit makes bit for bit identical each time."""
REWRITING = f"{EXPORT},rewrite-timestamp=true"
"""The same, with newer times set to the epoch's. It unpacks and compresses every layer above the base a second time."""
WRITES = re.compile(r"^[ \t]*(?:RUN|COPY|ADD|WORKDIR)\b(?:.*\\\n)*.*", re.IGNORECASE | re.MULTILINE)
"""An instruction that writes into the image."""
SETTLES = re.compile(r".*/tools/layer\.py [^;&|]*|COPY --link --from=entrypoint /[\w/]+ /|WORKDIR /")
"""The last line of one that leaves no present time: its last command sets all times, or what it copies has set ones."""


def choose_export(dockerfile: str) -> str:
    """Return how the image of a Dockerfile is exported: as it was written, if each of its steps sets the times.

    A step that a project adds may not; see `additions.dockerfile` and templates/base.Dockerfile.j2.
    """
    last = (step.rpartition("\n")[2] for step in WRITES.findall(dockerfile))
    return EXPORT if all(SETTLES.fullmatch(line) for line in last) else REWRITING


def collect_inputs(
    variant: Variant, lock: Lock, platform: str, files: Mapping[str, str], exported: str = EXPORT
) -> dict[str, Any]:
    """Return everything a digest depends on, except BuildKit itself, as plain data.

    `files` maps the repository's files that are used (Dockerfile, profile, entrypoint, tools) to their hashes.
    """
    return {
        "files": dict(files),
        "pins": _summarize_pins(lock.platforms[platform]),
        "platform": platform,
        "source_date_epoch": lock.source_date_epoch,
        "compression": variant.compression.model_dump(mode="json", include={"algorithm", "level"}),
        "trims": variant.trims,
        "export": exported,
    }


def make_bake_plan(  # noqa: PLR0913 - the last has a default
    variant: Variant,
    lock: Lock,
    platform: str,
    contexts: Mapping[str, str],
    context: Path,
    output: Path,
    *,
    exported: str = EXPORT,
) -> dict[str, Any]:
    """Return the bake file that builds one variant for one platform into an OCI layout at `output`.

    `contexts` maps each named context to its bake value; `context` is the folder of the variant's Dockerfile. RUN steps
    have no network. No attestation is attached: provenance differs between builds, and would change the digest.
    """
    target = {
        "context": escape_hcl(str(context)),
        "dockerfile": "Dockerfile",
        "contexts": {name: escape_hcl(value) for name, value in contexts.items()},
        "args": {"SOURCE_DATE_EPOCH": str(lock.source_date_epoch)},
        "platforms": [platform],
        "network": "none",
        "attest": ["type=provenance,disabled=true", "type=sbom,disabled=true"],
        "output": [f"{exported},{format_compression(variant)},dest={escape_hcl(str(output))}"],
    }
    return {"group": {"default": {"targets": [bake_name(variant.id)]}}, "target": {bake_name(variant.id): target}}


def add_labels(bake: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a plan whose images have more labels; without labels, the same plan."""
    if not labels:
        return dict(bake)
    return {**bake, "target": {name: {**target, "labels": dict(labels)} for name, target in bake["target"].items()}}


def bake_name(variant: str) -> str:
    """Return a variant id as a bake target name, which must not contain dots."""
    return variant.replace(".", "_")


def list_plan_folders(bake: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the host folders that a plan reads or writes, for bake's --allow."""
    paths = []
    for target in bake["target"].values():
        paths.append(target["context"])
        paths += [value.removeprefix("oci-layout://").split("@")[0] for value in target["contexts"].values()]
        paths += [output.rpartition("dest=")[2] for output in target["output"]]
    return tuple(sorted({unescape_hcl(folder) for folder in paths if folder.startswith("/")}))


def unescape_hcl(value: str) -> str:
    """Return the text that a template of HCL stands for."""
    return value.replace("$${", "${").replace("%%{", "%{")


def escape_hcl(value: str) -> str:
    """Return the template of HCL that stands for a text: bake takes every string of its file for one."""
    return value.replace("${", "$${").replace("%{", "%%{")


def format_compression(variant: Variant) -> str:
    """Return how a variant's layers are compressed, as an export's options."""
    algorithm, level = variant.compression.algorithm, variant.compression.level
    return (
        f"compression={algorithm}"
        if algorithm == "uncompressed"
        else f"compression={algorithm},compression-level={level}"
    )


def _summarize_pins(pins: LockedPlatform) -> dict[str, Any]:
    return {
        "base": pins.base.digest or pins.base.model_dump(mode="json"),
        "layers": {name: [wheel.sha256 for wheel in wheels] for name, wheels in pins.layers.items()},
        "tools": [wheel.sha256 for wheel in pins.tools],
        "build": [wheel.sha256 for wheel in pins.build],
        "sources": {source.name: source.pin for source in pins.sources},
        "supplied": {name: [file.sha256 for file in files] for name, files in pins.supplied.items()},
    }
