"""The plan of a topology.yaml, or of a file that `topology plan --json` wrote, and which images it means. IO."""

from __future__ import annotations

from pathlib import Path

from drydock.build.build_job import OWN, image_name
from drydock.config.matrix import find_recorded_variant, find_variant, read_matrix
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.lock import image_record
from drydock.model.variant import Variant
from drydock.run.container import is_local
from drydock.topology.entrypoint_client import Entrypoint, model_folder
from drydock.topology.plan_model import TopologyPlan, read_plan
from drydock.topology.topology_file import Read, read_topology
from drydock.topology.topology_plan import Images, plan_topology
from drydock.topology.topology_records import Topology

ROUTER = "router"
"""The target of the router's image."""


def plan_topology_file(project: Project, file: Path, model: str = "", target: str = "") -> TopologyPlan:
    """Return the plan of a topology.yaml, or one that `topology plan --json` wrote. Raises InputError and HostError."""
    if file.suffix == ".json":
        if model or target:
            text = f"{file}: a plan has its model and its variant; --model and --target are for a topology.yaml"
            raise InputError(text, hint="leave them out, or plan the topology.yaml again")
        return read_plan(file)
    return plan_read_topology(project, read_topology(file), model, target)


def plan_read_topology(project: Project, read: Read, model: str = "", target: str = "") -> TopologyPlan:
    """Return the plan of a topology that was read or made. Raises InputError and HostError."""
    variant, image = _choose_image(project, read.topology, target)
    with model_folder(read.topology.model, model) as (folder, hub):
        images = Images(image, _choose_router_image(project, read.topology))
        return plan_topology(read, variant, images, Entrypoint(project, variant, hub), folder)


def plan_two_files(
    project: Project, old: Path, new: Path, model: str = "", target: str = ""
) -> tuple[TopologyPlan, TopologyPlan]:
    """Return two plans; if one is a plan, `model` and `target` are for the other. Raises InputError and HostError."""
    one_is_written = (old.suffix == ".json") != (new.suffix == ".json")

    def read(file: Path) -> TopologyPlan:
        return plan_topology_file(
            project, file, *(() if one_is_written and file.suffix == ".json" else (model, target))
        )

    return read(old), read(new)


def _choose_image(project: Project, topology: Topology, target: str) -> tuple[Variant, str]:
    """Return the variant of a topology and its image: by digest, else the name it has after the build."""
    variants = read_matrix(project)
    if not topology.image:
        variant = find_variant(variants, target or topology.target or "", "--target" if target else "target")
        return variant, _name_variant_image(project, variant)
    if target:
        return find_variant(variants, target), topology.image
    digest = topology.image.partition("@")[2]
    matching = (variant for variant in variants if digest in _list_recorded_digests(project, variant))
    image_variant = next(matching, None)
    if image_variant is None:
        text = f"image: {topology.image}: no variant of this checkout has this digest"
        raise InputError(text, hint="name the variant with --target; its decisions are used")
    return image_variant, topology.image


def _choose_router_image(project: Project, topology: Topology) -> str:
    """Return the router's image: by digest, else the name it has after the build."""
    if topology.router and topology.router.image:
        return topology.router.image
    return _name_variant_image(project, find_variant(read_matrix(project), ROUTER))


def find_planned_variant(project: Project, plan: TopologyPlan) -> Variant:
    """Return the row of a plan. Raises TargetError for a plan of another project."""
    hint = "run this in the project that it was planned in, or plan its topology.yaml here"
    return find_recorded_variant(project, plan.variant, "the plan", hint)


def is_own_image(project: Project, image: str) -> bool:
    """Tell whether an image is one that this checkout builds, so that it has this checkout's entrypoint."""
    digest = image.partition("@")[2]
    variants = read_matrix(project)
    return is_local(image) or any(digest in _list_recorded_digests(project, variant) for variant in variants)


def _name_variant_image(project: Project, variant: Variant) -> str:
    digests = _list_recorded_digests(project, variant)
    return image_name(variant.id, digests[0]) if digests else f"{OWN}{variant.id}:latest"


def _list_recorded_digests(project: Project, variant: Variant) -> list[str]:
    """Return the digests that are recorded of a variant, one for each platform that was verified."""
    platforms = image_record.read_record(project, variant.id).platforms
    return [platform.verified.digest for _, platform in sorted(platforms.items()) if platform.verified]
