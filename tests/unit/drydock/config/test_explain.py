"""`matrix --explain`: each value of a row is where the row really has it from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.config import explain
from drydock.config.explain import Explained, Origin, explain_row
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK, read_settings
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs import others
from drydock.model.record import dump_record
from drydock.model.variant import Variant
from tests.support.projects import ACME, VENDOR, write

VARIANTS = read_matrix(DRYDOCK)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project over a vendor's, which also changes a threshold and a check of an accelerator."""
    changed = "thresholds: {server_memory_gib: {value: 2.0, because: ours, source: us}}\n"
    write(tmp_path / "vendor", VENDOR)
    acme = write(tmp_path / "acme", {**ACME, "templates/cpu/accelerator.yaml": changed}, "../vendor")
    return others.add_other_layers(Project(acme, (ROOT,)), read_settings(Project(acme)))


def entries(explained: Explained, field: str) -> list[Origin]:
    return [item for item in explained.values if item.key == field or item.key.startswith((f"{field}.", f"{field}["))]


def values(explained: Explained, field: str) -> list[object]:
    """Return the entries of a list, from one file or several."""
    items = entries(explained, field)
    return items[0].value if len(items) == 1 and items[0].key == field else [item.value for item in items]  # type: ignore[no-any-return]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_what_is_explained_is_what_the_row_has(variant: Variant) -> None:
    report, row = explain_row(DRYDOCK, variant), dump_record(variant)
    settings = {
        item.key.partition(".")[2]: item.value["value"] for name in ("env", "serve") for item in entries(report, name)
    }
    assert settings == {item.setting: item.value for item in variant.settings}
    assert {item.key.partition(".")[2] for item in entries(report, "thresholds")} == {*variant.thresholds}
    assert {item.key.partition(".")[2] for item in entries(report, "caches")} == {*variant.caches}
    support = {check.id for check in variant.checks if variant.support and check == variant.support.check()}
    assert {item.key.partition(".")[2] for item in entries(report, "checks")} == {
        row_check.id for row_check in variant.checks
    } - support
    for field in ("requirements", "packages", "platforms", "aliases"):
        if entries(report, field):
            assert values(report, field) == row[field] or field == "packages"
    trims = [item["distribution"] for item in values(report, "trim")] if entries(report, "trim") else []  # type: ignore[index]
    assert trims == [item.distribution for item in variant.trim]
    by_key = {item.key: item.value for item in report.values}
    assert (by_key["python"], by_key["stack"], by_key["module"]) == (variant.python, variant.stack, variant.module)
    assert by_key["base"]["kind"] == variant.base.kind
    if variant.vllm.version and "vllm" in by_key:
        assert by_key["vllm"]["version"] == variant.vllm.version


@pytest.mark.parametrize("variant", VARIANTS[::7], ids=lambda variant: variant.id)
def test_the_line_that_is_named_has_the_key(variant: Variant) -> None:
    values = explain_row(DRYDOCK, variant).values
    assert values
    for item in values:
        line = (ROOT / item.place.file).read_text().splitlines()[item.place.line - 1]
        assert item.place.layer == ""
        name = (
            item.value["id"]
            if item.key.startswith("checks.")
            else item.key.split(".--")[-1].split("[")[0].split(".")[-1]
        )
        assert name in line or "value:" in line or "[" in item.key, (item, line)


def test_layers_and_what_they_replace_are_shown(project: Project) -> None:
    report = explain_row(project, find_variant(read_matrix(project), "acme-cpu"))
    shown_values = {
        item.key: (str(item.place), [f"{old} {old.value}".strip() for old in item.replaced]) for item in report.values
    }
    assert (str(report.row), report.inherits) == ("matrix.yaml:4", ("vendor/vendor-next", "drydock/cpu-vllm0.32"))
    assert report.stacks[:2] == ("templates/cpu/stacks/acme-cpu.yaml", "vendor:templates/cpu/stacks/vendor-cpu.yaml")
    assert report.stacks[2] == "drydock:templates/cpu/stacks/cpu-0.32.yaml"
    assert shown_values["serve.--max-num-seqs"] == ("matrix.yaml:6", ["vendor:matrix.yaml:8 32"])
    place, replaced = shown_values["stack"]
    assert (place, replaced[0]) == ("matrix.yaml:5", "vendor:matrix.yaml:5 vendor-cpu")
    assert replaced[1].startswith("drydock:matrix.yaml:")
    assert replaced[1].endswith(" cpu-0.32")
    assert shown_values["requirements[3]"][0] == "vendor:templates/cpu/stacks/vendor-cpu.yaml:3"
    assert shown_values["requirements[4]"][0] == "templates/cpu/stacks/acme-cpu.yaml:2"
    place, (old,) = shown_values["thresholds.server_memory_gib"]
    assert place == "templates/cpu/accelerator.yaml:1"
    assert old.startswith("drydock:templates/cpu/accelerator.yaml:")
    assert shown_values["additions.labels.com.acme.team"][0] == "drydock.yaml:4"
    assert shown_values["additions.dockerfile[0]"][0] == "vendor:drydock.yaml:6"
    assert shown_values["additions.dockerfile[1]"][0] == "vendor:matrix.yaml:10"
    assert "default" not in shown_values


def test_text_has_a_line_for_each_row_or_for_each_value(project: Project) -> None:
    reports = [explain_row(project, find_variant(read_matrix(project), name)) for name in ("acme-cpu", "vendor-next")]
    first, second = explain.format_explained(reports, whole=False).splitlines()
    assert first.startswith(
        "acme-cpu     matrix.yaml:4  inherits vendor/vendor-next < drydock/cpu-vllm0.32, stack templ"
    )
    assert second.startswith("vendor-next  vendor:matrix.yaml:4  inherits drydock/cpu-vllm0.32, stack vendor:templates")
    lines = explain.format_explained(reports[:1], whole=True).splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("  serve.--max-num-seqs"))
    assert lines[at].split() == ["serve.--max-num-seqs", "matrix.yaml:6", "64"]
    assert lines[at + 1].split() == ["vendor:matrix.yaml:8", "replaced:", "32"]
    assert sum(line.startswith("  facts.") for line in lines) <= 2


def test_json_has_every_value(project: Project) -> None:
    reports = [explain_row(project, find_variant(read_matrix(project), "acme-cpu"))]
    (row,) = json.loads(explain.format_explained_json(reports, whole=True))["variants"]
    (flag,) = (item for item in row["values"] if item["key"] == "serve.--max-num-seqs")
    assert flag == {
        "key": "serve.--max-num-seqs",
        "value": {"value": 64, "because": "ours", "source": "us"},
        "layer": "",
        "file": "matrix.yaml",
        "line": 6,
        "replaced": [{"layer": "vendor", "file": "matrix.yaml", "line": 8, "value": "32"}],
    }
    assert "values" not in json.loads(explain.format_explained_json(reports, whole=False))["variants"][0]
