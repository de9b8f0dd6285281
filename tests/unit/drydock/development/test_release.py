"""A release checks everything before it writes anything, in a copy of this repository."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.build.build_job import prepare_job
from drydock.config.matrix import read_matrix
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.development import quality, surface
from drydock.development.release import HowToRelease, compute_least_version, make_release
from drydock.development.surface import SurfaceChanges
from drydock.lock.image_record import (
    PlatformRecord,
    VerifiedImage,
    name_of_record,
    read_releases,
    write_platform_record,
)
from drydock.pages import docs
from drydock.pages.changelog import BEFORE, REMOVED, Release, read_changelog
from tests.support.git import git
from tests.support.released import copied


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("original") / "drydock")


@pytest.fixture
def copy(original: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return that repository as it was, with a committer. Its generated files and links are right."""
    monkeypatch.setattr(quality, "_run_module", lambda *_: True)
    for name in git(original, "tag", "--list").split():
        git(original, "tag", "--delete", name)
    git(original, "reset", "--quiet", "--hard", git(original, "rev-list", "--max-parents=0", "HEAD"))
    git(original, "clean", "--quiet", "-d", "--force")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "t")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "t@example.org")
    return original


def make(folder: Path, version: str, *, dry_run: bool = False, whole: bool = False) -> str:
    """Release; without `whole`, the digests of images, which takes seconds, are not checked."""
    checks = None if whole else lambda _: iter(())
    return make_release(Project(folder), version, HowToRelease(verify=False, dry_run=dry_run, checks=checks))


def edit(folder: Path, name: str, change: Callable[[str], str]) -> None:
    (folder / name).write_text(change((folder / name).read_text()))
    git(folder, "commit", "--quiet", "--all", "--message", "change")


def refused(folder: Path, version: str, *, whole: bool = False) -> list[str]:
    """Return the problems of a release, which has written nothing."""
    before = git(folder, "rev-parse", "HEAD"), git(folder, "status", "--porcelain")
    with pytest.raises(InputError) as raised:
        make(folder, version, whole=whole)
    assert (git(folder, "rev-parse", "HEAD"), git(folder, "status", "--porcelain")) == before
    return [*raised.value.problems]


def test_a_release_is_one_commit_with_a_tag(copy: Path) -> None:
    unreleased = read_changelog(copy / "CHANGELOG.md")[0]

    report_text = make(copy, "0.2.0", whole=True)

    assert "0.2.0 follows 0.1.0" in report_text
    assert "linters and tests were not run" in report_text
    assert report_text.endswith("then: git push --atomic origin main v0.2.0\n")
    assert git(copy, "status", "--porcelain") == ""
    assert git(copy, "log", "-1", "--format=%s") == "release: 0.2.0"
    assert git(copy, "show", "--name-only", "--format=", "HEAD").split() == [
        "CHANGELOG.md", "pyproject.toml", "tests/surface.json"
    ]  # fmt: skip
    assert git(copy, "cat-file", "-t", "v0.2.0") == "tag"
    assert git(copy, "tag", "--list", "--format=%(contents)", "v0.2.0").startswith("drydock 0.2.0\n\n### ")
    assert 'version = "0.2.0"' in (copy / "pyproject.toml").read_text()
    assert json.loads((copy / surface.FILE).read_text())["release"] == "0.2.0"
    empty, newest, *_ = read_changelog(copy / "CHANGELOG.md")
    assert empty.is_empty
    assert (newest.version, newest.sections) == ("0.2.0", unreleased.sections)

    again = "\n".join(refused(copy, "0.2.1"))
    assert "nothing is written under Unreleased" in again


def test_a_dry_run_writes_nothing(copy: Path) -> None:
    before = git(copy, "rev-parse", "HEAD")

    report_text = make(copy, "0.2.0", dry_run=True)

    assert "would write CHANGELOG.md" in report_text
    assert "would commit and tag release: 0.2.0 as v0.2.0" in report_text
    assert (git(copy, "rev-parse", "HEAD"), git(copy, "status", "--porcelain"), git(copy, "tag")) == (before, "", "")


def test_all_problems_are_named_at_once(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(copy, "switch", "--quiet", "--create", "other")
    git(copy, "tag", "v0.1.9")
    (copy / "docs" / "new.md").write_text("[x](nowhere.md)\n")
    (copy / ".gitlab-ci.yml").write_text("outdated: true\n")
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(quality, "_run_module", lambda _, *words: commands.append(words))
    record_digest(copy, inputs="0" * 64)

    problem_text = "\n".join(refused(copy, "0.1.9", whole=True))

    git(copy, "switch", "--quiet", "--force", "main")
    assert commands == [
        quality.LINTERS["generate --check"],
        ("pytest", "-q", "-p", "no:cacheprovider", "tests/contracts/test_links.py"),
    ]
    for text in (
        "the tree is not clean: .gitlab-ci.yml, docs/new.md",
        "on other, expected main; git switch main",
        "there is a tag v0.1.9",
        "0.1.9: expected 0.2.0 or 1.0.0 after 0.1.0: the changelog has Before you upgrade",
        "images/cpu-vllm0.32/record.json: the digest for linux/amd64 is of other inputs",
        "a generated file is not current",
        "a page has a link that leads nowhere",
    ):
        assert text in problem_text


DIGEST = f"sha256:{'a' * 64}"


def record_digest(folder: Path, inputs: str) -> None:
    """Write a digest of the CPU image into its record, as `verify --record` does."""
    image = VerifiedImage(digest=DIGEST, inputs_sha256=inputs, buildkit="1", buildx="1")
    write_platform_record(Project(folder), "cpu-vllm0.32", "linux/amd64", PlatformRecord(verified=image))


def test_a_release_commits_the_records_and_the_pages_that_show_them(copy: Path) -> None:
    record_digest(copy, prepare_job(Project(copy), "cpu").inputs_sha256)
    docs.write(Project(copy), read_matrix(Project(copy)))

    make(copy, "0.2.0", whole=True)

    assert git(copy, "status", "--porcelain") == ""
    assert {"images/cpu-vllm0.32/record.json", "docs/pictures/demo.svg"} <= {
        *git(copy, "show", "--name-only", "--format=", "HEAD").split()
    }
    assert read_releases(Project(copy)) == {DIGEST: ("0.2.0",)}


def test_a_release_does_not_commit_prose_that_somebody_edits(copy: Path) -> None:
    readme = copy / "README.md"
    readme.write_text(readme.read_text().replace("stand-in: 7", "stand-in: 8"))
    assert not refused_as_unclean(copy)
    readme.write_text(readme.read_text().replace("drydock builds", "drydock may build"))
    assert refused_as_unclean(copy) == ["the tree is not clean: README.md"]


def refused_as_unclean(folder: Path) -> list[str]:
    try:
        make(folder, "0.2.0", dry_run=True)
    except InputError as error:
        return [*error.problems]
    return []


def test_what_is_gone_must_be_in_the_changelog(copy: Path) -> None:
    recorded, names = surface.read_recorded(copy)
    old_names = {**names, "tasks": {**names["tasks"], "build --quick-and-gone": "nothing"}}
    edit(copy, str(surface.FILE), lambda _: surface.format_surface(recorded, old_names))

    assert refused(copy, "0.2.0") == [
        "CHANGELOG.md: Unreleased does not name what is gone or changed: tasks: build --quick-and-gone"
    ]
    edit(
        copy, "CHANGELOG.md", lambda text: text.replace("### Removed\n\n", "### Removed\n\n- `--quick-and-gone`.\n", 1)
    )
    assert "gone or changed: 1" in make(copy, "0.2.0", dry_run=True)


def test_a_version_that_is_not_the_changelogs_is_an_error(copy: Path) -> None:
    edit(copy, "pyproject.toml", lambda text: text.replace('version = "0.1.0"', 'version = "0.7.0"', 1))
    assert refused(copy, "0.2.0") == ["pyproject.toml: version: found 0.7.0, expected 0.1.0, as in CHANGELOG.md"]


@pytest.mark.parametrize("version", ["v0.2.0", "0.2", "0.2.0-rc.1", "0.02.0", "", "0.2.0\n", "٠.٢.٠"])  # noqa: RUF001
def test_a_version_is_three_numbers(version: str) -> None:
    with pytest.raises(InputError, match="expected a version such as"):
        make(ROOT, version)


@pytest.mark.parametrize("hook", ["pre-commit", "reference-transaction"])
def test_if_git_refuses_all_is_as_before(copy: Path, hook: str) -> None:
    """The second hook refuses the tag, after the commit."""
    script = copy / ".git" / "hooks" / hook
    tags = 'while read -r _ _ name; do case "$name" in refs/tags/v0.2.0) exit 1;; esac; done\n'
    script.write_text("#!/bin/sh\n" + ("exit 1\n" if hook == "pre-commit" else tags))
    script.chmod(0o755)
    record_digest(copy, prepare_job(Project(copy), "cpu").inputs_sha256)
    try:
        assert refused(copy, "0.2.0")
    finally:
        script.unlink()
    assert git(copy, "tag", "--list") == ""
    assert (copy / name_of_record("cpu-vllm0.32")).is_file()  # a record takes hours
    assert 'version = "0.1.0"' in (copy / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("last", "changes", "sections", "expected"),
    [
        ("0.4.1", SurfaceChanges((), ()), ("Fixed",), "0.4.2"),
        ("0.4.1", SurfaceChanges((("tasks", "x"),), ()), ("Fixed",), "0.5.0"),
        ("0.4.1", SurfaceChanges((), ()), ("Added",), "0.5.0"),
        ("0.4.1", SurfaceChanges((), (("tasks", "x"),)), (), "0.5.0"),
        ("1.4.1", SurfaceChanges((), ()), ("Security",), "1.4.2"),
        ("1.4.1", SurfaceChanges((), ()), ("Changed",), "1.5.0"),
        ("1.4.1", SurfaceChanges((), (("tasks", "x"),)), (), "2.0.0"),
        ("1.4.1", SurfaceChanges((), ()), (BEFORE,), "2.0.0"),
        ("1.4.1", SurfaceChanges((), ()), (REMOVED,), "2.0.0"),
    ],
)
def test_the_version_says_what_changed(
    last: str, changes: SurfaceChanges, sections: tuple[str, ...], expected: str
) -> None:
    assert compute_least_version(last, changes, Release("", "", "", dict.fromkeys(sections, ("x",)))) == expected
