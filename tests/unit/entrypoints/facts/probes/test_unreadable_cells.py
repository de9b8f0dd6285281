"""What tools print where they fail: a cell that a tool may not read is unknown and never discards the others.

No damage to what any tool prints ends in a traceback.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from drydock.core.paths import ROOT
from entrypoints.facts.probes import enflame, tpu
from entrypoints.facts.probes.ascend import ascend, npu_smi
from entrypoints.facts.probes.common.printed import is_unknown
from entrypoints.facts.probes.cuda import nvidia_smi
from entrypoints.facts.probes.habana import hl_smi
from entrypoints.facts.probes.neuron import neuron, neuron_ls
from entrypoints.facts.probes.rocm import amdsmi, kfd
from entrypoints.facts.probes.xpu import xpusmi
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host
from tests.support.damage import fuzz, survives_damage
from tests.support.hosts import expect
from tests.support.hosts.trees import sample

WORDS = ("N/A", "[N/A]", "[Not Supported]", "[Insufficient Permissions]", "[Unknown Error]", "NA", "-", "Unknown")


@pytest.mark.parametrize("word", [*WORDS, "NA / NA", "N/A / N/A", "N/A MiB", "", "permission denied", "ERR!"])
def test_these_words_are_no_values(word: str) -> None:
    assert is_unknown(word)


@pytest.mark.parametrize("word", ["0", "768MiB", "768MiB / N/A", "HL-225", "Nano", "On", "SPX/NPS1"])
def test_these_words_are_values(word: str) -> None:
    assert not is_unknown(word)


def _lengths(parse: Callable[[str], Any], text: str) -> int:
    parsed = parse(text)
    return len(next(getattr(parsed, name) for name in ("cards", "chips", "rows") if hasattr(parsed, name)))


CELLS = [
    (hl_smi.parse_hl_smi_table, "habana/hl-smi.gaudi2-8x.hl-1.16.0.txt", r"\d+MiB / 98304MiB"),
    (hl_smi.parse_hl_smi_table, "habana/hl-smi.gaudi2-8x.hl-1.16.0.txt", r"\d+MiB(?= / 98304MiB)"),
    (hl_smi.parse_hl_smi_table, "habana/hl-smi.gaudi2-8x.hl-1.16.0.txt", r"0000:b3:00.0"),
    (npu_smi.parse_info, "ascend/npu-smi-info.910b3-8x.txt", r"\d+ */ 65536"),
    (npu_smi.parse_info, "ascend/npu-smi-info.910b3-8x.txt", r"0000:C1:00.0"),
    (npu_smi.parse_info, "ascend/npu-smi-info.910b3-8x.txt", r"\bOK\b"),
    (enflame.parse_query, "enflame/efsmi-q-d.s60-2x.old.txt", r"(?<=Mem Size                : )\d+ MiB"),
    (enflame.parse_query, "enflame/efsmi-q-d.s60-2x.old.txt", r"(?<=Mem Usage               : )\d+ MiB"),
    (enflame.parse_efsmi_table, "enflame/efsmi.s60-2x.v1.4.0.505.txt", r"49120MiB"),
    (enflame.parse_columns, "enflame/efsmi-dmon.s60-7x.txt", r"(?<=Sleep   )84.1"),
    (neuron_ls.parse_neuron_table, "neuron/neuron-ls-t.trn1.32xlarge.txt", r"32 GB "),
    (neuron_ls.parse_neuron_table, "neuron/neuron-ls-t.trn1.32xlarge.txt", r"10:1c.0"),
    (tpu.parse_tpu_info, "tpu/tpu-info.v4-4x.txt", r"0.00 GiB / 31.75 GiB"),
    (tpu.parse_tpu_info, "tpu/tpu-info.v4-4x.txt", r"0.00 GiB(?= / 31.75)"),
]


@pytest.mark.parametrize("word", ["N/A", "NA", "-"])
@pytest.mark.parametrize(("parse", "name", "pattern"), CELLS)
def test_a_table_keeps_all_devices(parse: Callable[[str], Any], name: str, pattern: str, word: str) -> None:
    text = sample(name)
    assert re.search(pattern, text)
    replaced = re.sub(pattern, lambda cell: word.ljust(len(cell[0])), text)

    assert _lengths(parse, replaced) == _lengths(parse, text)


@pytest.mark.parametrize("key", ["memory_size", "bdf", "cpu_affinity", "connected_to", "nc_count", "neuron_processes"])
@pytest.mark.parametrize("value", ["N/A", None])
def test_json_of_neuron_ls_keeps_all_devices(key: str, value: str | None) -> None:
    devices = json.loads(sample("neuron/neuron-ls-j.trn1.2xlarge.txt"))
    devices = [{**device, "neuroncore_ids": [0, 1], key: value} for device in devices]

    assert len(neuron_ls.parse_neuron_json(json.dumps(devices)).rows) == len(devices)


def _changed(name: str, command: str, pattern: str) -> Host:
    """Open a recorded host whose tool prints N/A where a pattern fits."""
    host = expect.document(name)
    answer = host["commands"][command]
    assert re.search(pattern, answer["stdout"])
    answer["stdout"] = re.sub(pattern, '"N/A"' if command.endswith("-j") else "N/A", answer["stdout"])
    return expect.opened(host)


def test_an_npu_has_the_memory_of_its_model() -> None:
    host = _changed("ascend-910b4-1x", "npu-smi info", r"\d+ */ 32768")
    result = ascend.probe(host, Commands(host).run, {})

    assert [(device.name, device.memory_total, device.memory_used) for device in result.devices] == [
        ("910B4", 32768 << 20, None)
    ]
    assert not [failure for failure in host.failures if "memory" in failure.found]


def test_an_npu_of_unknown_memory_is_a_failure() -> None:
    host = expect.document("ascend-910b4-1x")
    answer = host["commands"]["npu-smi info"]
    answer["stdout"] = re.sub(r"\d+ */ 32768", "N/A", answer["stdout"]).replace("910B4", "999X9")
    opened = expect.opened(host)
    ascend.probe(opened, Commands(opened).run, {})

    assert any("no memory size for 0: 999X9" in failure.found for failure in opened.failures)


def test_a_gcu_has_the_memory_of_its_model() -> None:
    host = expect.document("enflame-s60-2x")
    for answer in host["commands"].values():
        answer["stdout"] = re.sub(r"\d+ ?MiB", "N/A", answer["stdout"])
    opened = expect.opened(host)
    result = enflame.probe(opened, Commands(opened).run, {})

    assert {device.memory_total for device in result.devices} == {42976 << 20}
    assert opened.failures == []


@pytest.mark.parametrize(("name", "gib"), [("neuron-trn2n.48xlarge", 96), ("neuron-trn1.2xlarge", 32)])
def test_a_neuron_device_has_the_memory_of_its_family(name: str, gib: int) -> None:
    host = _changed(name, "neuron-ls -j", r'(?<="memory_size": )\d+')
    result = neuron.probe(host, Commands(host).run, {})

    assert {device.memory_total for device in result.devices} == {gib << 30}
    assert host.failures == []


PRINTED = [
    (nvidia_smi.parse_nvidia_table, "cuda/nvidia-smi.*.txt"),
    (nvidia_smi.parse_query, "cuda/nvidia-smi-query.*.txt"),
    (nvidia_smi.parse_nvidia_topology, "cuda/nvidia-smi-topo-m.*.txt"),
    (nvidia_smi.parse_list, "cuda/nvidia-smi-L.*.txt"),
    (amdsmi.parse_amd_smi, "rocm/amd-smi-static.*.txt"),
    (amdsmi.parse_amd_topology, "rocm/amd-smi-topology.*.txt"),
    (amdsmi.parse_rocm_smi, "rocm/rocm-smi.*.txt"),
    (amdsmi.parse_rocminfo, "rocm/rocminfo.*.txt"),
    (kfd.parse_properties, "rocm/kfd-properties.*.txt"),
    (tpu.parse_tpu_info, "tpu/tpu-info.*.txt"),
    (hl_smi.parse_hl_smi_table, "habana/hl-smi.gaudi*.txt"),
    (hl_smi.parse_modules, "habana/hl-smi.index-module_id.*.txt"),
    (hl_smi.parse_hl_smi_topology, "habana/hl-smi-topo-*.txt"),
    (xpusmi.parse_discovery, "xpu/xpu-smi[-.][db]*.txt"),
    (xpusmi.parse_xpu_topology, "xpu/xpu-smi-topology-*.txt"),
    (enflame.parse_efsmi_table, "enflame/efsmi.*.txt"),
    (enflame.parse_query, "enflame/efsmi-q.*.txt"),
    (enflame.parse_columns, "enflame/efsmi-dmon.*.txt"),
    (npu_smi.parse_info, "ascend/npu-smi-info.*.txt"),
    (npu_smi.parse_mapping, "ascend/npu-smi-info-m.[9a]*.txt"),
    (npu_smi.parse_npu_topology, "ascend/npu-smi-topo.*.txt"),
    (npu_smi.parse_fields, "ascend/npu-smi-board.*.txt"),
    (npu_smi.parse_keys, "ascend/ascend_toolkit_install.*.txt"),
    (neuron_ls.parse_neuron_table, "neuron/neuron-ls.*.txt"),
    (neuron_ls.parse_neuron_json, "neuron/neuron-ls-j.trn*xlarge*.txt"),
]


@fuzz
@pytest.mark.parametrize(("parse", "files"), PRINTED, ids=[parse.__name__ for parse, _ in PRINTED])
def test_no_damage_to_what_a_tool_printed_ends_in_a_traceback(parse: Callable[[str], Any], files: str) -> None:
    samples = [sample(f"{path.parent.name}/{path.name}") for path in sorted((ROOT / "tests/samples").glob(files))]
    assert samples
    survives_damage(parse, *samples)


@fuzz
@pytest.mark.parametrize(("parse", "sample_text"), [
    (neuron.parse_connected, "12, 3, 4, 1\n"),
    (neuron.parse_connected, "\n"),
    (enflame.parse_query, json.dumps({"devices": [{"id": 0, "Device Mem Info": {"Total Size": 49120}}]})),
], ids=["neighbours", "no-neighbours", "devices-as-json"])  # fmt: skip
def test_no_damage_to_a_short_answer_ends_in_a_traceback(parse: Callable[[str], Any], sample_text: str) -> None:
    survives_damage(parse, sample_text)
