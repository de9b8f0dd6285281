"""GCU cards: every layout of efsmi, and what becomes of one that is missing, wrong or hangs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.core.records import ProbeResult
from entrypoints.facts.probes import enflame
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host
from tests.support.hosts.trees import Tree, pci, sample, write_tree

MIB = 1 << 20
TABLES = {
    "efsmi.s60-2x.v1.2.0.301.txt": [("S60", "0000:01:00.0", 49120), ("S60", "0000:09:00.0", 42976)],
    "efsmi.s60-2x.v1.4.0.505.txt": [("S60", "0000:3d:00.0", 49120), ("S60", "0000:3e:00.0", 49120)],
    "efsmi.s60g-2x.v1.6.3.12.txt": [("S60G", "0000:2e:00.0", 23552), ("S60G", "0000:2f:00.0", 23552)],
    "efsmi.l300-1x.v1.7.2.14.txt": [("L300", "0000:2d:00.0", 147456)],
    "efsmi.t20-2x.v1.20.0.txt": [("T20", "0000:3d:00.0", 32768), ("T20", "0000:3e:00.0", 32768)],
}
VERSIONS = {
    "efsmi.s60-2x.v1.2.0.301.txt": ("1.2.0.301", "1.2.0.301", "33.6.2"),
    "efsmi.s60-2x.v1.4.0.505.txt": ("1.4.0.505", "1.4.4.501", "33.6.5"),
    "efsmi.s60g-2x.v1.6.3.12.txt": ("1.6.3.12", "1.6.3.12", "31.5.3"),
    "efsmi.l300-1x.v1.7.2.14.txt": ("1.7.2.14", "1.7.2.14", "40.2.8.3"),
    "efsmi.t20-2x.v1.20.0.txt": ("1.20.0", "2.4.20230829", "10.19.3"),
}


def text(name: str) -> str:
    return sample(f"enflame/{name}")


# --- layouts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_version_of_the_table_parses(name: str) -> None:
    answer = enflame.parse_efsmi_table(text(name))

    assert [(card.name, card.bus, (card.memory or 0) // MIB) for card in answer.cards] == TABLES[name]
    assert tuple(answer.versions[part] for part in ("tool", "driver", "firmware")) == VERSIONS[name]


def test_the_list_of_keys_tells_memory_health_and_whether_a_card_is_held() -> None:
    card = enflame.parse_query(text("efsmi-q.s60.txt")).cards[0]

    assert (card.name, card.bus, card.health, card.busy) == ("S60", "0000:17:00.0", "ok", False)
    assert (card.memory, card.used) == (42976 * MIB, 1129 * MIB)


def test_the_older_keys_mean_the_same() -> None:
    answer = enflame.parse_query(text("efsmi-q.s60.v1.2.4.12.txt"))
    short = enflame.parse_query(text("efsmi-q-d.s60-2x.old.txt"))

    assert answer.cards[0][:5] == (7, "S60", "0000:b1:00.0", 42976 * MIB, 1129 * MIB)
    assert answer.versions == {"driver": "1.2.4.12"}
    assert [(card.number, card.memory) for card in short.cards] == [(0, 42976 * MIB), (1, 42976 * MIB)]


def test_sizes_of_address_windows_are_not_taken_for_memory() -> None:
    windows = "DEV ID 0\n BAR1 Mem Info\n  Total Size : 64 MiB\n Device Mem Info\n  Total Size : 49120 MiB\n"

    assert enflame.parse_query(windows).cards[0].memory == 49120 * MIB


def test_a_card_in_use_is_busy() -> None:
    busy_output = text("efsmi-q.s60.txt").replace(
        "Used Size               : 0 MiB", "Used Size               : 30000 MiB"
    )

    assert enflame.parse_query(busy_output).cards[0][4:] == (31129 * MIB, "ok", True, "TR6Y46010302")


def test_the_json_of_newer_versions_has_the_same_keys() -> None:
    device = {"id": 3, "Device Info": {"Dev Name": "S60", "Health": "True"}, "Device Mem Info": {"Total Size": 49120}}
    answer = enflame.parse_query(json.dumps({"devices": [{**device, "Driver Info": {"Ver": "1.6.3.12"}}]}))

    assert answer == enflame.EfsmiOutput(
        (enflame.EfsmiCard(3, "S60", "", 49120 * MIB, health="ok"),), {"driver": "1.6.3.12"}
    )


def test_columns_tell_memory_and_how_much_is_taken() -> None:
    cards = enflame.parse_columns(text("efsmi-dmon.s60-7x.txt")).cards
    header = "*GCU Logic Pwr DTemp DUsed Dpm MUsed Mem Mclk\n*Idx Id W C % L % MiB MHz\n"
    older = header + "0 0 105.0 39.0 0.0 Sleep 2 49120 7000\n"

    assert [card.number for card in cards] == list(range(7))
    assert (cards[0].memory, cards[0].used) == (42976 * MIB, int(42976 * MIB * 0.841))
    assert enflame.parse_columns(older).cards[0].memory == 49120 * MIB


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("00:3d:00.0", "0000:3d:00.0"),
        ("00000000:3D:00.0", "0000:3d:00.0"),
        ("0001:3d:0.0", "0001:3d:00.0"),
        ("3d:00.0", "0000:3d:00.0"),
        ("N/A", ""),
    ],
)
def test_addresses_are_the_kernels_whatever_the_domains_width(written: str, meant: str) -> None:
    assert enflame.parse_bus(written) == meant


@pytest.mark.parametrize(
    ("parse", "wrong", "quoted"),
    [
        (enflame.parse_efsmi_table, "", "DEV, NAME"),
        (enflame.parse_efsmi_table, "Error: driver not loaded\n", "driver not loaded"),
        (enflame.parse_efsmi_table, text("efsmi.s60-2x.v1.4.0.505.txt").replace("49120MiB", "lots"), "lots"),
        (
            enflame.parse_efsmi_table,
            text("efsmi.s60-2x.v1.4.0.505.txt").replace("00:3e:00.0", "somewhere"),
            "somewhere",
        ),
        (
            enflame.parse_efsmi_table,
            text("efsmi.s60-2x.v1.4.0.505.txt").replace("| 1      Enf", "| 0      Enf"),
            "once",
        ),
        (enflame.parse_query, "", "once"),
        (enflame.parse_query, "DEV ID 0\nDevice Mem Info\nTotal Size : 49 TB\n", "49 TB"),
        (enflame.parse_query, '{"devices": 1}', "devices"),
        (enflame.parse_columns, "0 101 36\n", "MUsed"),
        (enflame.parse_columns, "*Dev MUsed Mem\n0 lots 42976\n", "lots"),
        (enflame.parse_columns, "*Dev MUsed Mem\n0 1\n", "3 columns"),
    ],
)
def test_an_unknown_layout_is_refused_with_the_line(parse: object, wrong: str, quoted: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match=quoted):
        parse(wrong)


# --- hosts ----------------------------------------------------------------------------------------------------------


def probe(tmp_path: Path, tree: Tree, answers: dict[str, dict[str, object]]) -> tuple[ProbeResult, Host]:
    host = Host(str(write_tree(tmp_path, {**tree, "commands.json": json.dumps(answers)})))
    return enflame.probe(host, Commands(host).run, {}), host


def cards(*buses: str) -> Tree:
    functions = [pci(bus, "0x1e36", "0xc035", "0x120000", index % 2, "0-39") for index, bus in enumerate(buses)]
    nodes = {f"dev/gcu{number}": "" for number in range(len(buses))}
    return {path: content for function in functions for path, content in function.items()} | nodes | {"dev/gcuctl": ""}


def said(stdout: str, rc: int = 0, stderr: str = "") -> dict[str, object]:
    return {"rc": rc, "stdout": stdout, "stderr": stderr}


def test_columns_take_their_addresses_from_the_kernel(tmp_path: Path) -> None:
    tree = cards(*(f"0000:{bus:02x}:00.0" for bus in range(1, 8)))
    result, host = probe(tmp_path, tree, {"efsmi --dmon -c 1": said(text("efsmi-dmon.s60-7x.txt"))})

    assert host.failures == []
    assert [device.bus for device in result.devices][-1] == "0000:07:00.0"


def test_cards_without_the_tool_are_a_failure_that_says_what_is_missing(tmp_path: Path) -> None:
    tree = {**cards("0000:3d:00.0"), "sys/module/enflame/version": "1.6.3.12\n"}
    result, host = probe(tmp_path, tree, {})

    assert (result.devices[0].memory_total, result.devices[0].bus) == (None, "0000:3d:00.0")
    assert result.versions == {"driver": "1.6.3.12"}
    assert [failure.where for failure in host.failures] == ["efsmi"]
    assert "TopsRider" in host.failures[0].expected


def test_a_card_whose_memory_is_not_told_is_a_failure(tmp_path: Path) -> None:
    _, host = probe(tmp_path, cards("0000:17:00.0", "0000:18:00.0"), {"efsmi -q": said(text("efsmi-q.s60.txt"))})

    assert [failure.found for failure in host.failures] == ["no memory size for card 1"]


# --- damage ---------------------------------------------------------------------------------------------------------
