"""Gaudi cards, from the driver's files and from every layout of hl-smi that was found."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from entrypoints.checks.findings import evaluate_checks
from entrypoints.core.records import ProbeResult
from entrypoints.facts.probes.habana.habana import MODULES_OF_PYTHON, PACKAGES, list_gaudi_packages, probe
from entrypoints.facts.probes.habana.hl_smi import (
    digits_of,
    full_bus,
    parse_hl_smi_table,
    parse_hl_smi_topology,
    parse_modules,
)
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host
from tests.support.hosts import expect
from tests.support.hosts.trees import MIB, pci, sample, write_tree
from tests.support.sample import facts

GAUDI1 = sample("habana/hl-smi.gaudi1-8x.hl-1.4.1.txt")
GAUDI2 = sample("habana/hl-smi.gaudi2-8x.hl-1.16.0.txt")
BUSY = sample("habana/hl-smi.gaudi2-8x.hl-1.21.1.txt")
GAUDI2E = sample("habana/hl-smi.gaudi2e-8x.hl-1.23.0.txt")
GAUDI3 = sample("habana/hl-smi.gaudi3-8x.hl-1.21.0.txt")
MODULES = sample("habana/hl-smi.index-module_id.gaudi2e.csv.txt")
TOPOLOGY = sample("habana/hl-smi-topo-c-N.gaudi2.txt")

ALL = "hl-smi -Q index,module_id -f csv"
TOPO = "hl-smi topo -c -N"


# --- layouts


@pytest.mark.parametrize(
    ("text", "name", "first_bus", "total", "versions"),
    [
        (GAUDI1, "HL-205", "0000:20:1d.0", 32768, {"tool": "1.4.1", "driver": "1.4.0"}),
        (GAUDI2, "HL-225", "0000:b3:00.0", 98304, {"tool": "1.16.0", "driver": "1.16.0"}),
        (BUSY, "HL-225", "0000:33:00.0", 98304, {"tool": "1.21.1", "driver": "1.21.1", "nic_driver": "1.21.1"}),
        (GAUDI2E, "HL-288E", "0000:2a:00.0", 98304, {"tool": "1.23.0", "driver": "1.23.0", "nic_driver": "1.23.0"}),
        (GAUDI3, "HL-325L", "0000:e9:00.0", 131072, {"tool": "1.21.0", "driver": "1.20.1", "nic_driver": "1.20.1"}),
    ],
)
def test_every_layout_of_the_table(
    text: str, name: str, first_bus: str, total: int, versions: Mapping[str, str]
) -> None:
    table = parse_hl_smi_table(text)

    assert len(table.cards) == 8
    assert {card.name for card in table.cards} == {name}
    assert table.cards[0].bus == first_bus
    assert {card.total for card in table.cards} == {total * MIB}
    assert dict(table.versions) == versions


def test_the_process_line_without_an_end_counts() -> None:
    assert parse_hl_smi_table(GAUDI2).processes == {6}
    assert parse_hl_smi_table(GAUDI2E).processes == frozenset()


def test_an_indented_table_and_wider_columns_are_the_same_table() -> None:
    indented = "".join(f"    {line}\n" for line in GAUDI3.splitlines())
    wider = GAUDI2E.replace("HL-288E             N/A", "HL-288E                   N/A").replace("MiB /", "MiB   /   ")

    assert parse_hl_smi_table(indented) == parse_hl_smi_table(GAUDI3)
    assert parse_hl_smi_table(wider) == parse_hl_smi_table(GAUDI2E)


def test_a_long_pci_domain_is_shortened_as_sysfs_writes_it() -> None:
    table = parse_hl_smi_table(GAUDI2.replace("0000:b3:00.0", "00000000:B3:00.0"))

    assert table.cards[0].bus == "0000:b3:00.0"
    assert full_bus("b3:00.0") == "0000:b3:00.0"


def test_a_card_that_is_being_reset_has_no_memory() -> None:
    table = parse_hl_smi_table(GAUDI2E.replace("768MiB /  98304MiB", "   N/A /       N/A", 1))

    assert (table.cards[0].used, table.cards[0].total) == (None, None)
    assert table.cards[1].total == 98304 * MIB


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "nothing"),
        ("hl-smi: Failed to initialize HLML: driver not loaded\n", "driver not loaded"),
        (GAUDI2E.replace("0000:2a:00.0", "somewhere", 1), "somewhere"),
        (GAUDI2E.replace("768MiB /  98304MiB", "768 of 98304", 1), "768 of 98304"),
        (GAUDI2E.replace("|   1  HL-288E", "|   0  HL-288E", 1), "AIP numbers"),
    ],
)
def test_an_unknown_table_is_quoted(text: str, quoted: str) -> None:
    with pytest.raises(ValueError, match=quoted):
        parse_hl_smi_table(text)


def test_modules_by_the_headers_names() -> None:
    assert parse_modules(MODULES) == {0: 2, 1: 6, 2: 3, 3: 7, 4: 0, 5: 4, 6: 5, 7: 1}
    assert parse_modules("module_id, name, index\n3, HL-225, 0\nN/A, HL-225, 1\n") == {0: 3}


@pytest.mark.parametrize("text", ["", "0, 2\n", "index, module_id\n0\n", "index, module_id\nx, 1\n"])
def test_unknown_modules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_modules(text)


def test_places_by_module() -> None:
    places = parse_hl_smi_topology(TOPOLOGY)

    assert places[0].node == 0
    assert places[7] == (1, (*range(40, 80), *range(120, 160)))
    assert parse_hl_smi_topology("modID  CPU Affinity\n---  ---\n0  0-3, 8\n")[0] == (None, (0, 1, 2, 3, 8))
    assert parse_hl_smi_topology("modID  CPU Affinity  NUMA Affinity\n0  N/A  -1\n")[0] == (None, ())


@pytest.mark.parametrize("text", ["", "0 0-39 0\n", "modID CPU Affinity NUMA Affinity\nfirst 0-3 0\n"])
def test_unknown_topologies_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_hl_smi_topology(text)


def test_versions_are_digits_and_dots() -> None:
    assert digits_of("hl-gaudi2-1.20.0-fw-58.0.0-sec-9 (Jan 16 2025 - 17:51:04)") == "1.20.0"
    assert digits_of("unknown") == ""


# --- hosts


def host_with(root: Path, answers: Mapping[str, Any] = {}, **files: str) -> tuple[Host, ProbeResult]:
    """Write a recorded host of two Gaudi2 cards, and look at it."""
    tree = {"commands.json": json.dumps({key: _answer(value) for key, value in answers.items()}), **files}
    host = Host(str(write_tree(root, tree)))
    return host, probe(host, Commands(host).run, {})


def _answer(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"rc": 0, "stdout": value}


BUSES = ("b3", "b4", "cc", "cd", "19", "1a", "43", "44")


def cards(*, nodes: bool = True, modules: bool = False) -> dict[str, str]:
    """Make the files of the eight cards of the Gaudi2 sample."""
    tree: dict[str, str] = {}
    for number, bus in enumerate(BUSES):
        node, cpus = (0, "0-39,80-119") if bus < "50" else (1, "40-79,120-159")
        tree |= pci(f"0000:{bus}:00.0", "0x1da3", "0x1020", "0x120000", node if nodes else -1, cpus if nodes else "")
        tree[f"dev/accel/accel{number}"] = ""
        tree[f"dev/accel/accel_controlD{number}"] = ""
        folder = f"sys/class/accel/accel{number}/device"
        tree[f"{folder}/pci_addr"] = f"0000:{bus}:00.0\n"
        tree[f"{folder}/status"] = "Operational\n"
        if modules:
            tree[f"{folder}/module_id"] = f"{(number + 4) % 8}\n"
            tree[f"{folder}/preboot_btl_ver"] = f"hl-gaudi2-1.{20 - number % 2}.0-fw-58.0.0-sec-9\n"
    return tree


def test_no_gaudi_is_no_failure(tmp_path: Path) -> None:
    intel_npu = pci("0000:01:00.0", "0x8086", "0x7d1d", "0x120000") | {"dev/accel/accel0": ""}
    host, result = host_with(tmp_path, {}, **intel_npu)

    assert result == ProbeResult()
    assert host.failures == []


def test_the_tool_tells_modules_and_places_where_the_files_do_not(tmp_path: Path) -> None:
    modules = "index, module_id\n" + "".join(f"{number}, {7 - number}\n" for number in range(8))
    _, result = host_with(tmp_path, {"hl-smi": GAUDI2, ALL: modules, TOPO: TOPOLOGY}, **cards(nodes=False))

    assert [device.module_id for device in result.devices] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert [device.node for device in result.devices] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert result.devices[0].cpus[:2] == (40, 41)


def test_another_containers_model_is_seen_by_its_memory(tmp_path: Path) -> None:
    buses = ("33", "34", "4e", "9a", "9b", "b3", "b4", "4d")
    tree: dict[str, str] = {}
    for bus in buses:
        tree |= pci(f"0000:{bus}:00.0", "0x1da3", "0x1020", "0x120000", 0, "0-39")
    _, result = host_with(tmp_path, {"hl-smi": BUSY}, **tree)

    assert [device.number for device in result.devices if not device.busy] == [1]
    assert [device.health for device in result.devices if device.health != "ok"] == [
        "21 uncorrectable events",
        "176 uncorrectable events",
    ]


def test_without_the_tool_the_memory_is_a_failure(tmp_path: Path) -> None:
    host, result = host_with(tmp_path, {}, **cards(modules=True))

    assert len(result.devices) == 8
    assert (result.devices[0].memory_total, result.devices[0].module_id, result.devices[0].architecture) == (
        None,
        4,
        "gaudi2",
    )
    assert [failure.where for failure in host.failures] == ["hl-smi"]


def test_cards_that_were_not_passed_in_are_a_failure(tmp_path: Path) -> None:
    host, result = host_with(tmp_path, {}, **pci("0000:b3:00.0", "0x1da3", "0x1020", "0x120000"))

    assert result.devices == ()
    assert "--runtime=habana" in host.failures[0].expected


def test_a_card_in_reset_says_so(tmp_path: Path) -> None:
    tree = cards(modules=True) | {"sys/class/accel/accel0/device/status": "In reset\n"}
    table = re.sub(r"\d+MiB / 98304MiB", "N/A / N/A", GAUDI2, count=1)
    host, result = host_with(tmp_path, {"hl-smi": table}, **tree)

    assert (result.devices[0].health, result.devices[0].memory_total) == ("memory N/A", None)
    assert (result.devices[0].busy, result.devices[1].memory_total) == (None, 98304 * MIB)
    assert (host.failures[0].where, "reset" in host.failures[0].expected) == ("hl-smi: AIP 0", True)


UNREADABLE = re.sub(r"\d+MiB / 98304MiB", "N/A / N/A", GAUDI2.partition("Processes:")[0])


@pytest.mark.parametrize("status", ["Operational\n", None])
def test_without_privilege_the_model_tells_the_memory(tmp_path: Path, status: str | None) -> None:
    tree = {path: text for path, text in cards(modules=True).items() if not path.endswith("/status")}
    if status:
        tree |= {f"sys/class/accel/accel{number}/device/status": status for number in range(8)}
    host, result = host_with(tmp_path, {"hl-smi": UNREADABLE}, **tree)

    assert {(device.memory_total, device.busy) for device in result.devices} == {(98304 * MIB, None)}
    assert all(device.health in ("ok", "") for device in result.devices)
    assert [failure.where for failure in host.failures] == ["hl-smi: AIP 0, 1, 2, 3, 4, 5, 6, 7"]
    assert "privilege" in host.failures[0].found
    assert "--privileged" in host.failures[0].expected


def test_the_memory_of_an_unknown_model_is_not_guessed(tmp_path: Path) -> None:
    host, result = host_with(tmp_path, {"hl-smi": UNREADABLE.replace("HL-225", "HL-999")}, **cards(modules=True))

    assert {device.memory_total for device in result.devices} == {None}
    assert host.failures


def test_a_card_without_name_and_address_is_kept() -> None:
    table = parse_hl_smi_table(GAUDI2.replace("HL-225 ", "N/A    ", 1).replace("0000:b3:00.0", "N/A         ", 1))

    assert (len(table.cards), table.cards[0].name, table.cards[0].bus) == (8, "", "")


def test_an_old_drivers_files(tmp_path: Path) -> None:
    tree = {"dev/hl0": "", "sys/class/habanalabs/hl0/pci_addr": "0000:20:1d.0\n"}
    tree |= pci("0000:20:1d.0", "0x1da3", "0x1000", "0x120000", 0, "0-3")
    _, result = host_with(tmp_path, {"hl-smi": GAUDI1}, **tree)

    assert (result.devices[0].path, result.devices[0].architecture, result.devices[0].node) == ("/dev/hl0", "gaudi", 0)


DIST = "/usr/local/lib/python3.10/dist-packages"


def test_the_vendors_packages_are_listed_with_those_that_are_missing(tmp_path: Path) -> None:
    for name in (
        "/var/lib/dpkg/info/habanalabs-graph.list",
        "/var/lib/dpkg/info/habanalabs-container-runtime.list",
        f"{DIST}/habana_torch_plugin-1.18.0.524.dist-info/METADATA",
        f"{DIST}/neural_compressor_pt-3.1.1.dist-info/METADATA",
    ):
        (tmp_path / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name.lstrip("/")).touch()

    assert list_gaudi_packages(Host(str(tmp_path))) == {
        "habanalabs_firmware_tools": "missing",
        "habanalabs_graph": "installed",
        "habanalabs_rdma_core": "missing",
        "habanalabs_thunk": "missing",
        "habana_media_loader": "missing",
        "habana_pyhlml": "missing",
        "habana_torch_dataloader": "missing",
        "habana_torch_plugin": "1.18.0.524",
        "neural_compressor": "3.1.1",
    }


def test_a_host_without_the_vendors_packages_says_nothing_of_them(tmp_path: Path) -> None:
    assert list_gaudi_packages(Host(str(tmp_path))) == {}


def test_each_package_of_the_manuals_verification_has_a_check() -> None:
    profile = expect.profile_in("habana1.18-vllm0.8")
    without = facts(versions={name.replace("-", "_"): "missing" for name in (*PACKAGES, *MODULES_OF_PYTHON)})
    finding_ids = {
        finding.id for finding in evaluate_checks(profile["checks"], without, {}) if finding.expected == "not missing"
    }

    assert finding_ids == {f"HPU-{number:03}" for number in range(15, 24)}
    assert not [
        finding for finding in evaluate_checks(profile["checks"], facts(), {}) if finding.expected == "not missing"
    ]
