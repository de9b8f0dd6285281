"""Which platform is built, and what a build takes in."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from drydock.build import build
from drydock.build.build_job import BuildOptions, choose_platform, find_tools, prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project


def test_the_only_platform_is_built_wherever_the_host_stands() -> None:
    variant = prepare_job(DRYDOCK, "cpu").variant

    assert choose_platform(variant, None, machine="aarch64") == "linux/amd64"


def test_the_hosts_own_platform_is_preferred() -> None:
    variant = prepare_job(DRYDOCK, "cpu").variant.model_copy(update={"platforms": ("linux/amd64", "linux/arm64")})

    assert choose_platform(variant, None, machine="aarch64") == "linux/arm64"
    assert choose_platform(variant, "linux/amd64", machine="aarch64") == "linux/amd64"


def test_a_platform_the_variant_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(InputError, match=r"linux/s390x: cpu-vllm0\.32 is built for linux/amd64"):
        prepare_job(DRYDOCK, "cpu", BuildOptions(platform="linux/s390x"))


def test_nothing_else_of_the_folder_goes_in(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", "b/__pycache__/c.cpython-311.pyc", "notes.txt"):
        path = tmp_path / "entrypoints" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)

    project = Project(tmp_path)
    assert project.entrypoint == {"a.py": b"a.py", "b/c.py": b"b/c.py"}
    (tmp_path / "entrypoints/a.py").write_text("changed")
    assert project.entrypoint["a.py"] == b"a.py", "read once: every image of a command has the same entrypoint"
    assert Project(tmp_path).entrypoint["a.py"] == b"changed"


def test_a_changed_copy_of_a_job_has_its_own_checksum_and_layout(tmp_path: Path) -> None:
    job = prepare_job(DRYDOCK, "cpu")
    checksum, layout = job.inputs_sha256, job.layout

    changed = replace(job, context_overrides={"wheels": str(tmp_path)})

    assert changed.inputs_sha256 != checksum
    assert (changed.layout.parent, changed.layout.name) == (layout.parent, changed.inputs_sha256)


def test_an_image_with_a_replaced_context_has_another_name_and_a_label(tmp_path: Path) -> None:
    job = prepare_job(DRYDOCK, "cpu")
    replaced = replace(job, context_overrides={"wheels": str(tmp_path), "base": "docker-image://my/base"})
    digest = f"sha256:{'ab' * 32}"

    assert job.image(digest) == "drydock/cpu-vllm0.32:abababababab"
    assert replaced.image(digest) == "drydock-stand-in/cpu-vllm0.32:abababababab"
    for image_job, labels in ((job, None), (replaced, {"io.drydock.stand-in": "base,wheels"})):
        (target,) = build.bake_file(image_job, {"base": "b"}, tmp_path)["target"].values()
        assert target.get("labels") == labels


def test_a_foundation_depends_on_what_it_is_made_of_and_not_on_the_entrypoint(tmp_path: Path) -> None:
    job = prepare_job(DRYDOCK, "cpu")
    (tmp_path / "Dockerfile").write_text("FROM scratch")

    def below(**contexts: str) -> Path:
        return replace(job, context_overrides=contexts).foundation

    assert below() == below(entrypoints=str(tmp_path))
    assert below() != below(wheels=str(tmp_path))
    assert job.inputs_sha256 != below().name
    newer = job.lock.model_copy(update={"source_date_epoch": job.lock.source_date_epoch + 1})
    assert below() != replace(job, lock=newer).foundation
    text = prepare_job(DRYDOCK, "cpu-text")
    assert text.foundation.parent != below().parent


def test_an_image_gets_every_file_of_the_entrypoint() -> None:
    listed = subprocess.run(["git", "ls-files", "entrypoints"], cwd=ROOT, capture_output=True, text=True, check=True)
    committed = {path.removeprefix("entrypoints/") for path in listed.stdout.splitlines()}
    assert set(DRYDOCK.entrypoint) == committed


TOOLS = {
    "layer.py": b"import trim\nrun('/tools/compile.py')\n",
    "trim.py": b"",
    "compile.py": b"",
    "other.py": b"layer",
}


def test_a_tool_is_an_input_of_the_images_whose_dockerfile_runs_it() -> None:
    assert find_tools("RUN python /tools/layer.py install", TOOLS) == ["compile.py", "layer.py", "trim.py"]
    assert find_tools("RUN python /tools/other.py", TOOLS) == ["other.py"]
    assert find_tools("FROM base", TOOLS) == []
    router, cpu = (prepare_job(DRYDOCK, target).inputs["files"] for target in ("router", "cpu"))
    assert "tools/read_vllm.py" not in router
    assert {f"tools/{name}" for name in ("layer.py", "trim.py", "read_vllm.py")} <= cpu.keys()
