"""AMD GPUs: every layout that AMD's tools and driver write, and what goes wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.core.records import ProbeResult
from entrypoints.facts.probes.rocm import kfd, rocm
from entrypoints.facts.probes.rocm.amdsmi import parse_amd_smi, parse_amd_topology, parse_rocm_smi
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host
from tests.support.hosts.trees import Tree, read_recorded_tree, sample, write_tree

STATIC = "amd-smi static --asic --bus --vram --driver --json"
ROCM_SMI = "rocm-smi --showproductname --showbus --showmeminfo vram --json"
TOPOLOGIES = (
    "amd-smi-topology.mi355x-8x.txt",
    "amd-smi-topology.2x.rocm6.0.json.txt",
    "amd-smi-topology.2x.rocm6.1.1.json.txt",
)
STATICS = (
    "amd-smi-static.mi300x.json.txt",
    "amd-smi-static.r9700-igpu.list.json.txt",
)


def text(name: str) -> str:
    return sample(f"rocm/{name}")


def probe(tmp_path: Path, tree: Tree, env: dict[str, str] | None = None) -> tuple[ProbeResult, Host]:
    host = Host(str(write_tree(tmp_path, tree)))
    return rocm.probe(host, Commands(host).run, env or {}), host


def answers(**outputs: tuple[int, str]) -> str:
    return json.dumps({name: {"rc": rc, "stdout": out} for name, (rc, out) in outputs.items()})


# --- the driver's files ---------------------------------------------------------------------------------------------


def test_rocr_visible_devices_renumbers_by_place_or_unique_id(tmp_path: Path) -> None:
    result, _ = probe(
        tmp_path, read_recorded_tree("rocm-mi300x-8x"), {"ROCR_VISIBLE_DEVICES": "3, GPU-00a0000000000002"}
    )

    assert [(device.number, device.path) for device in result.devices] == [
        (0, "/dev/dri/renderD131"),
        (1, "/dev/dri/renderD128"),
    ]


def test_uncorrected_errors_are_named_by_the_part_of_the_chip(tmp_path: Path) -> None:
    tree = read_recorded_tree("rocm-mi300x-8x") | {
        "sys/bus/pci/devices/0000:26:00.0/ras/gfx_err_count": "ue: 2\nce: 9\n"
    }

    result, _ = probe(tmp_path, tree)

    assert result.devices[0].health == "uncorrected errors: gfx"


def test_what_a_virtual_function_leaves_empty_is_no_failure(tmp_path: Path) -> None:
    root = "sys/bus/pci/devices/0000:26:00.0"
    empty = {f"{root}/product_name": "\n", f"{root}/current_memory_partition": "UNKNOWN\n"}

    result, host = probe(tmp_path, read_recorded_tree("rocm-mi300x-8x") | empty)

    assert (result.devices[0].name, "memory_partition" in result.versions) == ("AMD Instinct MI300X", False)
    assert host.failures == []


def test_a_gpu_without_a_known_model_asks_the_tool_for_its_name(tmp_path: Path) -> None:
    bus = "0000:83:00.0"
    node = "sys/class/kfd/kfd/topology/nodes/2"
    properties = "gfx_target_version 90402\ndevice_id 32767\nlocation_id 33536\ndrm_render_minor 128\n"
    tree = {
        "dev/kfd": "",
        "dev/dri/renderD128": "",
        f"{node}/gpu_id": "4098\n",
        f"{node}/properties": properties,
        f"{node}/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 206141652992\n",
        "commands.json": answers(**{STATIC: (0, text("amd-smi-static.mi300x.json.txt"))}),
    }

    result, host = probe(tmp_path, tree)

    assert (result.devices[0].name, result.devices[0].bus) == ("AMD Instinct MI300X", bus)
    assert host.failures == []


def test_a_node_that_the_kernel_hides_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str, _most: int) -> bytes:
        if "nodes/2/" in path:
            raise PermissionError(1, "Operation not permitted", path)
        return Path(path).read_bytes()

    monkeypatch.setattr("entrypoints.host.source.read_regular", denied)
    result, host = probe(tmp_path, read_recorded_tree("rocm-mi300x-8x"))

    assert len(result.devices) == 7
    assert host.failures == []


@pytest.mark.parametrize(
    ("version", "name"),
    [(90402, "gfx942"), (90010, "gfx90a"), (110001, "gfx1101"), (120001, "gfx1201"), (90500, "gfx950")],
)
def test_a_target_version_is_written_as_compilers_write_it(version: int, name: str) -> None:
    assert kfd.format_gfx_target(version) == name


# --- the tools ------------------------------------------------------------------------------------------------------


def test_a_device_file_without_files_and_tools_is_a_failure(tmp_path: Path) -> None:
    result, host = probe(tmp_path, {"dev/kfd": ""})

    assert result.devices == ()
    assert [failure.where for failure in host.failures] == ["/dev/kfd"]


@pytest.mark.parametrize(
    ("revision", "used", "name", "busy"),
    [
        ("", 10086630031, "AMD Radeon RX 9070/9070 XT", None),  # too full, whoever uses it: decided by what is free
        ("0xc0", 341919662, "AMD Radeon RX 9070 XT", False),
        ("0xC3", 1025758982, "AMD Radeon RX 9070", None),  # the windows of a desktop
    ],
)
def test_rocm_smi_tells_the_model_and_whether_its_memory_is_used(
    tmp_path: Path, revision: str, used: int, name: str, busy: bool | None
) -> None:
    card = {"Card Model": "0x7550", "Device Rev": revision, "VRAM Total Memory (B)": "17095983104"}
    integrated = {"Card Model": "0x13c0", "VRAM Total Memory (B)": "536870912"}
    printed = json.dumps({"card0": {**card, "VRAM Total Used Memory (B)": str(used)}, "card1": integrated})

    result, host = probe(tmp_path, {"dev/kfd": "", "commands.json": answers(**{ROCM_SMI: (0, printed)})})

    assert [(device.name, device.memory_used, device.busy) for device in result.devices] == [(name, used, busy)]
    assert host.failures == []


def test_a_revision_in_sys_tells_which_card_it_is(tmp_path: Path) -> None:
    node = "sys/class/kfd/kfd/topology/nodes/1"
    tree = {
        "dev/kfd": "",
        "dev/dri/renderD128": "",
        f"{node}/gpu_id": "1",
        f"{node}/properties": "gfx_target_version 120001\ndevice_id 30032\nlocation_id 768\ndrm_render_minor 128\n",
        "sys/bus/pci/devices/0000:03:00.0/revision": "0xc3\n",
    }

    assert probe(tmp_path, tree)[0].devices[0].name == "AMD Radeon RX 9070"


def test_wsl_has_rocminfo_alone(tmp_path: Path) -> None:
    outputs = {"rocminfo": (0, text("rocminfo.mi308x.txt"))}

    result, host = probe(tmp_path, {"dev/dxg": "", "commands.json": answers(**outputs)})

    assert [(device.architecture, device.memory_total) for device in result.devices] == [("gfx942", 206141652992)]
    assert host.failures == []


def test_memory_that_nothing_tells_is_a_failure(tmp_path: Path) -> None:
    outputs = {ROCM_SMI: (0, '{"card0": {"Card Series": "AMD Instinct MI999X"}, "card1": {"Card Model": "0x9999"}}')}

    result, host = probe(tmp_path, {"dev/kfd": "", "commands.json": answers(**outputs)})

    assert [device.name for device in result.devices] == ["AMD Instinct MI999X", "0x9999"]
    assert [failure.where for failure in host.failures] == ["the memory of GPU 0, 1"]


@pytest.mark.parametrize(
    ("rc", "out", "message"),
    [
        (1, "", "exit 1"),
        (124, "", "exit 124"),
        (0, "", "expected amd-smi's GPUs"),
        (0, "\ufffd\ufffd\n", "\ufffd"),
        (0, '{"gpu_data": [', "expected amd-smi's GPUs"),
    ],
)
def test_what_a_tool_does_wrong_becomes_a_failure(tmp_path: Path, rc: int, out: str, message: str) -> None:
    _, host = probe(tmp_path, {"dev/kfd": "", "commands.json": answers(**{STATIC: (rc, out)})})

    assert host.failures[0].where == STATIC
    assert message in host.failures[0].found


SHOWN = """\
+------------------------------------------------------------------------------+
| AMD-SMI 26.0.2+39589fda      amdgpu version: 6.16.13  ROCm version: 7.0.2    |
| Platform: Linux Baremetal                                                    |
|-------------------------------------+----------------------------------------|
| BDF                        GPU-Name | Mem-Uti   Temp   UEC       Power-Usage |
| GPU  HIP-ID  OAM-ID  Partition-Mode | GFX-Uti    Fan               Mem-Usage |
|=====================================+========================================|
| 0000:0d:00.0    AMD Instinct MI355X | N/A        N/A   0          N/A/1400 W |
|   0       1       7        SPX/NPS1 | N/A        N/A           283/294896 MB |
|-------------------------------------+----------------------------------------|
| 0000:26:00.0                 0x75a3 | N/A        N/A   0          N/A/1400 W |
|   1       0       5             N/A | N/A        N/A              N/A/N/A MB |
+-------------------------------------+----------------------------------------+
"""
"""amd-smi without arguments, as ROCm 7 prints it (its changelog, and public notes of an MI355X)."""

CONCISE_6_0 = """\
=================================================== Concise Info ===================================================
Device  [Model : Revision]    Temp        Power     Partitions      SCLK    MCLK    Fan  Perf  PwrCap  VRAM%  GPU%
        Name (20 chars)       (Junction)  (Socket)  (Mem, Compute)
====================================================================================================================
0       [0x74a1 : 0x00]       35.0°C      140.0W    NPS1, SPX       132Mhz  900Mhz  0%   auto  750.0W    0%   0%
        AMD Instinct MI300X
1       [0x74a1 : 0x00]       37.0°C      138.0W    NPS1, SPX       132Mhz  900Mhz  0%   auto  750.0W   91%   0%
        AMD Instinct MI300X
"""
CONCISE_6_3 = """\
Device  Node  IDs              Temp        Power     Partitions          SCLK    MCLK    Fan  Perf  PwrCap  VRAM%  GPU%
              (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)
0       2     0x74a1,   55354  51.0°C      152.0W    NPS1, SPX, 0        134Mhz  900Mhz  0%   auto  750.0W  0%     0%
1       3     0x74a1,   41632  48.0°C      146.0W    NPS1, SPX, 0        134Mhz  900Mhz  0%   auto  750.0W  91%    0%
"""
LINES = "".join(
    f"GPU[{number}]\t\t: {name}: {value}\n"
    for number, memory_used in ((0, 284 << 20), (1, 178 << 30))
    for name, value in (
        ("Card Series", "AMD Instinct MI300X"),
        ("VRAM Total Memory (B)", 196592 << 20),
        ("VRAM Total Used Memory (B)", memory_used),
    )
)


def test_amd_smi_without_arguments_is_understood(tmp_path: Path) -> None:
    result, host = probe(tmp_path, {"dev/kfd": "", "commands.json": answers(**{"amd-smi": (0, SHOWN)})})

    assert [(device.number, device.name, device.bus, device.memory_total) for device in result.devices] == [
        (0, "AMD Instinct MI355X", "0000:26:00.0", 294896 << 20),
        (1, "AMD Instinct MI355X", "0000:0d:00.0", 294896 << 20),
    ]
    assert [device.memory_used for device in result.devices] == [None, 283 << 20]
    assert host.failures == []


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("rocm-smi", CONCISE_6_0),
        ("rocm-smi", CONCISE_6_3),
        ("rocm-smi --showmeminfo vram", LINES),
    ],
)
def test_the_tables_of_rocm_smi_are_understood(tmp_path: Path, command: str, printed: str) -> None:
    result, host = probe(tmp_path, {"dev/kfd": "", "commands.json": answers(**{command: (0, printed)})})

    assert [(device.number, device.name, device.memory_total) for device in result.devices] == [
        (0, "AMD Instinct MI300X", 196592 << 20),
        (1, "AMD Instinct MI300X", 196592 << 20),
    ]
    assert [device.busy for device in result.devices] == [False, True]
    assert host.failures == []


def test_a_partition_has_not_the_memory_of_its_model(tmp_path: Path) -> None:
    printed = CONCISE_6_3.replace("SPX", "CPX")
    result, host = probe(tmp_path, {"dev/kfd": "", "commands.json": answers(**{"rocm-smi": (0, printed)})})

    assert [device.memory_total for device in result.devices] == [None, None]
    assert [failure.where for failure in host.failures] == ["the memory of GPU 0, 1"]


def test_a_form_that_a_version_lacks_is_no_failure_if_another_answers(tmp_path: Path) -> None:
    outputs = {STATIC: (2, "amd-smi: error: unrecognized arguments: --asic"), "amd-smi": (0, SHOWN)}
    result, host = probe(tmp_path, {"dev/kfd": "", "commands.json": answers(**outputs)})

    assert (len(result.devices), host.failures) == (2, [])


def _apu(carved: int, shared: int, counted: int) -> Tree:
    """Return the files of a processor with a GPU (Strix Halo); sizes in MiB, `counted` is what the kernel counts."""
    node, card = "sys/class/kfd/kfd/topology/nodes/1", "sys/bus/pci/devices/0000:c5:00.0"
    properties = "gfx_target_version 110501\ndevice_id 5510\nlocation_id 50432\ndomain 0\ndrm_render_minor 128\n"
    return {
        "dev/kfd": "",
        "dev/dri/renderD128": "",
        f"{node}/properties": properties,
        f"{node}/gpu_id": "11596\n",
        f"{node}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {counted << 20}\n",
        f"{card}/product_name": "AMD Radeon 8060S\n",
        f"{card}/mem_info_vram_total": f"{carved << 20}\n",
        f"{card}/mem_info_vram_used": f"{161 << 20}\n",
        f"{card}/mem_info_gtt_total": f"{shared << 20}\n",
        f"{card}/mem_info_gtt_used": f"{31 << 20}\n",
    }


@pytest.mark.parametrize(
    ("carved", "shared", "counted", "used"),
    [
        (512, 63488, 512, 161),  # before Linux 6.10: what is carved out
        (512, 63488, 63488, 31),  # since then the larger pool
        (98304, 15360, 98304, 161),
    ],
)
def test_an_apu_says_which_memory_the_kernel_counts(
    tmp_path: Path, carved: int, shared: int, counted: int, used: int
) -> None:
    result, host = probe(tmp_path, _apu(carved, shared, counted))

    assert [(device.memory_total, device.memory_used) for device in result.devices] == [(counted << 20, used << 20)]
    assert result.knobs == {
        "apu_memory_mib": str(counted), "apu_vram_mib": str(carved), "apu_gtt_mib": str(shared),
    }  # fmt: skip
    assert host.failures == []


@pytest.mark.parametrize("name", STATICS)
def test_amd_smi_is_understood_as_a_list_and_as_an_object(name: str) -> None:
    cards = parse_amd_smi(text(name))

    assert [card.number for card in cards] == list(range(len(cards)))
    assert all(card.bus or card.memory for card in cards)


def test_json_that_was_cut_off_is_an_error_wherever_it_ends() -> None:
    whole = json.dumps({"gpu_data": [{"gpu": 0, "asic": {"name": "x"}}, {"gpu": 1, "on": False}]}, indent=4)

    assert len(parse_amd_smi(whole)) == 2
    for end in range(1, len(whole) - 1):
        with pytest.raises(ValueError, match="expected amd-smi's GPUs"):
            parse_amd_smi(whole[:end])


def test_amd_smi_may_warn_before_its_json() -> None:
    (card,) = parse_amd_smi("WARNING: user is not in group [render]\n" + text("amd-smi-static.mi300x.json.txt"))

    assert card.memory == 196592 << 20


def test_rocm_smi_tells_memory_in_bytes() -> None:
    (card,) = parse_rocm_smi(text("rocm-smi.apu.json.txt"))

    assert (card.bus, card.memory, card.used, card.driver) == ("0000:63:00.0", 536870912, 482263040, "6.10.5")


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topologies_give_each_pair_in_both_directions(name: str) -> None:
    wires = parse_amd_topology(text(name))
    ends = {(first, second) for first, second, _ in wires}

    assert ends == {(second, first) for first, second in ends}
    assert {kind for _, _, kind in wires} <= {"XGMI", "PCIE"}


def test_rocm_smi_writes_a_topology_as_json_too() -> None:
    printed = '{"system": {"(Topology) Link type between DRM devices 0 and 1": "XGMI"}}'

    assert parse_amd_topology(printed) == (("0", "1", "XGMI"),)


# --- damage ---------------------------------------------------------------------------------------------------------
