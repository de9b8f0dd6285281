"""Shows what drydock does on a machine with NVIDIA devices, without an image, an engine or a network. See run.sh.

It records the host, checks it, plans five models, and compares the facts with what nvidia-smi itself says. Standard
library only; all that it writes is without the machine's serial numbers, UUIDs, addresses and names (identifiers.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from identifiers import Identifiers, read_machine_values

ROOT = Path(__file__).resolve().parents[2]
MODELS = (
    "Qwen/Qwen3-8B",
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-30B-A3B-FP8",
    "deepseek-ai/DeepSeek-V2-Lite",
    "meta-llama/Llama-3.3-70B-Instruct",
)
"""A dense model, two with experts (MXFP4 and FP8), one with a compressed KV cache, and one that needs two H100."""
CHECK_CODES, PLAN_CODES = (0, 3), (0, 5)
"""Exit codes of `check` and `plan` that are answers: passed or FAIL, planned or does not fit."""
SECONDS = 120
USED_MIB = 256
"""Difference of used memory between two readings, because other programs of the machine go on."""
SHOWN = ("--tensor-parallel-size", "--max-model-len", "--gpu-memory-utilization", "--max-num-seqs")


class Row(NamedTuple):
    """One line of the table."""

    what: str
    ours: str
    expected: str
    same: bool


class Answer(NamedTuple):
    """What the entrypoint answered."""

    code: int
    stdout: str
    stderr: str


class Device:
    """The machine, with the entrypoint of this checkout and a prepared profile."""

    def __init__(self, prepared: Path) -> None:
        self._env = {
            **{name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
            "LC_ALL": "C.UTF-8",
            "DRYDOCK_PROFILE": str(prepared / "profile.json"),
            "DRYDOCK_KNOWN_MODELS": str(ROOT / "drydock" / "run" / "configurations.json"),
        }

    def ask(self, *words: str) -> Answer:
        """Run a verb of the entrypoint."""
        command = [sys.executable, "-I", "-S", str(ROOT / "entrypoints"), *words]
        return self._run(command)

    def ask_json(self, *words: str, codes: Sequence[int] = (0,)) -> Any:
        """Return the JSON that a verb prints. Raises SystemExit with what it said if it ends with another code."""
        answer = self.ask(*words)
        if answer.code not in codes:
            raise SystemExit(f"{' '.join(words)}: exit code {answer.code}, expected {codes}:\n{answer.stderr[-2000:]}")
        return json.loads(answer.stdout)

    def read_vendor(self) -> ET.Element:
        """Return all that nvidia-smi says, as XML. Raises SystemExit if it says nothing."""
        try:
            answer = self._run(["nvidia-smi", "-q", "-x"])
        except FileNotFoundError:
            raise SystemExit("nvidia-smi: not found; run this on a machine with NVIDIA's driver") from None
        if answer.code:
            raise SystemExit(f"nvidia-smi -q -x: exit code {answer.code}: {answer.stdout}{answer.stderr}")
        return ET.fromstring(answer.stdout)  # noqa: S314 - the driver's own tool wrote it

    def _run(self, command: Sequence[str]) -> Answer:
        result = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=SECONDS, check=False)
        return Answer(result.returncode, result.stdout, result.stderr)


# --- the facts, and what the vendor's tool says ---------------------------------------------------------------------


def compare_facts(facts: Mapping[str, Any], vendor: ET.Element) -> Iterator[Row]:
    """Yield a row for each fact that nvidia-smi, or the kernel, says too. What it does not print is left out."""
    devices, gpus = facts["devices"], vendor.findall("gpu")
    yield compare("devices", len(devices), len(gpus))
    for name, path in (("driver", "driver_version"), ("cuda", "cuda_version")):
        yield from compare_printed(name, facts["versions"].get(name, ""), vendor, path)
    for number, (device, gpu) in enumerate(zip(devices, gpus, strict=False)):
        for name, ours, path in (
            ("name", device["name"], "product_name"),
            ("uuid", device["uuid"], "uuid"),
            ("memory", f"{(device['memory_total'] or 0) >> 20} MiB", "fb_memory_usage/total"),
        ):
            yield from compare_printed(f"{number} {name}", ours, gpu, path)
        yield compare(f"{number} bus", device["bus"], short_bus(gpu.get("id", "")))
        memory_used = int((gpu.findtext("fb_memory_usage/used") or "0").split()[0])
        ours = (device["memory_used"] or 0) >> 20
        yield Row(f"{number} used", f"{ours} MiB", f"{memory_used} MiB", abs(ours - memory_used) <= USED_MIB)
    yield compare("kernel", facts["kernel"].get("release", ""), os.uname().release)
    yield compare("processors", len(facts["cpus"]), len(os.sched_getaffinity(0)))


def compare(what: str, ours: object, expected: object) -> Row:
    """Return the row of two values that must be the same."""
    return Row(what, str(ours), str(expected), str(ours) == str(expected))


def compare_printed(what: str, ours: str, element: ET.Element, path: str) -> Iterator[Row]:
    """Yield the row of a value if the vendor's tool prints it."""
    text = (element.findtext(path) or "").strip()
    if text and text != "N/A":
        yield compare(what, ours, text)


def short_bus(text: str) -> str:
    """Return a PCI address as the kernel writes it, with a domain of four digits."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


# --- check and plan, here and on the record -------------------------------------------------------------------------


def compare_replay(what: str, live: object, replayed: object) -> Row:
    """Return the row of an answer that the record must give as the machine does."""
    return Row(what, "as recorded" if live == replayed else "otherwise", "as recorded", live == replayed)


def judged(findings: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the ids and severities of findings."""
    return sorted((finding["id"], finding["severity"]) for finding in findings)


def plan_model(device: Device, model: str, root: str = "") -> dict[str, Any]:
    """Plan a model, here or on a recorded host: the exit code, and the plan or the error."""
    answer = device.ask("plan", "--json", "--model", model, *(["--root", root] if root else []))
    if answer.code:
        return {"exit_code": answer.code, "error": answer.stderr.strip()}
    return {"exit_code": 0, "plan": json.loads(answer.stdout)}


def describe_plan(planned: Mapping[str, Any]) -> str:
    """Return a plan in a few words: its most important options, or the first line of the error."""
    if "plan" not in planned:
        return str(planned["error"]).partition("\n")[0].removeprefix("drydock: ")
    argv = planned["plan"]["argv"]
    options = dict(pairwise(argv))
    return " ".join(f"{name} {options[name]}" for name in SHOWN if name in options)


# --- the whole ------------------------------------------------------------------------------------------------------


def main(prepared: str, output: str) -> int:
    """Write everything to a folder and print the table; 0 if every row agrees."""
    device, folder = Device(Path(prepared)), Path(output)
    vendor = device.read_vendor()
    texts = [element.text or "" for name in ("serial", "uuid", "gpu_pdi", "pdi") for element in vendor.iter(name)]
    vocabulary = "".join(path.read_text() for path in sorted(Path(prepared).glob("*.json")))
    identifiers = Identifiers([*read_machine_values(), *texts], vocabulary)
    with tempfile.TemporaryDirectory() as private:
        rows, files = examine(device, vendor, identifiers, Path(private))
    folder.mkdir(parents=True, exist_ok=True)
    table = write_table([Row(*map(identifiers.remove, row)) for row in rows])
    for name, text in {**files, "table.txt": table}.items():
        if identifiers.remaining_in(text):  # its value is not repeated here: it would be in the log
            raise SystemExit(f"{name}: not written: a serial number, an id or a name of this machine is still in it")
        (folder / name).write_text(text)
    sys.stdout.write(table)
    return 0 if all(row.same for row in rows) else 1


def examine(
    device: Device, vendor: ET.Element, identifiers: Identifiers, private: Path
) -> tuple[list[Row], dict[str, str]]:
    """Record, check and plan; return the rows of the table, and the files to keep, by name."""
    whole, reduced = private / "whole.json", private / "host.json"
    recorded = device.ask("facts", "--record", str(whole))
    if recorded.code:
        raise SystemExit(recorded.stderr)
    reduced.write_text(format_json(identifiers.remove(json.loads(whole.read_text()))))
    facts = device.ask_json("facts", "--root", str(whole))
    replayed = device.ask_json("facts", "--root", str(reduced))
    rows = [*compare_facts(facts, vendor)]
    rows.append(compare_replay("facts", identifiers.remove(facts), replayed))
    check = device.ask_json("check", "--json", codes=CHECK_CODES)
    on_record = device.ask_json("check", "--json", "--root", str(reduced), codes=CHECK_CODES)
    rows.append(compare_replay("check", judged(check), judged(on_record)))
    plans = {model: plan_model(device, model) for model in MODELS}
    for model, planned in plans.items():
        on_record = plan_model(device, model, str(reduced))
        same = planned["exit_code"] in PLAN_CODES and describe_plan(planned) == describe_plan(on_record)
        rows.append(Row(f"plan {model}", f"{planned['exit_code']}: {describe_plan(planned)}", "as recorded", same))
    outputs = {"facts.json": replayed, "check.json": check, "plans.json": plans}
    files = {name: format_json(identifiers.remove(value)) for name, value in outputs.items()}
    return rows, {
        **files,
        "host.json": reduced.read_text(),
        "check.txt": identifiers.remove(device.ask("check").stdout),
    }


def format_json(value: Any) -> str:
    """Format JSON as `facts --record` does."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_table(rows: Sequence[Row]) -> str:
    """Return the rows as a text; the last line counts those that differ."""
    width = max(len(row.what) for row in rows)
    lines = [f"{'ok  ' if row.same else 'DIFF'}  {row.what:{width}}  {row.ours:22}  {row.expected}" for row in rows]
    different = sum(not row.same for row in rows)
    return "\n".join([*lines, f"{len(rows)} rows, {different} different"]) + "\n"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
