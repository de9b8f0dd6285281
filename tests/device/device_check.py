"""Shows what drydock does on a machine with devices, without an image, an engine or a network. See run.sh.

It records the host, checks it, plans five models, and compares the facts with what the vendor's own tool says. Standard
library only; all that it writes is without the machine's serial numbers, UUIDs, addresses and names (identifiers.py).
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from entrypoints.core.identifiers import Identifiers, read_machine_values  # noqa: E402 - as above
from entrypoints.host.commands import TIMED_OUT, run_live  # noqa: E402 - after the path is set
from tests.device.vendor_tools import VendorAnswer, ask_vendor, pair_cards  # noqa: E402 - as above

MODELS = (
    "Qwen/Qwen3-8B",
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-30B-A3B-FP8",
    "deepseek-ai/DeepSeek-V2-Lite",
    "meta-llama/Llama-3.3-70B-Instruct",
)
"""A dense model, two with experts (MXFP4 and FP8), one with a compressed KV cache, and one that needs two H100."""
CHECK_CODES, PLAN_CODES = (0, 3), (0, 4, 5, 6, 14)
"""Exit codes of `check` and `plan` that are answers: passed or FAIL; planned, or why the model, the memory, the host or
this vLLM does not allow it (entrypoints/core/errors.py)."""
SECONDS = 120
"""For one verb of the entrypoint, which gives each of the vendor's tools 20 seconds."""
VENDOR_SECONDS = float(os.environ.get("VENDOR_SECONDS", "20"))
"""For one run of the vendor's tool by this script."""
USED_MIB = 256
"""Difference of used memory between two readings, because other programs of the machine go on."""
MEMORY_PART = 0.01
"""Part by which sizes of one device's memory differ between tools: some leave out what the firmware reserves."""
WITHOUT_DEVICES = frozenset({"cpu", "openvino", "router"})
SHOWN = ("--tensor-parallel-size", "--max-model-len", "--gpu-memory-utilization", "--max-num-seqs")

HEADING = "Each row: what, drydock's value, and what the vendor's tool, the kernel or the record says.\n"


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
    """The machine, or a recorded host, with the entrypoint of this checkout and the prepared files of one image."""

    def __init__(self, prepared: Path, root: str = "") -> None:
        self._root = root
        self._env = {
            **{name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
            "LC_ALL": "C.UTF-8",
            "DRYDOCK_PROFILE": str(prepared / "profile.json"),
            "DRYDOCK_KNOWN_MODELS": str(ROOT / "drydock" / "run" / "configurations.json"),
        }
        self.accelerator: str = json.loads((prepared / "profile.json").read_text())["accelerator"]

    def ask(self, *words: str, root: str = "") -> Answer:
        """Run a verb of the entrypoint, here or on a recorded host. Raises SystemExit if it does not end."""
        where = root or self._root
        argv = (sys.executable, "-I", "-S", str(ROOT / "entrypoints"), *words, *(("--root", where) if where else ()))
        result = run_live(argv, SECONDS, self._env)
        if result.rc == TIMED_OUT:
            raise SystemExit(f"{' '.join(words)}: {result.stderr}")
        return Answer(*result)

    def ask_json(self, *words: str, root: str = "", codes: Sequence[int] = (0,)) -> Any:
        """Return the JSON that a verb prints. Raises SystemExit with what it said if it ends with another code."""
        answer = self.ask(*words, root=root)
        if answer.code not in codes:
            raise SystemExit(f"{' '.join(words)}: exit code {answer.code}, expected {codes}:\n{answer.stderr[-2000:]}")
        return json.loads(answer.stdout)

    def record(self, file: Path) -> Any:
        """Record the host, and return its facts. The machine is not asked again: a tool that hangs has hung once."""
        recorded = self.ask("facts", "--record", str(file))
        if recorded.code:
            raise SystemExit(recorded.stderr)
        return self.ask_json("facts", root=str(file))

    def ask_vendor(self) -> VendorAnswer:
        """Return what the vendor's own tool says."""
        return ask_vendor(self.accelerator, VENDOR_SECONDS, self._env)

    @property
    def is_live(self) -> bool:
        """Whether this is the machine itself."""
        return not self._root


# --- the facts, and what the vendor's tool says ---------------------------------------------------------------------


def compare_facts(facts: Mapping[str, Any], vendor: VendorAnswer) -> Iterator[Row]:
    """Yield a row for each fact that the vendor's tool says too. What it does not print is left out."""
    devices, versions = facts["devices"], facts["versions"]
    if not vendor.command:
        yield Row("vendor's tool", f"{len(devices)} devices", "not compared: no tool of this accelerator is read", True)
        return
    if vendor.problem:
        yield Row("vendor's tool", f"{len(devices)} devices", vendor.problem, False)
        return
    yield compare("devices", len(devices), len(vendor.cards))
    driver = vendor.cards[0].driver
    ours = versions.get("tool_driver") or versions.get("driver", "")
    if driver:  # Habana's and AMD's tools append the build: 1.22.0-94aac46
        yield Row("driver", ours, driver, bool(ours) and re.split(r"[-+]", driver)[0] == re.split(r"[-+]", ours)[0])
    for number, (device, card) in enumerate(pair_cards(devices, vendor.cards)):
        yield Row(f"{number} name", device["name"], card.name, is_same_name(device["name"], card.name))
        for name in ("uuid", "bus"):
            if getattr(card, name):
                yield compare(f"{number} {name}", device[name], getattr(card, name))
        if card.memory is not None:
            yield compare_memory(f"{number} memory", device["memory_total"], card.memory, card.memory * MEMORY_PART)
        if card.used is not None:
            yield compare_memory(f"{number} used", device["memory_used"], card.used, USED_MIB)


def compare_system(facts: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of what the kernel of this machine says itself."""
    yield compare("kernel", facts["kernel"].get("release", ""), os.uname().release)
    yield compare("processors", len(facts["cpus"]), len(os.sched_getaffinity(0)))


def compare(what: str, ours: object, expected: object) -> Row:
    """Return the row of two values that must be the same."""
    return Row(what, str(ours), str(expected), str(ours) == str(expected))


def compare_memory(what: str, ours: int | None, expected: int, difference: float) -> Row:
    """Return the row of a size in bytes and one in MiB, which may differ by so many MiB."""
    size = None if ours is None else ours >> 20
    same = size is not None and abs(size - expected) <= difference
    return Row(what, "unknown" if size is None else f"{size} MiB", f"{expected} MiB", same)


def is_same_name(ours: str, expected: str) -> bool:
    """Tell whether two names are of one model: tools put the maker or the form before or behind it."""
    first, second = ours.casefold(), expected.casefold()
    return bool(first and second) and (first in second or second in first)


# --- check and plan, here and on the record -------------------------------------------------------------------------


def compare_replay(what: str, live: object, replayed: object) -> Row:
    """Return the row of an answer that the record must give as the machine does."""
    return Row(what, "as recorded" if live == replayed else "otherwise", "as recorded", live == replayed)


def judged(findings: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the ids and severities of findings."""
    return sorted((finding["id"], finding["severity"]) for finding in findings)


def plan_model(device: Device, model: str, root: str = "") -> dict[str, Any]:
    """Plan a model, here or on a recorded host: the exit code, and the plan or the error."""
    answer = device.ask("plan", "--json", "--model", model, root=root)
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


def choose_device(prepared: Path, root: str, private: Path) -> tuple[Device, Any]:
    """Return the machine with the prepared files that fit it, and its facts: those whose probe finds devices.

    The record is `whole.json` in the private folder. Raises SystemExit if no probe finds a device.
    """
    file = private / "whole.json"
    if (prepared / "profile.json").is_file():
        device = Device(prepared, root)
        return device, device.record(file)
    for folder in sorted(path.parent for path in prepared.glob("*/profile.json")):
        device = Device(folder, root)
        facts = device.record(file)
        if facts["devices"]:
            return device, facts
        file.unlink()
    names = ", ".join(sorted(path.parent.name for path in prepared.glob("*/profile.json")))
    raise SystemExit(f"no device found by the probes of {names}; run this on a machine with one, and its driver")


def main(prepared: str, output: str, root: str = "") -> int:
    """Write everything to a folder and print the table; 0 if every row agrees."""
    folder = Path(output)
    with tempfile.TemporaryDirectory() as name:
        private = Path(name)
        device, facts = choose_device(Path(prepared), root, private)
        vendor = device.ask_vendor()
        whole = json.loads((private / "whole.json").read_text())
        vocabulary = "".join(path.read_text() for path in sorted(Path(prepared).rglob("*.json")))
        identifiers = Identifiers(read_machine_values(), vocabulary)
        answers = (answer[stream] for answer in whole["commands"].values() for stream in ("stdout", "stderr"))
        identifiers.learn([*vendor.texts, *answers, *whole["files"].values()])
        rows, files = examine(device, facts, vendor, identifiers, private)
    table = write_table([Row(*map(identifiers.remove, row)) for row in rows])
    for path, text in {**files, "table.txt": HEADING + table}.items():
        if identifiers.remaining_in(text):  # its value is not repeated here: it would be in the log
            raise SystemExit(f"{path}: not written: a serial number, an id or a name of this machine is still in it")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    sys.stderr.write(HEADING)
    sys.stdout.write(table)
    return 0 if all(row.same for row in rows) else 1


def examine(
    device: Device, facts: Any, vendor: VendorAnswer, identifiers: Identifiers, private: Path
) -> tuple[list[Row], dict[str, str]]:
    """Check and plan, here and on the record; return the rows of the table, and the files to keep, by path."""
    whole, reduced = private / "whole.json", private / "host.json"
    reduced.write_text(format_json(identifiers.remove(json.loads(whole.read_text()))))
    replayed = device.ask_json("facts", root=str(reduced))
    rows = [*compare_facts(facts, vendor), *(compare_system(facts) if device.is_live else ())]
    rows.append(compare_replay("facts", identifiers.remove(facts), replayed))
    here = str(whole) if vendor.problem else ""  # a tool without an answer is not waited for at each plan
    check = device.ask_json("check", "--json", root=here, codes=CHECK_CODES)
    on_record = device.ask_json("check", "--json", root=str(reduced), codes=CHECK_CODES)
    rows.append(compare_replay("check", judged(check), judged(on_record)))
    plans = {model: plan_model(device, model, here) for model in MODELS}
    for model, planned in plans.items():
        on_record = plan_model(device, model, str(reduced))
        same = planned["exit_code"] in PLAN_CODES and describe_plan(planned) == describe_plan(on_record)
        rows.append(Row(f"plan {model}", f"{planned['exit_code']}: {describe_plan(planned)}", "as recorded", same))
    outputs = {"facts.json": replayed, "check.json": check, "plans.json": plans}
    files = {name: format_json(identifiers.remove(value)) for name, value in outputs.items()}
    return rows, {
        **files,
        f"hosts/{name_host(replayed)}/host.json": reduced.read_text(),
        "check.txt": identifiers.remove(device.ask("check", root=here).stdout),
    }


def name_host(facts: Mapping[str, Any]) -> str:
    """Return the name of a recorded host's folder, as in tests/hosts: accelerator, model and number of devices."""
    devices = facts["devices"]
    words = f"{facts['accelerator']} {devices[0]['name'] if devices else 'none'}".lower()
    return re.sub(r"[^a-z0-9.]+", "-", words).strip("-.") + f"-{len(devices)}x"


def format_json(value: Any) -> str:
    """Format JSON as `facts --record` does."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_table(rows: Sequence[Row]) -> str:
    """Return the rows as a text: what, drydock's value, the expected one. The last line counts those that differ."""
    width = max(len(row.what) for row in rows)
    lines = [f"{'ok  ' if row.same else 'DIFF'}  {row.what:{width}}  {row.ours:22}  {row.expected}" for row in rows]
    different = sum(not row.same for row in rows)
    return "\n".join([*lines, f"{len(rows)} rows, {different} different"]) + "\n"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
