"""Reads /proc below a root: processes, their arguments and children, and listening ports. IO.

A process that ends between two reads is left out of the results.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from entrypoints.core.weight_files import WEIGHTS

TITLE = "VLLM::"
"""How the titles of vLLM's engine cores and workers begin, on every rank."""
_LISTEN = "0A"
"""TCP_LISTEN as /proc/net/tcp writes it."""


class Process(NamedTuple):
    """One process of vLLM's session: its command line as one string, and the files that it maps into memory."""

    title: str
    mapped: tuple[str, ...]


def command_line(pid: int | str, root: str = "/") -> tuple[str, ...]:
    """Return the arguments of a process; none for a kernel thread or a process that has ended."""
    return tuple(part.strip() for part in _read_proc_text(f"{root}/proc/{pid}/cmdline").split("\0") if part.strip())


def list_session_processes(leader: int, root: str = "/") -> tuple[Process, ...]:
    """Return the processes of a session, with the weight files that each one maps.

    The maps file is long, so it is read only for processes that vLLM has given a title (`VLLM::…`): no other process
    loads weights.
    """
    pids = [pid for pid, fields in _list_stats(root) if fields[_SESSION] == str(leader)]
    titles = {pid: " ".join(command_line(pid, root)) for pid in pids}
    return tuple(Process(title, _mapped_weights(pid, root) if "::" in title else ()) for pid, title in titles.items())


def list_titled_processes(leader: int, root: str = "/") -> dict[int, str]:
    """Return the running processes of a session that vLLM has given a title, such as `VLLM::EngineCore`.

    A process with its parent's title is left out: the parent has just forked it, to run a compiler for example, and it
    may end at any time.
    """
    stats = [(pid, fields) for pid, fields in _list_stats(root) if fields[_SESSION] == str(leader)]
    parents = {pid: int(fields[_PARENT]) for pid, fields in stats if fields[_STATE] not in _ENDED}
    titles = {pid: " ".join(command_line(pid, root)) for pid in parents}
    return {
        pid: title for pid, title in titles.items() if title.startswith(TITLE) and titles.get(parents[pid]) != title
    }


def is_running(pid: int, root: str = "/") -> bool:
    """Tell whether a process exists and has not ended. A stopped process (SIGSTOP) is running."""
    fields = _split_stat_fields(_read_proc_text(f"{root}/proc/{pid}/stat"))
    return bool(fields) and fields[_STATE] not in _ENDED


def handles_signal(pid: int, number: int, root: str = "/") -> bool:
    """Tell whether a process has a handler for a signal: SigCgt in /proc/PID/status; proc(5)."""
    lines = _read_proc_text(f"{root}/proc/{pid}/status").splitlines()
    masks = [line.split()[-1] for line in lines if line.startswith("SigCgt:")]
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)


def describe_process_state(pid: int, root: str = "/") -> str:
    """Return in a few words what a process does, such as `waits in futex_do_wait`; empty if it has ended."""
    fields = _split_stat_fields(_read_proc_text(f"{root}/proc/{pid}/stat"))
    if not fields:
        return ""
    words = _STATE_WORDS.get(fields[_STATE], fields[_STATE])
    place = _read_proc_text(f"{root}/proc/{pid}/wchan").strip()
    is_waiting = fields[_STATE] in _WAITING and place not in ("", "0")
    return f"{words} in {place}" if is_waiting else words


def list_children(parent: int, root: str = "/") -> tuple[int, ...]:
    """Return the children of a process, without zombies."""
    return tuple(pid for pid, fields in _list_stats(root) if fields[_PARENT] == str(parent) and fields[_STATE] != "Z")


def read_process_age(root: str = "/") -> float:
    """Return the seconds since this process started, to a hundredth; 0 if /proc cannot be read."""
    import time

    fields = _split_stat_fields(_read_proc_text(f"{root}/proc/self/stat"))
    if not fields:
        return 0.0
    began = int(fields[_START]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)


def is_listening(port: int, root: str = "/") -> bool:
    """Tell whether a process in this network namespace listens on a TCP port."""
    for table in ("tcp", "tcp6"):
        lines = _read_proc_text(f"{root}/proc/net/{table}").splitlines()[1:]
        if any(_is_listening_line(line.split(), port) for line in lines):
            return True
    return False


def _is_listening_line(fields: list[str], port: int) -> bool:
    state_column = 3
    return len(fields) > state_column and fields[state_column] == _LISTEN and fields[1].endswith(f":{port:04X}")


# Fields of /proc/PID/stat after the name of the command, which is in parentheses and may hold any character; proc(5).
_STATE, _PARENT, _SESSION, _START = 0, 1, 3, 19
_ENDED = ("Z", "X")
"""States of a process that has ended: zombie, dead."""
_WAITING = ("S", "D")
_STATE_WORDS = {
    "R": "runs",
    "S": "waits",
    "D": "waits in the kernel and takes no signal",
    "T": "is stopped",
    "t": "is stopped by a debugger",
    "Z": "has ended",
}
"""Of its main thread; proc(5)."""


def _list_stats(root: str) -> Iterator[tuple[int, list[str]]]:
    for name in os.listdir(f"{root}/proc"):
        if name.isdigit() and (fields := _split_stat_fields(_read_proc_text(f"{root}/proc/{name}/stat"))):
            yield int(name), fields


def _split_stat_fields(stat: str) -> list[str]:
    fields = stat.rpartition(")")[2].split()
    return fields if len(fields) > _START else []


def _mapped_weights(pid: int, root: str) -> tuple[str, ...]:
    lines = _read_proc_text(f"{root}/proc/{pid}/maps").split("\n")  # not splitlines: a file's name may contain U+2028
    return tuple(sorted({line.split(maxsplit=5)[-1] for line in lines if line.endswith(WEIGHTS)}))


def _read_proc_text(path: str) -> str:
    """Return the text of a file; empty if the process has ended or belongs to another user."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
