"""A release of drydock: all checks first, then version, changelog, surface and records in one commit with a tag. IO.

Nothing is pushed. CI makes the files of a release when its tag is pushed (release_files.py).
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from drydock.build.build_job import Job
from drydock.ci import workflow
from drydock.config import renamed
from drydock.config.matrix import read_matrix
from drydock.config.validation import Problem, combine_problems
from drydock.core.commit import select_all_but
from drydock.core.errors import DrydockError, InputError
from drydock.core.files import format_json, write_atomically
from drydock.core.project import Project
from drydock.development import quality, surface
from drydock.development.surface import SurfaceChanges
from drydock.lock import image_record, kind_runs, lockfile
from drydock.lock.image_record import RECORDS
from drydock.model.record import dump_record
from drydock.model.variant import Variant
from drydock.pages import changelog
from drydock.pages.changelog import ADDED, BEFORE, CHANGED, DEPRECATED, REMOVED, Release

VERSION_FILE = "pyproject.toml"
PICTURE = "docs/pictures/demo.svg"
PAGES_OF_RECORDS = ("README.md", "CONTRIBUTING.md", "docs/reference/images.md", PICTURE)
"""What `./inv docs` writes from records: the picture, and tables of the others."""
TABLE_ROW = r"^\|"
"""A line of a table, as `git diff -I` ignores it."""
_VERSION = re.compile(r'(?<=^version = ")[^"]+(?="$)', re.MULTILINE)


class ReleasePlan(NamedTuple):
    """What a release writes."""

    version: str
    files: Mapping[Path, str]
    notes: str
    """The changelog of the release: the message of its tag."""

    @property
    def tag(self) -> str:
        """Return the name of its tag."""
        return f"v{self.version}"


class ReleaseState(NamedTuple):
    """What the checks look at."""

    project: Project
    variants: Sequence[Variant]
    version: str
    releases: Sequence[Release]
    """What is unreleased, then the releases, the newest first."""
    changes: SurfaceChanges
    """How the surface differs from that of the last release."""

    @property
    def unreleased(self) -> Release:
        """Return what the changelog has for this release."""
        return self.releases[0]

    @property
    def last(self) -> str:
        """Return the version of the last release; 0.0.0 before the first."""
        return self.releases[1].version if len(self.releases) > 1 else "0.0.0"


Checks = Callable[[ReleaseState], Iterator[Callable[[], None]]]


class HowToRelease(NamedTuple):
    """What to leave out of a release."""

    verify: bool = True
    """Run the linters and the tests."""
    dry_run: bool = False
    """Write nothing."""
    checks: Checks | None = None
    """Instead of those of generated files and links."""


def make_release(project: Project, version: str, how: HowToRelease) -> str:
    """Check, write, commit and tag a release; return what to do next.

    Raises InputError with every problem, before anything is written.
    """
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version, re.ASCII):
        raise InputError(f"{version}: expected a version such as 1.4.0", hint="./inv release 1.4.0")
    variants = read_matrix(project)
    present = surface.collect_surface(variants)
    changes = surface.compare_surfaces(surface.read_recorded(project.root)[1], present)
    releases = changelog.read_changelog(project.root / changelog.FILE)
    state = ReleaseState(project, variants, version, releases, changes)
    if problems := [*_find_problems(state, how.checks or _list_generated_checks)]:
        raise combine_problems(problems)
    if how.verify:
        quality.run_tests(project.root, "")
    plan = _plan_release(state, present)
    if not how.dry_run:
        _commit_release(project.root, plan)
    return _format_release_report(state, plan, how)


def compute_least_version(last: str, changes: SurfaceChanges, unreleased: Release) -> str:
    """Return the smallest version that may follow a release (https://semver.org).

    What breaks asks for a new major version, from 1.0.0 on; before, and for what is added, for a minor one.
    """
    major, minor, micro = Version(last).release
    breaks = changes.broken or {BEFORE, REMOVED} & unreleased.sections.keys()
    if breaks and major:
        return f"{major + 1}.0.0"
    if breaks or changes.added or {ADDED, CHANGED, DEPRECATED} & unreleased.sections.keys():
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{micro + 1}"


# --- checks -----------------------------------------------------------------------------------------------------------


def _find_problems(state: ReleaseState, checks: Checks) -> Iterator[Problem]:
    """Yield what is wrong, of everything that is quick to check."""
    for check in (_check_repository, _check_release_version, _check_changelog, _old_names, _check_kinds_of_tests):
        yield from check(state)
    for file_check in checks(state):
        try:
            file_check()
        except DrydockError as error:
            yield from ((problem, error.hint) for problem in error.problems)


def _check_repository(state: ReleaseState) -> Iterator[Problem]:
    root = state.project.root
    if changed := _list_other_changes(root):
        names = ", ".join(changed[:5])
        yield f"the tree is not clean: {names}{' …' if len(changed) > 5 else ''}", "commit, or git stash"  # noqa: PLR2004
    if (branch := _run_release_git(root, "branch", "--show-current")) != workflow.BRANCH:
        yield f"on {branch or 'no branch'}, expected {workflow.BRANCH}", f"git switch {workflow.BRANCH}"
    if _run_release_git(root, "tag", "--list", f"v{state.version}"):
        yield f"there is a tag v{state.version}, and tags of releases never move", "take the next version"


def _list_other_changes(root: Path) -> list[str]:
    """Return the files that differ from HEAD in more than a release commits: records, and what pages show of them."""
    status = _run_release_git(root, "status", "--porcelain", "--", *select_all_but((*RECORDS, *PAGES_OF_RECORDS)))
    pages = _run_release_git(root, "diff", "-I", TABLE_ROW, "--numstat", "HEAD", "--", *PAGES_OF_RECORDS)
    edited_pages = [line.split("\t")[2] for line in pages.splitlines() if not line.endswith(PICTURE)]
    return [*(line[3:] for line in status.splitlines()), *edited_pages]


def _check_release_version(state: ReleaseState) -> Iterator[Problem]:
    major, minor, micro = Version(state.last).release
    steps = (f"{major}.{minor}.{micro + 1}", f"{major}.{minor + 1}.0", f"{major + 1}.0.0")
    lowest = compute_least_version(state.last, state.changes, state.unreleased)
    possible = [version for version in steps if Version(version) >= Version(lowest)]
    if state.version not in possible:
        expected = f"expected {' or '.join(possible)} after {state.last}"
        yield f"{state.version}: {expected}: {_explain_version(state)}", f"./inv release {lowest}"
    found_versions = _VERSION.findall(_read_utf8(state.project.root / VERSION_FILE))
    if found_versions != [state.last]:
        versions_text = " and ".join(found_versions) or "none"
        yield f"{VERSION_FILE}: version: found {versions_text}, expected {state.last}, as in {changelog.FILE}", ""


def _explain_version(state: ReleaseState) -> str:
    """Return why a version of this kind is due."""
    counts = {"gone or changed": len(state.changes.broken), "new": len(state.changes.added)}
    change_counts = [f"{text}: {number}" for text, number in counts.items() if number]
    return "; ".join((*change_counts, f"the changelog has {', '.join(state.unreleased.sections) or 'nothing'}"))


def _check_changelog(state: ReleaseState) -> Iterator[Problem]:
    if state.unreleased.is_empty:
        yield f"{changelog.FILE}: nothing is written under {changelog.UNRELEASED}", "say what changed for users"
    for name in surface.find_unnamed_changes(state.changes.broken, state.unreleased.text):
        yield (
            f"{changelog.FILE}: {changelog.UNRELEASED} does not name what is gone or changed: {name}",
            f"add a line under {BEFORE} or {REMOVED}",
        )
    recorded, _ = surface.read_recorded(state.project.root)
    if recorded not in ("", state.last):
        yield (
            f"{surface.FILE}: is of {recorded}, expected {state.last}",
            f"git checkout v{state.last} -- {surface.FILE}",
        )


def _old_names(state: ReleaseState) -> Iterator[Problem]:
    for old in renamed.find_outlived_names(state.version, (release.version for release in state.releases[1:])):
        yield (
            f"drydock/config/renamed.py: {old.name} has warned since the release after {old.after}",
            f"remove the entry, and name {old.name} under {REMOVED}",
        )


def _check_kinds_of_tests(state: ReleaseState) -> Iterator[Problem]:
    for name, kind in kind_runs.read_kinds(state.project).items():
        if why := kind_runs.explain_outdated_kind(state.project, kind):
            yield f"tests of kind {name}: {why}", f"./inv test --kind {name} --record"


def _list_generated_checks(state: ReleaseState) -> Iterator[Callable[[], None]]:
    """Yield what raises an error if a generated file is not as committed, or a link leads nowhere."""
    yield lambda: _check_verified_digests(state.project, state.variants)
    yield lambda: quality.check_generated_files(state.project.root)
    yield lambda: quality.check_links(state.project.root)


def _check_verified_digests(project: Project, variants: Sequence[Variant]) -> None:
    """Check that each verified digest is of the present inputs. Raises InputError."""
    problems: list[Problem] = []
    for variant, lock in lockfile.read_current(project, variants):
        for platform in lock.platforms:
            job = Job(variant=variant, lock=lock, platform=platform, project=project)
            if job.record.verified and job.record.verified.inputs_sha256 != job.inputs_sha256:
                text = f"images/{variant.id}/record.json: the digest for {platform} is of other inputs"
                problems.append((text, f"./inv verify --target {variant.id} --record"))
    if problems:
        raise combine_problems(problems)


# --- writing ----------------------------------------------------------------------------------------------------------


def _plan_release(state: ReleaseState, present: surface.Surface) -> ReleasePlan:
    root = state.project.root
    date = dt.datetime.now(dt.UTC).date().isoformat()
    texts = {
        VERSION_FILE: _VERSION.sub(state.version, _read_utf8(root / VERSION_FILE)),
        changelog.FILE: changelog.insert_release_heading(_read_utf8(root / changelog.FILE), state.version, date),
        str(surface.FILE): surface.format_surface(state.version, present),
        **_render_records(state),
    }
    return ReleasePlan(state.version, {root / name: text for name, text in texts.items()}, state.unreleased.text)


def _render_records(state: ReleaseState) -> dict[str, str]:
    """Return name → text of the records, which say what digest the release has of each row that was built twice."""
    records = {variant.id: image_record.read_record(state.project, variant.id) for variant in state.variants}
    return {
        image_record.name_of_record(row): format_json(dump_record(image_record.add_release(record, state.version)))
        for row, record in records.items()
        if any(platform.verified for platform in record.platforms.values())
    }


def _commit_release(root: Path, plan: ReleasePlan) -> None:
    """Write, commit with the records, and tag. If git refuses, the files are as before. Raises InputError."""
    names = [str(path.relative_to(root)) for path in plan.files]
    pathspecs = [f":(glob){name}" for name in (*RECORDS, *PAGES_OF_RECORDS)]
    records = _run_release_git(root, "ls-files", "--modified", "--others", "--", *pathspecs).splitlines()
    try:
        for path, text in plan.files.items():
            write_atomically(path, text)
        _run_release_git(root, "add", "--", *names, *records)
        _run_release_git(root, "commit", "--quiet", "--message", f"release: {plan.version}", "--", *names, *records)
    except BaseException:
        _restore_files(root, names)
        raise
    message = f"drydock {plan.version}\n\n{plan.notes}"
    try:
        _run_release_git(root, "tag", "--annotate", "--cleanup=whitespace", "--message", message, plan.tag)
    except InputError:
        _run_release_git(root, "reset", "--quiet", "HEAD~1")
        _restore_files(root, names)
        raise


def _restore_files(root: Path, names: Sequence[str]) -> None:
    """Restore what a release wrote. Records stay in the working tree, since it took hours to make them."""
    _run_release_git(root, "reset", "--quiet")
    written = (name for name in names if Path(name).name != image_record.FILE)
    _run_release_git(root, "restore", "--worktree", "--", *written)


def _format_release_report(state: ReleaseState, plan: ReleasePlan, how: HowToRelease) -> str:
    """Return what was done, or would be, and what comes next."""
    verb, tagged = ("would write", "would commit and tag") if how.dry_run else ("wrote", "committed and tagged")
    lines = [f"{plan.version} follows {state.last}: {_explain_version(state)}"]
    if not how.verify:
        lines.append("linters and tests were not run (--no-verify)")
    lines += [f"{verb} {path.relative_to(state.project.root)}" for path in plan.files]
    lines.append(f"{tagged} release: {plan.version} as {plan.tag}")
    lines.append(f"then: git push --atomic origin {workflow.BRANCH} {plan.tag}")
    return "\n".join(lines) + "\n"


def _read_utf8(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _run_release_git(root: Path, *words: str) -> str:
    """Run git; return what it prints. Raises InputError with what it said."""
    result = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    if result.returncode:
        message = result.stderr.strip() or result.stdout.strip() or f"exit {result.returncode}"
        raise InputError(f"git {words[0]}: {message}")
    return result.stdout.rstrip("\n")
