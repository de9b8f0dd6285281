"""What a command takes as its work grows: rows of a matrix, devices of a host, nodes of a topology. IO.

The work is generated: rows inherit drydock's, devices and nodes are copies of one recorded host.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import startup
from bench.bench_records import Figure, Goal, Measurement, ratio_at_most
from bench.turns import LEAST, in_turns, time_least_process, timed_command
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK, PROJECT_FILE
from drydock.config.rows import MATRIX
from drydock.core.files import compute_checksum
from drydock.core.paths import PROJECT_VARIABLE, ROOT
from drydock.core.project import Project
from drydock.lock import lockfile
from drydock.model.variant import Variant
from drydock.run import entrypoint

COMMAND = "./inv bench growth"
ROWS = (1, 10, 50, 500)
DEVICES = (8, 64, 384)
NODES = (4, 64)
TABLE = ratio_at_most(1.25, "What is not import and matrix is the state of each row's lock, and the table.")
OWN = "./inv matrix: drydock's own rows"
HELP = "help of build, without the start of ./inv"
PARSER = "Python with invoke's parser"
HELPED = ratio_at_most(1.5, "What is not import is the options of one verb.")
HOST = "cuda-h100-8x"
QUERY, LINKS = "nvidia-smi --query-gpu=", "nvidia-smi topo -m"


def measure_growth(rounds: int) -> list[Measurement]:
    """Measure each command with little and with much work, alternately."""
    with tempfile.TemporaryDirectory(prefix="drydock-bench-") as name:
        folder = Path(name)
        works = {
            "matrix: {} rows": {count: _time_task(make_grown_project(folder, count), "matrix") for count in ROWS},
            "lock --check: {} rows": {
                count: _time_task(make_grown_project(folder, count), "lock", "--check") for count in ROWS
            },
            "plan, devices: {}": {count: _time_plan(folder, count) for count in DEVICES},
            "topology plan: {} nodes": {count: _time_topology(folder, count) for count in NODES},
        }
        base_figures = in_turns(
            {
                OWN: _time_task(DRYDOCK, "matrix"),
                LEAST: time_least_process("invoke"),
                HELP: _time_task(DRYDOCK, "build", "--help"),
                PARSER: timed_command([sys.executable, "-c", "import invoke.program"], os.environ),
            },
            rounds,
            "s",
        )
        measurements = [
            _make_growth_row(what, against, goal, (base_figures[what], base_figures[against]))
            for what, against, goal in ((OWN, LEAST, TABLE), (HELP, PARSER, HELPED))
        ]
        for what, work in works.items():
            measures = {what.format(count): run for count, run in work.items()}
            measurements += compare_growth(what, list(work), in_turns(measures, rounds, "s"))
    return measurements


def compare_growth(what: str, counts: list[int], figures: Mapping[str, Figure]) -> Iterator[Measurement]:
    """Compare each amount of work with the one before: the time must not grow faster than the work."""
    for less, more in itertools.pairwise(counts):
        goal = ratio_at_most(round(more / less, 1), "The time must not grow faster than the work.")
        pair = (figures[what.format(more)], figures[what.format(less)])
        yield _make_growth_row(what.format(more), what.format(less), goal, pair)


def _make_growth_row(what: str, against: str, goal: Goal, figures: tuple[Figure, Figure]) -> Measurement:
    ours, theirs = figures
    return Measurement(what=what, against=against, goal=goal, ours=ours, theirs=theirs, command=COMMAND)


def _time_task(of: Project, *words: str) -> Callable[[], float]:
    return timed_command(
        [sys.executable, str(ROOT / "tasks.py"), *words], {**os.environ, PROJECT_VARIABLE: str(of.root)}
    )


def make_grown_project(folder: Path, count: int) -> Project:
    """Make a project of so many rows, each of which inherits one of drydock's and has the lock of that."""
    root = folder / f"{count}-rows"
    new_project = Project(root, (ROOT,))
    if not root.is_dir():
        root.mkdir(parents=True)
        (root / PROJECT_FILE).write_text("schema: 1\nname: bench\nrows: []\n")
        parents = itertools.islice(itertools.cycle(read_matrix(DRYDOCK)), count)
        lines = [f"  bench-{number:03}: {{inherits: drydock/{row.id}}}\n" for number, row in enumerate(parents)]
        (root / MATRIX).write_text("".join(["schema: 1\nvariants:\n", *lines]))
        for variant in read_matrix(new_project):
            _write_lock(new_project, variant)
    return new_project


def _write_lock(project: Project, variant: Variant) -> None:
    of_parent = lockfile.read_lock(lockfile.path_of_lock(project, variant.inherits or variant.id))
    changes = {"variant": variant.id, "inputs_sha256": compute_checksum(lockfile.collect_lock_inputs(variant))}
    lockfile.write_own(project, of_parent.model_copy(update=changes))


def with_devices(host: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return a recorded NVIDIA host with so many devices, all as the first one and linked alike. Pure."""
    (query,) = (name for name in host["commands"] if name.startswith(QUERY))
    head, first, *_ = host["commands"][query]["stdout"].splitlines()
    fields = first.split(", ")
    bus = fields[3].lower()[4:]
    files, devices = dict(host["files"]), [head]
    for number in range(count):
        address = f"{number + 0x1000:04x}{bus[4:]}"
        devices.append(
            ", ".join([str(number), fields[1], f"{fields[2][:-4]}{number:04}", f"0000{address}", *fields[4:]])
        )
        files[f"/dev/nvidia{number}"] = ""
        place, copy = (f"/sys/bus/pci/devices/{name}/" for name in (bus, address))
        files |= {
            copy + path.removeprefix(place): text for path, text in host["files"].items() if path.startswith(place)
        }
    outputs = {query: devices, LINKS: [*_format_links(count)]}
    commands = {
        name: {**answer, "stdout": "\n".join(outputs[name]) + "\n"} if name in outputs else answer
        for name, answer in host["commands"].items()
    }
    return {**host, "files": files, "commands": commands}


def _format_links(count: int) -> Iterator[str]:
    names = [f"GPU{number}" for number in range(count)]
    yield "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    for name in names:
        yield "\t".join([name, *("X" if name == peer else "NV18" for peer in names), "0-47", "0", "N/A"])


def _time_plan(folder: Path, count: int) -> Callable[[], float]:
    host, model = folder / f"{count}-devices.json", _find_model(folder)
    recorded = json.loads((ROOT / "tests" / "hosts" / HOST / "host.json").read_text())
    host.write_text(json.dumps(with_devices(recorded, count)))
    variant = find_variant(read_matrix(DRYDOCK), startup.MACHINES[HOST])
    return timed_command(*entrypoint.argv_of(DRYDOCK, variant, ["plan", "--root", str(host), "--model", str(model)]))


def _find_model(folder: Path) -> Path:
    model = folder / "model"
    return model if model.is_dir() else startup.write_model(folder)


def _time_topology(folder: Path, count: int) -> Callable[[], float]:
    file, host = folder / f"{count}-nodes.yaml", ROOT / "tests" / "hosts" / HOST / "host.json"
    nodes = "".join(f"  - {{name: n{number}, address: 10.0.0.{number + 1}, host: {host}}}\n" for number in range(count))
    groups = f"groups:\n  - {{name: bench, nodes: 2, replicas: {count // 2}}}\nnetwork: {{interface: eth0}}\n"
    file.write_text(f"model: /models/m\ntarget: h100\napi_key: required\nnodes:\n{nodes}{groups}")
    return _time_task(DRYDOCK, "topology", "plan", str(file), "--model", str(_find_model(folder)), "--json")
