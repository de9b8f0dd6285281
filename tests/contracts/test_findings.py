"""An id of a finding is a contract: one meaning, in one table, documented, never used again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from drydock.config.accelerator_files import read_retired
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.model.checks import KnownFinding
from drydock.model.variant import Variant
from tests.support.cases import for_each

VARIANTS = read_matrix(DRYDOCK)
RETIRED = read_retired(DRYDOCK)
TABLES = {variant.accelerator: variant.findings for variant in VARIANTS}
TABLE: dict[str, KnownFinding] = {
    number: known_finding for table in TABLES.values() for number, known_finding in table.items()
}
SHARED = set.intersection(*(set(table) for table in TABLES.values()))
CHECKS = {check.id for variant in VARIANTS for check in variant.checks}
PAGES = "".join(path.read_text() for path in sorted((ROOT / "docs" / "reference").glob("*.md")))

OLDER = {
    "cpu": {"PLAN-001", "PLAN-002", "PLAN-003", "PLAN-004", "PLAN-005"},
    "xpu": {"PLAN-036"},
    "ascend": {"PLAN-047"},
    "neuron": {"PLAN-071", "PLAN-072", "PLAN-073", "PLAN-074", "PLAN-075"},
    "openvino": {"PLAN-081", "PLAN-082", "PLAN-083", "PLAN-084"},
}
"""Ids of one accelerator from before each had a prefix. A new finding takes the accelerator's own prefix."""

HELPERS = {"executor": "cpu"}
"""Modules of decisions that only one accelerator has, beside that of its name."""


class Call(NamedTuple):
    """One place in the code that makes a finding."""

    path: Path
    line: int
    node: ast.Call

    @property
    def id(self) -> str:
        """Return the id as it is written; empty where it is not written out."""
        first = self.node.args[0] if self.node.args else None
        return str(first.value) if isinstance(first, ast.Constant) else ""


def calls(name: str) -> Iterator[Call]:
    for path in sorted((ROOT / "entrypoints").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == name:
                yield Call(path.relative_to(ROOT / "entrypoints"), node.lineno, node)


NOTICES = list(calls("make_notice"))


def owner(call: Call) -> str:
    """Return the accelerator whose decisions a call belongs to; empty where all share them."""
    if call.path.parts[0] != "decide":
        return ""
    names = (HELPERS.get(call.path.stem, call.path.stem), call.path.parts[1])
    return next((name for name in names if name in TABLES), "")


def test_findings_are_made_in_one_place_only() -> None:
    assert {call.path for call in (*calls("Finding"), *calls("Notice"))} == {Path("checks/findings.py")}


def words(variant: Variant) -> Iterator[str]:
    """Yield all texts of a variant that tell the user what to do."""
    yield from (check.remediation for check in variant.checks)
    yield from (finding.remediation for finding in variant.findings.values())
    yield from (f"{threshold.because} {threshold.value}" for threshold in variant.thresholds.values())


def targets(text: str) -> list[str]:
    """Return the targets that a text names, after --target or as a variant's id."""
    begin = "|".join({re.match("[a-z]+", variant.id)[0] for variant in VARIANTS})  # type: ignore[index]
    return [
        *re.findall(r"--target[ =]([a-z0-9][\w.-]*\w)", text),
        *re.findall(rf"(?<![\w.-])(?:{begin})\d[\w.]*-[\w.-]*\w", text),
    ]


@for_each(VARIANTS, lambda variant: variant.id)
def test_a_target_that_a_text_names_exists(variant: Variant) -> None:
    named_targets = {target for text in words(variant) for target in targets(text)}

    rows = named_targets - {"auto"}  # the row that fits this machine
    assert [target for target in rows if not any(row.answers_to(target) for row in VARIANTS)] == []


def test_targets_are_found_in_a_text() -> None:
    assert targets("use --target gaudi2, or habana1.22-hnic; not cuda-graph, cuda 13.0") == [
        "gaudi2",
        "habana1.22-hnic",
    ]


@for_each(NOTICES, lambda call: f"{call.path}:{call.line}")
def test_code_writes_out_an_id_that_its_table_has(call: Call) -> None:
    assert call.id in (TABLES[owner(call)] if owner(call) else SHARED)


@for_each(NOTICES, lambda call: f"{call.path}:{call.line}")
def test_code_gives_what_the_words_name(call: Call) -> None:
    keywords = {keyword.arg for keyword in call.node.keywords}
    if call.path.stem == "grants" and TABLE[call.id].placeholders:
        assert keywords == {None}
        keywords = {"because", "source", "option"}  # of its _said

    assert keywords == TABLE[call.id].placeholders


def test_every_finding_of_the_table_is_made_by_code() -> None:
    assert {call.id for call in NOTICES} == set(TABLE)


@for_each(TABLES)
def test_an_accelerators_findings_have_its_own_prefix(accelerator: str) -> None:
    own_ids = set(TABLES[accelerator]) - SHARED - OLDER.get(accelerator, set())
    other_prefixes = {
        number.partition("-")[0]
        for name, table in TABLES.items()
        for number in (set(table) | {check.id for v in VARIANTS if v.accelerator == name for check in v.checks})
        if name != accelerator
    }

    assert not {number.partition("-")[0] for number in own_ids} & other_prefixes
    assert len({number.partition("-")[0] for number in own_ids}) <= 1


def test_every_id_is_documented_and_the_retired_ones_with_what_replaced_them() -> None:
    assert [number for number in (*CHECKS, *TABLE) if f"</a>**{number}** " not in PAGES] == []
    lines = [line for line in PAGES.partition("\n## Retired\n")[2].splitlines() if line.startswith("- ")]
    listed = {number: words for number, _, words in (line[2:].partition(": ") for line in lines)}
    assert all((item.replaced_by or item.meaning) in listed[item.id] for item in RETIRED)


def test_a_retired_id_is_not_used_and_each_of_its_meanings_has_one_that_is() -> None:
    used_ids = CHECKS | set(TABLE)

    assert not {item.id for item in RETIRED} & used_ids
    assert {item.replaced_by for item in RETIRED if item.replaced_by} <= used_ids
    assert len({(item.id, item.replaced_by) for item in RETIRED}) == len(RETIRED)
