"""A key that is in the wrong place of a project, or has another form, gets the place or the form that is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.config.stack_layers import describe_replaced_lists
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.model.names import EXPECTED
from tests.support.hosts.trees import write_tree

H100 = find_variant(read_matrix(DRYDOCK), "h100").id
PROJECT, MATRIX, STACK = "drydock.yaml", "matrix.yaml", "templates/cpu/stacks/acme-cpu.yaml"
INHERITS = "inherits: drydock/cpu-vllm0.32"
SETTING = "because: WHY, source: MANUAL OR MEASUREMENT}"
IN_ROW = "belongs in a row, below `variants` in matrix.yaml"
IN_STACK = "belongs in a stack, templates/ACCELERATOR/stacks/NAME.yaml, which a row names by `stack: NAME`"
IN_ADDITIONS = "belongs below `additions`, in drydock.yaml for every image or in a row of matrix.yaml"


def row(text: str) -> tuple[str, str]:
    return MATRIX, f"schema: 1\nvariants:\n  acme-cpu: {{{text}}}\n"


def own(text: str) -> tuple[str, str]:
    return row(f"{INHERITS}, {text}")


def stack(text: str) -> tuple[str, str]:
    return STACK, f"inherits: drydock/cpu-0.32\nsummary: ours\n{text}\n"


def project(text: str) -> tuple[str, str]:
    return PROJECT, f"schema: 1\nname: acme\n{text}\n"


def hint_of(folder: Path, *files: tuple[str, str]) -> str:
    """Return what is said about a project, with the hints."""
    write_tree(folder, {PROJECT: "schema: 1\nname: acme\n", **dict(files)})
    with pytest.raises(InputError) as raised:
        read_matrix(Project(folder, (ROOT,)))
    return str(raised.value)


@pytest.mark.parametrize(
    ("parent", "hint"),
    [
        ("cpu-vllm0.32", "hint: write `inherits: drydock/cpu-vllm0.32`"),
        ("drydok/cpu-vllm0.32", "hint: write `inherits: drydock/cpu-vllm0.32`"),
        ("h100", f"hint: write `inherits: drydock/{H100}`"),
        ("drydock/h100", f"hint: write `inherits: drydock/{H100}`"),
        ("cpu-vlm0.32", "did you mean `inherits: drydock/cpu-vllm0.32`?"),
        ("drydock/cpu-vllm0.33", "did you mean `inherits: drydock/cpu-vllm0.32`?"),
        ("acme-cpu", "acme-cpu is in this file; what both share belongs in a stack"),
        ("xpu-vllm0.16", "drydock retired the row 'drydock/xpu-vllm0.16'"),
        ("xpu-vllm0.16", "write `inherits: drydock/xpu-vllm0.30`, which replaces it"),
        ("nothing-like-it", "`./inv matrix` outside of this project lists drydock's rows"),
    ],
)
def test_a_row_that_is_inherited_is_named_as_it_is_written(tmp_path: Path, parent: str, hint: str) -> None:
    text = hint_of(tmp_path, row(f"inherits: {parent}"))
    assert hint in text
    assert "tpu" not in text


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        (own("requirements+: [a==1]"), f"`requirements` {IN_STACK}"),
        (own("requirements: [a==1]"), f"`requirements` {IN_STACK}"),
        (own("packages: [a]"), f"`packages` {IN_STACK}"),
        (own("checks: []"), f"`checks` {IN_STACK}"),
        (own("base: {kind: image}"), f"`base` {IN_STACK}"),
        (own("python: '3.12'"), f"`python` {IN_STACK}"),
        (own("pip: [a]"), f"`requirements` {IN_STACK}"),
        (own("apt: [a]"), f"`packages` {IN_STACK}"),
        (own("certificates: certs"), f"`certificates` {IN_ADDITIONS}"),
        (own("user: '1'"), f"`user` {IN_ADDITIONS}"),
        (own("labels: {a: b}"), f"`labels` {IN_ADDITIONS}"),
        (own("environment: {A: b}"), "write `env`"),
        (own("flags: {--a: 1}"), "write `serve`"),
        (own("--max-num-seqs: 64"), f"write `serve: {{--max-num-seqs: {{value: 64, {SETTING}}}`"),
        (own("VLLM_X: '1'"), f'write `env: {{VLLM_X: {{value: "1", {SETTING}}}`'),
        (own("serve+: {--a: 1}"), "`serve` without +"),
        (own("alias: [x]"), "did you mean 'aliases'?"),
        (stack("aliases: [x]"), f"`aliases` {IN_ROW}"),
        (stack("platforms: [linux/amd64]"), f"`platforms` {IN_ROW}"),
        (stack("default: true"), f"`default` {IN_ROW}"),
        (stack("stack: x"), f"`stack` {IN_ROW}"),
        (stack("files: {/a: b}"), f"`files` {IN_ADDITIONS}"),
        (stack("registry: a.example"), "`registry` belongs in drydock.yaml"),
        (stack("requirement+: [a]"), "did you mean 'requirements'?"),
        (stack("requirements+: a==1"), "write it with a list"),
        (stack("--max-num-seqs: 64"), f"write `serve: {{--max-num-seqs: {{value: 64, {SETTING}}}`"),
        (project("requirements+: [a]"), f"`requirements` {IN_STACK}"),
        (project("packages: [a]"), f"`packages` {IN_STACK}"),
        (project("serve: {}"), f"`serve` {IN_ROW}, or in a stack"),
        (project("--max-num-seqs: 64"), "in a row, below `variants` in matrix.yaml"),
        (project("variants: {}"), "`variants` belongs at the top of matrix.yaml"),
        (project("certificates: certs"), f"`certificates` {IN_ADDITIONS}"),
        (project("target: cpu"), "`target` belongs below `defaults` in drydock.yaml"),
        (project("additions: {packages: [a]}"), f"`packages` {IN_STACK}"),
        (project("additions: {certificate: certs}"), "did you mean 'certificates'?"),
        ((MATRIX, "schema: 1\nrows: {}\n"), "write `variants`"),
        ((MATRIX, f"schema: 1\nacme-cpu: {{{INHERITS}}}\n"), "a row belongs below `variants`"),
        ((MATRIX, "schema: 1\nadditions: {user: '1'}\n"), f"`additions` {IN_ROW}, or in drydock.yaml"),
        ((MATRIX, "schema: 1\nname: acme\n"), "`name` belongs in drydock.yaml"),
    ],
)
def test_a_key_is_sent_to_its_place(tmp_path: Path, file: tuple[str, str], hint: str) -> None:
    assert hint in hint_of(tmp_path, row(f"{INHERITS}, stack: acme-cpu"), stack(""), file)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("serve: {--max-num-seqs: 64}", f"write `--max-num-seqs: {{value: 64, {SETTING}`"),
        ("serve: {--enforce-eager: true}", f"write `--enforce-eager: {{value: true, {SETTING}`"),
        ("serve: {--enforce-eager: }", f"write `--enforce-eager: {{value: …, {SETTING}`"),
        ("serve: {max_num_seqs: 64}", f"write `--max-num-seqs: {{value: 64, {SETTING}`"),
        ("serve: {VLLM_X: '1'}", f'write `env: {{VLLM_X: {{value: "1", {SETTING}}}`'),
        ("env: {VLLM_X: '1'}", f'write `VLLM_X: {{value: "1", {SETTING}`'),
        ("env: {--max-num-seqs: 64}", f"write `serve: {{--max-num-seqs: {{value: 64, {SETTING}}}`"),
        ("serve: [--max-num-seqs=64]", f"write `serve: {{--max-num-seqs: {{value: …, {SETTING}}}`"),
        ("serve: --max-num-seqs 64", f"write `serve: {{--max-num-seqs: {{value: …, {SETTING}}}`"),
        ("env: [A=1]", f"write `env: {{VLLM_LOGGING_LEVEL: {{value: …, {SETTING}}}`"),
        ("serve: {--max-num-seqs: {value: 64}}", "a setting has three keys: `--max-num-seqs: {value: "),
    ],
)
@pytest.mark.parametrize("place", [own, stack])
def test_a_setting_is_shown_with_its_three_keys(tmp_path: Path, place: object, text: str, hint: str) -> None:
    assert callable(place)
    assert hint in hint_of(tmp_path, row(f"{INHERITS}, stack: acme-cpu"), stack(""), place(text))


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("drydock/cpu-vllm0.32", "write `acme-cpu: {inherits: drydock/cpu-vllm0.32}`"),
        ("", "write `acme-cpu: {inherits: drydock/ROW}`"),
        ("{stack: cpu-0.32}", "missing key 'platforms' (line 3, column 3)\n\nhint: add it; or `inherits: drydock/ROW`"),
        (f"{{{INHERITS}, stack: nothing-like-it}}", "leave `stack` out: a row has that of the row it inherits"),
        (f"{{{INHERITS}, stack: drydock/cpu-0.32}}", "expected a name of lower-case letters, digits and . _ -"),
    ],
)
def test_a_row_is_shown_in_its_form(tmp_path: Path, written: str, hint: str) -> None:
    assert hint in hint_of(tmp_path, (MATRIX, f"schema: 1\nvariants:\n  acme-cpu: {written}\n"))


BASE = "such as base: {kind: image, reference: ubuntu:24.04"


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        (
            stack("requirements-: [a]"),
            "write all of it as `requirements`, which replaces the inherited one; `exclude+`",
        ),
        (stack("exclude: [triton]"), 'write `{name: "triton", because: WHY}`'),
        (stack("exclude+: triton"), "`exclude+` adds to a list: write it with a list"),
        (stack("exclude: triton"), 'write `exclude: [{name: "triton", because: WHY}]`'),
        (stack("requirements: structlog"), 'write `requirements: ["structlog"]`'),
        (stack("overrides: [numpy==2]"), 'write `{requirement: "numpy==2", because: WHY}`'),
        (stack("base: acme/base:1"), f"{BASE}, release: "),
        (stack("base: acme/base@sha256:1"), f"{BASE}, digest: sha256:…, release: "),
        (stack("base: {kind: image, reference: acme@sha256:1, release: a}"), "a digest has the key `digest`"),
        (
            stack("requirements: [structlog]"),
            "`requirements` replaces the list of drydock/cpu-0.32; write `requirements+`",
        ),
        (
            stack("indexes: [{url: 'https://me:pw@x.example/s', packages: [a], source: b}]"),
            "pip's configuration or ~/.netrc",
        ),
        (own("platforms: [amd64, arm64]"), "expected linux/amd64, linux/arm64, "),
        (own("additions: {labels: {my team: a}}"), "such as com.example.team"),
    ],
)
def test_a_list_and_its_entries_are_shown_in_their_form(tmp_path: Path, file: tuple[str, str], hint: str) -> None:
    text = hint_of(tmp_path, row(f"{INHERITS}, stack: acme-cpu"), stack(""), file)
    assert hint in text
    assert "text that matches" not in text


def test_each_pattern_of_a_file_that_users_write_is_said_in_words() -> None:
    def list_patterns(schema: Any) -> Iterator[str]:
        for key, value in schema.items() if isinstance(schema, dict) else enumerate(schema):
            if isinstance(value, dict | list):
                yield from list_patterns(value)
            elif key == "pattern":
                yield value

    schemas = (ROOT / "drydock/config/schemas" / f"{name}.schema.json" for name in ("matrix", "project", "stack"))
    patterns = {pattern for path in schemas for pattern in list_patterns(json.loads(path.read_text()))}
    assert len(patterns) > 20
    assert patterns - {*EXPECTED} == set()


def test_a_list_that_a_project_replaces_is_named_with_how_to_add_to_it(tmp_path: Path) -> None:
    written = stack("requirements: [structlog==25.1.0, torch==2.13.0+cpu]\nexclude+: [{name: a, because: b}]")
    for name, text in (row(f"{INHERITS}, stack: acme-cpu"), written, project("rows: []")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    replacing = Project(tmp_path, (ROOT,))
    (line,) = describe_replaced_lists(replacing, find_variant(read_matrix(replacing), "acme-cpu"))
    assert line.startswith(f"{STACK}: `requirements` replaces the list of drydock/cpu-0.32, and ")
    assert line.endswith("; `requirements+` adds to it")
