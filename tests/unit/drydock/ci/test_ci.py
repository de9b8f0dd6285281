"""CI: the committed workflows, what changed since a commit, publishing, and the nightly lock change."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from drydock.ci import changed, ci_variables, proposal, publishing, workflow
from drydock.ci.ci_rows import HOSTED_DISK, estimate_disk, list_ci_rows, list_unlocked_rows
from drydock.ci.proposal import Server, make_git_credentials, read_ci_server
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import (
    AdvisoryError,
    BuildError,
    CredentialsError,
    DriftError,
    DrydockError,
    FetchError,
    InputError,
    NotAskedError,
    StaleError,
    UnresolvedError,
)
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.development import quality
from drydock.examine.advisories.advisory_record import Advisory, PinnedPackage
from drydock.lock import kind_runs, lockfile
from drydock.lock.drift.drift_record import Drift, DriftedPin
from drydock.model.locked import Lock, LockedPlatform, LockedWheel
from drydock.model.variant import Variant
from drydock.verbs import ci_propose_verb
from drydock.verbs.bump_verb import BumpOptions, RowsUpdate
from drydock.verbs.ci_changed_verb import CiChangedOptions, format_changed_rows
from tests.support.git import git
from tests.unit.test_tasks import COMMAND, wrong

VARIANTS = read_matrix(DRYDOCK)
CPU = find_variant(VARIANTS, "cpu")
SECRET = "hunter2"  # noqa: S105 - the tests' own
PULLS = "repos/acme/drydock/pulls"


def text(form: str) -> str:
    return (ROOT / workflow.PATHS[form]).read_text()


def loaded(form: str) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(text(form))
    return document


# --- the committed workflows ----------------------------------------------------------------------------------------


def test_a_broken_workflow_is_found_by_the_linters(tmp_path: Path) -> None:
    bad = text("github").replace("run: ./inv lint", "run: echo ${{ github.event.pull_request.title }}")
    (tmp_path / ".github/workflows").mkdir(parents=True)
    (tmp_path / workflow.PATHS["github"]).write_text(bad.replace("runs-on:", "runs-upon:"))
    with pytest.raises(BuildError, match="zizmor, schema of github"):
        quality.run_linters(tmp_path)


@pytest.mark.checkout
@pytest.mark.parametrize("form", workflow.PATHS)
def test_every_task_that_a_workflow_runs_exists(form: str) -> None:
    commands = [command.partition(" >> ")[0].partition(")")[0] for command in COMMAND.findall(text(form))]
    task_names = {re.match(r"(?:ci )?\w+", command)[0] for command in commands}  # type: ignore[index]
    assert task_names >= {"lint", "test", "ci changed", "build", "verify", "ci publish", "ci propose"}
    assert [unknown for command in commands for unknown in wrong(re.sub(r'"\$\w+"?', "x", command))] == []


def steps(form: str) -> Iterator[tuple[str, str]]:
    """Yield (job, shell command) for each step of a workflow."""
    if form == "github":
        for name, job in loaded(form)["jobs"].items():
            yield from ((name, step["run"]) for step in job["steps"] if "run" in step)
    else:
        jobs = {name: job for name, job in loaded(form).items() if isinstance(job, dict) and "script" in job}
        yield from ((name, line) for name, job in jobs.items() for line in job["script"])


@pytest.mark.parametrize("form", workflow.PATHS)
def test_a_workflow_runs_only_tasks_and_has_no_expressions_in_shell_commands(form: str) -> None:
    shell_commands = [command for _, command in steps(form)]
    assert len(shell_commands) >= 10
    leaves = r'if \[ -z "\$changed" \]; then exit 0; fi|grep -qx "\$VARIANT" changed\.txt \|\| exit 0'
    newest = r"\.ci/newest-python"  # it makes the container in which `./inv test` then runs
    allowed = rf'(changed="\$\()?\./inv [^;&|`\n]*|{leaves}|{newest}'
    assert [command for command in shell_commands if not re.fullmatch(allowed, command)] == []
    assert [command for command in shell_commands if "${{" in command] == []


def test_actions_are_pinned_by_commit_and_permissions_are_the_least() -> None:
    jobs = loaded("github")["jobs"]
    actions = {step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step}
    assert {re.sub(r"@[0-9a-f]{40}$", "", action) for action in actions} == {a.name for a in workflow.ACTIONS.values()}
    assert loaded("github")["permissions"] == {}
    read = {"contents": "read"}
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "test": read,
        "changes": read,
        "build": read,
        "release-test": read,
        "release-changes": read,
        "release": {**read, "packages": "write", "id-token": "write"},
        "release-files": {"contents": "write", "id-token": "write"},
        "pages": {**read, "pages": "write", "id-token": "write"},
        "nightly": read,
        "weekly": read,
        "bench": read,
        "drift": {"contents": "write", "pull-requests": "write"},
        "first-locks": {"contents": "write", "pull-requests": "write"},
    }
    assert all(step["with"]["persist-credentials"] is False for job in jobs.values()
               for step in job["steps"] if "checkout" in step.get("uses", ""))  # fmt: skip


def test_every_kind_that_runs_only_if_named_runs_once_a_week() -> None:
    kinds = sorted(kind_runs.read_kinds(DRYDOCK))
    assert "cluster" in kinds
    weekly = loaded("github")["jobs"]["weekly"]
    assert weekly["strategy"]["matrix"]["kind"] == loaded("gitlab")["weekly"]["parallel"]["matrix"][0]["KIND"] == kinds
    cron = weekly["if"].partition("'")[2].rstrip("'")
    assert cron in [item["cron"] for item in loaded("github")[True]["schedule"]]


def test_every_variant_is_built_or_left_out_with_a_reason() -> None:
    built, left_out = list_ci_rows(DRYDOCK, VARIANTS)
    assert {row.variant for row in built} | {row.variant for row in left_out} == {v.id for v in VARIANTS}
    assert CPU.id in {row.variant for row in built}
    matrix = loaded("gitlab")["release"]["parallel"]["matrix"]
    assert [entry["VARIANT"] for entry in matrix] == [row.variant for row in built]
    choices = loaded("github")[True]["workflow_dispatch"]["inputs"]["variant"]["options"]
    assert choices == ["changed", "all", *(row.variant for row in built)]
    for form in workflow.PATHS:
        assert all(f"#   {row.variant}: {row.why}\n" in text(form) for row in left_out)
        listed = {row.variant for row in built if f"#   {row.variant}: needs {row.needs}\n" in text(form)}
        assert listed == {row.variant for row in built if not row.fits}


def test_what_is_not_hermetic_or_for_several_platforms_is_left_out() -> None:
    open_ = CPU.model_copy(update={"hermetic": False, "not_hermetic_because": "its installer downloads"})
    _, (omitted_row,) = list_ci_rows(DRYDOCK, [open_])
    assert omitted_row.why == "not hermetic: its installer downloads"


def test_an_outdated_workflow_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StaleError, match=r"\.gitlab-ci\.yml: outdated"):
        workflow.check_workflows(Project(tmp_path), [])


# --- hosted runners -------------------------------------------------------------------------------------------------


def of_size(size: int) -> LockedPlatform:
    """Return the CPU variant's pins with one wheel of a size in bytes, on an empty base."""
    pins = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, CPU.id)).platforms["linux/amd64"]
    (wheel, *_) = pins.tools
    base = pins.base.model_copy(update={"packages": (), "bootstrap": ()})
    return pins.model_copy(
        update={"base": base, "tools": (), "layers": {"all": (wheel.model_copy(update={"size": size}),)}}
    )


def test_the_disk_that_a_variant_needs_comes_from_its_lock() -> None:
    built = {row.variant: row for row in list_ci_rows(DRYDOCK, VARIANTS)[0]}
    assert built[CPU.id].fits
    assert not built["cuda13.0-vllm0.33"].fits
    assert built["rocm7.2-vllm0.27"].disk is None, "the lock does not know how large its base is"
    assert not built["rocm7.2-vllm0.27"].fits
    assert estimate_disk(of_size(10**9)) == 15_500_000_000


def test_a_variant_that_does_not_fit_is_built_only_on_ones_own_runners(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("drydock.ci.ci_rows.estimate_disk", lambda _: HOSTED_DISK + 1)

    def said(only: str = "all", large: str = "") -> str:
        return format_changed_rows(Project(repository), CiChangedOptions(since="", only=only, large=large))

    assert said() == ""
    assert "not built: disk: it needs up to 14 GB, and a hosted runner has 14 GB" in capsys.readouterr().err
    assert said(large="arm64") == ""
    assert said(large=" amd64") == f"{CPU.id}\n"
    with pytest.raises(InputError, match="a hosted runner has 14 GB") as caught:
        said(only=CPU.id)
    assert "DRYDOCK_RELEASE_RUNNER_AMD64" in caught.value.hint
    with pytest.raises(InputError, match="--large amd46: unknown"):
        said(large="amd46")


def test_a_gitlab_job_of_a_request_with_nothing_to_build_ends_before_it_makes_an_environment(tmp_path: Path) -> None:
    job = loaded("gitlab")["build"]
    assert set(job["needs"]) == {"test", "changes"}
    assert loaded("gitlab")["changes"]["artifacts"]["paths"] == ["changed.txt"]
    assert "cache" not in job, "GitLab would restore it before the first line"
    inv = tmp_path / "inv"
    inv.write_text("#!/bin/sh\necho venv >> venv\n")
    inv.chmod(0o755)
    for variants_, has_environment in (("other\nmine-too\n", False), ("other\nmine\n", True)):
        (tmp_path / "changed.txt").write_text(variants_)
        script = ["bash", "-e", "-o", "pipefail", "-c", "\n".join(job["script"])]
        subprocess.run(script, cwd=tmp_path, env={**os.environ, "VARIANT": "mine"}, check=True)
        assert (tmp_path / "venv").exists() == has_environment


# --- variables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", workflow.PATHS)
def test_the_page_has_the_commands_that_set_each_variable(form: str) -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    block = "".join(f"    {line}\n" for line in ci_variables.format_all_variables(form).splitlines())
    assert block in page
    for line in ci_variables.format_all_variables(form).splitlines():
        name = line.split()[3] if not line.startswith("#") else ""
        assert name in page


def test_a_release_says_before_it_builds_what_is_not_set_and_how_to_set_it(tmp_path: Path) -> None:
    env = {"DOCKER_CONFIG": str(tmp_path), "CI_SERVER_URL": "https://gitlab.example"}
    with pytest.raises(InputError) as caught:
        ci_variables.check_release_variables("gitlab", "registry.example/acme", env)
    login, key = caught.value.problems
    assert login == "DRYDOCK_REGISTRY_USER and DRYDOCK_REGISTRY_PASSWORD: not set: no credentials for registry.example"
    assert key.startswith(
        "DRYDOCK_COSIGN_KEY and COSIGN_PASSWORD: not set: Sigstore accepts no identity of https://git"
    )
    assert "glab variable set COSIGN_PASSWORD VALUE --masked --protected --scope release" in caught.value.hint
    with pytest.raises(InputError, match="DRYDOCK_REGISTRY: not set: the project has no registry"):
        ci_variables.check_release_variables("gitlab", "", {**env, "DRYDOCK_COSIGN_KEY": "k"})


def test_a_release_with_the_servers_own_registry_and_identity_needs_no_variable(tmp_path: Path) -> None:
    gitlab_env = {"CI_REGISTRY": "registry.gitlab.com", "CI_REGISTRY_USER": "job", "CI_REGISTRY_PASSWORD": SECRET}
    env = {"DOCKER_CONFIG": str(tmp_path), "CI_SERVER_URL": "https://gitlab.com", **gitlab_env}
    ci_variables.check_release_variables("gitlab", "registry.gitlab.com/acme", env)
    ci_variables.check_release_variables(
        "github", "ghcr.io/acme", {publishing.USER: "acme", publishing.PASSWORD: "set", **env}
    )


@pytest.mark.parametrize(("form", "before"), [("github", "docker/setup-docker-action"), ("gitlab", "./inv build")])
def test_a_release_checks_its_variables_before_anything_slow(form: str, before: str) -> None:
    job = loaded(form)["jobs"]["release"]["steps"] if form == "github" else loaded(form)["release"]["script"]
    places = [number for number, step in enumerate(job) if "ci variables" in str(step)]
    assert places
    assert places[0] < min(number for number, step in enumerate(job) if before in str(step))


# --- what changed ---------------------------------------------------------------------------------------------------


def commit(root: Path) -> str:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=x")
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def repository(committed: Path, tmp_path: Path) -> Path:
    """A repository with the CPU variant alone."""
    return Path(shutil.copytree(committed, tmp_path / "repository"))


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository that each test gets a copy of."""
    root = tmp_path_factory.mktemp("ci") / "repository"
    matrix = yaml.safe_load((ROOT / "matrix.yaml").read_text())
    matrix |= {"variants": {CPU.id: matrix["variants"][CPU.id]}, "retired": {}}
    for name in ("templates/cpu", "templates/tools", "entrypoints", f"images/{CPU.id}"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("templates/host.yaml", "templates/base.Dockerfile.j2"):
        shutil.copy(ROOT / name, root / name)
    (root / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    git(root, "init", "--quiet", "--initial-branch=main")
    commit(root)
    return root


def variants(root: Path) -> tuple[Variant, ...]:
    return read_matrix(Project(root))


def test_a_page_or_a_comment_changes_no_image(repository: Path) -> None:
    with (repository / "matrix.yaml").open("a") as file:
        file.write("# a remark\n")
    (repository / "README.md").write_text("words\n")
    image_changes = changed.compare_with_commit(Project(repository), variants(repository), "HEAD")
    assert (image_changes.changed, image_changes.unchanged) == ((), (CPU.id,))


def test_a_changed_entrypoint_changes_the_image_and_is_named(repository: Path) -> None:
    with (repository / "entrypoints" / "core" / "errors.py").open("a") as file:
        file.write("# more\n")
    (row,) = changed.compare_with_commit(Project(repository), variants(repository), "HEAD").changed
    assert (row.variant, row.platform, row.arch) == (CPU.id, "linux/amd64", "amd64")
    assert row.why == "inputs changed: entrypoints/core/errors.py"
    first = git(repository, "rev-parse", "HEAD")
    commit(repository)
    assert changed.compare_with_commit(Project(repository), variants(repository), "HEAD").changed == ()
    assert changed.compare_with_commit(Project(repository), variants(repository), first).changed != ()


@pytest.mark.parametrize(
    ("since", "expected"),
    [("", "no earlier commit was given"), ("0" * 40, "no earlier commit was given"), ("f" * 40, "git ls-tree: ")],
)
def test_without_an_earlier_commit_everything_is_built(repository: Path, since: str, expected: str) -> None:
    (row,) = changed.compare_with_commit(Project(repository), variants(repository), since).changed
    assert expected in row.why


def test_if_the_earlier_matrix_is_invalid_everything_has_changed(repository: Path) -> None:
    good = (repository / "matrix.yaml").read_text()
    (repository / "matrix.yaml").write_text("schema: 0\n")
    commit(repository)
    (repository / "matrix.yaml").write_text(good)
    (row,) = changed.compare_with_commit(Project(repository), variants(repository), "HEAD").changed
    assert "cannot compare with an earlier commit: matrix.yaml" in row.why


def test_the_report_is_text_or_json_or_a_line_for_github(repository: Path) -> None:
    def said(**options: Any) -> str:
        return format_changed_rows(Project(repository), CiChangedOptions(since="HEAD", **options))

    assert said() == ""
    assert said(github=True) == "variants=[]\n"
    assert json.loads(said(json=True))["unchanged"] == [CPU.id]
    assert said(only="all") == f"{CPU.id}\n"
    assert said(target="cpu", only=CPU.id) == f"{CPU.id}\n"
    (entry,) = json.loads(said(only="all", github=True).removeprefix("variants="))
    assert (entry["variant"], entry["arch"]) == (CPU.id, "amd64")


# --- publishing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("refs/heads/main", ("", "edge")),
        ("refs/tags/v1.4.0", ("1.4.0", "stable")),
        ("refs/tags/v1.4.0-rc.2", ("1.4.0-rc.2", "rc")),
    ],
)
def test_a_ref_gives_release_and_channel(ref: str, expected: tuple[str, str]) -> None:
    assert publishing.tags_of(ref) == expected


@pytest.mark.parametrize(
    "ref", ["", "main", "refs/heads/other", "refs/tags/1.4.0", "refs/tags/v1.4", "refs/pull/1/merge"]
)
def test_no_other_ref_is_published(ref: str) -> None:
    with pytest.raises(InputError, match="not published"):
        publishing.tags_of(ref)


def test_gitlabs_credentials_are_used_for_gitlabs_registry_only() -> None:
    env = {"CI_REGISTRY": "registry.gitlab.example", "CI_REGISTRY_USER": "job", "CI_REGISTRY_PASSWORD": SECRET}
    assert publishing.choose_credentials("registry.gitlab.example", env) == ("job", SECRET)
    assert publishing.choose_credentials("ghcr.io", env) == ("", "")
    user_env = {**env, publishing.USER: "me", publishing.PASSWORD: "mine"}
    assert publishing.choose_credentials("ghcr.io", user_env) == ("me", "mine")


def docker(folder: Path, script: str) -> dict[str, str]:
    """Return an environment whose `docker` is a script."""
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", publishing.USER: "me", publishing.PASSWORD: SECRET}


def test_a_login_passes_the_password_on_standard_input_only(tmp_path: Path) -> None:
    env = docker(tmp_path, f'{{ echo "$@"; cat; echo; env; }} > {tmp_path}/seen')
    assert publishing.login_to_registry("GHCR.io/Acme", env)
    arguments, password, *environment = (tmp_path / "seen").read_text().splitlines()
    assert arguments == "login ghcr.io --username me --password-stdin"
    assert password == SECRET
    assert [line for line in environment if SECRET in line] == []
    assert not publishing.login_to_registry("ghcr.io/acme", {})


def test_a_failed_login_does_not_print_the_password(tmp_path: Path) -> None:
    env = docker(tmp_path, f'echo "denied: {SECRET} is wrong" >&2; exit 1')
    with pytest.raises(CredentialsError) as raised:
        publishing.login_to_registry("ghcr.io/acme", env)
    assert str(raised.value).startswith("docker login ghcr.io: exit 1: denied: *** is wrong")


# --- a lock change --------------------------------------------------------------------------------------------------

GITHUB = {
    "GITHUB_SERVER_URL": "https://github.example",
    "GITHUB_REPOSITORY": "acme/drydock",
    proposal.TOKEN: SECRET,
}


def test_the_servers_address_is_read_from_the_environment() -> None:
    to = read_ci_server("github", GITHUB)
    assert to.repository == "https://github.example/acme/drydock.git"
    assert (to.host, to.name) == ("github.example", "acme/drydock")
    lab = read_ci_server("gitlab", {"CI_PROJECT_URL": "https://gitlab.example/acme/drydock", proposal.TOKEN: SECRET})
    assert lab.repository == "https://gitlab.example/acme/drydock.git"
    with pytest.raises(InputError) as raised:
        read_ci_server("gitlab", {})
    assert raised.value.problems == ("CI_PROJECT_URL is not set", "DRYDOCK_PUSH_TOKEN is not set")
    assert "glab variable set DRYDOCK_PUSH_TOKEN VALUE --masked --protected --scope locks" in raised.value.hint


def asked_by_git(to: Server, url: str) -> str:
    """Return what git would send to a URL with the settings of a push to a server."""
    settings = [word for setting in make_git_credentials(to) for word in ("-c", setting)]
    env = {**os.environ, proposal.TOKEN: to.token, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", *settings, "credential", "fill"]
    assert SECRET not in " ".join(command)
    return subprocess.run(command, input=f"url={url}\n\n", env=env, capture_output=True, text=True, check=False).stdout


def test_the_token_is_sent_to_one_repository_and_is_in_no_argument() -> None:
    to = Server("github", "https://git.example/a.git", SECRET)
    assert f"username=x-access-token\npassword={SECRET}\n" in asked_by_git(to, to.repository)
    assert SECRET not in asked_by_git(to, "https://git.example/b.git")
    assert SECRET not in asked_by_git(to, "https://other.example/a.git")


class GitHub(NamedTuple):
    """A stand-in for GitHub's command line, `gh`, and the server that it is told to use."""

    folder: Path
    server: Server

    def answers(self, *lines: str, code: int = 0) -> None:
        """Let each call print the next of these lines, or the last one."""
        (self.folder / "answers").write_text("".join(f"{line}\n" for line in lines))
        (self.folder / "code").write_text(str(code))

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


GH = """#!{python}
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
text = sys.stdin.read()
with (here / "calls").open("a") as file:
    call = {{"argv": sys.argv[1:], "content": json.loads(text) if text else None, "token": os.environ["GH_TOKEN"]}}
    print(json.dumps(call), file=file)
first, _, rest = (here / "answers").read_text().partition("\\n")
(here / "answers").write_text(rest or first)
code = int((here / "code").read_text())
print(first, file=sys.stderr if code else sys.stdout)
sys.exit(code)
"""


@pytest.fixture
def github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitHub:
    """Put a `gh` on PATH that finds no open request and opens one."""
    folder = tmp_path / "gh"
    folder.mkdir()
    (folder / "gh").write_text(GH.format(python=sys.executable))
    (folder / "gh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    origin = str(tmp_path / "origin.git")
    fake_github = GitHub(folder, Server("github", origin, SECRET, "github.example", "acme/drydock"))
    fake_github.answers("", "https://github.example/pull/7")
    return fake_github


def drifted(command: str = f"./inv lock --target {CPU.id} --upgrade") -> Drift:
    change = DriftedPin(
        variant=CPU.id, platform="linux/amd64", kind="wheel", name="torch", old="1", new="2", command=command
    )
    return Drift(drifted=(change,), beyond=(), not_asked=(), asked=1)


def rewrite(path: Path, old: str, new: str) -> None:
    """Replace a text in a lock, and its checksum."""
    changed = Lock.model_validate_json(lockfile.read_lock(path).model_dump_json(by_alias=True).replace(old, new))
    lockfile.write_lock(path, changed)


class Known:
    """A database that lists one vulnerability of one version, and answers for every other."""

    sources = ("the tests",)

    def __init__(self, version: str = "0", fixed_in: tuple[str, ...] = (), silent: str = "") -> None:
        self.version, self.fixed_in, self.silent = version, fixed_in, silent

    def ask(self, subjects: Sequence[PinnedPackage]) -> dict[PinnedPackage, tuple[Advisory, ...] | str]:
        listed = (Advisory(id="CVE-2026-1", fixed_in=self.fixed_in),)
        return {subject: self.silent or (listed if subject.version == self.version else ()) for subject in subjects}


@pytest.fixture
def moved(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository, whose lock changes when it is made again."""

    def relock(root: Path, _: object) -> list[Path]:
        path = root / "images" / CPU.id / "lock.json"
        rewrite(path, "bookworm", "trixie")
        return [path]

    monkeypatch.setattr("drydock.ci.proposal.relock_variants", relock)
    monkeypatch.setattr("drydock.pages.docs.write", lambda *_: [])
    monkeypatch.setattr("drydock.lock.drift.drift_search.find_drift", lambda *_: drifted())
    monkeypatch.setattr("drydock.examine.advisories.databases.OsvService", Known)
    git(repository.parent, "init", "--quiet", "--bare", "origin.git")
    return repository


def test_a_lock_change_is_one_commit_on_its_own_branch_and_a_pull_request(moved: Path, github: GitHub) -> None:
    origin, head = moved.parent / "origin.git", git(moved, "rev-parse", "HEAD")
    (moved / "notes.txt").write_text("a person's own\n")
    report_text = ci_propose_verb.propose_locks(Project(moved), github.server)
    assert report_text.endswith("https://github.example/pull/7\n")
    assert git(origin, "rev-parse", f"{proposal.UPDATE.branch}^") == head
    names = git(origin, "diff", "--name-only", head, proposal.UPDATE.branch).split()
    assert names == [f"images/{CPU.id}/lock.json"]
    assert "torch 1 → 2 (wheel, linux/amd64)" in git(origin, "log", "-1", "--format=%B", proposal.UPDATE.branch)
    assert (git(moved, "rev-parse", "HEAD"), git(moved, "branch", "--show-current")) == (head, "main")
    looked, opened = github.calls
    query_url = f"{PULLS}?state=open&head=acme:{proposal.UPDATE.branch}"
    assert looked["argv"][3:] == ["--jq", ".[0].number // empty", query_url]
    assert opened["argv"] == ["api", "--hostname", "github.example", "--input", "-", "--jq", ".html_url", PULLS]
    assert (opened["content"]["head"], opened["content"]["base"]) == (proposal.UPDATE.branch, "main")
    assert {call["token"] for call in github.calls} == {SECRET}


def test_uncommitted_edits_are_refused(moved: Path) -> None:
    with (moved / "images" / CPU.id / "Dockerfile").open("a") as file:
        file.write("# mine\n")
    with pytest.raises(InputError, match=f"M images/{CPU.id}/Dockerfile"):
        ci_propose_verb.propose_locks(Project(moved), Server("github", str(moved.parent / "origin.git"), SECRET))


def test_an_open_request_is_updated(moved: Path, github: GitHub) -> None:
    github.answers("7", "https://github.example/pull/7")
    ci_propose_verb.propose_locks(Project(moved), github.server)
    assert github.calls[1]["argv"][-1] == f"{PULLS}/7"
    assert "PATCH" in github.calls[1]["argv"]


def test_a_newer_vllm_is_one_request_whose_text_is_the_report(
    moved: Path, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[DrydockError] = [UnresolvedError("arm64 is unresolved")]

    def bump(project: Project, options: BumpOptions) -> RowsUpdate:
        assert (options.target, options.vllm) == (CPU.id, "0.99.0")
        path = project.root / "templates" / "new.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text("new\n")
        return RowsUpdate([path], errors, "# what it changes\n")

    monkeypatch.setattr("drydock.verbs.bump_verb.update_rows", bump)
    origin, head = moved.parent / "origin.git", git(moved, "rev-parse", "HEAD")
    text = ci_propose_verb.propose_version(Project(moved), github.server, CPU.id, "0.99.0")
    assert text.endswith("https://github.example/pull/7\n")
    branch = f"drydock/vllm-{CPU.id}"
    assert git(origin, "diff", "--name-only", head, branch).split() == ["templates/new.yaml"]
    content = github.calls[1]["content"]
    assert (content["title"], content["body"]) == (f"{CPU.id}: take vLLM 0.99.0", "# what it changes\n")

    errors.append(InputError("no index answers"))
    with pytest.raises(InputError, match="no index answers"):
        ci_propose_verb.propose_version(Project(moved), github.server, CPU.id, "0.99.0")
    with pytest.raises(InputError, match="expected both"):
        ci_propose_verb.propose_version(Project(moved), github.server, "", "0.99.0")


def test_push_options_open_a_merge_request_on_gitlab(moved: Path) -> None:
    origin = moved.parent / "origin.git"
    git(origin, "config", "receive.advertisePushOptions", "true")
    hook = origin / "hooks" / "pre-receive"
    hook.write_text(f"#!/bin/sh\nenv | grep ^GIT_PUSH_OPTION_ | sort > {moved.parent}/options\n")
    hook.chmod(0o755)
    ci_propose_verb.propose_locks(Project(moved), Server("gitlab", str(origin), SECRET))
    options = (moved.parent / "options").read_text()
    assert "GIT_PUSH_OPTION_0=merge_request.create\nGIT_PUSH_OPTION_1=merge_request.target=main\n" in options
    assert f"merge_request.title={proposal.UPDATE.title}" in options


def test_an_error_contains_githubs_answer_and_says_that_the_branch_is_pushed(moved: Path, github: GitHub) -> None:
    github.answers("gh: Resource not accessible (HTTP 403)", code=1)
    with pytest.raises(FetchError, match="gh api repos/acme/drydock/pulls: gh: Resource not accessible") as raised:
        ci_propose_verb.propose_locks(Project(moved), github.server)
    assert "the branch is pushed" in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_runner_without_githubs_command_line_is_named(moved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = moved.parent / "programs"
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("git") or "")
    monkeypatch.setenv("PATH", str(programs))
    to = Server("github", str(moved.parent / "origin.git"), SECRET, "github.example", "acme/drydock")
    with pytest.raises(FetchError, match="gh: not found"):
        ci_propose_verb.propose_locks(Project(moved), to)


def test_drift_of_what_a_stack_pins_is_an_error(moved: Path, github: GitHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drydock.lock.drift.drift_search.find_drift", lambda *_: drifted("look why"))
    with pytest.raises(DriftError) as raised:
        ci_propose_verb.propose_locks(Project(moved), github.server)
    assert raised.value.hint == "look why"


def relocked(repository: Path, monkeypatch: pytest.MonkeyPatch, unresolved: Mapping[str, str]) -> list[Path]:
    """Lock the repository again; the new lock has no tools and these unresolved names."""

    def resolve(root: Path, some: Sequence[Variant]) -> list[Path]:
        path = lockfile.path_of_lock(Project(root), some[0].id)
        old = lockfile.read_lock(path)
        pins = old.platforms["linux/amd64"].model_copy(update={"tools": (), "unresolved": unresolved})
        return [path] if lockfile.write_lock(path, old.model_copy(update={"platforms": {"linux/amd64": pins}})) else []

    monkeypatch.setattr("drydock.lock.resolution.take_newest", resolve)
    return proposal.relock_variants(Project(repository), read_matrix(Project(repository)))


def test_a_new_lock_is_rendered(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lockfile.path_of_lock(Project(repository), CPU.id)
    assert relocked(repository, monkeypatch, {}) == [path]
    assert lockfile.read_lock(path).platforms["linux/amd64"].tools == ()


def test_a_lock_that_would_pin_less_is_not_written(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lockfile.path_of_lock(Project(repository), CPU.id)
    before = path.read_bytes()
    assert relocked(repository, monkeypatch, {"vllm": "its git host was not reached"}) == []
    assert path.read_bytes() == before


def test_what_is_not_locked_is_offered_once_more_is_pinned(
    repository: Path, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(repository)
    path = lockfile.path_of_lock(project, CPU.id)
    full = lockfile.read_lock(path)
    pins = full.platforms["linux/amd64"]

    def lacks(*names: str) -> Lock:
        missing = pins.model_copy(update={"unresolved": dict.fromkeys(names, "not reached")})
        return full.model_copy(update={"platforms": {"linux/amd64": missing}})

    lockfile.write_lock(path, lacks("vllm", "wheels"))
    git(repository, "commit", "--quiet", "--all", "--message=x")
    git(repository.parent, "init", "--quiet", "--bare", "origin.git")
    monkeypatch.setattr("drydock.pages.docs.write", lambda *_: [])
    for new_lock, expected in ((lacks("vllm", "other"), "nothing to propose"), (lacks("vllm"), "drydock/first-locks")):
        monkeypatch.setattr(
            "drydock.lock.resolution.resolve_and_write",
            lambda *_, new_lock=new_lock: [path] if lockfile.write_lock(path, new_lock) else [],
        )
        assert expected in ci_propose_verb.propose_first_locks(project, github.server)
    committed = git(repository.parent / "origin.git", "show", f"drydock/first-locks:images/{CPU.id}/lock.json")
    assert set(Lock.model_validate_json(committed).platforms["linux/amd64"].unresolved) == {"vllm"}
    body = github.calls[-1]["content"]["body"]
    assert f"- images/{CPU.id}/lock.json" in body
    assert "`./inv ci`" in body
    assert list_unlocked_rows(project, [CPU]) == [CPU]


def test_a_vulnerable_version_is_locked_again_and_the_request_says_what_that_fixes(
    moved: Path, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Drift(drifted=(), beyond=(), not_asked=(), asked=3)
    monkeypatch.setattr("drydock.lock.drift.drift_search.find_drift", lambda *_: nothing)
    path = lockfile.path_of_lock(Project(moved), CPU.id)
    (old,) = {wheel.version for wheel in wheels_of(path) if wheel.name == "jinja2"}

    def resolve(*_: object) -> list[Path]:
        rewrite(path, f'"version":"{old}"', '"version":"99.0"')
        return [path]

    monkeypatch.setattr("drydock.ci.proposal.relock_variants", resolve)
    ci_propose_verb.propose_locks(Project(moved), github.server, database=Known(old, ("99.0",)))
    body = github.calls[-1]["content"]["body"]
    assert "Known vulnerabilities: 1 fixed, 0 remain, 0 with" in body
    assert f"  fixed: jinja2 {old}: CVE-2026-1: fixed in 99.0: {CPU.id}" in body
    quoted = body.removeprefix(proposal.NOTE).splitlines()
    assert {line for line in quoted if not line.startswith("    ")} == {""}  # so no server reads it as Markdown


def wheels_of(path: Path) -> tuple[LockedWheel, ...]:
    pins = lockfile.read_lock(path).platforms["linux/amd64"]
    return tuple(wheel for layer in pins.layers.values() for wheel in layer)


def test_a_vulnerability_that_no_lock_fixes_makes_the_nightly_job_fail_after_the_push(
    moved: Path, github: GitHub
) -> None:
    (version,) = {
        wheel.version for wheel in wheels_of(lockfile.path_of_lock(Project(moved), CPU.id)) if wheel.name == "jinja2"
    }
    with pytest.raises(AdvisoryError):
        ci_propose_verb.propose_locks(Project(moved), github.server, database=Known(version))
    assert "1 remain" in github.calls[-1]["content"]["body"]


@pytest.mark.parametrize(
    ("database", "expected"),
    [(Known(), None), (Known(silent="no network"), NotAskedError), (Known(CPU.vllm.version), AdvisoryError)],
)
def test_without_a_change_nothing_is_proposed_and_what_is_vulnerable_or_was_not_asked_is_an_error(
    database: Known, expected: type[Exception] | None, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "drydock.lock.drift.drift_search.find_drift", lambda *_: Drift(drifted=(), beyond=(), not_asked=(), asked=3)
    )
    monkeypatch.setattr("drydock.ci.proposal.relock_variants", lambda *_: [])
    monkeypatch.setattr("drydock.pages.docs.write", lambda *_: [])
    report_text = ""
    with pytest.raises(expected) if expected else nullcontext():
        report_text = ci_propose_verb.propose_locks(
            Project(repository), Server("github", "/nowhere", SECRET), database=database
        )
    assert report_text == ("" if expected else "nothing to propose\n")
