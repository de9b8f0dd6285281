"""Windows Subsystem for Linux: one device file, /dev/dxg, stands for every GPU and for its driver."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.checks.grants import examine_facts
from entrypoints.core.records import Facts, Finding
from entrypoints.decide.parallelism.devices import choose_pool
from tests.support.hosts import expect

QUERY = "nvidia-smi --query-gpu="


def _below_windows(name: str, *hidden: str, **files: str) -> dict[str, Any]:
    """Return a recorded host without the paths that begin with these, and with /dev/dxg."""
    host = expect.document(name)
    linux_files = {path: text for path, text in host["files"].items() if not path.startswith(hidden)}
    return {**host, "files": {**linux_files, "/dev/dxg": "", **files}}


def _examined(name: str, host: dict[str, Any]) -> tuple[Facts, dict[str, Finding]]:
    profile = expect.profile_of(name)
    facts = expect.look(expect.opened(host), profile)
    return facts, {finding.id: finding for finding in examine_facts(profile, facts)}


def test_nvidia_gpus_need_no_device_files_of_their_own() -> None:
    host = _below_windows("cuda-rtx4090-8x", "/dev/nvidia", "/proc/driver/nvidia", "/sys/bus/pci")
    facts, findings = _examined("cuda-rtx4090-8x", host)

    assert len(facts.devices) == 8
    assert "RUN-001" not in findings
    assert "PROBE-001" not in findings


def test_amd_gpus_need_no_device_files_of_their_own() -> None:
    host = _below_windows("rocm-rx7900xtx-2x", "/dev/kfd", "/dev/dri", "/sys/class/kfd")
    agent = (
        "Agent 1\n  Name: gfx1100\n  Marketing Name: AMD Radeon RX 7900 XTX\n  Device Type: GPU\n  Size: 25149440(KB)\n"
    )
    host["commands"] = {"rocminfo": {"rc": 0, "stdout": agent, "stderr": ""}}
    facts, findings = _examined("rocm-rx7900xtx-2x", host)

    assert [device.architecture for device in facts.devices] == ["gfx1100"]
    assert "RUN-001" not in findings


def test_a_linux_without_device_files_lacks_them_still() -> None:
    host = expect.document("cuda-rtx4090-8x")
    host["files"] = {path: text for path, text in host["files"].items() if not path.startswith("/dev/nvidia")}

    assert _examined("cuda-rtx4090-8x", host)[1]["RUN-001"].severity == "FAIL"


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ((("RTX 3090", 24576), ("RTX 3090", 24576), ("RTX 5090", 32607)), [0, 1]),
        ((("RTX 5090", 32607), ("RTX 3090", 24576), ("RTX 3090", 24576)), [1, 2]),
        ((("RTX 3090", 24576), ("RTX 5090", 32607)), [1]),
    ],
)
def test_of_mixed_gpus_the_group_with_the_most_memory_serves(
    names: tuple[tuple[str, int], ...], chosen: list[int]
) -> None:
    head = "index, name, memory.total [MiB], memory.used [MiB], compute_cap, pci.bus_id"
    rows = (
        f"{at}, NVIDIA GeForce {name}, {mib} MiB, 900 MiB, 8.6, 0000:0{at}:00.0" for at, (name, mib) in enumerate(names)
    )
    host = _below_windows("cuda-rtx4090-8x", "/dev/nvidia", "/proc/driver/nvidia", "/sys/bus/pci")
    text = "\n".join((head, *rows)) + "\n"
    host["commands"] = {line: {"rc": 0, "stdout": text, "stderr": ""} for line in host["commands"] if QUERY in line}
    pool = choose_pool(_examined("cuda-rtx4090-8x", host)[0], None, 0.9)

    assert [device.number for device in pool.devices] == chosen
    assert [notice.id for notice in pool.findings] == ["PLAN-023"]


def test_windows_driver_is_not_asked_for_links_which_it_does_not_know() -> None:
    host = _below_windows("cuda-rtx4090-8x", "/dev/nvidia", "/proc/driver/nvidia", "/sys/bus/pci")
    refusal = {"rc": 255, "stdout": "", "stderr": "Failed to initialize topology"}
    host["commands"] = {**host["commands"], "nvidia-smi topo -m": refusal}
    facts, findings = _examined("cuda-rtx4090-8x", host)

    assert (len(facts.devices), facts.links) == (8, ())
    assert "PROBE-001" not in findings
