"""What a server does that hangs or has lost a process, for its log: stacks, counters, and the device's tool. IO.

It runs in a thread, so that the supervisor goes on handling signals. Stacks come first, because vLLM may end by itself
soon. They hold names and lines of code, and no values. Everything is bounded: seconds, processes and lines.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from shutil import which
from typing import TYPE_CHECKING, NamedTuple

from entrypoints.core.text import format_one_line, strip_escapes
from entrypoints.host.commands import run_live
from entrypoints.host.processes import command_line, describe_process_state, list_titled_processes

if TYPE_CHECKING:
    from entrypoints.serve.plugin_files import StacksFolder
    from entrypoints.serve.watch import SharedState

STACKS_SECONDS = 1.0
"""For all processes together. One that can answer does so within milliseconds, however long its queue is."""
TOOL_SECONDS, NATIVE_SECONDS = 5.0, 5.0
"""For the device's tool, which hangs with a driver that hangs, and for py-spy over all processes."""
PROCESS_AT_MOST, TOTAL_AT_MOST, TOOL_AT_MOST = 12_000, 48_000, 6_000
"""Characters of one process, of all, and of the tool. A pipe to the log's reader holds 64 KiB."""
LINE_AT_MOST, TITLE_AT_MOST = 300, 80
MARK = "| "
"""Begins each line, behind `drydock: `, so that vLLM's lines in between can be told apart."""
_HEADING = re.compile(r"^(?:Current )?[Tt]hread 0x[0-9a-f]{1,16}.{0,80}:$")
"""How faulthandler begins the stack of a thread (Python, Python/traceback.c)."""
_NATIVE_TOOL = "py-spy"


class Subject(NamedTuple):
    """What is looked at."""

    leader: int
    """vLLM's main process, and its session."""
    shared: SharedState
    folder: StacksFolder
    tool: tuple[str, ...]
    """The command that shows the devices; empty for none."""


class Examination:
    """One look, in a thread. `told` is true once the stacks are in the log."""

    def __init__(self, subject: Subject, why: str, say: Callable[[str], None], *, brief: bool) -> None:
        self._subject, self._why, self._say, self._brief = subject, why, say, brief
        self.told = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the limit of processes
            self._fail(error)

    def wait(self) -> None:
        """Wait for the end, which comes in bounded time."""
        if self._thread.ident:
            self._thread.join(STACKS_SECONDS + TOOL_SECONDS + NATIVE_SECONDS)

    def _run(self) -> None:
        subject = self._subject
        try:
            stacks = subject.folder.read_stacks(STACKS_SECONDS)
            processes = describe_processes(list_titles(subject.leader), stacks)
            lines = (self._why, *_describe_counters(subject.shared), *processes)
            self._say_lines(lines)
            self._tell()
            if not self._brief:
                self._say_lines(describe_devices(subject.tool))
                self._say_lines(describe_native_stacks(list_titles(subject.leader)))
        except Exception as error:  # noqa: BLE001 -- a look at a server that fails anyway must not be what ends it
            self._fail(error)

    def _say_lines(self, lines: Iterable[str]) -> None:
        text = "\ndrydock: ".join(f"{MARK}{line[:LINE_AT_MOST]}" for line in lines)
        if text:
            self._say(text)

    def _tell(self) -> None:
        self.told = True
        self._subject.shared.note()  # wakes the supervisor

    def _fail(self, error: Exception) -> None:
        self._say(f"WARN the stacks are not known: {error!r}")
        self._tell()


def _describe_counters(shared: SharedState) -> tuple[str, ...]:
    engines = shared.progress.describe_engines(shared.now()) if shared.progress else ()
    return engines or ("vLLM's counters are not known",)


def list_titles(leader: int) -> dict[int, str]:
    """Return vLLM's engine cores and workers that are there now, then its main process."""
    titles = list_titled_processes(leader)
    return {**titles, leader: titles.get(leader, "vLLM's main process")}


def describe_processes(titles: Mapping[int, str], stacks: Mapping[int, str]) -> tuple[str, ...]:
    """Return the stacks of every process: first those with a title, then all others."""
    lines: list[str] = []
    same: dict[tuple[str, ...], int] = {}
    left = TOTAL_AT_MOST
    for pid in (*titles, *(pid for pid in stacks if pid not in titles)):
        title = format_one_line(titles.get(pid) or " ".join(command_line(pid)))[:TITLE_AT_MOST]
        state = describe_process_state(pid)
        if not state:
            continue
        threads = group_threads(stacks.get(pid, ""))
        first = same.setdefault(threads, pid)
        heading = f"{title} (process {pid}) {state}"
        if not threads:
            lines.append(f"{heading}; no stacks: it gave none within {STACKS_SECONDS:g} s, or runs no Python")
        elif first != pid:
            lines.append(f"{heading}; the same stacks as process {first}")
        else:
            shown = shorten_lines(threads, min(PROCESS_AT_MOST, left))
            left -= sum(map(len, shown))
            lines += [f"{heading}:", *(f"  {line}" for line in shown)]
    return tuple(lines)


def group_threads(text: str) -> tuple[str, ...]:
    """Return the lines of a dump of faulthandler: the main thread first, threads with one stack together. Pure.

    Addresses are left out, so that processes that do the same have the same lines.
    """
    stacks: list[list[str]] = []
    for line in text.splitlines():
        if _HEADING.match(line):
            stacks.append([])
        elif line.strip() and stacks:
            stacks[-1].append(line.strip())
    counts: dict[tuple[str, ...], int] = {}
    for stack in reversed(stacks):  # faulthandler writes the newest thread first
        counts[tuple(stack)] = counts.get(tuple(stack), 0) + 1
    lines: list[str] = []
    for frames, count in counts.items():
        lines += [f"{count} threads:" if count > 1 else "1 thread:", *(f"  {line}" for line in frames)]
    return tuple(lines)


def shorten_lines(lines: Iterable[str], characters: int) -> tuple[str, ...]:
    """Return as many lines as fit, and how many more there are. Pure."""
    all_lines = tuple(lines)
    shown: list[str] = []
    for number, line in enumerate(all_lines):
        characters -= min(len(line), LINE_AT_MOST)
        if characters < 0:
            return (*shown, f"… and {len(all_lines) - number} more lines")
        shown.append(line)
    return tuple(shown)


def describe_devices(tool: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the device's tool says now; nothing where there is no tool."""
    if not tool:
        return ()
    result = run_live(tool, TOOL_SECONDS)  # its exit code is not known: the supervisor reaps every process
    text = strip_escapes(f"{result.stdout}\n{result.stderr}")
    lines = tuple(line.rstrip() for line in text.splitlines() if line.strip())
    return (f"{' '.join(tool)} says:", *(f"  {line}" for line in shorten_lines(lines, TOOL_AT_MOST)))


def describe_native_stacks(titles: Mapping[int, str]) -> tuple[str, ...]:
    """Return the stacks with the frames of libraries, if the image has py-spy and the container may use it."""
    path = which(_NATIVE_TOOL)
    lines: list[str] = []
    left = TOTAL_AT_MOST
    for pid, title in titles.items() if path else ():
        result = run_live((str(path), "dump", "--native", "--pid", str(pid)), NATIVE_SECONDS / len(titles))
        if not result.stdout.strip():
            reason = (result.stderr.strip() or "it says nothing").splitlines()[-1]
            return (*lines, f"{_NATIVE_TOOL} of process {pid}: {reason}")
        shown = shorten_lines(result.stdout.splitlines(), min(PROCESS_AT_MOST, left))
        left -= sum(map(len, shown))
        lines += [f"{_NATIVE_TOOL} of {title} (process {pid}):", *(f"  {line}" for line in shown)]
    return tuple(lines)


def find_device_tool(accelerator: str) -> tuple[str, ...]:
    """Return the command that shows the state of the devices; empty for an accelerator without one."""
    from entrypoints.accelerators import import_probe

    command: tuple[str, ...] = getattr(import_probe(accelerator), "DEVICE_TOOL", ())
    return command if command and which(command[0], path=os.environ.get("PATH", os.defpath)) else ()
