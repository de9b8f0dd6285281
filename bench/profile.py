"""Profile a start: sample a container's processes from the host, five times per second. IO.

A process's phase follows from its command line, the libraries and weights it maps, and its CPU use, as in the
entrypoint's own phases. Nothing is added to the container, so the start is not distorted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from docker.models.containers import Container

from bench.records import Phase
from drydock.prove.demo import STATUS_PORT, address, status

EVERY = 0.2
"""Seconds between two samples."""
BUSY = 0.2
"""Share of one CPU above which a process counts as computing."""
SHORTEST = 0.5
"""Seconds that a process must live to be drawn."""
FINEST = 120
"""Maximum number of phases of a process: on a busy machine it alternates between waiting and computing."""
PYTHON, IMPORTS, WEIGHTS, WORKS, WAITS = (
    "Python starts",
    "imports PyTorch and vLLM",
    "reads weights",
    "computes",
    "waits",
)
COMPILER = "compiler"
"""There are many, one after the other, all drawn in one lane."""
TORCH = "libtorch_cpu.so"
ENDINGS = (".safetensors", ".gguf", ".bin", ".pt")
TITLES = {
    "VLLM::EngineCore": "engine core",
    "VLLM::Worker": "worker",
    "VLLM::APIServer": "API server",
    "/opt/drydock/entrypoints": "entrypoint",
    "vllm.entrypoints": "API server",
    "model_executor.models.registry": "model inspection",
    "spawn_main": "spawned",
    "cc1plus": COMPILER,
    "g++": COMPILER,
    "healthcheck": "",
    "resource_tracker": "",
}
"""Part of a command line → name of the process; empty if it is not drawn. The first match wins."""


class Look(NamedTuple):
    """A sample of one process."""

    pid: int
    title: str
    at: float
    """Seconds since the container's start."""
    used: float
    """CPU seconds so far."""
    torch: bool
    """Whether PyTorch's library is mapped."""
    weights: bool
    """Whether a weight file is mapped."""
    ready: bool
    """Whether its main thread runs, waits for a CPU, or reads from disk."""


@contextlib.contextmanager
def sampled(container: Container) -> Iterator[list[Phase]]:
    """Sample a container's processes while the block runs; the list is filled at the end.

    It stays empty if the engine's processes are not visible: on another machine, or without permission.
    """
    phases: list[Phase] = []
    looks: list[Look] = []
    done = threading.Event()
    container.reload()
    watcher = threading.Thread(target=_watch, args=(container.attrs["State"]["Pid"], looks, done), daemon=True)
    watcher.start()
    try:
        yield phases
    finally:
        done.set()
        watcher.join()
        phases += phases_of(looks)


def _watch(root: int, looks: list[Look], done: threading.Event) -> None:
    begin = time.monotonic()
    while root and not done.is_set():
        for pid in family(root, parents()):
            with contextlib.suppress(OSError, ValueError, IndexError):  # the process has ended
                looks.append(_look(pid, time.monotonic() - begin))
        done.wait(EVERY)


def parents() -> dict[int, int]:
    """Return process → parent for every process of this machine."""
    found: dict[int, int] = {}
    for name in filter(str.isdigit, (path.name for path in Path("/proc").iterdir())):
        with contextlib.suppress(OSError, IndexError, ValueError):
            found[int(name)] = int(_fields(int(name))[1])
    return found


def family(root: int, parent_of: Mapping[int, int]) -> list[int]:
    """Return a process and all its descendants."""
    found: list[int] = []
    pending = [root] if root in parent_of else []
    while pending:
        pid = pending.pop(0)
        found.append(pid)
        pending += [child for child, parent in parent_of.items() if parent == pid]
    return found


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on. The name before may contain any character."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _look(pid: int, at: float) -> Look:
    fields, maps = _fields(pid), Path(f"/proc/{pid}/maps").read_text()
    title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    weights = any(line.endswith(ENDINGS) for line in maps.splitlines())
    return Look(pid, title, at, used, TORCH in maps, weights, fields[0] in "RD")


def own_phases(container: Container) -> list[Phase]:
    """Return the phases that drydock's entrypoint reports on its status port; empty for other images."""
    code, text = status(address(container, STATUS_PORT, "/startupz"))
    return in_a_row(json.loads(text)["seconds"]) if code else []


# --- pure -----------------------------------------------------------------------------------------------------------


def in_a_row(seconds: Mapping[str, float]) -> list[Phase]:
    """Return consecutive phases, given the duration of each."""
    ends = [0.0, *itertools.accumulate(seconds.values())]
    return [
        Phase(process="its own phases", phase=name, begin=round(begin, 2), seconds=round(took, 2))
        for (name, took), begin in zip(seconds.items(), ends, strict=False)
    ]


def phases_of(looks: Sequence[Look]) -> list[Phase]:
    """Return the phases of each process, in the order in which the processes began."""
    own: dict[int, list[Look]] = {}
    for look in looks:
        own.setdefault(look.pid, []).append(look)
    lanes = [(label(seen), seen) for seen in own.values() if seen[-1].at - seen[0].at >= SHORTEST]
    return [phase for name, seen in _numbered(lanes) for phase in _phases(name, seen)]


def label(seen: Sequence[Look]) -> str:
    """Return the name of a process by its last title, because vLLM renames its processes."""
    return next((name for part, name in TITLES.items() if part in seen[-1].title), "other")


def _numbered(lanes: Sequence[tuple[str, list[Look]]]) -> Iterator[tuple[str, list[Look]]]:
    counts: dict[str, int] = {}
    for name, seen in lanes:
        if name:
            counts[name] = counts.get(name, 0) + 1
            yield (f"{name} {counts[name]}" if counts[name] > 1 and name != COMPILER else name), seen


def _phases(name: str, seen: Sequence[Look]) -> Iterator[Phase]:
    begin, current, waited = seen[0].at, "", False
    stride = max(1, len(seen) // FINEST)
    for before, now in itertools.pairwise([*seen[:-1:stride], seen[-1]]):
        doing = _doing(before, now, waited=waited)
        waited = waited or doing in (WAITS, WEIGHTS)
        if doing != current:
            if current:
                yield Phase(process=name, phase=current, begin=round(begin, 2), seconds=round(before.at - begin, 2))
            begin, current = before.at, doing
    if current:
        yield Phase(process=name, phase=current, begin=round(begin, 2), seconds=round(seen[-1].at - begin, 2))


def _doing(before: Look, now: Look, *, waited: bool) -> str:
    if not now.ready and (now.used - before.used) / max(now.at - before.at, 1e-3) < BUSY:
        return WAITS
    if now.weights:
        return WEIGHTS
    if not now.torch:
        return PYTHON
    return WORKS if waited else IMPORTS
