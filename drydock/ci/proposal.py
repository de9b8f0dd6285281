"""A change by CI: locks are made again, a branch is pushed, a request to merge it is opened. IO."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.build import render
from drydock.ci.ci_variables import TOKEN, how_to_set
from drydock.ci.workflow import BRANCH, PATHS
from drydock.core.console import log
from drydock.core.errors import DriftError, FetchError, InputError
from drydock.core.files import format_json, write_atomically
from drydock.core.project import Project
from drydock.examine.advisories import advisory_search
from drydock.examine.advisories.advisory_record import Advisories
from drydock.lock import lockfile, resolution
from drydock.lock.drift.drift_record import Drift
from drydock.lock.recipes import recipes_lock
from drydock.model.locked import Lock
from drydock.model.variant import Variant


class LockRequest(NamedTuple):
    """A request to merge."""

    branch: str
    """It belongs to drydock: each run replaces it."""
    title: str
    paths: tuple[str, ...]
    """What it may change."""


GENERATED = ("images", "docs", "README.md", recipes_lock.FACTS, recipes_lock.LOCK)
"""What locking, rendering and `./inv recipes` write."""
OF_BUMP = (*GENERATED, "matrix.yaml", "templates", "entrypoints", "drydock", "tests", *PATHS.values())
"""What `./inv bump` writes: also stacks, the version next to sources of facts, what is expected of hosts, CI files."""
UPDATE = LockRequest("drydock/locks", "Update locks", GENERATED)
FIRST = LockRequest("drydock/first-locks", "Lock what was not locked", GENERATED)
RECIPES = LockRequest("drydock/recipes", "Take newer recipes of vLLM", GENERATED)
NOTE = "What was recorded of them is of earlier inputs: `./inv verify --target … --record` records their new digests."
WORKFLOWS_NOTE = "The workflows list the rows that CI builds: run `./inv ci` on this branch, and commit what it writes."
"""A job's own token may not change a workflow."""
NOTHING = "nothing to propose\n"
MAX_BODY = 60_000
"""Characters. GitHub rejects a body of more than 65,536."""
IDENTITY = ("user.name=drydock", "user.email=drydock@localhost", "commit.gpgSign=false")
CREDENTIALS = f'!f() {{ echo username=x-access-token; echo "password=${TOKEN}"; }}; f'
"""A git credential helper that reads the token from the environment, because any user can read arguments
(https://git-scm.com/docs/gitfaq, "How do I specify my credentials when pushing over HTTP?"). GitHub requires this user
name, GitLab accepts any."""


class Server(NamedTuple):
    """The server to push to, as the CI job's environment describes it."""

    form: str
    """github or gitlab."""
    repository: str
    """URL to push to."""
    token: str
    host: str = ""
    """GitHub's host."""
    name: str = ""
    """GitHub's OWNER/NAME."""


def read_ci_server(form: str, env: Mapping[str, str] = os.environ) -> Server:
    """Read the server's address and token from the CI job's environment. Raises InputError if a variable is missing."""
    names = {
        "github": ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", TOKEN),
        "gitlab": ("CI_PROJECT_URL", TOKEN),
    }[form]
    missing = [name for name in names if not env.get(name)]
    if missing:
        raise InputError(*(f"{name} is not set" for name in missing), hint=how_to_set(form, missing))
    if form == "gitlab":
        return Server(form, f"{env['CI_PROJECT_URL']}.git", env[TOKEN])
    url, name = env["GITHUB_SERVER_URL"], env["GITHUB_REPOSITORY"]
    return Server(form, f"{url}/{name}.git", env[TOKEN], url.partition("://")[2], name)


def offer_request(project: Project, to: Server, request: LockRequest, message: str) -> str:
    """Commit what changed, push it and open a request; return what was done, empty if nothing changed.

    `message` is Markdown, in which texts from upstream are quoted.
    """
    if not _run_project_git(project, "status", "--porcelain", "--", *request.paths):
        return ""
    body = message[:MAX_BODY]
    commit = _commit_generated(project, request, f"{request.title}\n\n{body}")
    push_branch(project, to, request)
    opened = _open_pull_request(to, request, body) if to.form == "github" else "GitLab opens the merge request"
    return f"pushed {commit[:12]} to {request.branch}: {opened}\n"


def find_fixable_variants(advisories: Advisories) -> set[str]:
    """Return the variants with a vulnerability for which there is a fixed version: a new lock may take it. Pure."""
    return {variant for item in advisories.findings if item.advisory.fixed_in for variant in item.variants}


def settle_advisories(advisories: Advisories) -> None:
    """Raise as `audit --advisories` does, but not for what no database covers, which a new lock cannot change."""
    advisory_search.raise_if_found(advisories.model_copy(update={"not_covered": ()}))


def relock_variants(project: Project, variants: Sequence[Variant], *, first: bool = False) -> list[Path]:
    """Lock and render variants again; return the locks that changed.

    With `first`, valid pins stay. The old lock is kept if the new one pins less, because an index or a git host was not
    reached, or with `first` no more.
    """
    changed = []
    for variant in variants:
        path = lockfile.path_of_lock(project, variant.id)
        old, old_bytes = lockfile.read_previous(path), path.read_bytes() if path.is_file() else b""
        lock_paths = (resolution.resolve_and_write if first else resolution.take_newest)(project, [variant])
        if not lock_paths:
            continue
        new = lockfile.read_lock(lock_paths[0])
        if old and (pins_less(old, new) or (first and not pins_less(new, old))):
            if lock_paths == [path]:
                write_atomically(path, old_bytes)
            else:  # the old one is in a lower layer
                lock_paths[0].unlink()
            log(f"{variant.id}: kept the old lock: {'it pins as much' if first else 'an input could not be checked'}")
            continue
        render.write_dockerfile(project, variant, new)
        changed += lock_paths
    return changed


def pins_less(old: Lock, new: Lock) -> bool:
    """Return whether the new lock leaves unresolved what the old one pinned."""
    return any(
        set(pins.unresolved) - set(old.platforms[platform].unresolved)
        for platform, pins in new.platforms.items()
        if platform in old.platforms
    )


def settle_stack_drift(drift: Drift) -> None:
    """Raise DriftError for drifted inputs that a stack pins: locking again does not change them."""
    unsettled_changes = [change for change in drift.drifted if not change.command.startswith("./inv lock")]
    if unsettled_changes:
        raise DriftError(
            *(f"{change.variant}: {change.name}: {change.detail}" for change in unsettled_changes),
            hint="; ".join(dict.fromkeys(change.command for change in unsettled_changes)),
        )


def refuse_edits(project: Project, paths: Sequence[str] = GENERATED) -> None:
    """Raise InputError if files that will be written have uncommitted edits, which would end up in the commit."""
    edited = _run_project_git(project, "status", "--porcelain", "--", *paths)
    if edited:
        raise InputError(*edited.splitlines(), hint="commit or revert these edits: the lock change covers these paths")


def _commit_generated(project: Project, request: LockRequest, message: str) -> str:
    """Commit the generated files to the branch, return to the previous one, and return the commit."""
    paths = [name for name in request.paths if (project.root / name).exists()]
    _run_project_git(project, "checkout", "--quiet", "-B", request.branch)
    try:
        _run_project_git(project, "add", "--all", "--", *paths)
        _run_project_git(project, "commit", "--quiet", "--no-verify", "-m", message, "--", *paths, config=IDENTITY)
    finally:
        _run_project_git(project, "checkout", "--quiet", "-")
    return _run_project_git(project, "rev-parse", request.branch)


def push_branch(project: Project, to: Server, request: LockRequest) -> None:
    """Replace the branch on the server; on GitLab, open a merge request for it.

    Source: https://docs.gitlab.com/topics/git/commit/, "Push options".
    """
    request_options = ("create", f"target={BRANCH}", f"title={request.title}", "remove_source_branch")
    options = [f"--push-option=merge_request.{option}" for option in request_options] if to.form == "gitlab" else []
    _run_project_git(
        project,
        "push",
        "--force",
        *options,
        to.repository,
        request.branch,
        config=make_git_credentials(to),
        token=to.token,
    )


def make_git_credentials(to: Server) -> tuple[str, ...]:
    """Return the git settings that send the token to this repository alone, and ask no other credential helper."""
    return "credential.helper=", f"credential.{to.repository}.helper={CREDENTIALS}"


def _run_project_git(project: Project, verb: str, *words: str, config: Sequence[str] = (), token: str = "") -> str:
    command = ["git", "-C", str(project.root), *(word for setting in config for word in ("-c", setting)), verb, *words]
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", TOKEN: token}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if result.returncode:
        message = (result.stderr.strip() or f"exit {result.returncode}").splitlines()[-1]
        raise FetchError(f"git {verb}: {message}", hint=f"check that {TOKEN} may write to the repository")
    return result.stdout.strip()


def _open_pull_request(to: Server, request: LockRequest, body: str) -> str:
    """Open a pull request, or update the open one; return its URL. https://docs.github.com/en/rest/pulls/pulls."""
    owner, pulls, content = to.name.partition("/")[0], f"repos/{to.name}/pulls", {"title": request.title, "body": body}
    number = _call_github_api(to, f"{pulls}?state=open&head={owner}:{request.branch}", "--jq", ".[0].number // empty")
    if number:
        return _call_github_api(to, f"{pulls}/{number}", "--method", "PATCH", *_JSON, content=content)
    return _call_github_api(to, pulls, *_JSON, content={**content, "head": request.branch, "base": BRANCH})


_JSON = ("--input", "-", "--jq", ".html_url")


def _call_github_api(to: Server, path: str, *options: str, content: Mapping[str, str] | None = None) -> str:
    """Call GitHub's own command line, which hosted runners have; it reads the token from the environment."""
    env = {**os.environ, "GH_TOKEN": to.token, "GH_ENTERPRISE_TOKEN": to.token, "GH_PROMPT_DISABLED": "1"}
    command = ["gh", "api", "--hostname", to.host, *options, path]
    try:
        result = subprocess.run(
            command, env=env, input=format_json(content) if content else "", capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise FetchError("gh: not found", hint="the branch is pushed; install gh on the runner") from error
    if result.returncode:
        raise FetchError(
            f"gh api {path.partition('?')[0]}: {result.stderr.strip()[:200]}",
            hint="the branch is pushed; allow Actions to create pull requests (Settings, Actions, General)",
        )
    return result.stdout.strip()
