"""Recorded hosts with something taken away: fewer device files than cards, a tool that fails, another accelerator's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entrypoints.checks.findings import has_failures
from entrypoints.checks.grants import examine_facts
from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.records import Facts
from entrypoints.host.commands import TIMED_OUT
from entrypoints.host.host import Host
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts import expect
from tests.support.hosts.host_models import MODELS

MODEL = next(iter(MODELS.values()))
PROFILES = {variant.id: expect.profile_in(variant.id) for variant in expect.VARIANTS}
WITHOUT = ("cpu", "openvino", "router")
"""Accelerators that need no device."""
NEEDING = tuple(name for name, profile in PROFILES.items() if profile["accelerator"] not in WITHOUT)
WITH_TOOL = {
    "cuda-h100-8x": "nvidia-smi",
    "ascend-910b3-8x": "npu-smi",
    "habana-gaudi2-8x": "hl-smi",
    "enflame-s60-2x": "efsmi",
}


def refusal(profile: dict[str, Any], facts: Facts) -> EntrypointError:
    with pytest.raises(EntrypointError) as error:
        make_serve_plan(profile, facts, MODEL, parse_user_flags(("--model", "m"), {}))
    return error.value


@pytest.mark.parametrize(
    ("name", "visible_paths"),
    [
        ("ascend-910b3-8x", {"/dev/davinci5"}),
        ("ascend-a3-8x2", {"/dev/davinci6", "/dev/davinci7"}),
        ("habana-gaudi2-8x", {"/dev/accel/accel5"}),
        ("enflame-s60-8x", {"/dev/gcu5"}),
        ("tpu-v5p-4x", {"/dev/vfio/2"}),
        ("neuron-trn1.32xlarge", {"/dev/neuron3"}),
        ("rocm-mi300x-8x", {"/dev/dri/renderD131"}),
        ("xpu-max1550-2x", {"/dev/dri/renderD129"}),
    ],
)
def test_a_container_that_was_given_some_cards_sees_these_alone(name: str, visible_paths: set[str]) -> None:
    host = expect.document(name)
    pattern = min(visible_paths).rstrip("0123456789")
    nodes = {path for path in host["files"] if path.startswith(pattern) and path[len(pattern) :].isdecimal()}
    assert visible_paths < nodes
    host["files"] = {path: text for path, text in host["files"].items() if path not in nodes - visible_paths}
    facts = expect.look(expect.opened(host), expect.profile_of(name))

    assert {device.path for device in facts.devices} == visible_paths
    assert facts.failures == ()


def _without_its_last_line(text: str) -> str:
    return text.strip().rpartition("\n")[0] + "\n"


def _without_card(text: str, number: int, rows: int) -> str:
    """Leave out the rows of a card, which begin with its number."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.lstrip("| ").startswith(f"{number} "))
    return "\n".join(lines[:start] + lines[start + rows :]) + "\n"


@pytest.mark.parametrize(
    ("name", "command", "change", "message"),
    [
        ("cuda-h100-8x", "nvidia-smi --query", _without_its_last_line, "7 GPUs, for /dev/nvidia0"),
        ("habana-gaudi2-8x", "hl-smi", lambda text: _without_card(text, 7, 3), "7 cards, for /dev/accel/accel0"),
        ("enflame-s60-2x", "efsmi", lambda text: _without_card(text, 1, 3), "no card for /dev/gcu1"),
    ],
)
def test_a_card_that_the_tool_no_longer_lists_is_missed(
    name: str, command: str, change: Callable[[str], str], message: str
) -> None:
    host = expect.document(name)
    changed = {
        line: {**answer, "stdout": change(answer["stdout"])}
        for line, answer in host["commands"].items()
        if line.startswith(command) and "-Q" not in line and "topo" not in line
    }
    assert changed
    host["commands"] |= changed
    facts = expect.look(expect.opened(host), expect.profile_of(name))

    assert len(facts.devices) == len(expect.read(name, expect.profile_of(name)).devices) - 1
    assert any(message in failure.found for failure in facts.failures)


@pytest.mark.parametrize(("name", "tool"), WITH_TOOL.items())
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"rc": TIMED_OUT, "stdout": "", "stderr": "no answer within 20 s"}, "no answer within 20 s"),
        ({"rc": 1, "stdout": "", "stderr": "error while loading shared libraries: libx.so"}, "libx.so"),
        ({"rc": 0, "stdout": "Password: ", "stderr": ""}, "Password:"),
        ({"rc": 0, "stdout": "", "stderr": ""}, ""),
        ({"rc": 1, "stdout": "", "stderr": "permission denied: /dev/x"}, "permission denied"),
        ({"rc": 0, "stdout": "未找到设备\n", "stderr": ""}, "未找到设备"),
    ],
)
def test_a_tool_that_does_not_answer_is_what_the_plans_refusal_says(
    name: str, tool: str, answer: dict[str, Any], message: str
) -> None:
    host = expect.document(name)
    host["commands"] = dict.fromkeys(host["commands"], answer)
    profile = expect.profile_of(name)
    facts = expect.look(expect.opened(host), profile)

    assert facts.devices
    assert has_failures(examine_facts(profile, facts))
    assert any(failure.where.startswith(tool) and message in failure.found for failure in facts.failures)
    error = refusal(profile, facts)
    assert error.code == HOST
    assert message in str(error)


@pytest.mark.parametrize("variant", NEEDING)
def test_a_machine_without_the_accelerator_is_told_what_to_start_the_container_with(variant: str) -> None:
    profile = PROFILES[variant]
    hosts = [name for name in expect.names() if not name.startswith(profile["accelerator"])]
    assert hosts
    for name in hosts:
        facts = expect.read(name, profile)
        error = refusal(profile, facts)

        assert error.code == HOST
        assert f"no {profile['accelerator']} device found: " in str(error)
        assert "/dev/" in str(error)
        assert "docker run --" in str(error)
        assert facts.failures == ()
        assert has_failures(examine_facts(profile, facts))


@pytest.mark.parametrize("variant", PROFILES)
def test_an_empty_root_fails_with_what_is_missing(tmp_path: Path, variant: str) -> None:
    facts = expect.look(Host(str(tmp_path)), PROFILES[variant])

    assert "/proc/meminfo" in {failure.where for failure in facts.failures}
    assert refusal(PROFILES[variant], facts).code == HOST
    assert has_failures(examine_facts(PROFILES[variant], facts))
