"""Each example of docs/orchestrators.md has only fields that the project publishes, with their types."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.orchestrators import FIELDS, PAGE, list_problems, read_examples

EXAMPLES = read_examples()
SCHEMAS: Mapping[str, Any] = json.loads(FIELDS.read_text())


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_an_example_fits_the_published_fields(name: str) -> None:
    assert [*list_problems(EXAMPLES[name], SCHEMAS[name]["root"], name)] == []


def test_every_example_is_compared() -> None:
    assert EXAMPLES.keys() == SCHEMAS.keys()


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("kserve", ("spec", "template", "containers", 0, "startupProbe", "httpGet", "prot"), 1, "unknown field"),
        ("kserve", ("spec", "template", "containers", 0, "volumeMounts", 0, "mountPath"), None, "missing"),
        ("kserve", ("spec", "replicas"), "one", "is no integer"),
        ("llm-d-modelservice", ("decode", "containers", 0, "startupProbes"), {}, "unknown field"),
        ("production-stack", ("servingEngineSpec", "modelSpec", 0, "image"), "x", "unknown field"),
        ("dynamo", ("spec", "components", 0, "podTemplate", "spec", "initContainer"), [], "unknown field"),
    ],
)
def test_a_mistake_in_an_example_is_seen(name: str, path: tuple[Any, ...], value: Any, message: str) -> None:
    wrong = copy.deepcopy(EXAMPLES[name])
    place = wrong
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    assert any(message in problem for problem in list_problems(wrong, SCHEMAS[name]["root"], name))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_probes_ask_the_status_port_and_nothing_asks_the_api(name: str) -> None:
    text = json.dumps(EXAMPLES[name])
    if name == "dynamo":  # its worker has no status port of drydock's
        assert "Probe" not in text
        return
    for path in ("/startupz", "/readyz", "/livez"):
        assert f'{{"path": "{path}", "port": 8001' in text
    assert '"mountPath": "/cache"' in text


def test_the_page_names_no_commit_twice() -> None:
    sources = [schema["source"] for schema in SCHEMAS.values()]
    assert len({*sources}) == len(sources)
    assert "kserve/kserve@" in "".join(sources)
    assert "test_orchestrators.py" in PAGE.read_text()
