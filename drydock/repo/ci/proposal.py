"""What drifted → locks made anew → a branch → a request to merge it, for a nightly job. IO.

The commit is made beside the working tree's own index and branch, so that a person's checkout stays on its branch.
"""

from __future__ import annotations

import base64
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
import requests.auth

from drydock.build import render
from drydock.build.job import Job
from drydock.config import matrix
from drydock.core.console import log
from drydock.core.errors import DriftError, FetchError, InputError, nearest
from drydock.core.files import write_atomically
from drydock.inputs import indexes
from drydock.lock import lockfile, proof
from drydock.lock.drift.ask import LiveUpstream, Upstream
from drydock.lock.drift.find import find, settle
from drydock.lock.drift.record import Drift, text
from drydock.model.locked import Lock
from drydock.model.variant import Variant
from drydock.repo import docs
from drydock.repo.ci.rows import rows
from drydock.repo.ci.workflow import BRANCH, PATHS

TOKEN = "DRYDOCK_PUSH_TOKEN"  # noqa: S105 - a name
FROM = "drydock/locks"
"""The branch, which is drydock's own: each night's replaces the last one's."""
TITLE = "Locks made anew"
TIMEOUT = 60
"""Seconds."""
GENERATED = ("images", "docs", "README.md")
"""What locking anew writes."""
AUTHOR = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
          for what, value in (("NAME", "drydock"), ("EMAIL", "drydock@localhost"))}  # fmt: skip
NOTE = "Their digests and proofs are void: `./inv verify --target … --record` and `./inv test --record` make new ones."
LONGEST = 60_000
"""Characters: less than GitHub's 65,536 for a body."""


class Server(NamedTuple):
    """Where a request is opened, as the CI server's own environment says."""

    form: str
    """github or gitlab."""
    repository: str
    """URL that the branch is pushed to."""
    token: str
    api: str = ""
    """GitHub's, up to /repos/OWNER/NAME."""


def server(form: str, env: Mapping[str, str] = os.environ) -> Server:
    """Read what the CI server says of itself. Raises InputError for variables that are not there."""
    if form not in PATHS:
        raise InputError(f"--format {form}: unknown", hint=nearest(form, PATHS))
    names = {
        "github": ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_API_URL", TOKEN),
        "gitlab": ("CI_PROJECT_URL", TOKEN),
    }[form]
    missing = [name for name in names if not env.get(name)]
    if missing:
        raise InputError(*(f"{name} is not set" for name in missing), hint="docs/ci.md says what a nightly job needs")
    if form == "gitlab":
        return Server(form, f"{env['CI_PROJECT_URL']}.git", env[TOKEN])
    repository = env["GITHUB_REPOSITORY"]
    return Server(
        form,
        f"{env['GITHUB_SERVER_URL']}/{repository}.git",
        env[TOKEN],
        f"{env['GITHUB_API_URL']}/repos/{repository}",
    )


def propose(root: Path, to: Server, world: Upstream | None = None) -> str:
    """Look what has drifted of the variants that CI builds, lock these anew, and ask for a merge; return what was done.

    Raises DriftError for what only a change of a stack mends, NotAskedError where nothing drifted as far as known.
    """
    _refuse_edits(root)
    variants = matrix.read_matrix(root)
    built, _ = rows(root, variants)
    ids = {row.variant for row in built}
    found = find(root, [variant for variant in variants if variant.id in ids], world or LiveUpstream())
    log(text(found))
    drifted = {change.variant for change in found.drifted}
    changed = renew(root, [variant for variant in variants if variant.id in drifted])
    commit = _commit(root, _message(found)) if changed else ""
    if not commit:
        settle(found)
        return "nothing to propose\n"
    _push(root, commit, to)
    said = _open(to, _message(found)) if to.form == "github" else "gitlab opens the merge request by itself"
    _settle_rest(found)
    return f"pushed {commit[:12]} to {FROM}: {said}\n"


def renew(root: Path, variants: Sequence[Variant]) -> list[Path]:
    """Lock variants anew, render them, drop the proofs of what they no longer are; return the locks that changed.

    A lock that would pin less than the old one, since an index or a git host is away tonight, stays as it was.
    """
    changed = []
    for variant in variants:
        path = lockfile.path_of(root, variant.id)
        old, text_before = lockfile.read_lock(path), path.read_bytes()
        if not lockfile.resolve_and_write(root, [variant]):
            continue
        if pins_less(old, lockfile.read_lock(path)):
            write_atomically(path, text_before)
            log(f"{variant.id}: not proposed: something that is pinned could not be asked for tonight")
            continue
        render.write(root, variant, lockfile.read_lock(path))
        _drop_stale_proof(root, variant)
        changed.append(path)
    docs.write(root, matrix.read_matrix(root))
    return changed


def pins_less(old: Lock, new: Lock) -> bool:
    """Tell whether a lock leaves open what an older one pinned. Pure."""
    return any(
        set(pins.unresolved) - set(old.platforms[platform].unresolved)
        for platform, pins in new.platforms.items()
        if platform in old.platforms
    )


def _drop_stale_proof(root: Path, variant: Variant) -> None:
    pins, shown = lockfile.read_lock(lockfile.path_of(root, variant.id)), proof.read_proof(root, variant.id)
    jobs = (Job(variant=variant, lock=pins, platform=platform, root=root) for platform in variant.platforms)
    if shown and shown.inputs_sha256 not in {job.inputs_sha256 for job in jobs}:
        proof.path_of(root, variant.id).unlink()


def _settle_rest(found: Drift) -> None:
    """Raise DriftError for what drifted and is pinned in the matrix, where locking anew changes nothing."""
    rest = [change for change in found.drifted if not change.command.startswith("./inv lock")]
    if rest:
        raise DriftError(
            *(f"{change.variant}: {change.name}: {change.detail}" for change in rest),
            hint="; ".join(dict.fromkeys(change.command for change in rest)),
        )


def _message(found: Drift) -> str:
    told = text(found.model_copy(update={"beyond": ()}))[:LONGEST]
    return f"{TITLE}\n\n{NOTE}\n\n{told}"


def _refuse_edits(root: Path) -> None:
    """Raise InputError for a person's edits where files will be generated: they would get into the commit."""
    edited = _git(root, os.environ, "status", "--porcelain", "--", *GENERATED)
    if edited:
        raise InputError(
            *edited.splitlines(), hint="commit them or take them back: the lock change is made of these folders"
        )


# --- git ------------------------------------------------------------------------------------------------------------


def _commit(root: Path, message: str) -> str:
    """Return a commit of what was generated on top of HEAD; nothing where that is what HEAD has."""
    with tempfile.TemporaryDirectory(prefix="drydock-index-") as folder:
        env = {**os.environ, **AUTHOR, "GIT_INDEX_FILE": f"{folder}/index"}
        _git(root, env, "read-tree", "HEAD")
        there = [name for name in GENERATED if (root / name).exists()]
        _git(root, env, "add", "--all", "--", *there)
        tree = _git(root, env, "write-tree")
        if tree == _git(root, env, "rev-parse", "HEAD^{tree}"):
            return ""
        return _git(root, env, "commit-tree", tree, "-p", "HEAD", "-m", message)


def _push(root: Path, commit: str, to: Server) -> None:
    """Replace the branch. The token travels in the environment: every user of the machine can read arguments."""
    options = () if to.form == "github" else _push_options()
    _git(root, {**os.environ, **header(to)}, "push", *options, to.repository, f"+{commit}:refs/heads/{FROM}")


def _push_options() -> Iterable[str]:
    """Return what opens a merge request (https://docs.gitlab.com/topics/git/commit/, "Push options")."""
    for option in ("create", f"target={BRANCH}", f"title={TITLE}", "remove_source_branch"):
        yield from ("-o", f"merge_request.{option}")


def header(to: Server) -> dict[str, str]:
    """Return git's configuration that sends a token to this server alone (git-config: GIT_CONFIG_COUNT). Pure."""
    if urlsplit(to.repository).scheme not in ("http", "https"):
        return {}
    user = {"github": "x-access-token", "gitlab": "oauth2"}[to.form]
    basic = base64.b64encode(f"{user}:{to.token}".encode()).decode()
    key = f"http.{to.repository}.extraheader"
    return {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": key, "GIT_CONFIG_VALUE_0": f"Authorization: Basic {basic}"}


def _git(root: Path, env: Mapping[str, str], *words: str) -> str:
    command = ["git", "-C", str(root), *words]
    quiet = {**env, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
        raise FetchError(f"git {words[0]}: {said}", hint=f"may {TOKEN} write to the repository?")
    return done.stdout.strip()


# --- GitHub ---------------------------------------------------------------------------------------------------------


def _open(to: Server, message: str) -> str:
    """Open a pull request, or bring the open one up to date; return its address.

    https://docs.github.com/en/rest/pulls/pulls
    """
    title, _, body = message.partition("\n\n")
    owner = to.api.rsplit("/", 2)[1]
    there = _ask(to, "GET", f"/pulls?state=open&head={owner}:{FROM}", None)
    number = there[0]["number"] if there else None
    content = {"title": title, "body": body}
    if number is not None:
        return str(_ask(to, "PATCH", f"/pulls/{number}", content)["html_url"])
    return str(_ask(to, "POST", "/pulls", {**content, "head": FROM, "base": BRANCH})["html_url"])


class _Bearer(requests.auth.AuthBase):
    """Sends the token; as an auth and no header, since requests lets a line of ~/.netrc win over a header."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _ask(to: Server, method: str, path: str, content: Mapping[str, str] | None) -> Any:
    access = indexes.access(indexes.read_indexes(), os.environ)
    try:
        answer = requests.request(
            method,
            f"{to.api}{path}",
            json=content,
            headers={"Accept": "application/vnd.github+json"},
            auth=_Bearer(to.token),
            timeout=TIMEOUT,
            verify=access.certificates or True,
            proxies=dict(access.proxies),
        )
    except requests.RequestException as error:
        raise FetchError(f"{urlsplit(to.api).hostname}: {type(error).__name__}: the branch {FROM} is pushed") from error
    if not answer.ok:
        asked = f"{method} {path.partition('?')[0]}"
        raise FetchError(
            f"{urlsplit(to.api).hostname}: {asked}: {answer.status_code}: {answer.text[:200]}",
            hint="may Actions open pull requests (Settings, Actions, General)? the branch is pushed",
        )
    return answer.json()
