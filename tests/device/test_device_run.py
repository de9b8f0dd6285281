"""run.sh on stand-ins for machines with devices: vendors' tools answer what real ones did, or are hostile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drydock.core.paths import ROOT
from tests.device.device_check import Row, compare_facts
from tests.device.prepare import prepare
from tests.device.vendor_tools import ask_vendor, parse_amd_json, parse_gaudi_csv, parse_nvidia_xml, parse_xpu_csv
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
TOOL = """#!/usr/bin/python3
import json, sys, time
from pathlib import Path
path = Path(__file__)
answers = json.loads(path.with_name("answers.json").read_text())
answer = answers.get(" ".join([path.name, *sys.argv[1:]]), {"rc": 6, "stdout": "no such answer"})
time.sleep(answer.get("seconds", 0))
for _ in range(answer.get("times", 1)):
    sys.stdout.write(answer["stdout"])
sys.exit(answer["rc"])
"""
QUERY = "nvidia-smi -q -x"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the profiles of every accelerator."""
    folder = tmp_path_factory.mktemp("device") / "prepared"
    prepare(folder)
    return folder


@pytest.fixture
def machine(tmp_path: Path, prepared: Path) -> Path:
    """A folder with the prepared profiles and, in `bin`, a stand-in for nvidia-smi with driver 580."""
    (tmp_path / "prepared").symlink_to(prepared)
    recorded = (expect.HOSTS / HOST / expect.FILE).read_text()
    for old, new in (("535.104.12", "580.95.05"), ("CUDA Version: 12.2", "CUDA Version: 13.0")):
        recorded = recorded.replace(old, new)
    recorded = recorded.replace("GPU-00000000-0000-0000-0000-000000000000", f"GPU-{UUID}")
    install(tmp_path, json.loads(recorded)["commands"] | {QUERY: {"rc": 0, "stdout": XML}})
    return tmp_path


def install(machine: Path, answers: dict[str, Any]) -> None:
    """Write the stand-ins for the tools that have answers."""
    (machine / "bin").mkdir(exist_ok=True)
    (machine / "bin" / "answers.json").write_text(json.dumps(answers))
    for name in {command.partition(" ")[0] for command in answers}:
        (machine / "bin" / name).write_text(TOOL)
        (machine / "bin" / name).chmod(0o755)


def answers_of(machine: Path) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((machine / "bin" / "answers.json").read_text())
    return answers


def without_network() -> Sequence[str]:
    """Return the words before a command that runs it without a network, where this kernel lets a user do that."""
    words = ("unshare", "--net", "--map-root-user")
    try:
        allowed = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return ()
    return words if allowed else ()


def run(machine: Path, prepared: str = "prepared", host: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the script as on a machine that has only a distribution's Python, without drydock's packages."""
    path = f"{machine / 'bin'}:/usr/bin:/bin"
    environment = {
        "PATH": path,
        "OUT": str(machine / "out"),
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        "PYTHON": "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable,
        **env,
    }
    command = [*without_network(), "sh", str(RUN), str(machine / prepared), host]
    return subprocess.run(command, env=environment, cwd=machine, capture_output=True, text=True, check=False)


def texts_of(machine: Path) -> dict[str, str]:
    out = machine / "out"
    return {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()}


def differing(result: subprocess.CompletedProcess[str]) -> list[list[str]]:
    return [line.split()[1:] for line in result.stdout.splitlines() if line.startswith("DIFF")]


def test_the_host_is_recorded_checked_planned_and_compared_and_nothing_says_whose_it_is(machine: Path) -> None:
    result = run(machine)

    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 1} rows, 0 different"
    texts = texts_of(machine)
    host = "hosts/cuda-nvidia-h100-80gb-hbm3-1x/host.json"
    assert set(texts) == {host, "facts.json", "check.json", "check.txt", "plans.json", "table.txt"}
    for text in (result.stdout, *texts.values()):
        assert UUID not in text
        assert SERIAL not in text
    (device,) = json.loads(texts["facts.json"])["devices"]
    assert (device["memory_total"], device["bus"]) == (81559 << 20, "0000:53:00.0")
    plans = json.loads(texts["plans.json"])
    assert len(plans) == 5
    assert [model for model, plan in plans.items() if plan["exit_code"]] == ["meta-llama/Llama-3.3-70B-Instruct"]
    assert "host.json" not in texts["plans.json"]  # it was planned on the machine, not on its record


def test_a_fact_that_differs_from_the_vendors_tool_is_named(machine: Path) -> None:
    install(machine, answers_of(machine) | {QUERY: {"rc": 0, "stdout": XML.replace("81559 MiB", "40960 MiB")}})
    result = run(machine)

    assert result.returncode == 1
    assert differing(result) == [["0", "memory", "81559", "MiB", "40960", "MiB"]]
    assert result.stdout.endswith(" rows, 1 different\n")


def test_a_machine_without_a_device_is_told_so_in_one_line(machine: Path) -> None:
    (machine / "bin" / "nvidia-smi").unlink()
    result = run(machine)

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("no device found by the probes of ascend, cuda, ")
    assert not (machine / "out").exists()


def test_without_a_prepared_profile_the_command_that_makes_it_is_named(machine: Path) -> None:
    result = run(machine, "absent")

    assert (result.returncode, result.stdout) == (2, "")
    assert (
        f"{machine / 'absent'}/profile.json: not found; make it with: python tests/device/prepare.py" in result.stderr
    )


def test_a_python_that_is_too_old_is_named(machine: Path) -> None:
    (machine / "bin" / "old").write_text("#!/bin/sh\nexit 1\n")
    (machine / "bin" / "old").chmod(0o755)
    result = run(machine, "prepared", PYTHON=str(machine / "bin" / "old"))

    assert (result.returncode, result.stdout) == (2, "")
    assert "expected Python 3.10 or newer" in result.stderr


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"rc": 0, "stdout": "", "seconds": 60}, "nvidia-smi -q -x: no answer within 1 s"),
        ({"rc": 0, "stdout": "x" * 1_000_000, "times": 10_000}, "nvidia-smi -q -x: more than 4194304 bytes"),
    ],
)
def test_a_hostile_tool_costs_its_row_and_nothing_else(machine: Path, answer: dict[str, Any], expected: str) -> None:
    install(machine, answers_of(machine) | {QUERY: answer})
    result = run(machine, "prepared/cuda", VENDOR_SECONDS="1")

    assert result.returncode == 1, result.stderr
    (row,) = differing(result)
    assert row[:4] == ["vendor's", "tool", "1", "devices"]
    assert expected in " ".join(row)
    assert sum(map(len, texts_of(machine).values())) < 1 << 20


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"rc": 9, "stdout": "Failed to initialize NVML: Driver/library version mismatch"}, "version mismatch"),
        ({"rc": 0, "stdout": "<a>" * 50_000}, "nvidia-smi -q -x: "),
        ({"rc": 0, "stdout": '<!DOCTYPE a [<!ENTITY b "bb">]><a>&b;</a>'}, "ValueError: defines entities"),
        ({"rc": 0, "stdout": "<nvidia_smi_log/>"}, "lists no card"),
    ],
)
def test_an_answer_without_cards_is_a_problem(tmp_path: Path, answer: dict[str, Any], expected: str) -> None:
    install(tmp_path, {QUERY: answer})
    vendor = ask_vendor("cuda", 10, {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})

    assert expected in vendor.problem
    assert vendor.cards == ()


def test_a_serial_number_in_odd_places_is_removed(machine: Path) -> None:
    answers = answers_of(machine)
    for answer in answers.values():
        answer["stdout"] = answer["stdout"].replace("H100 80GB HBM3", f"H100 80GB HBM3 {SERIAL}")
    install(machine, answers)
    result = run(machine, "prepared/cuda")

    assert "0 name" in result.stdout
    texts = texts_of(machine)
    assert any(path.startswith("hosts/cuda-nvidia-h100-80gb-hbm3-removed-") for path in texts)
    for text in (result.stdout, result.stderr, *texts, *texts.values()):
        assert SERIAL not in text


ROCM_QUERY = "rocm-smi --showproductname --showbus --showmeminfo vram --showdriverversion --json"
ROCM_CARD = {
    "Card Series": "AMD Instinct MI300X OAM",
    "VRAM Total Memory (B)": "206141652992",
    "VRAM Total Used Memory (B)": "297795584",
}
SYSTEM = {"system": {"Driver version": "6.10.5"}}


def recorded_answers(host: str) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((expect.HOSTS / host / expect.FILE).read_text())["commands"]
    return recorded


def rocm_answers() -> dict[str, Any]:
    devices = json.loads((expect.HOSTS / "rocm-mi300x-8x" / "facts.json").read_text())["devices"]
    cards = {f"card{number}": ROCM_CARD | {"PCI Bus": device["bus"]} for number, device in enumerate(devices)}
    unique = "GPU[0]\t\t: Unique ID: 0x9246aa0b5e2f11d4\nGPU[0]\t\t: Serial Number: PCB052211-0097\n"
    return {
        ROCM_QUERY: {"rc": 0, "stdout": json.dumps(cards | SYSTEM)},
        "rocm-smi --showuniqueid --showserial": {"rc": 0, "stdout": unique},
    }


def compared(tmp_path: Path, host: str, answers: dict[str, Any]) -> dict[str, Row]:
    """Return the rows of a recorded host's facts and the vendor's tool, by what they compare."""
    install(tmp_path, answers)
    facts = json.loads((expect.HOSTS / host / "facts.json").read_text())
    vendor = ask_vendor(facts["accelerator"], 10, {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    return {row.what: row for row in compare_facts(facts, vendor)}


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("rocm-mi300x-8x", ("7 memory", "driver", "0 bus")),
        ("rocm-mi355x-8x", ("7 memory", "driver", "7 name")),
        ("habana-gaudi2-8x", ("7 memory", "driver", "7 used")),
        ("habana-gaudi2e-8x", ("7 memory", "driver", "7 used")),
        ("ascend-910b3-8x", ("7 memory", "driver", "7 bus")),
        ("ascend-a3-8x2", ("15 memory", "driver", "15 name")),
        ("ascend-310p3", ("1 memory", "driver", "1 name")),
        ("xpu-max1100-1x", ("0 name", "0 bus")),
        ("neuron-trn2n.48xlarge", ("vendor's tool",)),
    ],
)
def test_the_facts_of_other_vendors_are_compared_with_their_tools(
    tmp_path: Path, host: str, names: tuple[str, ...]
) -> None:
    answers = rocm_answers() if host == "rocm-mi300x-8x" else recorded_answers(host)
    rows = compared(tmp_path, host, answers)

    assert [row for row in rows.values() if not row.same] == []
    assert {*names} <= {*rows}


def test_a_card_that_only_the_vendors_tool_lists_is_a_difference(tmp_path: Path) -> None:
    answers = rocm_answers()
    cards = json.loads(answers[ROCM_QUERY]["stdout"])
    more = {ROCM_QUERY: {"rc": 0, "stdout": json.dumps(cards | {"card8": ROCM_CARD})}}
    rows = compared(tmp_path, "rocm-mi300x-8x", answers | more)

    assert rows["devices"] == ("devices", "8", "9", False)


def test_a_recorded_host_stands_for_the_machine(tmp_path: Path, prepared: Path) -> None:
    install(tmp_path, rocm_answers())
    result = run(tmp_path, str(prepared / "rocm"), str(expect.HOSTS / "rocm-mi300x-8x"))

    assert result.returncode == 0, result.stdout + result.stderr
    assert "kernel" not in result.stdout  # this machine's is another
    assert "hosts/rocm-amd-instinct-mi300x-oam-8x/host.json" in texts_of(tmp_path)


def test_the_forms_of_the_tools_are_read() -> None:
    (gaudi,) = parse_gaudi_csv(
        "name, bus_id, driver_version, memory.total [MiB], memory.used [MiB]\n"
        "HL-325L, 0000:9a:00.0, 1.22.1-97ec1a4, 131072 MiB, 672 MiB\n"
    )
    (xpu,) = parse_xpu_csv(
        "Device Name,Driver Version,PCI BDF Address,Memory Physical Size\n"
        '"Intel(R) Graphics [0x56c0]","16929133","0000:4d:00.0","14248.00 MiB"\n'
    )
    text = json.dumps(
        {"gpu_data": [{"gpu": 0, "asic": {"market_name": "MI300X"}, "bus": {"bdf": "0000:83:00.0"},
                       "vram": {"size": {"value": 196592, "unit": "MB"}}, "driver": {"version": "6.19.14"}}]}
    )  # fmt: skip
    (amd,) = parse_amd_json(text)

    assert gaudi == ("HL-325L", 131072, 672, "0000:9a:00.0", "", "1.22.1-97ec1a4")
    assert xpu == ("Intel(R) Graphics [0x56c0]", 14248, None, "0000:4d:00.0", "", "16929133")
    assert amd == ("MI300X", 196592, None, "0000:83:00.0", "", "6.19.14")
    assert parse_nvidia_xml(XML)[0].uuid == f"GPU-{UUID}"


def test_a_tool_that_hangs_is_not_asked_for_serial_numbers(tmp_path: Path) -> None:
    install(tmp_path, {"hl-smi": {"rc": 0, "stdout": "", "seconds": 60}, "hl-smi -q": {"rc": 0, "stdout": "Serial"}})
    answer = ask_vendor("habana", 0.5, {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})

    assert answer.problem.endswith("hl-smi: no answer within 0.5 s")
    assert "Serial" not in "".join(answer.texts)
