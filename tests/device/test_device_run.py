"""run.sh on a stand-in for a machine with an H100: its nvidia-smi answers what a real one did."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from tests.device.prepare import prepare
from tests.support.hosts import expect

pytestmark = pytest.mark.checkout

RUN = ROOT / "tests" / "device" / "run.sh"
HOST = "cuda-h100-1x-r535"
UUID, SERIAL = "3f6c1b2a-90de-4c11-8a5e-1d2f3a4b5c6d", "1654922004412"
XML = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
<driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:53:00.0">
<product_name>NVIDIA H100 80GB HBM3</product_name><serial>{SERIAL}</serial><uuid>GPU-{UUID}</uuid>
<fb_memory_usage><total>81559 MiB</total><used>2 MiB</used></fb_memory_usage>
</gpu>
</nvidia_smi_log>
"""
TOOL = """#!/usr/bin/env python3
import json, sys
from pathlib import Path
answers = json.loads(Path(__file__).with_name("answers.json").read_text())
answer = answers.get(" ".join(["nvidia-smi", *sys.argv[1:]]), {"rc": 6, "stdout": "no such answer"})
sys.stdout.write(answer["stdout"])
sys.exit(answer["rc"])
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with the prepared profile and, in `bin`, a stand-in for nvidia-smi with driver 580."""
    prepare(tmp_path / "prepared")
    recorded = (expect.HOSTS / HOST / expect.FILE).read_text()
    for old, new in (("535.104.12", "580.95.05"), ("CUDA Version: 12.2", "CUDA Version: 13.0")):
        recorded = recorded.replace(old, new)
    recorded = recorded.replace("GPU-00000000-0000-0000-0000-000000000000", f"GPU-{UUID}")
    (tmp_path / "bin").mkdir()
    answer(tmp_path, json.loads(recorded)["commands"] | {"nvidia-smi -q -x": {"rc": 0, "stdout": XML}})
    (tmp_path / "bin" / "nvidia-smi").write_text(TOOL)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    return tmp_path


def answer(machine: Path, answers: object) -> None:
    (machine / "bin" / "answers.json").write_text(json.dumps(answers))


def run(machine: Path, prepared: str = "prepared") -> subprocess.CompletedProcess[str]:
    path = f"{machine / 'bin'}:/usr/bin:/bin"
    env = {"PATH": path, "OUT": str(machine / "out"), "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    command = ["sh", str(RUN), str(machine / prepared)]
    return subprocess.run(command, env=env, cwd=machine, capture_output=True, text=True, check=False)


def test_the_host_is_recorded_checked_planned_and_compared_and_nothing_says_whose_it_is(machine: Path) -> None:
    result = run(machine)

    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 1} rows, 0 different"
    files = {path.name: path.read_text() for path in (machine / "out").iterdir()}
    assert set(files) == {"host.json", "facts.json", "check.json", "check.txt", "plans.json", "table.txt"}
    for text in (result.stdout, *files.values()):
        assert UUID not in text
        assert SERIAL not in text
    (device,) = json.loads(files["facts.json"])["devices"]
    assert (device["memory_total"], device["bus"]) == (81559 << 20, "0000:53:00.0")
    plans = json.loads(files["plans.json"])
    assert len(plans) == 5
    assert [model for model, plan in plans.items() if plan["exit_code"]] == ["meta-llama/Llama-3.3-70B-Instruct"]
    assert "host.json" not in files["plans.json"]  # it was planned on the machine, not on its record


def test_a_fact_that_differs_from_the_vendors_tool_is_named(machine: Path) -> None:
    answers = json.loads((machine / "bin" / "answers.json").read_text())
    answers["nvidia-smi -q -x"]["stdout"] = XML.replace("81559 MiB", "40960 MiB")
    answer(machine, answers)
    result = run(machine)

    assert result.returncode == 1
    (line,) = [line.split() for line in result.stdout.splitlines() if line.startswith("DIFF")]
    assert line == ["DIFF", "0", "memory", "81559", "MiB", "40960", "MiB"]
    assert result.stdout.endswith(" rows, 1 different\n")


def test_a_machine_without_the_vendors_tool_is_told_so_in_one_line(machine: Path) -> None:
    (machine / "bin" / "nvidia-smi").unlink()
    result = run(machine)

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "nvidia-smi: not found; run this on a machine with NVIDIA's driver\n"
    assert not (machine / "out").exists()


def test_without_a_prepared_profile_the_command_that_makes_it_is_named(machine: Path) -> None:
    result = run(machine, "absent")

    assert (result.returncode, result.stdout) == (2, "")
    assert (
        f"{machine / 'absent'}/profile.json: not found; make it with: python tests/device/prepare.py" in result.stderr
    )
