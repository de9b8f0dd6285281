"""Every recorded host gives the facts, findings and plans that are committed beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.config.failures import failures_text
from drydock.config.project_choice import DRYDOCK
from entrypoints.checks.findings import PASS
from entrypoints.checks.grants import examine_facts
from entrypoints.checks.symptoms import add_failures
from entrypoints.core.errors import HOST
from entrypoints.core.parse import parse_kernel_words
from entrypoints.core.records import TOOL_OUTPUT, Failure
from entrypoints.facts.facts import collect_facts
from entrypoints.facts.probes.common.kernel_settings import BOOT
from entrypoints.facts.record import FILE, dump_recorded_host
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host
from entrypoints.plan.plan import find_host_refusal
from tests.support.hosts import expect, trees

CHOICES = {
    "ascend": ("ASCEND_RT_VISIBLE_DEVICES",),
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "enflame": ("TOPS_VISIBLE_DEVICES",),
    "habana": ("HABANA_VISIBLE_MODULES",),
    "neuron": ("NEURON_RT_VISIBLE_CORES",),
    "rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "tpu": ("TPU_VISIBLE_CHIPS",),
    "xpu": ("ZE_AFFINITY_MASK",),
}
"""Accelerator → the variables with which its runtime chooses devices by number."""


@pytest.mark.golden
@pytest.mark.parametrize("name", expect.names())
def test_a_recorded_host_gives_what_is_expected_of_it(name: str) -> None:
    for file, value in expect.expected(name).items():
        committed = (expect.HOSTS / name / file).read_text()

        assert json.loads(expect.dumps(value, file)) == json.loads(committed), f"{name}/{file}: ./inv generate"
        assert expect.dumps(value, file) == committed


def test_a_recorded_host_says_where_it_is_from_and_is_written_as_record_writes_it() -> None:
    hosts = {name: expect.document(name) for name in expect.names()}

    assert [name for name, host in hosts.items() if not host["origin"]] == []
    assert [
        name for name, host in hosts.items() if dump_recorded_host(host) != (expect.HOSTS / name / FILE).read_text()
    ] == []


def test_a_recorded_host_gives_the_same_facts_as_a_folder_tree(tmp_path: Path) -> None:
    """As earlier versions recorded hosts, and as the fixing script is tried on them."""
    for name in expect.names():
        profile = expect.profile_of(name)
        folder = trees.write_tree(tmp_path / name, trees.read_recorded_tree(name))

        assert expect.look(Host(str(folder)), profile) == expect.read(name, profile), name


def test_no_recorded_host_holds_an_environment_or_a_mount_table() -> None:
    for name in expect.names():
        files = expect.document(name)["files"]
        line = files.get("/proc/cmdline", "")
        words = parse_kernel_words(line, tuple(BOOT))

        assert [path for path in files if path.endswith(("environ", "mountinfo"))] == [], name
        assert line.split() == [f"{word}={value}" for word, value in words.items()], name


def test_a_host_that_plan_refuses_has_a_finding_of_check_with_the_same_remedy() -> None:
    for name in expect.names():
        plans = json.loads((expect.HOSTS / name / "plan.json").read_text())
        profile = expect.profile_of(name)
        facts = expect.read(name, profile)
        findings = (*find_host_refusal(profile, facts, {}), *examine_facts(profile, facts))
        remedies = {finding.remediation for finding in findings if finding.severity != PASS}

        assert {plan["hint"] for plan in plans.values() if plan.get("code") == HOST} <= remedies, name


@pytest.mark.parametrize("accelerator", CHOICES)
def test_check_finds_what_plan_refuses_of_a_host_on_every_accelerator(accelerator: str) -> None:
    for name in (name for name in expect.names() if name.startswith(f"{accelerator}-")):
        profile = expect.profile_of(name)
        facts = expect.read(name, profile)
        held = facts._replace(devices=tuple(device._replace(busy=True) for device in facts.devices))

        for changed in (held, facts._replace(devices=())):
            assert [finding.id for finding in find_host_refusal(profile, changed, {})] == ["PLAN-020"], name


@pytest.mark.parametrize(
    ("error_text", "scope"),
    [("Failed to initialize NVML: Unknown Error", "container"), ("Driver/library version mismatch", "host")],
)
def test_a_refused_host_has_the_remedy_of_the_cause_where_it_is_applied(error_text: str, scope: str) -> None:
    name = "cuda-h100-8x"
    profile = expect.profile_of(name)
    facts = expect.read(name, profile)
    unread = facts._replace(
        devices=tuple(device._replace(memory_total=None) for device in facts.devices),
        failures=(Failure("nvidia-smi", error_text, TOOL_OUTPUT),),
    )
    (refusal,) = find_host_refusal(add_failures(profile, json.loads(failures_text(DRYDOCK, "cuda"))), unread, {})

    assert (refusal.id, refusal.scope) == ("PLAN-020", scope)
    assert "the memory of devices 0-7 is unknown" in refusal.found
    (unknown,) = find_host_refusal(profile, unread._replace(devices=unread.devices[:1]), {})
    assert unknown.remediation.startswith("run nvidia-smi on the host: ")
    assert "the memory of device 0 is unknown" in unknown.found


@pytest.mark.parametrize(("accelerator", "variable"), [(name, item) for name in CHOICES for item in CHOICES[name]])
def test_a_variable_that_names_a_missing_device_is_told_which_there_are(accelerator: str, variable: str) -> None:
    name = next(name for name in expect.names() if name.startswith(f"{accelerator}-") and "held" not in name)
    profile, env, host = expect.profile_of(name), {variable: "0,999"}, expect.opened(expect.document(name))
    facts = collect_facts(host, Commands(host), profile, env)

    (finding,) = find_host_refusal(profile, facts, env)

    assert variable in finding.found
    assert "999" in finding.found
    assert finding.remediation.startswith("available ")
