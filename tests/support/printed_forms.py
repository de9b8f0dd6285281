"""A container as `run --print --json` gives it in each format, and its parts."""

from __future__ import annotations

import functools
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from drydock.run.container import RunRequest
from tests.support.called_verbs import run_as, run_on_engine
from tests.unit.drydock.verbs.test_run_verb import FakeHere

MODEL = RunRequest(model="org/model")
SCHEMAS = "1.36"
HOSTILE = ["a\nb: c", "$HOME $(id) ${X}", 'it\'s "quoted"', "a=b=c", " ", "", "雪", "`id`", "- x", "\\", "{{x}}"]


def printed(
    request: RunRequest, form: str, folder: Path, capsys: pytest.CaptureFixture[str], target: str = "cpu"
) -> Any:
    """Return what --print --json gives in one format."""
    run_on_engine(target, request, run_as(form, only_print=True, json=True), here=FakeHere(folder))
    return json.loads(capsys.readouterr().out)


def service(data: Any) -> dict[str, Any]:
    (compose_service,) = data["compose"]["services"].values()
    return compose_service  # type: ignore[no-any-return] - as JSON gives it


def pod(data: Any) -> dict[str, Any]:
    workload = next(item for item in data["kubernetes"] if item["kind"] in ("Deployment", "Job"))
    return workload["spec"]["template"]["spec"]  # type: ignore[no-any-return] - as JSON gives it


def variables(data: Any) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in pod(data)["containers"][0]["env"]}


@functools.cache
def compose_schema() -> Any:
    """Return the Compose Specification's schema, as check-jsonschema brings it."""
    text = (resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text()
    return json.loads(text)
