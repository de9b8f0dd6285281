"""Which rows `build` builds at once, and the table of what came of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drydock.build import build, many
from drydock.build.build_job import BuildOptions, Job
from drydock.build.many import Outcome
from drydock.ci import changed
from drydock.ci.ci_rows import CiRow
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError, TargetError, UnresolvedError
from drydock.core.project import Project
from drydock.projects import pinned_job
from drydock.verbs import build_verb
from tests.support.called_verbs import call_verb

DIGEST = f"sha256:{'a' * 64}"
GIGABYTE = 1_000_000_000


class Asked:
    """What was to be built, and what came of it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.one: list[str] = []
        self.many: list[str] = []
        self.options = many.ManyOptions()
        self.unlocked: set[str] = set()
        patch.setattr(pinned_job, "prepare_pinned_job", self._job)
        patch.setattr(build, "build_image", self._build)
        patch.setattr(many, "build_all", self._build_all)

    def _job(self, project: Project, target: str, options: BuildOptions, **_: Any) -> Job:
        if target in self.unlocked:
            raise UnresolvedError(f"{target}: not pinned: wheels", hint="lock it")
        variant = find_variant(read_matrix(project), target)
        return Job(variant, None, options.platform or variant.platforms[0], project)  # type: ignore[arg-type]

    def _build(self, job: Job, **_: Any) -> build.Built:
        self.one.append(job.variant.id)
        values = {"image": "drydock/x:1", "digest": DIGEST, "inputs_sha256": "", "layout": "", "seconds": 1.0}
        return build.Built(variant=job.variant.id, platform=job.platform, phases={}, **values)

    def _build_all(self, jobs: Sequence[Job], options: many.ManyOptions) -> list[Outcome]:
        self.many, self.options = [job.variant.id for job in jobs], options
        return [
            Outcome(variant=job.variant.id, platform=job.platform, state="built", digest=DIGEST, seconds=2.0)
            for job in jobs
        ]


@pytest.fixture
def build_calls(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Record what is built, on a disk with room for every row."""
    monkeypatch.setattr(changed, "measure_free_bytes", lambda _: 1000 * GIGABYTE)
    return Asked(monkeypatch)


def code_of(**options: Any) -> int:
    """Build, and return the exit code."""
    with pytest.raises(SystemExit) as ended:
        call_verb("build", **options)
    return int(ended.value.code or 0)


def test_one_target_is_built_as_ever(build_calls: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    call_verb("build", target=["cpu"])

    assert (build_calls.one, build_calls.many) == (["cpu-vllm0.32"], [])
    assert capsys.readouterr().out == f"drydock/x:1\n{DIGEST}\n"


@pytest.mark.parametrize("targets", [["cpu,cpu-text"], ["cpu", "cpu-text"], ["cpu, cpu-text,cpu-x86", "cpu"]])
def test_several_targets_are_built_at_once_each_row_once(targets: list[str], build_calls: Asked) -> None:
    assert code_of(target=targets, builder="a,b", no_cache=True) == 0
    assert (build_calls.one, build_calls.many) == ([], ["cpu-vllm0.32", "cpu-text-vllm0.32"])
    assert build_calls.options == many.ManyOptions(["a", "b"], no_cache=True, may_use_network=True)


def test_a_row_that_cannot_be_locked_fails_alone(build_calls: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    build_calls.unlocked = {"tpu-vllm0.32"}
    assert code_of(target=["tpu-vllm0.32,cpu"]) == UnresolvedError.code
    printed = capsys.readouterr()

    assert build_calls.many == ["cpu-vllm0.32"]
    assert printed.out.splitlines()[1].split() == ["tpu-vllm0.32", "0.0", "failed"]
    assert "\nfailed:\n  tpu-vllm0.32: tpu-vllm0.32: not pinned: wheels\n" in printed.out
    assert "hint: lock it" in printed.err


def test_an_unknown_target_is_refused_before_anything_is_built(build_calls: Asked) -> None:
    with pytest.raises(TargetError, match="nonsense"):
        call_verb("build", target=["cpu,nonsense"])
    assert build_calls.many == []


def test_all_locked_are_the_rows_that_ci_would_build_as_far_as_the_disk_goes(
    build_calls: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(changed, "measure_free_bytes", lambda _: 30 * GIGABYTE)
    assert code_of(all_locked=True, json=True) == 0
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)["rows"]}

    assert build_calls.many == ["cpu-text-vllm0.32", "cpu-vllm0.32"]
    assert set(rows) == {variant.id for variant in read_matrix(DRYDOCK)}
    assert rows["tpu-vllm0.21"]["state"] == "left out"
    assert rows["tpu-vllm0.21"]["why"].startswith("disk: it needs up to 70 GB, and ")
    assert rows["tpu-vllm0.32"]["why"] == "not locked: wheels"


def test_small_rows_come_first_and_a_size_that_is_not_known_does_not_fit() -> None:
    sizes = {"a": 20, "b": 5, "c": 8, "d": None}
    rows = [
        CiRow(variant=name, accelerator="cpu", platform="linux/amd64", arch="amd64", disk=size and size * GIGABYTE)
        for name, size in sizes.items()
    ]
    too_large = dict(changed._list_too_large(rows, 14 * GIGABYTE))
    assert too_large == {
        "d": "disk: it needs an amount that its lock does not know, and 1 GB are free for it",
        "a": "disk: it needs up to 20 GB, and 1 GB are free for it",
    }


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A copy of this repository in git, which the verb is about."""
    for name in ("matrix.yaml", "templates", "entrypoints", "images"):
        source = DRYDOCK.root / name
        shutil.copytree(source, tmp_path / name) if source.is_dir() else shutil.copy(source, tmp_path / name)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(build_verb, "here", lambda: Project(tmp_path))
    return Project(tmp_path)


def test_a_revision_that_git_does_not_know_is_refused(build_calls: Asked, repository: Project) -> None:
    for bad in ("nope", "", "--output=x", "HEAD~9", "a b"):
        with pytest.raises(InputError, match="--changed-since"):
            call_verb("build", changed_since=bad)
    assert build_calls.many == []
    assert not (repository.root / "x").exists()


def test_only_rows_that_changed_since_a_commit_are_built(build_calls: Asked, repository: Project) -> None:
    assert code_of(changed_since="HEAD") == 0
    assert build_calls.many == []
    dockerfile = repository.root / "images" / "cpu-text-vllm0.32" / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + "# edited\n")
    assert code_of(changed_since="HEAD") == 0
    assert build_calls.many == ["cpu-text-vllm0.32"]


def test_the_table_has_a_line_a_row_and_below_it_why_rows_are_missing() -> None:
    rows = [
        Outcome(variant="a", platform="p", state="built", seconds=1.25, cached="foundation", digest=DIGEST,
                recorded="as committed"),
        Outcome(variant="longer", platform="p", state="failed", why="exit code: 3", exit_code=6),
        *(Outcome(variant=name, platform="p", state="left out", why="not locked") for name in "xy"),
    ]  # fmt: skip
    assert many.format_build_outcomes(rows).splitlines() == [
        "row     seconds  cached      digest",
        f"a       1.2      foundation  {DIGEST}  as committed",
        f"longer  0.0                  {' ' * len(DIGEST)}  failed",
        "",
        "failed:",
        "  longer: exit code: 3",
        "",
        "left out:",
        "  x, y: not locked",
    ]


def test_a_table_without_rows_says_so() -> None:
    left_out = Outcome(variant="x", platform="p", state="left out", why="not locked")
    assert many.format_build_outcomes([]) == "nothing to build\n"
    assert many.format_build_outcomes([left_out]) == "nothing to build\n\nleft out:\n  x: not locked\n"


def test_the_exit_code_is_the_largest(build_calls: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {"cpu-vllm0.32": 6, "cpu-text-vllm0.32": 8}
    monkeypatch.setattr(
        many, "build_all",
        lambda jobs, _: [
            Outcome(variant=job.variant.id, platform="p", state="failed", exit_code=codes[job.variant.id])
            for job in jobs
        ],
    )  # fmt: skip
    assert code_of(target=["cpu,cpu-text"]) == 8
    assert build_calls.one == []
