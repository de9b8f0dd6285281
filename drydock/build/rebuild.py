"""Builds a variant a second time without any cache, in a different environment, and compares every digest. IO.

The second build runs offline in its own process: in a copy of the repository in another folder, with other file times
and modes, an empty cache folder that shares only the content-addressed store (so source code is checked and unpacked
again), no BuildKit cache, and another umask, locale and time zone. Its RUN steps also
run at another time of day.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from drydock.build import build, build_preview
from drydock.build.build_job import Job
from drydock.build.build_preview import BuildPreview
from drydock.build.render import vllm_interpreter
from drydock.config.project_choice import PROJECT_FILE
from drydock.core.console import as_lines, log
from drydock.core.errors import BuildError, NotReproducibleError
from drydock.core.files import link_or_copy
from drydock.core.paths import cache_home
from drydock.core.process import in_ci
from drydock.core.user_language import translate_lines
from drydock.engine import daemon
from drydock.engine.run_container import run_to_end
from drydock.inputs import fetch
from drydock.lock import image_record, proof
from drydock.lock.image_record import VerifiedFoundation, VerifiedImage
from drydock.model.additions import Additions
from drydock.model.record import Record
from drydock.oci import image_layout
from drydock.oci.layout_diff import LayoutDifference, compare_layouts

INPUT_FOLDERS = ("drydock", "entrypoints", "images", "templates")
INPUT_FILES = (PROJECT_FILE, "matrix.yaml", "tasks.py", "pyproject.toml")
CACHE = "cache"
"""The second build's cache folder, in its temporary one."""
SHARED = ("store",)
"""Folders of the cache with fetched files, which each use checks: the second build must not use the network."""
CIRCUMSTANCES = {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "12345"}
NOT_BUILT = "none: two layers were added to a base"
"""What a record has in place of BuildKit's version for an adopted image."""
OTHER_MTIME = 981173106
"""2001-02-03: the time of the copied files."""


class Verified(Record):
    """What `verify --json` prints."""

    reproducible: bool
    first: str
    second: str
    committed: str | None
    """The digest in the record, if it was made from the same inputs."""
    matches_committed: bool | None
    differences: tuple[Mapping[str, str], ...]
    foundation: str | None = None
    """Digest of the foundation if both builds have the same, else null."""


class RebuildPreview(Record):
    """What `verify` would do."""

    first: BuildPreview
    imports_vllm: bool
    """Whether no record shows that vLLM can be imported on this foundation."""
    second: Literal["from nothing", "on the kept foundation", "two layers on a base"]
    """How the image is built again; what that needs is downloaded before."""


def preview_verification(job: Job, *, recording: bool = False, from_foundation: bool = False) -> RebuildPreview:
    """Return what `verify_build` would do with the same options. Raises the same errors before it builds."""
    if recording:
        job.project.check_writable(image_record.name_of_record(job.variant.id))
    fetch.refuse_unresolved(job.variant, job.pins, job.context_overrides)
    is_shared = _is_foundation_shared(job, from_foundation=from_foundation)
    first = build_preview.preview_build(job, no_cache=_starts_fresh(job, recording=recording))
    downloads = build_preview.list_downloads(job, has_foundation=is_shared or job.is_adopted)
    return RebuildPreview(
        first=first.model_copy(update={"downloads": downloads}),
        imports_vllm=not job.is_adopted and _is_import_unshown(job),
        second="two layers on a base" if job.is_adopted else "on the kept foundation" if is_shared else "from nothing",
    )


def format_verification_preview(preview: RebuildPreview, needed_bytes: int | None) -> str:
    """Return lines that say what `verify` would do; both builds need this much of the disk, if that is known."""
    first = preview.first
    lines = [*build_preview.list_preview_lines(first)]
    if preview.imports_vllm:
        lines.append("would import vLLM in the image: no record shows it for this foundation")
    lines.append(f"would build the image again, {preview.second}, and compare both digests")
    if needed_bytes:
        lines.append(build_preview.format_disk_line(needed_bytes, first.free_bytes, first.cache))
    return translate_lines(as_lines(lines))


def verify_build(
    job: Job, *, builder: str | None = None, recording: bool = False, from_foundation: bool = False
) -> Verified:
    """Build twice and compare; return differences by layer, path and field.

    With `from_foundation`, a kept foundation whose digest is the record's is not built again: two builds have agreed on
    it already. With `recording`, raises InputError if the digest cannot be written.
    """
    if recording:
        job.project.check_writable(image_record.name_of_record(job.variant.id))
    if job.is_adopted:
        return _verify_adopted(job)
    fresh = _starts_fresh(job, recording=recording)
    first = build.build_image(job, builder=builder, hash_kept=True, no_cache=fresh)
    import_vllm(job, first.image)
    shared = _is_foundation_shared(job, from_foundation=from_foundation)
    if not shared:  # the second build uses no network, and the first reads less on a kept foundation
        build.fetch_contexts(job)
    log(f"{first.digest}: now building again {'on the same foundation' if shared else 'without cache'}")
    with tempfile.TemporaryDirectory(prefix="drydock-verify-", dir=_large_temporary_folder()) as folder:
        again = Path(folder, CACHE, job.foundation.relative_to(cache_home()))
        if shared:
            shutil.copytree(job.foundation, again, copy_function=link_or_copy)
        second = _build_elsewhere(job, Path(folder), builder, below="kept" if shared else "")
        differences = compare_layouts(Path(first.layout), Path(second["layout"]))
        below = {_read_sound_digest(job.foundation), _read_sound_digest(again)}
    committed = job.record.find_verified_digest(first.inputs_sha256)
    return Verified(
        reproducible=first.digest == second["digest"],
        first=first.digest,
        second=second["digest"],
        committed=committed,
        matches_committed=None if committed is None else committed == first.digest,
        differences=tuple(difference._asdict() for difference in differences),
        foundation=below.pop() if len(below) == 1 else None,
    )


def _starts_fresh(job: Job, *, recording: bool) -> bool:
    """Tell whether the first build is from nothing too: both must show the digest of the foundation."""
    return recording and not image_layout.is_sound_layout(job.foundation)


def _is_foundation_shared(job: Job, *, from_foundation: bool) -> bool:
    """Tell whether the second build stands on the kept foundation, whose digest is the record's."""
    committed = job.committed_foundation if from_foundation else None
    return committed is not None and _read_sound_digest(job.foundation) == committed


def _verify_adopted(job: Job) -> Verified:
    """Assemble an adopted image twice and compare. Its base is the publisher's; what is in it is not tried here."""
    first = build.build_image(job, into_engine=False, hash_kept=True)
    log(f"{first.digest}: now assembling it again, in another folder and process")
    with tempfile.TemporaryDirectory(prefix="drydock-verify-", dir=_large_temporary_folder()) as folder:
        second = _build_elsewhere(job, Path(folder), None)
        is_same = first.digest == second["digest"]
        differences = () if is_same else compare_layouts(Path(first.layout), Path(second["layout"]))
    return Verified(
        reproducible=is_same,
        first=first.digest,
        second=second["digest"],
        committed=(committed := job.record.find_verified_digest(first.inputs_sha256)),
        matches_committed=None if committed is None else committed == first.digest,
        differences=tuple(difference._asdict() for difference in differences),
    )


def settle_verification(
    job: Job,
    verified: Verified,
    *,
    recording: bool,
    builder: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> None:
    """Raise NotReproducibleError unless both builds, and the committed digest if there is one, are the same.

    With `recording`, write the digest into the record. It replaces another one, except in CI.
    """
    if not verified.reproducible:
        raise NotReproducibleError(
            f"{job.variant.id}: the second build differs from the first", *map(format_difference, verified.differences)
        )
    if verified.matches_committed is False and (not recording or in_ci(env)):
        raise NotReproducibleError(
            f"{job.variant.id}: both builds gave {verified.first}, its record has {verified.committed}",
            hint="compare BuildKit with `verified.buildkit` in the record; on a machine that is no CI,"
            f" `./inv verify --target {job.variant.id} --record` writes the new digest",
        )
    if recording and not (verified.matches_committed and verified.foundation in (None, job.committed_foundation)):
        record_digests(job, verified, builder)


def record_digests(job: Job, verified: Verified, builder: str | None = None) -> None:
    """Write the digest of two identical builds into the record, and what they showed of the foundation."""
    below, foundations = verified.foundation, job.record.foundation
    image = VerifiedImage(
        digest=verified.first,
        inputs_sha256=job.inputs_sha256,
        foundation=VerifiedFoundation(digest=below, key=job.foundation_key) if below else None,
        buildkit=NOT_BUILT if job.is_adopted else daemon.buildkit_version(builder),
        buildx=NOT_BUILT if job.is_adopted else daemon.ensure_engine().buildx,
        **image_record.stamp_today(job.project),
    )
    if below:
        command = f"./inv verify --target {job.variant.id} --record"
        evidence = image_record.make_evidence(job.project, below, job.foundation_key, [command])
        shown = (proof.REPRODUCED, *((proof.IMPORTED,) if job.variant.serves else ()))
        foundations = {**foundations, **dict.fromkeys(shown, evidence)}
    record = job.record.model_copy(update={"verified": image, "foundation": foundations})
    image_record.write_platform_record(job.project, job.variant.id, job.platform, record)


def import_vllm(job: Job, image: str) -> None:
    """Import vLLM in an image, unless that was shown of its foundation. Raises BuildError with vLLM's last line.

    A build reads vLLM's files and imports nothing, so a package that is missing or damaged would be seen at the start.
    """
    if not _is_import_unshown(job):
        return
    log(f"{job.variant.id}: importing vLLM, once for this foundation")
    run_to_end(image, (vllm_interpreter(job.variant), "-c", "import vllm"), network_mode="none")


def _is_import_unshown(job: Job) -> bool:
    evidence = job.record.foundation.get(proof.IMPORTED)
    return job.variant.serves and not (evidence and evidence.inputs_sha256 == job.foundation_key)


def format_difference(difference: LayoutDifference | Mapping[str, str]) -> str:
    """Return one difference as a line."""
    values = difference if isinstance(difference, Mapping) else difference._asdict()
    return "{where}: {path}: {field}: {first} → {second}".format(**values)


def _build_elsewhere(job: Job, folder: Path, builder: str | None, below: str = "") -> dict[str, str]:
    copies = [folder / f"a different folder {number}" for number in range(len(job.project.layers))]
    for layer, copy in zip(job.project.layers, copies, strict=True):
        _copy_inputs(layer, copy, job.variant.additions)
    cache = folder / CACHE
    cache.mkdir(exist_ok=True)
    for shared in SHARED:
        (cache_home() / shared).mkdir(parents=True, exist_ok=True)
        (cache / shared).symlink_to(cache_home() / shared)
    command = [sys.executable, "-m", "drydock", job.variant.id, job.platform, builder or "", below, *map(str, copies)]
    process = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **CIRCUMSTANCES, "DRYDOCK_CACHE": str(cache), "PYTHONPATH": str(copies[-1])},
        umask=0o077,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if process.returncode:
        raise BuildError(
            f"the second build of {job.variant.id} failed: exit {process.returncode}", hint="see its output above"
        )
    result: dict[str, str] = json.loads(process.stdout)
    return result


def _copy_inputs(layer: Path, copy: Path, additions: Additions) -> None:
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    copy.mkdir(parents=True)
    for name in (*INPUT_FOLDERS, *filter(None, [additions.certificates])):
        if (layer / name).is_dir():
            shutil.copytree(layer / name, copy / name, ignore=ignore)
    for name in (*INPUT_FILES, *additions.files.values()):
        if (layer / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(layer / name, copy / name)
    for path in _walk_folder(copy):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (OTHER_MTIME, OTHER_MTIME))


def _walk_folder(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.rglob("*")


def _read_sound_digest(layout: Path) -> str | None:
    """Return the digest of a layout; None if it does not exist or is damaged."""
    return image_layout.read_digest(layout) if image_layout.is_sound_layout(layout) else None


def _large_temporary_folder() -> Path:
    """Return a folder for gigabytes of temporary files: on the disk of the cache, since /tmp may be in memory."""
    folder = cache_home() / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
