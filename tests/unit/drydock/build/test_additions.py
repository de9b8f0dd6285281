"""What a project puts into its images: in every one by drydock.yaml, in one by its row."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.attest import components
from drydock.build import bake_plan, rebuild, render
from drydock.cli import task_helpers
from drydock.config import mirrors
from drydock.config.added_files import read_added_files
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs.others import read_current_project

CPU = "cpu-vllm0.32"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
PROJECT = """
schema: 1
name: acme
rows: [cpu-vllm0.32]
additions:
  certificates: certificates
  files: {/etc/acme/motd: motd}
  labels: {com.acme.team: inference}
  user: "20000:0"
  dockerfile:
    - {name: tuning, because: our scanner wants it, lines: ["RUN rm -f /usr/bin/passwd"]}
"""
MATRIX = """
schema: 1
variants:
  cpu-acme: {inherits: drydock/cpu-vllm0.32, additions: {labels: {com.acme.team: search}}}
"""
FILES = {"drydock.yaml": PROJECT, "matrix.yaml": MATRIX, "motd": "welcome\n", "certificates/root.crt": CERTIFICATE}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Project]:
    """Write the project's files, with (file, old, new) replacements."""

    def write(*edits: tuple[str, str, str]) -> Project:
        files = dict(FILES)
        for name, old, new in edits:
            assert old in files[name]
            files[name] = files[name].replace(old, new)
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return Project(tmp_path, (ROOT,))

    return write


def test_every_image_of_a_project_gets_what_drydock_yaml_says(write: Callable[..., Project]) -> None:
    project = write()
    ours, theirs = (find_variant(read_matrix(project), name) for name in ("cpu-acme", CPU))
    text = render.render_dockerfile(project, theirs)
    assert "--mount=type=bind,source=project/certificates,target=/certificates" in text
    assert "--mount=type=bind,source=project/files,target=/files" in text
    assert f"install -D --mode 0644 /files/motd /row/{ours.epoch}/etc/acme/motd; " in text
    assert bake_plan.choose_export(text) == bake_plan.REWRITING, (
        "no one knows what a line of the project's leaves behind"
    )
    assert bake_plan.choose_export(text.replace("RUN rm -f /usr/bin/passwd\n", "")) == bake_plan.EXPORT
    assert "# tuning: our scanner wants it\nRUN rm -f /usr/bin/passwd\n" in text
    assert "\nUSER 20000:0\n" in text
    assert 'com.acme.team="inference"' in text
    assert 'com.acme.team="search"' in render.render_dockerfile(project, ours)
    project_files = {"project/files/motd": b"welcome\n", "project/certificates/root.crt": CERTIFICATE.encode()}
    assert read_added_files(project, theirs.additions) == project_files


def test_the_foundation_is_that_of_drydock(write: Callable[..., Project]) -> None:
    project = write()
    ends = "\nFROM base AS entrypoint\n"
    ours = render.render_dockerfile(project, find_variant(read_matrix(project), CPU)).partition(ends)[0]
    assert ours == render.render_dockerfile(DRYDOCK, find_variant(read_matrix(DRYDOCK), CPU)).partition(ends)[0]


def test_a_project_takes_the_rows_that_it_names_and_its_own(write: Callable[..., Project]) -> None:
    assert [variant.id for variant in read_matrix(write())] == ["cpu-acme", CPU]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (("drydock.yaml", "[cpu-vllm0.32]", "[cpu-vllm0.31]"), "drydock.yaml: rows: unknown row 'cpu-vllm0.31'"),
        (
            ("drydock.yaml", "[cpu-vllm0.32]", "[xpu-vllm0.16]"),
            "drydock.yaml: rows: drydock retired the row 'xpu-vllm0.16'",
        ),
        (("drydock.yaml", "com.acme.team", "io.drydock.variant"), "labels of drydock begin with io.drydock"),
        (("drydock.yaml", "20000:0", "0:0"), "additions.user"),
        (("drydock.yaml", "motd: motd", "motd: ../secret"), "additions.files"),
        (("drydock.yaml", "motd: motd", "motd: nothing"), "nothing: "),
        (
            ("certificates/root.crt", "BEGIN CERTIFICATE", "BEGIN PRIVATE KEY"),
            "found PRIVATE KEY, expected certificates",
        ),
        (("drydock.yaml", "certificates: certificates", "certificates: none"), "none: found no *.crt file"),
    ],
)
def test_what_cannot_be_added_is_an_error(
    write: Callable[..., Project], edit: tuple[str, str, str], expected: str
) -> None:
    with pytest.raises(InputError) as raised:
        read_matrix(write(edit))
    assert expected in str(raised.value)


def test_debian_packages_are_added_to_those_of_the_base(write: Callable[..., Project]) -> None:
    project = write(("matrix.yaml", "cpu-acme: {", "cpu-acme: {stack: acme, "))
    stack = project.root / "templates" / "cpu" / "stacks" / "acme.yaml"
    stack.parent.mkdir(parents=True)
    stack.write_text("inherits: drydock/cpu-0.32\npackages: [jq]\n")
    ours, theirs = (find_variant(read_matrix(project), name).base for name in ("cpu-acme", CPU))
    assert ours.packages == (*theirs.packages, "jq")


def test_the_projects_registry_and_mirrors_are_the_defaults(
    write: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = "name: acme\nregistry: registry.example/vllm\nmirrors: ours.yaml"
    root = write(("drydock.yaml", "name: acme", more)).root
    monkeypatch.chdir(root)
    monkeypatch.setenv(mirrors.VARIABLE, "")
    monkeypatch.delenv(mirrors.VARIABLE)
    read_current_project.cache_clear()
    try:
        assert task_helpers.registry_of("") == "registry.example/vllm"
        assert task_helpers.registry_of("other.example") == "other.example"
        assert mirrors.find_mirrors_file(os.environ) == root / "ours.yaml"
    finally:
        read_current_project.cache_clear()


def test_a_second_build_has_what_the_project_adds(write: Callable[..., Project], tmp_path: Path) -> None:
    project = write()
    variant = find_variant(read_matrix(project), CPU)
    rebuild._copy_inputs(project.root, tmp_path / "copy", variant.additions)
    rebuild._copy_inputs(ROOT, tmp_path / "below", variant.additions)
    copied = Project(tmp_path / "copy", (tmp_path / "below",))
    assert find_variant(read_matrix(copied), CPU) == variant
    assert read_added_files(copied, variant.additions) == read_added_files(project, variant.additions)


def test_what_a_project_adds_is_no_file_of_unknown_origin(write: Callable[..., Project]) -> None:
    added = find_variant(read_matrix(write()), CPU).additions
    certificate = "usr/local/share/ca-certificates/root.crt"
    assert components._is_added(added, "etc/acme/motd")
    assert components._is_added(added, certificate)
    assert not components._is_added(added, "etc/acme/other")
    assert not components._is_added(find_variant(read_matrix(DRYDOCK), CPU).additions, certificate)
