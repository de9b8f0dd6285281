"""The tasks about topologies: which image a file means, and what is printed. IO."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from drydock.build.job import OWN, image_name
from drydock.config.matrix import find, read_matrix
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.lock import lockfile
from drydock.model.variant import Variant
from drydock.run import auto
from drydock.run.container import check_bucket
from drydock.run.engine import Here
from drydock.topology import init, rehearsal
from drydock.topology.entrypoint_client import Entrypoint, model_folder
from drydock.topology.findings import read_words, translate_line
from drydock.topology.plan import Images, plan
from drydock.topology.plan_model import Because, Rank, TopologyPlan, read_plan
from drydock.topology.read import read_topology
from drydock.topology.records import Topology
from entrypoints.core.language import Words, phrase, translate

ROUTER = "router"
"""The target of the router's image."""


def begin(project: Project, hosts: Path, output: Path, model: str, target: str, shape: str = "") -> None:
    """Write a topology.yaml for recorded hosts. Raises InputError, TargetError and HostError."""
    check_bucket(model, "--model ")
    found = init.find_hosts(hosts)
    groups = init.groups_of(shape, len(found))
    chosen = find(read_matrix(project), target).id if target else _fitting(project, found)
    hosts_in_order = {name: found[name] for name in init.order_hosts(found, shape)}
    nodes = init.nodes_of(hosts_in_order, output.absolute().parent)
    init.write(output, init.text_of(nodes, groups, model, chosen))
    if named := init.find_named_addresses(nodes, shape):
        log(f"{output}: write the IPv4 address of {', '.join(named)}: `topology plan` refuses a name with --shape")


def _fitting(project: Project, hosts: dict[str, Path]) -> str:
    """Return the variant that fits every host, as --target auto chooses it."""
    different = {path.read_bytes(): path for path in hosts.values()}
    with ThreadPoolExecutor() as pool:
        return init.targets(
            [*pool.map(lambda path: auto.resolve(project, auto.AUTO, str(path)).id, different.values())]
        )


def planned(project: Project, file: Path, model: str = "", target: str = "") -> TopologyPlan:
    """Return the plan of a topology.yaml, or one that `topology plan --json` wrote. Raises InputError and HostError."""
    if file.suffix == ".json":
        if model or target:
            text = f"{file}: a plan has its model and its variant; --model and --target are for a topology.yaml"
            raise InputError(text, hint="leave them out, or plan the topology.yaml again")
        return read_plan(file)
    read = read_topology(file)
    variant, image = _image(project, read.topology, target)
    with model_folder(read.topology.model, model) as (folder, hub):
        images = Images(image, _router_image(project, read.topology))
        return plan(read, variant, images, Entrypoint(project, variant, hub), folder)


def both(
    project: Project, old: Path, new: Path, model: str = "", target: str = ""
) -> tuple[TopologyPlan, TopologyPlan]:
    """Return two plans; if one is a plan, `model` and `target` are for the other. Raises InputError and HostError."""
    one_is_written = (old.suffix == ".json") != (new.suffix == ".json")

    def read(file: Path) -> TopologyPlan:
        return planned(project, file, *(() if one_is_written and file.suffix == ".json" else (model, target)))

    return read(old), read(new)


def _image(project: Project, topology: Topology, target: str) -> tuple[Variant, str]:
    """Return the variant of a topology and its image: by digest, else the name it has after the build."""
    variants = read_matrix(project)
    if not topology.image:
        variant = find(variants, target or topology.target or "")
        return variant, _image_of(project, variant)
    if target:
        return find(variants, target), topology.image
    digest = topology.image.partition("@")[2]
    own = next((variant for variant in variants if digest in _digests(project, variant)), None)
    if own is None:
        text = f"image: {topology.image}: no variant of this checkout has this digest"
        raise InputError(text, hint="name the variant with --target; its decisions are used")
    return own, topology.image


def _router_image(project: Project, topology: Topology) -> str:
    """Return the router's image: by digest, else the name it has after the build."""
    if topology.router and topology.router.image:
        return topology.router.image
    return _image_of(project, find(read_matrix(project), ROUTER))


def _image_of(project: Project, variant: Variant) -> str:
    digests = _digests(project, variant)
    return image_name(variant.id, digests[0]) if digests else f"{OWN}{variant.id}:latest"


def _digests(project: Project, variant: Variant) -> list[str]:
    """Return the digests that a variant's lock has, one for each platform that was verified."""
    path = lockfile.path_of(project, variant.id)
    if not path.is_file():
        return []
    return [each.image.digest for _, each in sorted(lockfile.read_lock(path).platforms.items()) if each.image]


def report_rehearsal(project: Project, made: TopologyPlan, file: Path, model: str) -> int:
    """Print what vLLM says of each node's plan; return the exit code. Raises InputError, HostError, EngineError."""
    answers = []
    for answer in rehearsal.rehearse(project, made, file, model, Here(project)):
        log(rehearsal.as_text(answer))
        answers.append(answer)
    return rehearsal.REFUSED if any(answer.outcome == "refused" for answer in answers) else 0


# --- what is printed ------------------------------------------------------------------------------------------------


def as_text(made: TopologyPlan) -> str:
    """Format a plan in the user's language: each rank's command, then the reasons, then what needs attention."""
    return "".join(f"{line}\n" for line in _lines(made, read_words(os.environ)))


def _lines(made: TopologyPlan, words: Words) -> Iterator[str]:
    yield f"{made.model} on {made.image} ({made.variant})"
    for replica in made.replicas:
        yield ""
        yield f"group {replica.group}, replica {replica.number} ({replica.role})"
        for rank in replica.ranks:
            yield from _rank_lines(rank)
        for reason in replica.reasons:
            yield from _reason_lines(reason, words)
    if made.router:
        yield from ("", f"router on {made.router.node} ({made.router.address})", f"  {shlex.join(made.router.argv)}")
    yield ""
    for reason in made.reasons:
        yield from _reason_lines(reason, words)
    yield from ("", *(translate_line(words, line) for line in made.findings)) if made.findings else ()


def _rank_lines(rank: Rank) -> Iterator[str]:
    ports = ", ".join(f"{purpose} {port}" for purpose, port in rank.ports.items())
    yield f"  rank {rank.rank} on {rank.node} ({rank.address}), ports: {ports}"
    env = " ".join(f"{name}={shlex.quote(value)}" for name, value in rank.env.items())
    for words in (*rank.before, rank.argv):
        yield f"    {env} {shlex.join(words)}".rstrip()


def _reason_lines(reason: Because, words: Words) -> Iterator[str]:
    yield f"  {reason.setting} = {reason.value}: {translate(words, reason.because)}"
    yield from (f"  {phrase(words, '    not {}', translate(words, text))}" for text in reason.instead)
