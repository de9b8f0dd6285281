"""The shape of the repository itself: who may import whom, how large things may be, and what no file may name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.lock import lockfile
from drydock.lock.image_record import RECORDS
from drydock.model.variant import Variant
from tests.support.cases import for_each
from tests.support.git import git

pytestmark = pytest.mark.checkout

MODULES = sorted([*ROOT.glob("drydock/**/*.py"), *ROOT.glob("entrypoints/**/*.py"), ROOT / "tasks.py", ROOT / "inv"])
TEMPLATES = sorted(ROOT.glob("templates/**/*.j2"))
TOOLS = sorted(ROOT.glob("templates/tools/*.py"))
MOST_CONDITIONS, LONGEST_SHARED = 5, 5


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted name of everything a module imports from beyond its own folder, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


PLUGIN = sorted(ROOT.glob("entrypoints/plugin/**/*.py"))
REHEARSAL = sorted(ROOT.glob("entrypoints/rehearsal/*.py"))


@for_each(sorted({*ROOT.glob("entrypoints/**/*.py")} - {*PLUGIN, *REHEARSAL}), name)
def test_the_image_side_imports_the_standard_library_and_itself(path: Path) -> None:
    roots = {module.partition(".")[0] for module in imports(path)}
    assert roots <= {*sys.stdlib_module_names, "entrypoints", "_sha2"}  # which 3.12 has in _sha256's place


@for_each(PLUGIN, name)
def test_what_vllm_loads_imports_vllm_and_never_the_entrypoint(path: Path) -> None:
    roots = {module.partition(".")[0] for module in imports(path)}
    assert roots <= {*sys.stdlib_module_names, "drydock_plugin", "torch", "vllm"}


@for_each(REHEARSAL, name)
def test_a_rehearsal_imports_vllm_and_nothing_else_of_the_image_side(path: Path) -> None:
    modules = set(imports(path))
    roots = {module.partition(".")[0] for module in modules}
    assert roots <= {*sys.stdlib_module_names, "entrypoints", "torch", "transformers", "vllm"}
    assert {module for module in modules if module.startswith("entrypoints.")} <= {
        "entrypoints.plugin.drydock_plugin.supervisor_report",
        "entrypoints.rehearsal",
        "entrypoints.rehearsal.answers",
        "entrypoints.rehearsal.replacements",
    }


@for_each([ROOT / "inv", *TOOLS], name)
def test_what_runs_before_any_package_is_there_imports_the_standard_library(path: Path) -> None:
    assert {module.partition(".")[0] for module in imports(path)} <= {
        *sys.stdlib_module_names,
        *(tool.stem for tool in TOOLS),
    }


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in (*ROOT.glob("drydock/**/*.py"), *ROOT.glob("bench/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{name(path)}:{node.lineno}")
    assert len(places) > 100
    assert {class_name: paths for class_name, paths in places.items() if len(paths) > 1} == {}


@for_each(TEMPLATES, name)
def test_templates_decide_little_and_name_no_version(path: Path) -> None:
    template = Environment(autoescape=True).parse(path.read_text())
    loops = list(template.find_all(nodes.For))
    conditions = [*template.find_all((nodes.If, nodes.CondExpr)), *(loop for loop in loops if loop.test)]
    assert len(conditions) <= MOST_CONDITIONS, "decide it in drydock/build/render.py"
    assert [loop.lineno for loop in loops if isinstance(loop.iter, nodes.Literal)] == [], "write {% if %}"
    assert re.findall(r"\d+\.\d+|[=<>]=\s*\d", path.read_text()) == []


def blocks(path: Path) -> set[tuple[str, ...]]:
    """Return every run of lines, one longer than two templates may share, without empty lines and comments."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    code_lines = [line for line in lines if line and not line.startswith(("#", "{#"))]
    return {tuple(code_lines[start : start + LONGEST_SHARED + 1]) for start in range(len(code_lines) - LONGEST_SHARED)}


def test_no_six_lines_stand_in_two_templates() -> None:
    assert any(map(blocks, TEMPLATES))
    first_places: dict[tuple[str, ...], str] = {}
    for path in TEMPLATES:
        file_blocks = blocks(path)
        assert {first_places[block]: block for block in file_blocks & first_places.keys()} == {}, path
        first_places |= dict.fromkeys(file_blocks, name(path))


def test_no_file_names_the_host_of_a_package_registry() -> None:
    """A machine's own pip, apt and npm know theirs."""
    hosts = (
        r"(deb|ftp|security|archive|snapshot)\.debian\.org|(archive|security|ports)\.ubuntu\.com"
        r"|pypi\.org|pythonhosted\.org|registry\.(npmjs|yarnpkg)\."
    )
    result = subprocess.run(["git", "grep", "-nIE", hosts], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "")


def test_no_source_names_an_index_or_a_path_of_one_machine() -> None:
    names = r"download\.pytorch\.org|/opt/pypi|/opt/wheels|/root/|/work/"
    sources = [
        *MODULES,
        *TEMPLATES,
        *TOOLS,
        ROOT / "matrix.yaml",
        *ROOT.glob("templates/*/stacks/*.yaml"),
        *ROOT.glob("images/*/*"),
        *ROOT.glob("requirements.*"),
    ]
    public = r"(?m)^  - url: https://\S+$"  # a stack's `indexes`
    texts = {name(path): re.sub(public, "", path.read_text()) for path in sources}
    assert {path: matches for path, text in texts.items() if (matches := re.findall(names, text))} == {}


def with_extra(name: str) -> tuple[list[Variant], set[str]]:
    """Return the rows of packages alone, and the ids of those that lock an extra of vLLM."""
    rows = [row for row in read_matrix(DRYDOCK) if row.serves and row.base.kind == "debian"]
    extra = re.compile(rf"\[.*\b{name}\b.*\]")
    return rows, {row.id for row in rows if any(map(extra.search, row.requirements))}


@pytest.mark.golden
def test_a_row_of_packages_alone_reads_sound_or_names_one_that_does() -> None:
    rows, reads = with_extra("audio")
    assert {row.unreadable["audio"].instead for row in rows if row.id not in reads} <= reads


@pytest.mark.golden
def test_a_row_of_packages_alone_says_that_it_reads_buckets_if_it_has_the_streamer() -> None:
    rows, has = with_extra("runai")
    assert has == {row.id for row in rows if row.buckets} != set()


def test_only_releases_commit_records() -> None:
    """A record is an output: if each change committed its own, each would conflict with every other one."""
    pathspecs = [f":(glob){name}" for name in (*RECORDS, "images/*/proof.json")]
    # a root commit, such as the oldest one of a shallow clone, adds what it found
    log = git(ROOT, "log", "--min-parents=1", "--format=%x00%s", "--name-only", "--", *pathspecs)
    for commit in log.split("\0")[1:]:
        subject, *names = commit.split("\n")
        if any(name.endswith("/proof.json") for name in names):
            break  # until drydock 0.2.0 each change committed what it gave
        assert subject.startswith("release: "), f"{subject}: commits {names}; `./inv release` alone commits records"


def test_every_text_is_checked_out_with_lf_whatever_git_is_configured_to() -> None:
    listed = subprocess.run(["git", "ls-files", "--eol"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    expected = re.compile(r"i/(lf|none|-text)\s+w/\S*\s+attr/\S+ eol=lf\s")
    assert not [line for line in listed.splitlines() if not expected.match(line)]


def test_each_name_in_a_layer_is_a_locked_distribution() -> None:
    """A misspelt one would move nothing, unseen."""
    named, locked = set(), set()
    for variant in read_matrix(DRYDOCK):
        platforms = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, variant.id)).platforms.values()
        names = {wheel.name for pins in platforms for wheels in pins.layers.values() for wheel in wheels}
        locked |= {(variant.accelerator, name) for name in names}
        if names:
            named |= {(variant.accelerator, name) for layer in variant.layers for name in layer.distributions}
    assert named - locked == set()
