"""TPU chips: generations by PCI id, device files of either kind, and every layout of tpu-info."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.core.records import ProbeResult
from entrypoints.facts.probes import tpu
from entrypoints.host.commands import TIMED_OUT, Commands
from entrypoints.host.host import Host
from tests.support.hosts.trees import SAMPLES, Tree, pci, sample, write_tree

GIB = 1 << 30
LAYOUTS = {
    "tpu-info.v4-4x.v0.0.1.txt": ("v4", 4, 30.75, True),
    "tpu-info.v4-4x.txt": ("v4", 4, 31.75, True),
    "tpu-info.v6e-4x.v0.4.0.txt": ("v6e", 4, 31.25, True),
    "tpu-info.v6e-4x.v0.5.1.txt": ("v6e", 4, 31.25, True),
    "tpu-info.v6e-4x.txt": ("v6e", 4, 31.25, True),
    "tpu-info.v6e-4x.streaming.txt": ("v6e", 4, 31.25, True),
    "tpu-info.v5p-4x.idle.txt": ("v5p", 4, None, None),
    "tpu-info.v5e-1x.txt": ("v5e", 1, None, None),
}


def text(name: str) -> str:
    return sample(f"tpu/{name}")


# --- layouts --------------------------------------------------------------------------------------------------------


def test_every_sample_is_tried() -> None:
    assert {path.name for path in (SAMPLES / "tpu").iterdir()} == set(LAYOUTS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_parses(name: str) -> None:
    generation, count, total, busy = LAYOUTS[name]
    answer = tpu.parse_tpu_info(text(name))

    assert [(chip.generation, chip.busy) for chip in answer.chips] == [(generation, busy)] * count
    assert [usage and usage[1] / GIB for usage in answer.usage] == ([total] * count if total else [])


def test_the_library_names_its_version() -> None:
    assert tpu.parse_tpu_info(text("tpu-info.v6e-4x.txt")).libtpu == "0.0.19.dev20250721+nightly"
    assert tpu.parse_tpu_info(text("tpu-info.v5p-4x.idle.txt")).libtpu == "0.0.39"


def test_memory_that_is_not_told_stays_unknown() -> None:
    table = "TPU Chips\n| Chip | Type | Devices | PID |\n|---|---|---|---|\n| /dev/vfio/0 | TPU7x chip | 2 | 1, 2 |\n\n"
    answer = tpu.parse_tpu_info(table + "TPU HBM Usage\n| Chip | HBM Usage (GiB) |\n|---|---|\n| 0 | N/A |\n")

    assert answer == tpu.TpuInfoOutput((tpu.TpuInfoChip("/dev/vfio/0", "v7x", busy=True),), (None,))


def test_a_machine_without_chips_has_none() -> None:
    assert tpu.parse_tpu_info("No TPU chips found.\n") == tpu.TpuInfoOutput()


@pytest.mark.parametrize(
    ("wrong", "quoted"),
    [
        ("", "Chip, Type"),
        ("Segmentation fault\n", "Segmentation fault"),
        (text("tpu-info.v4-4x.txt").replace("TPU v4 chip", "a chip"), "a chip"),
        (text("tpu-info.v4-4x.txt").replace("/dev/accel1", "/dev/accel0"), "once"),
        (text("tpu-info.v4-4x.txt").replace("0.00 GiB / 31.75 GiB", "much             "), "much"),
        (text("tpu-info.v4-4x.txt").replace("│ 130007 │", "│ 13 │ 0007 │"), "4 columns"),
        (text("tpu-info.v4-4x.txt").replace("0.00 GiB / 31", "90.0 GiB / 31"), "31.75"),
    ],
)
def test_an_unknown_layout_is_refused_with_the_line(wrong: str, quoted: str) -> None:
    with pytest.raises(ValueError, match=quoted):
        tpu.parse_tpu_info(wrong)


@pytest.mark.parametrize(
    ("named", "generation"),
    [
        ("v4-8", "v4"),
        ("v5litepod-4", "v5e"),
        ("tpu-v5-lite-podslice", "v5e"),
        ("v5p-8", "v5p"),
        ("v6e-8", "v6e"),
        ("tpu7x-8", "v7x"),
        ("", ""),
        ("large", ""),
    ],
)
def test_the_accelerator_type_names_the_generation(named: str, generation: str) -> None:
    assert tpu.generation_of(named) == generation


# --- hosts ----------------------------------------------------------------------------------------------------------


def probe(
    tmp_path: Path, tree: Tree, answer: dict[str, object] | None = None, kind: str = ""
) -> tuple[ProbeResult, Host]:
    commands = {} if answer is None else {"tpu-info": answer}
    host = Host(str(write_tree(tmp_path, {**tree, "commands.json": json.dumps(commands)})))
    return tpu.probe(host, Commands(host).run, {"TPU_ACCELERATOR_TYPE": kind}), host


def chips(device: str, count: int, files: str) -> Tree:
    tree: Tree = {f"dev/{files}{number}": "" for number in range(count)}
    for number in range(count):
        tree |= pci(f"0000:00:{number + 4:02x}.0", "0x1ae0", device, "0x088000", number // 2, "0-59")
    return tree


def said(stdout: str, rc: int = 0, stderr: str = "") -> dict[str, object]:
    return {"rc": rc, "stdout": stdout, "stderr": stderr}


def test_no_chip_is_no_failure(tmp_path: Path) -> None:
    network = pci("0000:00:03.0", "0x1ae0", "0x0042", "0x020000")
    result, host = probe(tmp_path, {**network, "dev/vfio/7": ""})

    assert (result, host.failures) == (ProbeResult(), [])


def test_groups_name_the_file_where_the_kernel_does(tmp_path: Path) -> None:
    groups = {f"sys/kernel/iommu_groups/{9 - number}/devices/0000:00:{number + 4:02x}.0": "" for number in range(2)}
    files = {"dev/vfio/8": "", "dev/vfio/9": ""}
    result, _ = probe(tmp_path, {**chips("0x0063", 2, "accel-none"), **groups, **files})

    assert [device.path for device in result.devices] == ["/dev/vfio/9", "/dev/vfio/8"]


def test_a_chip_of_two_dies_is_two_devices(tmp_path: Path) -> None:
    two_dies = pci("0000:00:04.0", "0x1ae0", "0x0076", "0x088000") | pci("0000:00:04.1", "0x1ae0", "0x0076", "0x088000")
    result, _ = probe(tmp_path, {**two_dies, "dev/vfio/0": "", "dev/vfio/1": ""})

    assert [(device.card, device.path) for device in result.devices] == [(0, "/dev/vfio/0"), (0, "/dev/vfio/1")]


@pytest.mark.parametrize(
    "addresses",
    [
        [f"0000:{bus:02x}:{slot:02x}.0" for bus in range(4, 8) for slot in range(2)],
        [f"0000:{bus:02x}:00.{function}" for bus in range(4, 8) for function in range(4)],
        [f"000{domain}:01:{slot:02x}.0" for domain in range(4) for slot in range(4)],
        [f"0000:00:{slot:02x}.0" for slot in range(4, 12)],
        [f"0000:00:{slot:02x}.0" for slot in range(4, 8)],
    ],
)
def test_four_chips_of_v7x_are_eight_devices_however_many_functions(tmp_path: Path, addresses: list[str]) -> None:
    tree: Tree = {f"dev/vfio/{number}": "" for number in range(4)} | {"dev/vfio/vfio": ""}
    for address in addresses:
        tree |= pci(address, "0x1ae0", "0x0076", "0x088000")
    result, _ = probe(tmp_path, tree)

    assert [device.card for device in result.devices] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [device.path for device in result.devices] == [f"/dev/vfio/{number // 2}" for number in range(8)]


def test_a_second_function_of_a_chip_of_one_die_is_no_device(tmp_path: Path) -> None:
    functions = pci("0000:00:04.0", "0x1ae0", "0x006f", "0x088000") | pci(
        "0000:00:04.1", "0x1ae0", "0x006f", "0x088000"
    )
    result, _ = probe(tmp_path, {**functions, "dev/vfio/0": ""})

    assert [(device.architecture, device.card) for device in result.devices] == [("v6e", None)]


def test_both_dies_of_an_older_chip_share_its_file(tmp_path: Path) -> None:
    tree = {**chips("0x0027", 2, "accel"), "sys/bus/pci/devices/0000:00:04.0/subsystem_device": "0x004f\n"}
    result, _ = probe(tmp_path, tree)

    assert [(device.architecture, device.path) for device in result.devices] == [
        ("v3", "/dev/accel0"),
        ("v3", "/dev/accel0"),
        ("v3", "/dev/accel1"),
        ("v3", "/dev/accel1"),
    ]


def test_without_sys_the_environment_names_the_generation(tmp_path: Path) -> None:
    result, host = probe(tmp_path, {"dev/vfio/0": "", "dev/vfio/vfio": ""}, kind="v5litepod-1")

    assert host.failures == []
    assert [(device.architecture, device.path) for device in result.devices] == [("v5e", "/dev/vfio/0")]


@pytest.mark.parametrize("groups", [True, False])
def test_a_slice_of_four_chips_of_two_cores_is_eight_devices(tmp_path: Path, groups: bool) -> None:
    tree = {f"dev/vfio/{number}": "" for number in range(4)} | {"dev/vfio/vfio": ""}
    result, _host = probe(tmp_path, tree if groups else chips("0x0076", 4, "vfio/"), kind="tpu7x-8")

    assert [(device.architecture, device.card) for device in result.devices] == [
        ("v7x", card // 2) for card in range(8)
    ]
    assert {device.path for device in result.devices} == {f"/dev/vfio/{number}" for number in range(4)}


def test_a_chip_of_unknown_generation_is_a_failure(tmp_path: Path) -> None:
    _, host = probe(tmp_path, {"dev/accel0": ""})

    assert [(failure.where, failure.found) for failure in host.failures] == [
        ("/dev/accel0", "a TPU of unknown generation")
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (said(""), "Chip, Type"),
        (said("\ufffd\x00"), "\ufffd"),
        (said("", rc=1, stderr="ModuleNotFoundError: No module named 'grpc'"), "grpc"),
        (said("", rc=TIMED_OUT, stderr="tpu-info: no answer within 20 s"), "no answer within 20 s"),
    ],
)
def test_a_tool_that_fails_says_so_and_the_chips_stay(tmp_path: Path, answer: dict[str, object], message: str) -> None:
    result, host = probe(tmp_path, chips("0x006f", 1, "vfio/"), answer)

    assert len(result.devices) == 1
    assert [message in failure.found for failure in host.failures] == [True]


# --- damage ---------------------------------------------------------------------------------------------------------
