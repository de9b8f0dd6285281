"""What the CPU image says of its vLLM, read from files, is what the imported vLLM says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from drydock.build import build
from drydock.build.build_job import Job
from drydock.config.project_choice import DRYDOCK
from drydock.engine.run_container import run_to_end
from drydock.lock.vllm_lists import find_lists, read_program
from entrypoints.request.vllm_lists import VllmLists
from tests.support import imported_lists

pytestmark = [pytest.mark.proves("cpu-vllm0.32", "packages"), pytest.mark.of_foundation]
PYTHON = "/opt/venv/bin/python3"
RECORDED = "/opt/drydock/vllm.json"


@pytest.fixture(scope="module")
def recorded(built: build.Built) -> dict[str, Any]:
    """Return the lists that the image has."""
    lists: dict[str, Any] = json.loads(run_to_end(built.image, ("cat", RECORDED)))
    return lists


@pytest.fixture(scope="module")
def imported(built: build.Built) -> dict[str, Any]:
    """Return what the vLLM of the image says after it was imported."""
    caches = {"NUMBA_CACHE_DIR": "/tmp", "HOME": "/tmp"}
    output = run_to_end(built.image, (PYTHON, "-c", PROGRAM), environment=caches)
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


PROGRAM = Path(imported_lists.__file__).read_text()


def test_every_list_is_that_of_the_registry(recorded: dict[str, Any], imported: dict[str, Any]) -> None:
    assert len(imported["lists"]) == 12
    for name, entries in imported["lists"].items():
        assert recorded[name] == entries, name


def test_the_flags_are_those_of_the_running_parser(recorded: dict[str, Any], imported: dict[str, Any]) -> None:
    options = imported["options"]
    assert {*options} == VllmLists(recorded).option_strings()
    switches = {"switch": "_StoreTrueAction", "boolean": "BooleanOptionalAction"}
    wrong = {
        flag: takes
        for flag, takes in recorded["flags"].items()
        if switches.get(str(takes), "") not in ("", options[flag][0])
    }
    assert wrong == {}


def test_no_value_that_vllm_accepts_is_left_out(recorded: dict[str, Any], imported: dict[str, Any]) -> None:
    choices = {flag: set(takes) for flag, takes in recorded["flags"].items() if isinstance(takes, list)}
    assert len(choices) > 20
    left_out = {flag: set(imported["options"][flag][1]) - words for flag, words in choices.items()}
    assert {flag: words for flag, words in left_out.items() if words} == {}


BY_PLATFORM = {"MiniMaxM3MTP", "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"}
"""vLLM chooses among their modules while it runs, so that no file says which is imported."""


def test_the_classes_that_cannot_be_imported_are_those_that_require_a_package(
    recorded: dict[str, Any], imported: dict[str, Any]
) -> None:
    required, present = recorded["required_packages"], set(recorded["packages"])
    refused = {name for name, packages in required.items() if set(packages) - present}
    without_package = re.compile("No module named '(torchvision|timm|terratorch)|Could not import module")
    really = {name for name, words in imported["not_imported"].items() if without_package.search(words)}

    assert len(refused) > 50
    assert really - BY_PLATFORM == refused


STAND_IN = """
import json, sys
import vllm.config  # asks whether torchvision is there
from importlib import import_module
from drydock_plugin.deferring import stand_in
from vllm.model_executor.models.registry import ModelRegistry
stand_in()
failed = []
for name in sys.argv[1:]:
    model = ModelRegistry.models[name]
    try:
        getattr(import_module(model.module_name), model.class_name)
    except ImportError as error:
        failed.append(f"{name}: {error}")
print(json.dumps(failed))
"""


def test_with_the_plugin_all_classes_that_require_torchvision_alone_can_be_imported(
    built: build.Built, recorded: dict[str, Any]
) -> None:
    names = [name for name, packages in recorded["required_packages"].items() if packages == ["torchvision"]]
    variables = {"PYTHONPATH": "/opt/drydock/entrypoints/plugin", "DRYDOCK_ABSENT_PACKAGES": "torchvision"}
    caches = {"NUMBA_CACHE_DIR": "/tmp", "HOME": "/tmp"}
    output = run_to_end(built.image, (PYTHON, "-c", STAND_IN, *names), environment={**caches, **variables})

    assert len(names) > 50
    assert json.loads(output.splitlines()[-1]) == []


def test_the_architectures_that_only_transformers_has_are_those_that_vllm_takes(
    recorded: dict[str, Any], imported: dict[str, Any]
) -> None:
    served = read_program(DRYDOCK).SERVED

    runs = {name: runs for name, runs in imported["fallback"].items() if served.fullmatch(name)}
    assert sum(runs.values()) > 200
    # the files also name classes that transformers does not export, such as parts of a model
    assert [name for name in recorded["fallback_architectures"] if name in runs] == [
        name for name, is_run in runs.items() if is_run
    ]


def test_the_lists_of_the_locked_wheel_are_those_of_the_image(job: Job, recorded: dict[str, Any]) -> None:
    wheel_lists = find_lists(DRYDOCK, job.variant, job.lock, job.platform)

    assert wheel_lists is not None
    assert wheel_lists.assumed == ""
    assert wheel_lists.lists == recorded
