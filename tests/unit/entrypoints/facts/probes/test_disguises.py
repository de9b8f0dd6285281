"""What tools print around their answer changes nothing: colours, carriage returns, warnings of libraries, blanks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from entrypoints.facts.probes import enflame, tpu
from entrypoints.facts.probes.ascend import npu_smi
from entrypoints.facts.probes.common.tools import run_tool
from entrypoints.facts.probes.cuda import nvidia_smi
from entrypoints.facts.probes.habana import hl_smi
from entrypoints.facts.probes.neuron import neuron_ls
from entrypoints.facts.probes.rocm import amdsmi
from entrypoints.facts.probes.xpu import xpusmi
from entrypoints.host.commands import TIMED_OUT
from entrypoints.host.host import Host, Result
from tests.support.hosts.trees import SAMPLES, sample

Parse = Callable[[str], Any]

PARSERS: dict[str, tuple[Parse, ...]] = {
    "ascend": (npu_smi.parse_info, npu_smi.parse_mapping, npu_smi.parse_npu_topology),
    "cuda": (
        nvidia_smi.parse_nvidia_table,
        nvidia_smi.parse_query,
        nvidia_smi.parse_nvidia_topology,
        nvidia_smi.parse_list,
    ),
    "enflame": (enflame.parse_query, enflame.parse_efsmi_table, enflame.parse_columns),
    "habana": (hl_smi.parse_hl_smi_table, hl_smi.parse_modules, hl_smi.parse_hl_smi_topology),
    "neuron": (neuron_ls.parse_neuron_json, neuron_ls.parse_neuron_table),
    "rocm": (amdsmi.parse_amd_smi, amdsmi.parse_rocm_smi, amdsmi.parse_rocminfo, amdsmi.parse_amd_topology),
    "tpu": (tpu.parse_tpu_info,),
    "xpu": (xpusmi.parse_discovery, xpusmi.parse_xpu_topology),
}


def _each_line(change: Callable[[str], str]) -> Parse:
    return lambda text: "\n".join(map(change, text.split("\n")))


def _coloured(line: str) -> str:
    return "".join(f"\x1b[1;32m{word}\x1b[39;49m" if word.isalnum() else word for word in re.split(r"(\s+)", line))


PRELOAD = "ERROR: ld.so: object 'libtcmalloc.so' from LD_PRELOAD cannot be preloaded: ignored.\n"

DISGUISES: dict[str, Parse] = {
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "bold lines": _each_line(lambda line: f"\x1b[1m{line}\x1b[0m" if line else line),
    "coloured words": _each_line(_coloured),
    "a window's title": lambda text: f"\x1b]0;watch\x07\x1b[?25l{text}\x1b(B",
    "a byte order mark": lambda text: f"\ufeff{text}",
    "blanks behind": _each_line(lambda line: f"{line}   "),
    "empty lines": lambda text: f"\n\n{text}\n\n",
    "no last line end": str.rstrip,
    "a loader's complaint": lambda text: PRELOAD + text,
    "a warning in brackets": lambda text: f"[WARN] 2026-01-01 slow link, see [1]\n{text}",
    "a warning": lambda text: f"\nWARNING: --old is deprecated, see https://example.org/a,b: [x]\n\n{text}",
}


def _understood() -> Iterator[tuple[str, Parse]]:
    for path in sorted(Path(SAMPLES).glob("*/*.txt")):
        name = f"{path.parent.name}/{path.name}"
        for parse in PARSERS.get(path.parent.name, ()):
            try:
                parse(sample(name))
            except ValueError:
                continue
            yield name, parse


def _asked(result: Result, parse: Parse) -> tuple[Any, Host]:
    host = Host("/nowhere")
    return run_tool(host, lambda *_: result, ("tool",), parse), host


def test_the_parsers_of_every_folder_of_samples_are_listed() -> None:
    assert {path.parent.name for path in Path(SAMPLES).glob("*/*.txt")} == set(PARSERS), f"PARSERS in {__file__}"


@pytest.mark.parametrize(("name", "parse"), tuple(_understood()), ids=lambda value: getattr(value, "__name__", value))
def test_a_sample_reads_the_same_in_every_disguise(name: str, parse: Parse) -> None:
    text = sample(name)
    plain = parse(text)
    readings = {disguise: _asked(Result(0, change(text), ""), parse) for disguise, change in DISGUISES.items()}

    assert [disguise for disguise, (reading, host) in readings.items() if reading != plain or host.failures] == []


def test_what_a_tool_printed_before_it_failed_counts_and_the_failure_too() -> None:
    text = sample("cuda/nvidia-smi.h100.r535.txt") + "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"
    table, host = _asked(Result(14, text, ""), nvidia_smi.parse_nvidia_table)

    assert table.gpus[0].name == "NVIDIA H100 80GB HBM3"
    assert [failure.found for failure in host.failures] == ["WARNING: infoROM is corrupted at gpu 0000:1B:00.0"]


def test_two_sentences_of_a_tool_that_fails_are_both_told() -> None:
    words = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\nPlease also try adding the directory.\n"
    _, host = _asked(Result(12, words, ""), nvidia_smi.parse_nvidia_table)

    assert "couldn't find libnvidia-ml.so" in host.failures[0].found
    assert len(host.failures) == 1


def test_a_tool_that_hung_is_one_failure() -> None:
    table, host = _asked(Result(TIMED_OUT, "", "tool: no answer within 20 s"), nvidia_smi.parse_nvidia_table)

    assert table is None
    assert [failure.found for failure in host.failures] == ["tool: no answer within 20 s"]
