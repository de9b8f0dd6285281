"""Foundations in a registry: pull the one that counts, push those that are kept. IO.

A foundation is tagged with its key, the checksum of what it is made of (`Job.foundation_key`). Neither the tag nor
the registry vouches for it: a pulled one counts if its digest is the one that the lock has for the key, or if a signer
whom the user named has signed that digest together with that key. Anything else, and anything that goes wrong, means
that it is built here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from drydock.attest import cosign
from drydock.build.build import Pull
from drydock.build.build_job import Job
from drydock.core.console import Step, as_lines, log, show_step
from drydock.core.errors import DrydockError, InputError, RegistryError, UntrustedError
from drydock.core.files import parse_json_object, read_bounded
from drydock.core.project import Project
from drydock.inputs import indexes
from drydock.inputs.store import whole_folder
from drydock.lock import lockfile
from drydock.model.record import Record
from drydock.model.shared_options import TrustOptions
from drydock.model.variant import Variant
from drydock.oci import image_layout
from drydock.oci.manifest import Manifest
from drydock.oci.reference import Reference, parse_reference
from drydock.publish import bindings
from drydock.publish.push import Layout, push_blobs, push_manifests, read_layout
from drydock.publish.repository import Repository
from drydock.registry.manifests import MANIFEST

CLAIM = "io.drydock.foundation"
"""What a signature says in addition to the digest: the key.

Without it, a signature of another foundation would be accepted."""
LAYERS = tuple(f"{image_layout.LAYER}{suffix}" for suffix in ("", "+gzip", "+zstd"))
LARGEST, MOST_LAYERS = 64 << 30, 127
"""Bytes of all blobs, and layers: containerd's limit."""
TIMEOUT, PATIENCE, PAUSE = 10.0, 15.0, 0.02
"""Seconds for an answer, for one that is asked for again, and before a registry is asked again; doubled each time."""
SLOWEST = 1_000_000
"""Bytes in a second: from a slower registry, most foundations take longer than to build them."""
GRACE = 30.0
"""Seconds after which that counts."""
WORKERS = 4


class Source(NamedTuple):
    """Where foundations are pulled from, and whose signatures count where no lock has a digest."""

    where: Reference
    trust: cosign.Trust


class PushedFoundation(Record):
    """One foundation that `foundations push` pushed."""

    variant: str
    platform: str
    foundation: str
    """Reference: repository:key@digest."""
    signed: bool
    bytes_sent: int


def parse_foundations_address(registry: str) -> Reference:
    """Return the repository that a user names. Raises InputError."""
    where = parse_reference(registry)
    if where.tag or where.digest:
        raise InputError(f"{registry}: expected host and repository, such as ghcr.io/acme/foundations")
    return where


# --- pull -----------------------------------------------------------------------------------------------------------


def make_registry_pull(registry: str, options: TrustOptions) -> Pull | None:
    """Return what `build` asks for foundations; None without a registry. Raises InputError."""
    trust = cosign.trust_of(options)
    if registry:
        return partial(pull_foundation, Source(parse_foundations_address(registry), trust))
    if trust.required or options.insecure:
        text = "--verify-key, --identity and --insecure are for foundations"
        raise InputError(text, hint="add --foundations HOST/REPOSITORY")
    return None


def pull_foundation(source: Source, job: Job) -> bool:
    """Put a job's foundation into its folder if the registry has one that counts; else say in one line why not."""
    try:
        _pull_trusted(source, job)
    except (DrydockError, OSError) as error:
        reason = error.problems[0] if isinstance(error, DrydockError) else str(error)
        log(as_lines([f"{job.variant.id}: no foundation is pulled, so it is built here: {reason}"]).rstrip("\n"))
        return False
    return True


def _pull_trusted(source: Source, job: Job) -> None:
    end = time.monotonic() + GRACE
    committed = job.committed_foundation
    if job.context_overrides:
        raise InputError(f"contexts are replaced: {', '.join(sorted(job.context_overrides))}")
    if not (committed or source.trust.required):
        raise UntrustedError(
            f"images/{job.variant.id}/record.json has no digest for it, and no --verify-key says who may sign it"
        )
    access = indexes.make_index_access(indexes.read_indexes(), os.environ)
    hasty = access._replace(timeout=min(access.timeout, TIMEOUT), patience=PATIENCE, pause=PAUSE)
    repository = Repository(source.where, hasty, insecure=source.trust.insecure)
    received = repository.manifests.receive(committed or job.foundation_key)
    if received is None:
        raise RegistryError(f"{source.where} does not have {committed or job.foundation_key}")
    if not committed:
        trust = source.trust._replace(claims={CLAIM: job.foundation_key}, patience=GRACE)
        cosign.check_digest_signature(source.where.at(received.digest), trust)
    manifest = repository.manifests.read(received, received.digest)
    blobs = _list_foundation_blobs(manifest, str(source.where))
    size = sum(blobs.values())
    with show_step("pull", size) as progress, whole_folder(job.foundation, replace=True) as layout:
        (layout / "blobs" / "sha256").mkdir(parents=True)
        _receive_blobs(repository, blobs, layout, progress, end + size / SLOWEST)
        image_layout.path_of_blob(layout, manifest.digest).write_bytes(manifest.data)
        image_layout.write_index(layout, manifest.descriptor())
        _check_config(layout, manifest, job.platform)
    log(f"{job.variant.id}: pulled the foundation {manifest.digest} from {source.where}")


def _list_foundation_blobs(manifest: Manifest, where: str) -> dict[str, int]:
    """Return the size of each blob. Raises RegistryError for what is no foundation, or a larger one."""
    if manifest.media_type != MANIFEST:
        raise RegistryError(f"{where}: {manifest.digest}: expected {MANIFEST}, found {manifest.media_type}")
    config, layers = manifest.content["config"], manifest.content["layers"]
    wrong = [descriptor["mediaType"] for descriptor in layers if descriptor["mediaType"] not in LAYERS]
    if wrong or not 0 < len(layers) <= MOST_LAYERS:
        problem = f"a layer of type {wrong[0]!a}" if wrong else f"{len(layers)} layers"
        raise RegistryError(
            f"{where}: {manifest.digest}: found {problem}, expected 1 to {MOST_LAYERS} layers of an image"
        )
    sizes = {descriptor["digest"]: int(descriptor["size"]) for descriptor in (config, *layers)}
    if sum(sizes.values()) > LARGEST or config["size"] > image_layout.LARGEST:
        raise RegistryError(
            f"{where}: {manifest.digest}: larger than {LARGEST >> 30} GiB,"
            f" or its config than {image_layout.LARGEST >> 20} MiB"
        )
    return sizes


def _receive_blobs(repository: Repository, blobs: Mapping[str, int], layout: Path, progress: Step, end: float) -> None:
    """Write blobs into a layout. The first that is wrong, or is not there in time, stops the others."""
    stopped = threading.Event()

    def write(digest: str, size: int) -> None:
        with image_layout.path_of_blob(layout, digest).open("xb") as file:
            for piece in repository.blobs.pull(digest, size):
                if stopped.is_set():
                    return
                if time.monotonic() > end:
                    raise RegistryError(f"{repository.where}: {digest}: slower than {SLOWEST / 1e6:g} MB in a second")
                file.write(piece)
                progress.advance(len(piece))
            if file.tell() != size:
                raise RegistryError(f"{repository.where}: {digest}: {file.tell()} bytes, expected {size}")

    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            for future in [pool.submit(write, *blob) for blob in blobs.items()]:
                future.result()
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _check_config(layout: Path, manifest: Manifest, platform: str) -> None:
    """Raise RegistryError unless the config is that of an image for the platform with these layers."""
    content = manifest.content
    where = f"{manifest.digest}: config"
    path = image_layout.path_of_blob(layout, content["config"]["digest"])
    config = parse_json_object(read_bounded(path, image_layout.LARGEST), where, RegistryError)
    rootfs, history = config.get("rootfs"), config.get("history")
    layers = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    whole = isinstance(layers, list) and len(layers) == len(content["layers"]) and isinstance(history, list)
    if not whole or f"{config.get('os')}/{config.get('architecture')}" != platform:
        raise RegistryError(f"{where}: expected that of an image for {platform} with {len(content['layers'])} layers")


# --- push -----------------------------------------------------------------------------------------------------------


def push_foundations(
    project: Project,
    variants: Sequence[Variant],
    registry: str,
    signer: cosign.Signer | None,
    *,
    insecure: bool,
    dry_run: bool = False,
) -> list[PushedFoundation]:
    """Push the kept foundations of variants, each under its key, and sign them if a signer is given.

    With `dry_run` nothing is sent.

    Raises InputError if none is kept, UntrustedError for one that is not what the record says, RegistryError.
    """
    kept_jobs = [job for job in find_locked_jobs(project, variants) if (job.foundation / "index.json").is_file()]
    if not kept_jobs:
        text = "no foundation is kept here of " + (variants[0].id if len(variants) == 1 else "any row")
        raise InputError(text, hint="run `./inv build --target TARGET` first")
    cosign.require_signer(signer)
    access = indexes.make_index_access(indexes.read_indexes(), os.environ)
    repository = Repository(parse_foundations_address(registry), access, insecure=insecure)
    layouts = [_read_kept(job) for job in kept_jobs]
    if dry_run:
        return [_describe_push(repository, layout, 0, is_signed=signer is not None) for layout in layouts]
    return [_push_foundation(repository, layout, signer) for layout in layouts]


def _read_kept(job: Job) -> Layout:
    layout = read_layout(job, job.foundation)
    digest = layout.manifest.digest
    if job.committed_foundation not in (None, digest):
        raise UntrustedError(
            f"{job.variant.id} ({job.platform}): the kept foundation is {digest}, expected {job.committed_foundation},"
            f" which images/{job.variant.id}/record.json has for the same inputs",
            hint=f"`./inv build --target {job.variant.id} --no-cache` makes it again",
        )
    return layout


def _push_foundation(repository: Repository, layout: Layout, signer: cosign.Signer | None) -> PushedFoundation:
    job, digest = layout.job, layout.manifest.digest
    pushed = push_blobs(repository, [layout])
    push_manifests(repository, [layout], layout.manifest)
    subject = bindings.Subject(str(repository.where), job.variant.id, digest, {job.platform: digest}, "foundation")
    binding = bindings.bind_tag(subject, job.foundation_key, bindings.Terms(), {}).attached()
    artifact = repository.refer(layout.manifest, binding.media_type, binding.data, binding.name)
    if signer:
        cosign.sign_digests([repository.where.at(digest)], signer._replace(claims={CLAIM: job.foundation_key}))
        cosign.sign_digests([repository.where.at(artifact.digest)], signer)
    repository.tag(layout.manifest, job.foundation_key)  # at last: a tag names what is whole
    bytes_sent = sum(blob.size for blob in pushed if blob.how == "uploaded")
    return _describe_push(repository, layout, bytes_sent, is_signed=signer is not None)


def _describe_push(repository: Repository, layout: Layout, bytes_sent: int, *, is_signed: bool) -> PushedFoundation:
    job = layout.job
    where = repository.where._replace(tag=job.foundation_key, digest=layout.manifest.digest)
    return PushedFoundation(
        variant=job.variant.id,
        platform=job.platform,
        foundation=str(where),
        signed=is_signed,
        bytes_sent=bytes_sent,
    )


def find_locked_jobs(project: Project, variants: Sequence[Variant]) -> Iterator[Job]:
    """Yield the job of each variant for each platform that its lock has."""
    for variant in variants:
        path = lockfile.path_of_lock(project, variant.id)
        if path.is_file():
            lock = lockfile.read_lock(path)
            yield from (
                Job(variant, lock, platform, project) for platform in variant.platforms if platform in lock.platforms
            )


def format_pushed_foundations(pushed: Sequence[PushedFoundation]) -> str:
    """Return the result as text."""
    return as_lines(
        f"{item.variant}  {item.platform}  {item.foundation}  {item.bytes_sent / 1e6:.1f} MB sent" for item in pushed
    )
