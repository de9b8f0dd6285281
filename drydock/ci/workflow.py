"""matrix.yaml and its locks → .github/workflows/drydock.yml and .gitlab-ci.yml. Pure, but for the files.

The templates use [[ ]] and [% %], because ${{ }} is GitHub's own syntax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from drydock.ci.ci_rows import HOSTED_DISK, CiRow, LeftOut, list_ci_rows
from drydock.core.errors import StaleError
from drydock.core.files import write_atomically
from drydock.core.project import Project
from drydock.lock.kind_runs import read_kinds
from drydock.model.variant import Variant

PATHS = {"github": ".github/workflows/drydock.yml", "gitlab": ".gitlab-ci.yml"}
TESTS = ("lint", "test --kind unit", "test --kind golden")
PROJECT_TESTS = ("lock --check", "render --check", "ci --check")
BUILDS = tuple(f'{task} --target "$VARIANT" --json' for task in ("build", "verify --record", "audit"))
REQUEST_BUILDS = tuple(task.replace("--record", "--record --from-foundation") for task in BUILDS)
"""Tasks of the jobs that test, here and in a project of one's own; that build one variant of a release; of a request,
which builds no foundation again that the lock has the digest of."""
REQUIREMENTS = "requirements.txt"
"""The file of a project that says which drydock its CI installs."""
INSTALLS = ("python3 -m venv .venv", f".venv/bin/pip install --quiet --require-hashes --requirement {REQUIREMENTS}")
EXPORTS = {"github": 'echo "$PWD/.venv/bin" >> "$GITHUB_PATH"', "gitlab": "export PATH=$PWD/.venv/bin:$PATH"}
"""Commands that install drydock for a project's jobs; a checkout has ./inv."""
WEEKLY = "17 3 * * 0"
"""When GitHub starts what takes hours: on Sundays."""
BRANCH = "main"
"""The branch whose commits are published."""


class Action(NamedTuple):
    """A third-party action, pinned by the commit that was reviewed."""

    name: str
    commit: str
    tag: str

    def __str__(self) -> str:
        return f"{self.name}@{self.commit} # {self.tag}"


ACTIONS = {
    "checkout": Action("actions/checkout", "3d3c42e5aac5ba805825da76410c181273ba90b1", "v7.0.1"),
    "cache": Action("actions/cache", "27d5ce7f107fe9357f9df03efb73ab90386fccae", "v5.0.5"),
    "docker": Action("docker/setup-docker-action", "77e84dbf09b47d1e29270283c22f16145aa85ca1", "v5.4.0"),
    "upload": Action("actions/upload-artifact", "043fb46d1a93c77aae656e7c1c64a875d1fc6a0a", "v7.0.1"),
    "site": Action("actions/upload-pages-artifact", "fc324d3547104276b827a68afc52ff2a11cc49c9", "v5.0.0"),
    "pages": Action("actions/deploy-pages", "368f82528645a54fb793d4d04e342629a3f51346", "v5.0.1"),
    "cosign": Action("sigstore/cosign-installer", "6f9f17788090df1f26f669e9d70d6ae9567deba6", "v4.1.2"),
}
"""The commits that these tags pointed to in the projects' repositories between July and September 2026."""


def render_workflow(
    form: str,
    built: Sequence[CiRow],
    left_out: Sequence[LeftOut],
    kinds: Sequence[str] = (),
    *,
    is_own_project: bool = False,
) -> str:
    """Return one workflow, with `is_own_project` that of a project of one's own.

    `kinds`: of tests that run once a week.
    """
    environment = Environment(  # noqa: S701 (no HTML)
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        block_start_string="[%",
        block_end_string="%]",
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
    )
    program = "drydock" if is_own_project else "./inv"
    values: Mapping[str, Any] = {
        "form": form,
        "program": program,
        "installs": (*INSTALLS, EXPORTS[form]) if is_own_project else (),
        "tests": [f"{program} {task}" for task in (PROJECT_TESTS if is_own_project else TESTS)],
        "builds": [f"{program} {task}" for task in BUILDS],
        "request_builds": [f"{program} {task}" for task in REQUEST_BUILDS],
        "built": built,
        "large": [row for row in built if not row.fits],
        "hosted_gb": HOSTED_DISK // 10**9,
        "left_out": left_out,
        "kinds": kinds,
        "weekly": WEEKLY,
        "branch": BRANCH,
        "actions": ACTIONS,
    }
    return environment.get_template(f"{form}.yml.j2").render(values)


def render_all_workflows(project: Project, variants: Sequence[Variant], form: str = "") -> dict[Path, str]:
    """Return path → text of one workflow, or of each; of a project of one's own, of each that it has."""
    built, left_out = list_ci_rows(project, variants)
    forms = [form] if form else (project.below and list_present_workflows(project)) or PATHS
    is_own_project, kinds = bool(project.below), sorted(read_kinds(project))
    return {
        project.root / PATHS.get(name, name): render_workflow(
            name, built, left_out, kinds, is_own_project=is_own_project
        )
        for name in forms
    }


def list_present_workflows(project: Project) -> list[str]:
    """Return the servers whose workflow a project has."""
    return [name for name, path in PATHS.items() if (project.root / path).is_file()]


def write(project: Project, variants: Sequence[Variant], form: str = "") -> list[Path]:
    """Write the workflows; return those that changed. Raises InputError for an installed drydock alone."""
    project.check_writable("CI files")
    return [
        path for path, text in render_all_workflows(project, variants, form).items() if write_atomically(path, text)
    ]


def check_workflows(project: Project, variants: Sequence[Variant], form: str = "") -> None:
    """Raise StaleError if a committed workflow differs from what the matrix gives."""
    stale = [
        f"{project.name_of(path)}: outdated"
        for path, text in render_all_workflows(project, variants, form).items()
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text
    ]
    if stale:
        raise StaleError(*stale, hint="run `./inv ci`")
