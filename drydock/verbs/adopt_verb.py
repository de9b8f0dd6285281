"""The verb `adopt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.model.shared_options import DryRunOption, JsonOption, PlatformOption, SignOptions, TrustOptions

if TYPE_CHECKING:
    from drydock.adopt.adopted_image import AdoptedImage, AssembledImage
    from drydock.adopt.base_image import BaseImage
    from drydock.oci.reference import Reference


class AdoptOptions(DryRunOption, SignOptions, PlatformOption, TrustOptions, JsonOption):
    """Which image is adopted, and what it does not say of itself."""

    WORDS = ("to",)
    image: str
    """image of others, such as docker.io/vllm/vllm-openai:v0.33.0; a tag is pinned by its digest"""
    to: str = ""
    """REGISTRY/NAME, with or without :TAG, that the adopted image is written to [default: as before]"""
    load: bool = False
    """put the image into the engine too; without --to only there"""
    from_engine: bool = False
    """the image is in this machine's engine, and perhaps in no registry; with --load"""
    facts: str = ""
    """JSON file that says what is in the image, as --json prints it; its layers are not read then"""
    row: str = ""
    """id of its row in matrix.yaml [default: the image's name and tag]"""
    accelerator: str = ""
    """which accelerator its vLLM is for, such as cuda [default: as its variables say]"""
    vllm: str = ""
    """its vLLM's version, such as 0.33.0 [default: as VLLM_VERSION in it says]"""
    python: str = ""
    """path of the Python in it that has vLLM [default: that of its VIRTUAL_ENV]"""
    python_version: str = ""
    """version of that Python, such as 3.12 [default: as PYTHON_VERSION in it says]"""
    release: str = ""
    """its distribution, such as ubuntu:22.04 [default: as its labels say]"""
    glibc: str = ""
    """version of its glibc, for a distribution that drydock does not know"""
    read_layers: bool = False
    """read the image's layers as a stream, to see what is in it; stores nothing"""
    platform: str = ""
    """only this platform, such as linux/arm64 [default: each of the image's]"""
    check: bool = False
    """write nothing; fail unless the image in the registry is the one that this would write"""


@Verb
def adopt_image(options: AdoptOptions) -> None:
    """Make an image of others one of drydock's in a registry: two more layers and a row. No layer of it is pulled."""
    from drydock.adopt import adopted_image

    adopted = adopt_base(here(), options)
    write_result(adopted, adopted_image.format_adopted(adopted), json=options.json)


def adopt_base(project: Project, options: AdoptOptions) -> AdoptedImage:
    """Write a row for an image of others with its lock, and the image that it makes into a registry or the engine.

    If anything fails, the project is as it was. Raises InputError for what the image does not say, UntrustedError for a
    base without the signature that the user requires, LicenceError, RegistryError, CredentialsError, and StaleError
    with --check.
    """
    from drydock.adopt import adopted_image, adopted_row, base_facts, base_image, layer_facts, upstream_documents
    from drydock.adopt.base_facts import BaseContents, BaseFacts
    from drydock.attest import cosign
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.config.rows import MATRIX
    from drydock.lock import lockfile, resolution, vllm_lists
    from drydock.model.record import dump_record
    from drydock.upgrade import row_record_file

    _refuse_options(options)
    project.check_writable(MATRIX)

    # Find the upstream image, and trust it before anything in it is read.
    trust = cosign.trust_of(options)
    base = _open_upstream(options)
    log(f"base: {base.reference}")
    is_verified = upstream_documents.check_signature(base, trust)
    base_image.refuse_base(project, base)

    # Where the adopted image goes: with --load alone, nothing is sent to a registry.
    row_id = options.row or adopted_row.name_row(base)
    destination_text = adopted_row.find_destination(project, row_id, options.to, load=options.load)
    destination = adopted_image.parse_destination(destination_text) if options.to or not options.load else None

    # What is in it: the user's word counts first, then a file or the layers, then what the row has, then the labels.
    contents = BaseContents(BaseFacts())
    if options.facts:
        contents = base_facts.read_facts_file(Path(options.facts), base)
    if options.read_layers:
        contents = layer_facts.read_layer_facts(base, vllm_lists.read_program(project))
    elif contents.lists is None:
        contents = contents._replace(lists=adopted_row.read_written_lists(project, base, row_id))
    facts = BaseFacts(
        options.vllm, options.python_version, options.python, options.release, options.accelerator, options.glibc
    )
    facts = facts.over(contents.facts).over(adopted_row.read_written_facts(project, base, row_id))
    facts = facts.over(base_facts.read_stated_facts(base))
    base_facts.require_facts(facts, base, layers_were_read=options.read_layers)
    facts = base_facts.replace_missing_version(project, facts, contents.lists, base)
    contents = contents._replace(facts=facts)

    row = adopted_row.make_adopted_row(project, row_id, base, facts, destination_text)
    with adopted_row.restore_row_files(project, row, always=options.check or options.dry_run):
        written_files = adopted_row.write_row(project, row, base) + adopted_row.write_lists(
            project, row, contents.lists
        )
        variant = find_variant(read_matrix(project), row.id)
        assembled = adopted_image.assemble_image(project, variant, base)
        if options.check and destination:
            adopted_image.check_image(assembled, variant, destination, insecure=options.insecure)
        adopted = adopted_image.describe_image(
            assembled, variant, base, contents, destination or base.repository.where, is_verified=is_verified
        )
        format_json(dump_record(adopted))  # before anything is written: what cannot be printed is not pushed either
        if options.check or options.dry_run:
            return adopted
        # Lock and render the row: of the base only the digest is asked for.
        paths = resolution.resolve_and_write(project, [variant])
        lock = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
        paths += row_record_file.write_row_files(project, variant, lock)
        written_files += [project.name_of(path) for path in paths]
        adopted = _deliver_image(project, adopted, assembled, base, destination, options)
    return adopted.model_copy(update={"written": tuple(written_files)})


def _refuse_options(options: AdoptOptions) -> None:
    """Raise InputError for options that exclude each other."""
    if options.check and options.load:
        raise InputError("--check writes nothing, and --load does", hint="leave one of them out")
    if options.facts and options.read_layers:
        raise InputError("--facts and --read-layers both say what is in the image", hint="leave one of them out")
    if options.from_engine and (options.to or not options.load):
        hint = "`./inv publish` pushes the image later; or push the base with docker, and adopt it in that registry"
        raise InputError("--from-engine needs --load, and takes no --to: no registry has the base", hint=hint)
    if options.from_engine and (options.verify_key or options.identity):
        raise InputError("--from-engine: an engine keeps no signatures", hint="leave --verify-key and --identity out")


def _open_upstream(options: AdoptOptions) -> BaseImage:
    from drydock.adopt import base_image, engine_base
    from drydock.inputs.store import default_store

    if options.from_engine:
        return engine_base.open_engine_base(options.image, options.platform, default_store())
    return base_image.open_base(options.image, options.platform, insecure=options.insecure)


def _deliver_image(
    project: Project,
    adopted: AdoptedImage,
    assembled: AssembledImage,
    base: BaseImage,
    destination: Reference | None,
    options: AdoptOptions,
) -> AdoptedImage:
    """Write an image into a registry, and with --load into the engine; return what was written."""
    from drydock.adopt import adopted_image
    from drydock.attest.cosign import choose_signer
    from drydock.build import build
    from drydock.build.build_job import BuildOptions, choose_platform, prepare_job

    jobs = [prepare_job(project, adopted.row, BuildOptions(platform=name)) for name in base.platforms]
    if destination:
        signer = choose_signer(options, insecure=options.insecure)
        pushed = adopted_image.push_image(jobs, assembled, base, destination, signer, insecure=options.insecure)
        adopted = adopted.model_copy(update=pushed)
    if not options.load:
        return adopted
    platform = choose_platform(jobs[0].variant, options.platform or None)
    built = build.build_image(next(job for job in jobs if job.platform == platform))
    image = adopted.image if destination else built.image
    return adopted.model_copy(update={"loaded": built.image, "image": image})
