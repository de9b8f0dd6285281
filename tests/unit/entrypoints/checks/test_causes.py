"""What a probe could not read has the cause and the remedy that `explain` has for the same line."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest

from drydock.config.failures import failures_text
from drydock.config.project_choice import DRYDOCK
from entrypoints.checks.causes import add_cause, find_cause, tell_unread
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.records import TOOL_OUTPUT, Failure, Finding
from tests.support.sample import KNOWN, facts

LINES = [
    ("cuda", "Failed to initialize NVML: Driver/library version mismatch NVML library version: 570.195", "Reboot"),
    ("cuda", "Failed to initialize NVML: Unknown Error", "cgroupfs"),
    ("ascend", "dcmi model initialized failed, because the device is used. ret is -8020", "Stop the other container"),
    ("ascend", "npu-smi: error while loading: libdcmi.so: cannot open shared object file", "/usr/local/dcmi"),
]


@functools.cache
def _failures(accelerator: str) -> dict[str, Any]:
    failures: dict[str, Any] = json.loads(failures_text(DRYDOCK, accelerator))["failures"]
    return failures


def _told(accelerator: str, error_text: str) -> Finding:
    profile = {"findings": KNOWN, "failures": _failures(accelerator)}
    (finding,) = tell_unread(profile, facts(failures=(Failure("the tool", error_text, "its output"),)))
    return finding


@pytest.mark.parametrize(("accelerator", "line", "remedy"), LINES)
def test_a_known_line_has_its_cause_and_remedy(accelerator: str, line: str, remedy: str) -> None:
    finding, cause = _told(accelerator, line), find_cause(line, _failures(accelerator))

    assert cause
    assert (finding.id, finding.remediation, finding.source) == ("PROBE-001", cause["remedy"], cause["source"])
    assert remedy in finding.remediation
    assert finding.text.endswith(cause["cause"])


@pytest.mark.parametrize(
    ("accelerator", "line"),
    [
        *((accelerator, line) for accelerator, line, _ in LINES[:3]),
        ("cuda", "Failed to initialize NVML: Insufficient Permissions"),
        ("cuda", "Unable to determine the device handle for GPU0000:9A:00.0: GPU is lost."),
        ("ascend", "dcmi module initialize failed. ret is -8005"),
    ],
)
def test_explain_names_the_finding_that_check_has_for_a_failed_tool(accelerator: str, line: str) -> None:
    cause = find_cause(line, _failures(accelerator))

    assert cause
    assert cause["check"] == _told(accelerator, line).id


def test_an_unknown_line_has_the_remedy_of_any_file() -> None:
    finding = _told("cuda", "Permission to fly denied")

    assert "make the tool readable" in finding.remediation


def test_a_tool_that_ran_and_failed_is_not_to_be_mounted() -> None:
    failure = Failure("efsmi -q", "Fail to initialize EFML", TOOL_OUTPUT)
    (finding,) = tell_unread({"findings": KNOWN}, facts(failures=(failure,)))

    assert finding.remediation.startswith("run efsmi on the host: ")
    assert "mount it" not in finding.remediation


def test_the_longest_pattern_says_the_most() -> None:
    failures = {name: {"patterns": [pattern]} for name, pattern in (("short", "NVML"), ("long", "NVML: *Error"))}

    assert find_cause("init NVML: Unknown Error", failures) is failures["long"]
    assert find_cause("Error of NVML", failures) is failures["short"]


@pytest.mark.parametrize(("accelerator", "line", "remedy"), LINES)
def test_an_error_about_devices_ends_with_the_remedy(accelerator: str, line: str, remedy: str) -> None:
    failed_facts = facts(failures=(Failure("the tool", line, "its output"),))
    profile = {"failures": _failures(accelerator)}
    error = add_cause(EntrypointError(HOST, "memory is unknown.", "expected its output"), profile, failed_facts)

    assert remedy in error.hint
    assert re.match(r"memory is unknown\. [A-Z]", error.message)


def test_an_error_about_anything_else_stays() -> None:
    failed_facts = facts(failures=(Failure("the tool", LINES[0][1], "its output"),))
    error = EntrypointError(USAGE, "no device 9", "available devices: 0")

    assert add_cause(error, {"failures": _failures("cuda")}, failed_facts) is error
    assert add_cause(EntrypointError(HOST, "a", "b"), {}, failed_facts).hint == "b"


@pytest.mark.parametrize(
    ("accelerator", "line", "scope"),
    [
        ("cuda", "Failed to initialize NVML: Driver/library version mismatch", "host"),
        ("cuda", "Failed to initialize NVML: Unknown Error", "container"),
        ("ascend", "dcmi model initialized failed, because the device is used. ret is -8020", "host"),
        ("ascend", "nobody knows this line", "container"),
    ],
)
def test_a_remedy_is_labelled_with_the_place_where_it_is_applied(accelerator: str, line: str, scope: str) -> None:
    assert _told(accelerator, line).scope == scope
