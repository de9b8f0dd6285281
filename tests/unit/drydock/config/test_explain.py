"""`matrix --explain`: each value of a row is where the row really has it from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.config import explain as module
from drydock.config.explain import Explained, Origin, explain
from drydock.config.matrix import find, read_matrix
from drydock.config.project import DRYDOCK, read_settings
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs import others
from drydock.model.record import dump
from drydock.model.variant import Variant
from tests.support.projects import ACME, VENDOR, write

VARIANTS = read_matrix(DRYDOCK)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project over a vendor's, which also changes a threshold and a check of an accelerator."""
    changed = "thresholds: {server_memory_gib: {value: 2.0, because: ours, source: us}}\n"
    write(tmp_path / "vendor", VENDOR)
    acme = write(tmp_path / "acme", {**ACME, "templates/cpu/accelerator.yaml": changed}, "../vendor")
    return others.over(Project(acme, (ROOT,)), read_settings(Project(acme)))


def entries(explained: Explained, field: str) -> list[Origin]:
    return [each for each in explained.values if each.key == field or each.key.startswith((f"{field}.", f"{field}["))]


def values(explained: Explained, field: str) -> list[object]:
    """Return the entries of a list, from one file or several."""
    found = entries(explained, field)
    return found[0].value if len(found) == 1 and found[0].key == field else [each.value for each in found]  # type: ignore[no-any-return]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_what_is_explained_is_what_the_row_has(variant: Variant) -> None:
    found, row = explain(DRYDOCK, variant), dump(variant)
    settings = {
        each.key.partition(".")[2]: each.value["value"] for name in ("env", "serve") for each in entries(found, name)
    }
    assert settings == {each.setting: each.value for each in variant.settings}
    assert {each.key.partition(".")[2] for each in entries(found, "thresholds")} == {*variant.thresholds}
    assert {each.key.partition(".")[2] for each in entries(found, "caches")} == {*variant.caches}
    support = {check.id for check in variant.checks if variant.support and check == variant.support.check()}
    assert {each.key.partition(".")[2] for each in entries(found, "checks")} == {
        it.id for it in variant.checks
    } - support
    for field in ("requirements", "packages", "platforms", "aliases"):
        if entries(found, field):
            assert values(found, field) == row[field] or field == "packages"
    trims = [each["distribution"] for each in values(found, "trim")] if entries(found, "trim") else []  # type: ignore[index]
    assert trims == [each.distribution for each in variant.trim]
    said = {each.key: each.value for each in found.values}
    assert (said["python"], said["stack"], said["module"]) == (variant.python, variant.stack, variant.module)
    assert said["base"]["kind"] == variant.base.kind
    if variant.vllm.version and "vllm" in said:
        assert said["vllm"]["version"] == variant.vllm.version


@pytest.mark.parametrize("variant", VARIANTS[::7], ids=lambda variant: variant.id)
def test_the_line_that_is_named_has_the_key(variant: Variant) -> None:
    values = explain(DRYDOCK, variant).values
    assert values
    for each in values:
        line = (ROOT / each.place.file).read_text().splitlines()[each.place.line - 1]
        assert each.place.layer == ""
        name = (
            each.value["id"]
            if each.key.startswith("checks.")
            else each.key.split(".--")[-1].split("[")[0].split(".")[-1]
        )
        assert name in line or "value:" in line or "[" in each.key, (each, line)


def test_layers_and_what_they_replace_are_shown(project: Project) -> None:
    found = explain(project, find(read_matrix(project), "acme-cpu"))
    shown = {
        each.key: (str(each.place), [f"{old} {old.value}".strip() for old in each.replaced]) for each in found.values
    }
    assert (str(found.row), found.inherits) == ("matrix.yaml:4", ("vendor/vendor-next", "drydock/cpu-vllm0.32"))
    assert found.stacks[:2] == ("templates/cpu/stacks/acme-cpu.yaml", "vendor:templates/cpu/stacks/vendor-cpu.yaml")
    assert found.stacks[2] == "drydock:templates/cpu/stacks/cpu-0.32.yaml"
    assert shown["serve.--max-num-seqs"] == ("matrix.yaml:6", ["vendor:matrix.yaml:8 32"])
    place, replaced = shown["stack"]
    assert (place, replaced[0]) == ("matrix.yaml:5", "vendor:matrix.yaml:5 vendor-cpu")
    assert replaced[1].startswith("drydock:matrix.yaml:")
    assert replaced[1].endswith(" cpu-0.32")
    assert shown["requirements[3]"][0] == "vendor:templates/cpu/stacks/vendor-cpu.yaml:3"
    assert shown["requirements[4]"][0] == "templates/cpu/stacks/acme-cpu.yaml:2"
    place, (old,) = shown["thresholds.server_memory_gib"]
    assert place == "templates/cpu/accelerator.yaml:1"
    assert old.startswith("drydock:templates/cpu/accelerator.yaml:")
    assert shown["additions.labels.com.acme.team"][0] == "drydock.yaml:4"
    assert shown["additions.dockerfile[0]"][0] == "vendor:drydock.yaml:6"
    assert shown["additions.dockerfile[1]"][0] == "vendor:matrix.yaml:10"
    assert "default" not in shown


def test_text_has_a_line_for_each_row_or_for_each_value(project: Project) -> None:
    found = [explain(project, find(read_matrix(project), name)) for name in ("acme-cpu", "vendor-next")]
    first, second = module.as_text(found, whole=False).splitlines()
    assert first.startswith(
        "acme-cpu     matrix.yaml:4  inherits vendor/vendor-next < drydock/cpu-vllm0.32, stack templ"
    )
    assert second.startswith("vendor-next  vendor:matrix.yaml:4  inherits drydock/cpu-vllm0.32, stack vendor:templates")
    lines = module.as_text(found[:1], whole=True).splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("  serve.--max-num-seqs"))
    assert lines[at].split() == ["serve.--max-num-seqs", "matrix.yaml:6", "64"]
    assert lines[at + 1].split() == ["vendor:matrix.yaml:8", "replaced:", "32"]
    assert sum(line.startswith("  facts.") for line in lines) <= 2


def test_json_has_every_value(project: Project) -> None:
    found = [explain(project, find(read_matrix(project), "acme-cpu"))]
    (row,) = json.loads(module.as_json(found, whole=True))["variants"]
    (flag,) = (each for each in row["values"] if each["key"] == "serve.--max-num-seqs")
    assert flag == {
        "key": "serve.--max-num-seqs",
        "value": {"value": 64, "because": "ours", "source": "us"},
        "layer": "",
        "file": "matrix.yaml",
        "line": 6,
        "replaced": [{"layer": "vendor", "file": "matrix.yaml", "line": 8, "value": "32"}],
    }
    assert "values" not in json.loads(module.as_json(found, whole=False))["variants"][0]
