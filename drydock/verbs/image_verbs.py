"""Verbs that get an image: build, run, demo, matrix, images, doctor."""

from __future__ import annotations

import datetime as dt
import sys
from typing import Literal

from drydock.cli.options import (
    BuilderOption,
    ContextOption,
    JsonOption,
    LockedOptions,
    NoCacheOption,
    OfflineOption,
    PlatformOption,
    PruneOptions,
    RowOrAutoOption,
    TrustOptions,
    Verb,
    VerboseOption,
)
from drydock.cli.task_helpers import after_dashes, foundations_of, here, terminal_columns, words_of
from drydock.config.matrix import find_matching_variants, find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.console import spell_commands, write_output
from drydock.core.files import format_json


class BuildVerbOptions(
    LockedOptions,
    ContextOption,
    PlatformOption,
    OfflineOption,
    NoCacheOption,
    BuilderOption,
    TrustOptions,
    VerboseOption,
    JsonOption,
):
    """How to build rows."""

    TAKES_AUTO = True
    WORDS = ("target",)
    target: tuple[str, ...] = ()
    """variant id, alias or accelerator; auto: what fits this machine's devices and driver; several, with commas between
    or repeated, are built at once"""
    root: str = ""
    """with --target auto: fit a recorded host (facts --record host.json) instead of this machine"""
    all_locked: bool = False
    """build each row that is locked, builds without network and fits the free disk"""
    changed_since: str | None = None
    """build each of these rows whose inputs changed since this commit, tag or branch"""
    builder: str = ""
    """use this buildx builder instead of the engine's default; several, with commas between, share the rows"""
    stand_ins: bool = False
    """replace what only vendors have by stubs: nothing is downloaded but Debian packages and uv"""
    foundations: str = ""
    """HOST/REPOSITORY to take the foundation from, if its digest is the lock's [default: drydock.yaml's]"""
    verify_key: str = ""
    """also accept foundations signed with this public key"""
    identity: str = ""
    """also accept foundations signed by this identity; requires --issuer"""


@Verb
def build_rows(options: BuildVerbOptions) -> None:
    """Build an image without network, load it into the engine and print its digest. Inputs without a pin get one."""
    from drydock.build import build_job
    from drydock.inputs import overrides
    from drydock.projects import build_verb

    settings = build_job.BuildOptions(
        options.platform or None, options.offline, overrides.parse_contexts(options.context)
    )
    pull = build_verb.make_foundation_pull(
        foundations_of(options.foundations), options.signers, insecure=options.insecure
    )
    builders = build_verb.parse_builders(options.builder)
    how = build_verb.RowOptions(
        settings, builders, options.no_cache, options.locked, options.supplied, options.stand_ins, pull
    )
    which = build_verb.Which(options.target, options.root, options.all_locked, options.changed_since)
    build_verb.build_rows(here(), which, how, json=options.json)


class RunOptions(RowOrAutoOption):
    """How to start a container."""

    model: str = ""
    """folder, hub id or oci://…@sha256:… of the model; another verb than serve may do without"""
    devices: str = ""
    """device numbers, such as 0,1 or 0-3 [default: all]"""
    modules: str = ""
    """Gaudi's module numbers (hl-smi -Q index,module_id -f csv), instead of --devices"""
    print: bool = False
    """print the command and start nothing; works for other machines too"""
    format: Literal["docker", "compose", "kubernetes", "quadlet", "apptainer"] = "docker"
    """docker, compose, kubernetes, quadlet or apptainer; all but docker are only printed [default: docker]"""
    port: str = "8000"
    """PORT or IP:PORT; the status port is the next one, on loopback [default: 127.0.0.1:8000]"""
    cache: str = ""
    """volume name, or path with a slash, for models and compiled code"""
    image: str = ""
    """image to run [default: the one built here]"""
    name: str = ""
    """container name"""
    volume: tuple[str, ...] = ()
    """SOURCE:TARGET or SOURCE:TARGET:ro: mount a folder or file of this machine; repeatable"""
    network: str = ""
    """network of the engine, or host [default: what the accelerator needs]"""
    cpuset_cpus: str = ""
    """CPUs of the container, such as 0-31 [default: all]"""
    cpuset_mems: str = ""
    """memory nodes of the container, such as 0 [default: all]"""
    arguments: str = ""
    """arguments for serve and vLLM as one string; or pass them after --, or after -- another verb"""
    api_key_file: str = ""
    """file with the key that clients must send [default: VLLM_API_KEY]"""
    no_api_key: bool = False
    """let other machines connect without a key, if --port has their address"""
    detach: bool = False
    """start the container, print its name and id, and return"""
    json: bool = False
    """with --detach or --print: print the result as JSON on standard output"""
    stand_ins: bool = False
    """build and start a stand-in: the row's Dockerfile and entrypoint, and a stub in place of vLLM"""
    root: str = ""
    """recorded host (facts --record host.json) for this machine, with --target auto, --stand-ins or kubernetes"""
    monitor: bool = False
    """with --format kubernetes: add a PodMonitor, for vLLM's metrics and the status port's"""
    dra: str = ""
    """with --format kubernetes: claim the devices of this device class, instead of the device plugin's resource"""
    env: tuple[str, ...] = ()
    """NAME=VALUE, or NAME to pass it from your shell (secrets only so); repeatable"""


@Verb
def run_container(options: RunOptions) -> None:
    """Serve a model, or run a verb after --, in a container with only the rights that the accelerator needs."""
    from drydock.run import access, container
    from drydock.run import run_verb as run_module

    request = container.RunRequest(
        model=options.model,
        arguments=(*words_of("--arguments", options.arguments), *after_dashes()),
        devices=options.devices,
        modules=options.modules,
        cache=options.cache,
        image=options.image,
        name=options.name,
        network=options.network,
        api_key_file=options.api_key_file,
        no_api_key=options.no_api_key,
        monitor=options.monitor,
        device_class=options.dra,
        env=options.env,
        volumes=options.volume,
        cpuset_cpus=options.cpuset_cpus,
        cpuset_mems=options.cpuset_mems,
        host=options.root,
        stand_ins=options.stand_ins,
        **access.parse_port(options.port)._asdict(),
    )
    how = run_module.How(options.format, options.print, options.detach, options.json)
    sys.exit(run_module.run_target(here(), options.target, request, how))


class DemoOptions(VerboseOption):
    """What the demo starts."""

    topology: Literal["", "1p1d", "2p1d", "tp3"] = ""
    """several servers: 1p1d or 2p1d (prefill and decode), tp3 (three hosts, one server)"""


@Verb
def show_demo(options: DemoOptions) -> None:
    """Build the CPU image, serve a small real model and ask it a question."""
    from drydock.prove import demo as demo_module

    if options.topology:
        from drydock.prove import demo_topology

        demo_topology.run_topology_demo(DRYDOCK, options.topology)
    else:
        demo_module.run_demo(DRYDOCK)


class MatrixOptions(JsonOption):
    """Which variants are listed."""

    WORDS = ("target",)
    target: tuple[str, ...] = ()
    """variant id or its beginning, alias or accelerator; repeatable, `./inv matrix cuda rocm` for short"""
    accelerator: str = ""
    """only the variants of this accelerator"""
    unlocked: bool = False
    """only variants with an input that the lock could not pin"""
    proof: Literal["", "rendered", "stand-in", "packages", "hardware"] = ""
    """only variants with this tier: rendered, stand-in, packages or hardware"""
    explain: bool = False
    """print where each row is written; with a target, where each of its values is from"""
    from_: str = ""
    """list the rows of another project: a folder, oci://HOST/NAME@sha256:… or git+https://HOST/PATH@COMMIT"""


@Verb
def list_matrix(options: MatrixOptions) -> None:
    """List the variants, with versions, lock state and verification status."""
    from drydock.pages import matrix_table

    project, variants = matrix_table.list_project_variants(options.from_)
    rows = matrix_table.make_matrix_rows(project, find_matching_variants(variants, options.target))
    rows = matrix_table.select_rows(rows, matrix_table.Filter(options.accelerator, options.proof, options.unlocked))
    if options.explain:
        write_output(matrix_table.explain_rows(project, variants, rows, whole=bool(options.target), json=options.json))
    else:
        write_output(
            format_json({"variants": rows})
            if options.json
            else matrix_table.format_matrix_table(rows, terminal_columns())
        )


class ImagesOptions(PruneOptions, JsonOption):
    """Which images of the engine are listed or removed."""

    prune: bool = False
    """list only what no checkout keeps and no container uses"""
    yes: bool = False
    """with --prune: remove it"""


@Verb
def list_images(options: ImagesOptions) -> None:
    """List drydock's images in the engine, and which checkouts keep them."""
    from drydock.build import engine_images as images_module

    options.check_prune()
    images = images_module.list_engine_images(here())
    images = images_module.prune_images(images, yes=options.yes) if options.prune else images
    if options.json:
        write_output(format_json({"images": [image._asdict() for image in images]}))
    else:
        write_output(images_module.format_images(images, dt.datetime.now(dt.UTC)))


class DoctorOptions(JsonOption):
    """What is asked."""

    target: str = ""
    """ask only what this variant id, alias or accelerator needs"""


@Verb
def examine_machine(options: DoctorOptions) -> None:
    """Ask engine, disk, mirrors and each server that a build needs, in ten seconds, and say what to do."""
    from drydock.projects import doctor

    answers = doctor.examine_machine(
        here(), find_variant(read_matrix(here()), options.target) if options.target else None
    )
    if options.json:
        write_output(format_json({"checks": [answer._asdict() for answer in answers]}))
    else:
        write_output(spell_commands(doctor.format_diagnoses(answers)))
    sys.exit(doctor.choose_exit_code(answers))
