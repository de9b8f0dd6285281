"""Intel GPUs: every layout of xpu-smi, the drivers' files, and what goes wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.checks.grants import examine_facts
from entrypoints.core.records import ProbeResult
from entrypoints.facts.probes.xpu import xpu
from entrypoints.facts.probes.xpu.xpusmi import parse_discovery, parse_xpu_topology
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host
from tests.support.hosts.expect import document, look, opened, profile_of
from tests.support.hosts.trees import Tree, commands, pci, read_recorded_tree, sample, write_tree

GIB, MIB = 1 << 30, 1 << 20
DUMP = "xpu-smi discovery --dump 1,2,8,11,16"
DISCOVERIES = (
    "xpu-smi-discovery-d-j.flex170.txt",
    "xpu-smi-discovery-j.max1100.txt",
    "xpu-smi-discovery-j.b70-2x.txt",
    "xpu-smi-discovery-dump.csv.txt",
    "xpu-smi-discovery-dump.flex170-2x.csv.txt",
    "xpu-smi.b580.v2.0.txt",
)
TOPOLOGIES = ("xpu-smi-topology-m.pvc.txt", "xpu-smi-topology-m.b70-4x.txt", "xpu-smi-topology-d.txt")


def text(name: str) -> str:
    return sample(f"xpu/{name}")


def probe(tmp_path: Path, tree: Tree, env: dict[str, str] | None = None) -> tuple[ProbeResult, Host]:
    host = Host(str(write_tree(tmp_path, tree)))
    return xpu.probe(host, Commands(host).run, env or {}), host


def card(bus: str, device: str, minor: int, module: str, *, node: int = 0, cpus: str = "0-23,48-71") -> Tree:
    """Return the files of one card with its render node."""
    return {
        **pci(f"0000:{bus}:00.0", "0x8086", device, "0x030000", node, cpus),
        f"sys/bus/pci/devices/0000:{bus}:00.0/drm/renderD{minor}": "",
        f"dev/dri/renderD{minor}": "",
        f"dev/dri/by-path/pci-0000:{bus}:00.0-render": "",
        f"sys/bus/pci/drivers/{module}/0000:{bus}:00.0": "",
    }


def flex(**answers: str) -> Tree:
    return {**card("4d", "0x56c0", 128, "i915"), **commands(answers)}


@pytest.mark.parametrize(("module", "severity"), [("vfio-pci", "FAIL"), ("", "FAIL"), ("xe", "PASS")])
def test_a_driver_that_cannot_compute_is_a_failure(module: str, severity: str) -> None:
    changed = document("xpu-b580-1x")
    changed["files"].pop("/dev/dri/renderD129")
    changed["files"].pop("/sys/bus/pci/drivers/xe/0000:03:00.0")
    if module:
        changed["files"][f"/sys/bus/pci/drivers/{module}/0000:03:00.0"] = ""
    profile = profile_of("xpu-b580-1x")
    findings = {finding.id: finding for finding in examine_facts(profile, look(opened(changed), profile))}

    assert (findings["XPU-001"].severity, findings["XPU-004"].severity) == ("FAIL", severity)
    assert findings["XPU-004"].found == f"versions.module = {module or 'none'}"


# --- the drivers' files ---------------------------------------------------------------------------------------------


def test_a_composite_hierarchy_joins_the_tiles(tmp_path: Path) -> None:
    result, _ = probe(tmp_path, read_recorded_tree("xpu-max1550-2x"), {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"})

    assert [(device.number, device.card, device.memory_total) for device in result.devices] == [
        (0, None, 128 * GIB),
        (1, None, 128 * GIB),
    ]


def test_a_card_nobody_knows_is_named_by_its_id_and_its_memory_is_a_failure(tmp_path: Path) -> None:
    result, host = probe(tmp_path, card("4d", "0xeeee", 128, "xe"))

    assert result.devices[0].name == "Intel Graphics [0xeeee]"
    assert [failure.where for failure in host.failures] == ["the memory of Intel Graphics [0xeeee] at 0000:4d:00.0"]


# --- the tool -------------------------------------------------------------------------------------------------------


def test_one_dump_tells_all_cards_at_once(tmp_path: Path) -> None:
    tree = flex(**{DUMP: text("xpu-smi-discovery-dump.flex170-2x.csv.txt")})

    result, host = probe(tmp_path, tree)

    assert (result.devices[0].memory_total, result.versions["tool_driver"]) == (14248 * MIB, "16929133")
    assert host.failures == []


def test_without_a_tool_the_table_of_models_tells(tmp_path: Path) -> None:
    result, host = probe(tmp_path, flex())

    assert (result.devices[0].name, result.devices[0].memory_total) == ("Intel Data Center GPU Flex 170", 14248 * MIB)
    assert host.failures == []


def test_a_name_that_is_only_an_id_yields_to_the_table(tmp_path: Path) -> None:
    tree = card("03", "0xe223", 128, "xe")
    tree |= commands({"xpu-smi discovery -j": text("xpu-smi-discovery-j.b70-2x.txt")})

    result, _ = probe(tmp_path, tree)

    assert (result.devices[0].name, result.devices[0].memory_total) == ("Intel Arc Pro B70", 32696 * MIB)


def test_cpus_that_the_machine_does_not_tell_come_from_the_topology(tmp_path: Path) -> None:
    tree = card("4d", "0xe20b", 128, "xe", node=-1, cpus="")
    tree |= commands({"xpu-smi topology -d 0": text("xpu-smi-topology-d.txt")})

    result, _ = probe(tmp_path, tree)

    assert result.devices[0].cpus[:2] == (0, 1)
    assert len(result.devices[0].cpus) == 48


@pytest.mark.parametrize(
    ("rc", "out", "message"),
    [
        (1, "Error: Level Zero Initialization Error\n", "Level Zero"),
        (124, "", "exit 124"),
        (0, "", "nothing"),
        (0, "\ufffd\ufffd", "\ufffd"),
        (0, '{"device_list": [', "expected xpu-smi's devices"),
        (0, "+---+\n| Error |\n+---+\n", "expected xpu-smi's devices"),
    ],
)
def test_what_the_tool_does_wrong_becomes_a_failure(tmp_path: Path, rc: int, out: str, message: str) -> None:
    tree = flex() | {"commands.json": json.dumps({DUMP: {"rc": rc, "stdout": out}})}

    _, host = probe(tmp_path, tree)

    assert host.failures[0].where == DUMP
    assert message in host.failures[0].found


@pytest.mark.parametrize("name", DISCOVERIES)
def test_every_discovery_names_its_devices(name: str) -> None:
    cards = parse_discovery(text(name))

    assert [card.number for card in cards] == list(range(len(cards)))
    assert all(card.name.startswith("Intel") for card in cards)


def test_a_matrix_of_cards_without_tiles_is_understood() -> None:
    places = parse_xpu_topology("     GPU 0|GPU 1|CPU Affinity\nGPU 0|S    |NODE |0-3\nGPU 1|NODE |S    |4-7\n")

    assert places.links == (("0", "1", "NODE"), ("1", "0", "NODE"))
    assert places.cpus == {"0": (0, 1, 2, 3), "1": (4, 5, 6, 7)}


# --- damage ---------------------------------------------------------------------------------------------------------


def test_a_matrix_without_bars_is_read_by_its_header() -> None:
    places = parse_xpu_topology(text("xpu-smi-topology-m.b70-4x.txt"))

    assert places.links[0] == ("0/0", "1/0", "NODE")
    assert len(places.links) == 12
    assert places.cpus["3/0"] == tuple(range(16))


def test_a_matrix_that_lacks_a_row_is_not_understood() -> None:
    with pytest.raises(ValueError, match="a row for each GPU"):
        parse_xpu_topology(text("xpu-smi-topology-m.b70-4x.txt").partition("GPU 3/0  NODE")[0])


# --- versions without `discovery`, and cells that the tool may not read ---------------------------------------------

BOXED = """\
+-----------+--------------------------------------------------------------------------------------+
| Device ID | Device Information                                                                   |
+-----------+--------------------------------------------------------------------------------------+
| 0         | Device Name: Intel(R) Arc(TM) B580 Graphics                                          |
|           | Vendor Name: Intel(R) Corporation                                                    |
|           | PCI BDF Address: 0000:03:00.0                                                        |
+-----------+--------------------------------------------------------------------------------------+
| 1         | Device Name: Intel(R) Arc(TM) B570 Graphics                                          |
|           | PCI BDF Address: 0000:04:00.0                                                        |
|           | Memory Physical Size: 10216.00 MiB                                                   |
+-----------+--------------------------------------------------------------------------------------+
"""
UNBOXED = "".join(f"{line.replace('|', ' ')}\n" for line in BOXED.splitlines() if not line.startswith("+"))
REFUSED = {"rc": 105, "stdout": "", "stderr": "The following argument was not expected: discovery"}


@pytest.mark.parametrize("printed", [BOXED, UNBOXED])
def test_discovery_as_text_names_each_card(printed: str) -> None:
    assert [(gpu.number, gpu.name, gpu.bus, gpu.memory) for gpu in parse_discovery(printed)] == [
        (0, "Intel(R) Arc(TM) B580 Graphics", "0000:03:00.0", None),
        (1, "Intel(R) Arc(TM) B570 Graphics", "0000:04:00.0", 10216 * MIB),
    ]


def test_a_version_without_discovery_is_no_failure(tmp_path: Path) -> None:
    answers = {"xpu-smi": {"rc": 0, "stdout": text("xpu-smi.b580.v2.0.txt")}}
    answers |= dict.fromkeys((DUMP, "xpu-smi discovery -j", "xpu-smi discovery"), REFUSED)
    result, host = probe(tmp_path, {**card("03", "0xe20b", 128, "xe"), "commands.json": json.dumps(answers)})

    assert [(device.memory_total, device.memory_used) for device in result.devices] == [(12216 * MIB, 239 * MIB)]
    assert host.failures == []


@pytest.mark.parametrize(
    ("cell", "used", "total"),
    [
        ("N/A / 12216MiB   ", None, 12216),
        ("N/A / N/A        ", None, 12216),  # of the model
        ("N/A              ", None, 12216),
    ],
)
def test_memory_that_the_tool_may_not_read_leaves_the_card(
    tmp_path: Path, cell: str, used: int | None, total: int
) -> None:
    table = text("xpu-smi.b580.v2.0.txt").replace("239MiB / 12216MiB", cell)
    result, _ = probe(tmp_path, {**card("03", "0xe20b", 128, "xe"), **commands({"xpu-smi": table})})

    assert [(device.memory_total, device.memory_used) for device in result.devices] == [(total * MIB, used)]


@pytest.mark.parametrize(
    ("device", "first", "second", "name"),
    [
        ("0x56a0", "Arc(TM) A770   Off", "Graphics", "Intel(R) Arc(TM) A770 Graphics"),
        ("0xe211", "Arc(TM) Pro B  Off", "60 Graphics", "Intel Arc Pro B60"),
        ("0xe211", "Arc(TM) Pro B  Off", "", "Intel Arc Pro B60"),
    ],
)
def test_a_name_that_the_table_wraps_or_cuts_is_whole(
    tmp_path: Path, device: str, first: str, second: str, name: str
) -> None:
    table = text("xpu-smi.b580.v2.0.txt").replace("Arc(TM) B580   Off", first)
    wrapped = f"|      {second:40}|                            |                        |\n" if second else ""
    table = table.replace("| N/A    25C", f"{wrapped}| N/A    25C")
    result, _ = probe(tmp_path, {**card("03", device, 128, "xe"), **commands({"xpu-smi": table})})

    assert [(gpu.name, gpu.memory_total) for gpu in result.devices] == [(name, 12216 * MIB)]
