"""Reads what `buildx --progress=rawjson` writes: one JSON object a line, of steps that began or ended and their output.

Source: BuildKit's client/graph.go (SolveStatus: vertexes, statuses, logs) and cmd/buildctl's documentation of rawjson.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

EXPORT = "exporting to "
"""How the name of BuildKit's step begins that writes an image."""

OPTIONS = re.compile(r"\b([A-Z]+) +(?:--\S+ +)+")
"""Options of a step's instruction, which are longer than a line: mounts and the like."""


NUMBERED = re.compile(r"(?<![\w.-])[\w.-]+ \d+/\d+(?=\])")
"""Stage and number of a step that is an instruction of a Dockerfile."""


class Log:
    """A build's output in the form of BuildKit's plain log, and what the build does now."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now = ""
        """Name of the step that began last, without the options of its instruction."""
        self.done: dict[str, bool] = {}
        """Instruction → whether it did not have to run: it was in the cache, or ran for another build."""
        self.exporting = False
        self.bytes = 0
        """Bytes that were read, sent or written so far."""
        self._numbers: dict[str, int] = {}
        self._bytes: dict[tuple[str, str], int] = {}
        self._failed = ""
        self._rest: dict[str, str] = {}
        """Output of a step after its last whole line."""
        self._cached: set[str] = set()

    def read(self, line: str) -> None:
        """Add a line that buildx wrote. What is no such object is kept as it is: buildx's own errors are plain text."""
        event = _parse_event(line)
        if event is None:
            self.lines.append(line)
            return
        for vertex in event.get("vertexes") or ():
            self._read_vertex(vertex)
        for status in event.get("statuses") or ():
            self._count((status["vertex"], status["id"]), status.get("current") or 0)
        for output in event.get("logs") or ():
            self._read_output(output)

    def failing(self, count: int) -> list[str]:
        """Return the last lines of the step that failed, with its name first; nothing if no step failed."""
        mine = [line for line in self.lines if line.startswith(f"{self._failed} ")]
        return mine if len(mine) <= count else [mine[0], *mine[-count + 1 :]]

    def _read_vertex(self, vertex: Mapping[str, Any]) -> None:
        digest, name = vertex["digest"], vertex.get("name", "")
        self._count_step(vertex, name)
        if vertex.get("started") and digest not in self._numbers:
            self._numbers[digest] = len(self._numbers) + 1
            self._add(digest, name)
            self.now, self.exporting = OPTIONS.sub(r"\1 ", name, count=1), self.exporting or name.startswith(EXPORT)
        if vertex.get("completed"):
            self._add(digest, self._rest.pop(digest, ""))
        if vertex.get("cached") and digest not in self._cached:  # each target that has the step reports it
            self._cached.add(digest)
            self._add(digest, "CACHED")
        elif vertex.get("error"):
            self._add(digest, f"ERROR: {vertex['error']}")
            # The other steps of the build are cancelled because of the one that failed.
            if not self._failed and "context canceled" not in vertex["error"]:
                self._failed = f"#{self._numbers.get(digest, 0)}"

    def _read_output(self, output: Mapping[str, Any]) -> None:
        """Add the whole lines of some output: a program may write a line piece by piece."""
        key = output["vertex"]
        text = self._rest.pop(key, "") + base64.b64decode(output.get("data") or "").decode(errors="replace")
        whole, _, self._rest[key] = text.rpartition("\n")
        self._add(key, whole)

    def _count_step(self, vertex: Mapping[str, Any], name: str) -> None:
        step = NUMBERED.search(name)
        if step and vertex.get("started"):
            self.done[step[0]] = self.done.get(step[0], False) or bool(vertex.get("cached"))

    def _count(self, key: tuple[str, str], current: int) -> None:
        self.bytes += max(0, current - self._bytes.get(key, 0))
        self._bytes[key] = max(current, self._bytes.get(key, 0))

    def _add(self, digest: str, text: str) -> None:
        self.lines += [f"#{self._numbers.get(digest, 0)} {line}" for line in text.splitlines()]


def _parse_event(line: str) -> Mapping[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
