"""The verb `build`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from drydock.cli.task_helpers import foundations_of, here, write_result
from drydock.cli.verb import Verb
from drydock.core.console import as_lines
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.model.shared_options import (
    BuilderOption,
    ContextOption,
    JsonOption,
    LockedOptions,
    NoCacheOption,
    OfflineOption,
    PlatformOption,
    PreviewOption,
    TrustOptions,
    VerboseOption,
)

if TYPE_CHECKING:
    from drydock.build.build import Pull
    from drydock.build.build_job import Job
    from drydock.build.many import Outcome


class BuildRowsOptions(
    LockedOptions,
    ContextOption,
    PlatformOption,
    OfflineOption,
    NoCacheOption,
    BuilderOption,
    TrustOptions,
    PreviewOption,
    VerboseOption,
    JsonOption,
):
    """How to build rows."""

    TAKES_AUTO = True
    WORDS = ("target",)
    target: tuple[str, ...] = ()
    """row, alias or accelerator; auto: what fits this machine's devices and driver; several, with commas between
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

    def check(self, targets: Sequence[str]) -> None:
        """Raise InputError for options that contradict each other."""
        ways = [*(["--target"] if targets else []), *(["--all-locked"] if self.all_locked else [])]
        ways += ["--changed-since"] if self.changed_since is not None else []
        if not ways:
            raise InputError("build requires --target", hint="./inv matrix lists the targets")
        if len(ways) > 1:
            raise InputError(f"{' and '.join(ways)} exclude each other", hint=f"leave out {' and '.join(ways[1:])}")
        if self.stand_ins and self.supplied:
            raise InputError("--supplied: stand-ins take no such files", hint="--context NAME=FOLDER replaces a stub")
        if self.supplied and (ways != ["--target"] or len(targets) > 1):
            raise InputError(
                "--supplied: names the files of one variant", hint="build that one by itself with --target"
            )
        if self.stand_ins and self.dry_run:
            raise InputError("--dry-run: stand-ins are made before a build is known", hint="leave out --stand-ins")
        if self.root and "auto" not in targets:
            raise InputError("--root is the recorded host to choose a variant for", hint="add --target auto")


@Verb
def build_rows(options: BuildRowsOptions) -> None:
    """Build an image without network, load it into the engine and print its digest. Inputs without a pin get one."""
    from drydock.build import build
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.run import auto

    pull = _choose_pull(options)
    builders, targets = _split_names(options.builder, "--builder"), _split_names(",".join(options.target), "--target")
    options.check(targets)
    project = here()
    prepare = partial(_prepare_job, project, options)
    if len(targets) == 1 and len(builders) <= 1:
        job = prepare(auto.resolve_id(project, targets[0], options.root))
        if options.dry_run:
            from drydock.build import build_preview

            preview = build_preview.preview_build(job, no_cache=options.no_cache)
            write_result(preview, build_preview.format_build_preview(preview), json=options.json)
            return
        built = build.build_image(
            job,
            builder=next(iter(builders), None),
            no_cache=options.no_cache,
            may_use_network=not options.offline,
            pull=pull,
        )
        write_result(built, f"{built.image}\n{built.digest}\n", json=options.json)
        return

    from drydock.build import many
    from drydock.ci import changed

    variants = read_matrix(project)
    if targets:
        roots = {auto.AUTO: options.root}
        rows = [find_variant(variants, auto.resolve_id(project, name, roots.get(name, ""))) for name in targets]
        left_out: list[many.Outcome] = []
    else:
        rows, left_out = changed.select_locked_rows(project, variants, options.changed_since)
    rows = list({variant.id: variant for variant in rows}.values())
    jobs, failures = many.prepare_jobs(rows, prepare, options.platform)
    if options.dry_run:
        _print_previews(jobs, [*failures, *left_out], options)
        return
    settings = many.ManyOptions(builders, options.no_cache, may_use_network=not options.offline, pull=pull)
    outcomes = {outcome.variant: outcome for outcome in (*failures, *many.build_all(jobs, settings))}
    results = [*(outcomes[variant.id] for variant in rows), *left_out]
    write_result({"rows": results}, many.format_build_outcomes(results), json=options.json)
    sys.exit(max((outcome.exit_code for outcome in results), default=0))


def _print_previews(jobs: Sequence[Job], outcomes: Sequence[Outcome], options: BuildRowsOptions) -> None:
    """Print what the build of several rows would do, and end with the exit code of a row that none can be made of."""
    from drydock.build import build_preview, many

    previews = [build_preview.preview_build(job, no_cache=options.no_cache) for job in jobs]
    text = "\n".join(map(build_preview.format_build_preview, previews))
    text += as_lines(many.list_outcome_reasons(outcomes))
    write_result({"rows": [*previews, *outcomes]}, text, json=options.json)
    sys.exit(max((outcome.exit_code for outcome in outcomes), default=0))


def _choose_pull(options: BuildRowsOptions) -> Pull | None:
    """Return what is asked for foundations; None if no option names any. Raises InputError."""
    registry = foundations_of(options.foundations)
    if not (registry or options.insecure or options.verify_key or options.identity or options.issuer):
        return None
    from drydock.publish import foundations  # it imports what pushes, signs and describes images

    return foundations.make_registry_pull(registry, options)


def _split_names(text: str, option: str) -> list[str]:
    """Split at commas, each word once. Raises InputError for an empty one."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(words):
        raise InputError(f"{option} {text}: a name between commas is empty", hint=f"write {option} A,B")
    return list(dict.fromkeys(words))


def _prepare_job(project: Project, options: BuildRowsOptions, row: str) -> Job:
    """Return the job of a row with everything pinned, or with stand-ins."""
    from drydock.build.build_job import BuildOptions
    from drydock.inputs import overrides
    from drydock.projects import pinned_job

    settings = BuildOptions(options.platform or None, options.offline, overrides.parse_contexts(options.context))
    if options.dry_run:
        return pinned_job.prepare_previewed_job(project, row, settings, locked=options.locked)
    return pinned_job.prepare_pinned_job(
        project,
        row,
        settings,
        locked=options.locked,
        supplied_folders=options.supplied,
        stand_ins=options.stand_ins,
    )
