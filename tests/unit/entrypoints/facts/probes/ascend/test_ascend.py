"""npu-smi's layouts, and what becomes of them on a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drydock.core.paths import ROOT
from entrypoints.core.records import ProbeResult
from entrypoints.facts.probes.ascend import ascend, npu_smi
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host
from tests.support.hosts.trees import Tree, sample, write_tree

MIB = 1 << 20
TABLES = sorted((ROOT / "tests" / "samples" / "ascend").glob("npu-smi-info.*.txt"))


def table(name: str) -> str:
    return sample(f"ascend/npu-smi-info.{name}.txt")


# --- npu-smi info ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "count", "first"),
    [
        ("910b3-8x", "24.1.rc1.b030", 8, (0, 0, "910B3", None, None, "0000:C1:00.0", 3318, 65536)),
        ("910b4-1x", "25.5.2", 1, (5, 0, "910B4", None, None, "0000:41:00.0", 2922, 32768)),
        ("910b2-8x.26.0.rc1", "26.0.rc1", 2, (0, 0, "910B2", None, None, "0000:C1:00.0", 38711, 65536)),
        ("a3-8x2", "25.2.0", 16, (0, 0, "Ascend910", 0, None, "0000:9D:00.0", 61609, 65536)),
        ("a3-1x2.26.0.rc2", "26.0.rc2", 2, (0, 0, "Ascend910", 0, None, "0000:9D:00.0", 3419, 65536)),
        ("310p3-2chips", "25.2.0", 2, (2, 0, "310P3", None, 0, "0000:01:00.0", 1529, 44280)),
        ("310b1", "23.0.rc3", 1, (0, 0, "310B1", None, 0, "", 3841, 11577)),
        ("310b4.one-cell", "23.0.0", 1, (0, 0, "310B4", None, 0, "0000:00:00.0", 2433, 7564)),
        ("910", "23.0.2", 1, (0, 0, "xxx", None, None, "0000:C1:00.0", 0, 32768)),
    ],
)
def test_every_layout_of_the_table_is_read(name: str, version: str, count: int, first: tuple[Any, ...]) -> None:
    info = npu_smi.parse_info(table(name))

    chip = info.chips[0]
    npu, number, kind, physical, logical, bus, memory_used, total = first
    assert (info.version, len(info.chips)) == (version, count)
    assert (chip.npu, chip.chip, chip.name, chip.health) == (npu, number, kind, "OK")
    assert (chip.physical, chip.logical, chip.bus) == (physical, logical, bus)
    assert (chip.memory_used, chip.memory_total) == (memory_used * MIB, total * MIB)


def test_a_table_without_a_column_for_chips_has_one_a_card() -> None:
    alarmed, well = npu_smi.parse_info(table("950pr-2x")).chips

    assert (alarmed.npu, alarmed.chip, alarmed.health, alarmed.bus) == (0, 0, "Alarm", "0000:71:00.0")
    assert (well.npu, well.name, well.health) == (3, "Ascend950PR", "OK")
    assert (well.memory_used, well.memory_total) == (5255 * MIB, 131072 * MIB)


def test_the_second_chip_of_a_card_has_its_own_row_whatever_stands_for_its_power() -> None:
    last = npu_smi.parse_info(table("a3-8x2")).chips[-1]

    assert (last.npu, last.chip, last.physical, last.bus) == (7, 1, 15, "0000:83:00.0")


def test_chips_that_processes_hold_are_told_from_idle_ones() -> None:
    busy = npu_smi.parse_info(table("910b2-8x.26.0.rc1"))

    assert busy.running == {(0, 0)}
    assert busy.listed == {0, 1}


def test_a_table_without_processes_says_nothing_of_them() -> None:
    assert npu_smi.parse_info(table("910b3-8x")).listed == frozenset()


def test_a_card_that_names_only_itself_among_processes_is_held_with_all_its_chips() -> None:
    text = table("310b1") + "| NPU     | Process id    | Process name |\n| 0       | 4711          | python3      |\n"

    assert npu_smi.parse_info(text).running == {(0, None)}


def test_a_table_as_wide_as_you_like_with_more_columns_and_other_units() -> None:
    text = (
        "| npu-smi 31.0  Version: 31.0 |\n"
        "| NPU  Name          Rev | Health | Power(W) |\n"
        "| Chip  Phy-ID | Slot | Bus-Id | HBM-Usage(GB)  New(%)  Memory-Usage(GB) |\n"
        "| 9  Ascend 950PR    A   | Alarm  | NA |\n"
        "| 0  9 | 3 | 00000000:1A:00.0 | 2/112 7 0/0 |\n"
    )

    chip = npu_smi.parse_info(text).chips[0]

    assert (chip.npu, chip.name, chip.health, chip.bus) == (9, "Ascend 950PR", "Alarm", "00000000:1A:00.0")
    assert chip.memory_total == 112 << 30


def test_a_row_with_blank_cells_is_read_by_its_place() -> None:
    text = table("310p3-2chips").replace("| 1       1     ", "|         1     ")

    chip = npu_smi.parse_info(
        text.replace(
            "| 2       310P3                 | OK              | NA           49",
            "| 3       310P3                 | OK              | NA           49",
        )
    ).chips[1]

    assert (chip.npu, chip.chip, chip.logical) == (3, 0, 1)


def test_memory_that_is_not_told_stays_unknown() -> None:
    text = table("310b1").replace("3841 / 11577", "NA   / NA   ")

    assert npu_smi.parse_info(text).chips[0].memory_total is None


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "''"),
        ("dcmi model initialized failed, because the device is used. ret is -8020\n", "dcmi model initialized"),
        (table("910b4-1x").replace("| 0                         | 0000:41:00.0", "| 0000:41:00.0"), "0000:41:00.0"),
        (table("910b3-8x") * 2, "+----"),
        ("\n".join(table("910b4-1x").splitlines()[:7]), "910B4"),
        (table("910b4-1x").replace("| OK ", "|    "), "910B4"),
    ],
)
def test_what_is_no_such_table_is_refused_with_the_line(text: str, quoted: str) -> None:
    with pytest.raises(ValueError, match="expected") as error:
        npu_smi.parse_info(text)

    assert quoted in str(error.value)


# --- npu-smi info -m ------------------------------------------------------------------------------------------------


def test_the_mapping_names_logic_ids_and_passes_management_processors_over() -> None:
    mapping = npu_smi.parse_mapping(sample("ascend/npu-smi-info-m.910b3.txt"))

    assert mapping == (
        npu_smi.NpuSmiMapping(0, 0, 0, None, "Ascend 910B3"),
        npu_smi.NpuSmiMapping(1, 0, 1, None, "Ascend 910B3"),
    )


def test_the_mapping_of_an_a3_has_physical_ids_too() -> None:
    mapping = npu_smi.parse_mapping(sample("ascend/npu-smi-info-m.a3.txt"))

    assert [(place.npu, place.chip, place.logical, place.physical) for place in mapping] == [
        (0, 0, 0, 0),
        (0, 1, 1, 1),
        (1, 0, 2, 2),
    ]


def test_the_mapping_of_a_950_has_no_logic_ids() -> None:
    mapping = npu_smi.parse_mapping(sample("ascend/npu-smi-info-m.950.txt"))

    assert [(place.npu, place.logical, place.physical) for place in mapping] == [(0, 0, 0), (1, 1, 1)]


def test_the_mapping_of_the_manual_is_read() -> None:
    assert npu_smi.parse_mapping(sample("ascend/npu-smi-info-m.txt")) == (
        npu_smi.NpuSmiMapping(4, 0, 0, None, "<soc_version>"),
    )


@pytest.mark.parametrize(
    "text", ["", "no such option -m\n", "NPU ID  Chip ID  Chip Logic ID  Chip Name\n0 0\n", "NPU ID Chip ID\n"]
)
def test_a_mapping_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        npu_smi.parse_mapping(text)


# --- npu-smi info -t topo, -t board ---------------------------------------------------------------------------------


def test_the_topology_names_links_and_cpus() -> None:
    topology = npu_smi.parse_npu_topology(sample("ascend/npu-smi-topo.910b3-8x.txt"))

    assert topology.numbering == "NPU"
    assert (len(topology.links), set(topology.links.values())) == (28, {"HCCS"})
    assert (topology.cpus[0][0], topology.cpus[7][-1]) == (144, 71)


def test_the_topology_of_an_a3_counts_physical_ids_and_knows_no_cpus() -> None:
    topology = npu_smi.parse_npu_topology(sample("ascend/npu-smi-topo.a3.txt"))

    assert topology.numbering == "Phy-ID"
    assert (topology.links[2, 3], topology.links[2, 12], topology.cpus) == ("SIO", "HCCS_SW", {})


def test_network_cards_in_the_topology_are_passed_over() -> None:
    text = "\t NPU0  NPU1  NIC0  CPU Affinity\nNPU0  X  HCCS  PIX  0-3, 8\nNPU1  HCCS  X  SYS  NA\nNIC0  PIX  SYS  X\n"

    topology = npu_smi.parse_npu_topology(text)

    assert (dict(topology.links), dict(topology.cpus)) == ({(0, 1): "HCCS"}, {0: (0, 1, 2, 3, 8)})


@pytest.mark.parametrize(
    "text", ["", "This device does not support querying topo.\n", "NPU0 NPU1 CPU Affinity\nNPU0 X\n"]
)
def test_a_topology_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        npu_smi.parse_npu_topology(text)


# --- hosts ----------------------------------------------------------------------------------------------------------


def host(folder: Path, answers: dict[str, tuple[int, str]], tree: Tree) -> Host:
    record = {command: {"rc": rc, "stdout": out} for command, (rc, out) in answers.items()}
    return Host(str(write_tree(folder, {**tree, "commands.json": json.dumps(record)})))


def probe(npu_host: Host) -> ProbeResult:
    return ascend.probe(npu_host, Commands(npu_host).run, {})


FIVE = {"dev/davinci5": "", "dev/davinci_manager": ""}


def test_without_devices_there_is_nothing_and_nothing_failed(tmp_path: Path) -> None:
    npu_host = host(tmp_path, {}, {"dev/davinci_manager": ""})

    assert probe(npu_host).devices == ()
    assert npu_host.failures == []


def test_a_container_with_one_card_counts_it_as_0_and_knows_which_it_is(tmp_path: Path) -> None:
    answers = {
        "npu-smi info": (0, table("910b4-1x")),
        "npu-smi info -t board -i 5": (0, sample("ascend/npu-smi-board.910.txt")),
    }
    npu_host = host(tmp_path, answers, FIVE)

    result = probe(npu_host)
    device = result.devices[0]

    assert (device.number, device.module_id, device.path, device.card) == (0, 5, "/dev/davinci5", None)
    assert (device.architecture, device.health, device.busy) == ("ascend910b", "ok", False)
    assert (result.versions["driver"], result.versions["firmware"]) == ("25.5.2", "7.1.0.7.220")
    assert npu_host.failures == []


def test_a_device_without_the_tool_is_counted_and_the_failure_says_what_to_mount(tmp_path: Path) -> None:
    tree = FIVE | {
        f"sys/bus/pci/devices/0000:41:00.0/{name}": text
        for name, text in (("vendor", "0x19e5\n"), ("device", "0xd802\n"), ("class", "0x120000\n"))
    }
    npu_host = host(tmp_path, {}, tree)

    device = probe(npu_host).devices[0]

    assert (device.architecture, device.memory_total, device.module_id) == ("ascend910b", None, 5)
    assert "/usr/local/bin/npu-smi" in npu_host.failures[0].expected


@pytest.mark.parametrize(
    "answer",
    [
        (0, ""),
        (0, table("910b4-1x")[:600] + "\ufffd\ufffd"),
        (1, "dcmi model initialized failed, because the device is used. ret is -8020\n"),
        (124, ""),
        (0, "x" * 60_000),
    ],
)
def test_a_tool_that_fails_is_one_failure_and_the_devices_remain(tmp_path: Path, answer: tuple[int, str]) -> None:
    npu_host = host(tmp_path, {"npu-smi info": answer}, FIVE)

    assert len(probe(npu_host).devices) == 1
    assert [failure.where for failure in npu_host.failures] == ["npu-smi info"]
    assert len(npu_host.failures[0].found) < 300


def test_a_device_file_without_a_chip_is_a_failure(tmp_path: Path) -> None:
    npu_host = host(tmp_path, {"npu-smi info": (0, table("910b4-1x"))}, FIVE | {"dev/davinci6": ""})

    assert len(probe(npu_host).devices) == 1
    assert "/dev/davinci6" in npu_host.failures[0].found


def test_cpus_come_from_the_topology_where_pci_does_not_tell(tmp_path: Path) -> None:
    answers = {
        "npu-smi info": (0, table("910b3-8x")),
        "npu-smi info -t topo": (0, sample("ascend/npu-smi-topo.910b3-8x.txt")),
    }
    tree = {f"dev/davinci{number}": "" for number in range(8)} | {"sys/devices/system/node/node6/cpulist": "144-167\n"}
    npu_host = host(tmp_path, answers, tree)

    result = probe(npu_host)

    assert (result.devices[0].node, result.devices[0].cpus[0]) == (6, 144)
    assert len(result.links) == 28


def test_versions_come_from_the_files_where_the_driver_says_it_is(tmp_path: Path) -> None:
    tree = {
        "etc/ascend_install.info": "UserName=HwHiAiUser\nDriver_Install_Path_Param=/opt/huawei\n",
        "opt/huawei/driver/version.info": "Version=25.2.0\nascendhal_version=7.35.23\n",
        "opt/huawei/firmware/version.info": "Version=7.7.0.6.236\n",
        "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info": sample(
            "ascend/ascend_toolkit_install.info.txt"
        ),
    }

    assert probe(host(tmp_path, {}, tree)).versions == {
        "driver": "25.2.0",
        "firmware": "7.7.0.6.236",
        "toolkit": "8.3.RC1",
    }
