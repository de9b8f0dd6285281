"""Stand-ins of several variants, as `invoke build --stand-ins` makes them, baked at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from drydock.build import bake_plan, build, buildx, standins
from drydock.config.project_choice import DRYDOCK
from drydock.model.variant import Variant

PLATFORM = "linux/amd64"


def image(variant: str) -> str:
    """Return the name of a variant's stand-in in tests: builds with stand-ins would remove one of their own names."""
    return f"drydock-test/{variant}:test"


def into_engine(variant: Variant) -> str:
    """Return the output of a stand-in that the engine gets."""
    return f"type=image,name={image(variant.id)},unpack=true"


def bake(variants: Iterable[Variant], output: Callable[[Variant], str] = into_engine) -> None:
    """Build stand-ins from one bake file, so that BuildKit shares what they have in common."""
    targets: dict[str, Any] = {}
    for variant in variants:
        job = standins.stand_in(DRYDOCK, variant.id)
        bake_targets = build.bake_file(job, build.fetch_contexts(job), Path("/"))["target"]
        targets |= {name: target | {"output": [output(variant)]} for name, target in bake_targets.items()}
    buildx.run_bake({"group": {"default": {"targets": [*targets]}}, "target": targets})


def build_layouts(folder: Path, variants: Sequence[Variant]) -> dict[str, Path]:
    """Build a stand-in of each variant as an OCI layout, its layers compressed as its row says; return id → layout."""
    layouts = {variant.id: folder / variant.id for variant in variants}
    for layout in layouts.values():
        layout.mkdir(parents=True)  # BuildKit asks for rights to the folder above one that is missing
    export = "type=oci,tar=false,force-compression=true"
    bake(variants, lambda variant: f"{export},{bake_plan.format_compression(variant)},dest={layouts[variant.id]}")
    return layouts
