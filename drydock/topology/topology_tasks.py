"""The tasks about topologies: which image a file means, and what is printed. IO."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from drydock.build.build_job import OWN, image_name
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.lock import image_record
from drydock.model.variant import Variant
from drydock.run import auto
from drydock.run.container import check_bucket, is_local
from drydock.run.engine import Here
from drydock.topology import init, rehearsal
from drydock.topology.entrypoint_client import Entrypoint, model_folder
from drydock.topology.findings import read_words, translate_line
from drydock.topology.plan_model import Because, Rank, TopologyPlan, read_plan
from drydock.topology.topology_file import read_topology
from drydock.topology.topology_plan import Images, plan_topology
from drydock.topology.topology_records import Topology
from entrypoints.core.language import Words, translate_phrase, translate_text
from entrypoints.core.parse import format_id_list

ROUTER = "router"
"""The target of the router's image."""


def init_topology(project: Project, hosts: Path, output: Path, model: str, target: str, shape: str = "") -> None:
    """Write a topology.yaml for recorded hosts. Raises InputError, TargetError and HostError."""
    check_bucket(model, "--model ")
    recorded_hosts = init.find_hosts(hosts)
    groups = init.make_shape_groups(shape, len(recorded_hosts))
    chosen = (
        find_variant(read_matrix(project), target).id if target else _choose_fitting_variant(project, recorded_hosts)
    )
    hosts_in_order = {name: recorded_hosts[name] for name in init.order_hosts(recorded_hosts, shape)}
    nodes = init.make_topology_nodes(hosts_in_order, output.absolute().parent)
    init.write_topology(output, init.format_topology(nodes, groups, model, chosen))
    if named_nodes := init.find_named_addresses(nodes, shape):
        log(
            f"{output}: write the IPv4 address of {', '.join(named_nodes)}: `topology plan` refuses a name with --shape"
        )


def _choose_fitting_variant(project: Project, hosts: dict[str, Path]) -> str:
    """Return the variant that fits every host, as --target auto chooses it."""
    different = {path.read_bytes(): path for path in hosts.values()}
    with ThreadPoolExecutor() as pool:
        return init.choose_common_target(
            [*pool.map(lambda path: auto.resolve_target(project, auto.AUTO, str(path)).id, different.values())]
        )


def plan_topology_file(project: Project, file: Path, model: str = "", target: str = "") -> TopologyPlan:
    """Return the plan of a topology.yaml, or one that `topology plan --json` wrote. Raises InputError and HostError."""
    if file.suffix == ".json":
        if model or target:
            text = f"{file}: a plan has its model and its variant; --model and --target are for a topology.yaml"
            raise InputError(text, hint="leave them out, or plan the topology.yaml again")
        return read_plan(file)
    read = read_topology(file)
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
        variant = find_variant(variants, target or topology.target or "")
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


def report_rehearsal(project: Project, plan: TopologyPlan, file: Path, model: str) -> int:
    """Print what vLLM says of each node's plan; return the exit code. Raises InputError, HostError, EngineError."""
    answers = []
    for answer in rehearsal.rehearse_topology(project, plan, file, model, Here(project)):
        log(rehearsal.format_rehearsed_rank(answer))
        answers.append(answer)
    return rehearsal.REFUSED if any(answer.outcome == "refused" for answer in answers) else 0


# --- what is printed ------------------------------------------------------------------------------------------------


def format_topology_plan(plan: TopologyPlan) -> str:
    """Format a plan in the user's language: each rank's command, then the reasons, then what needs attention."""
    return "".join(f"{line}\n" for line in _list_plan_lines(plan, read_words(os.environ)))


def _list_plan_lines(plan: TopologyPlan, words: Words) -> Iterator[str]:
    yield f"{plan.model} on {plan.image} ({plan.variant})"
    for replica in plan.replicas:
        yield ""
        yield f"group {replica.group}, replica {replica.number} ({replica.role})"
        for rank in replica.ranks:
            yield from _list_rank_lines(rank)
        for reason in replica.reasons:
            yield from _list_reason_lines(reason, words)
    if plan.router:
        yield from ("", f"router on {plan.router.node} ({plan.router.address})", f"  {shlex.join(plan.router.argv)}")
    yield ""
    for reason in plan.reasons:
        yield from _list_reason_lines(reason, words)
    yield from ("", *(translate_line(words, line) for line in plan.findings)) if plan.findings else ()


def _list_rank_lines(rank: Rank) -> Iterator[str]:
    ports = ", ".join(f"{purpose} {port}" for purpose, port in rank.ports.items())
    devices = f", devices: {format_id_list(rank.devices)}" if rank.devices else ""
    yield f"  rank {rank.rank} on {rank.node} ({rank.address}){devices}, ports: {ports}"
    env = " ".join(f"{shlex.quote(name)}={shlex.quote(value)}" for name, value in rank.env.items())
    for words in (*rank.before, rank.argv):
        yield f"    {env} {shlex.join(words)}".rstrip()


def _list_reason_lines(reason: Because, words: Words) -> Iterator[str]:
    yield f"  {reason.setting} = {reason.value}: {translate_text(words, reason.because)}"
    yield from (f"  {translate_phrase(words, '    not {}', translate_text(words, text))}" for text in reason.instead)
