"""The lines of running steps on a terminal. Slow to import, because rich is: console.step does so if needed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from drydock.core.amounts import byte_count, format_duration
from entrypoints.core.redact import redact_text
from entrypoints.core.text import printable

STYLES = {"done": "bold green", "failed": "bold red", "stopped": "bold yellow"}
"""How a step ended → the style of its name."""
_running: list[Progress] = []
"""The display, while a step is shown: rich draws only one."""


class Shown:
    """A step on the display."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def note(self, text: str) -> None:
        """Say what the step does now, in one line."""
        self._progress.update(self._task, note=" ".join(printable(redact_text(text)).split()))

    def advance(self, count: int) -> None:
        """Count bytes."""
        self._progress.advance(self._task, count)


@contextlib.contextmanager
def draw_step(console: Console, name: str, total: int | None) -> Iterator[Shown]:
    """Show a step while the block runs, and leave a line that says how it ended."""
    begin, how = time.monotonic(), "stopped"
    with _open_display(console) as progress:
        task = progress.add_task(name, total=total, note="")
        try:
            yield Shown(progress, task)
            how = "done"
        except Exception:
            how = "failed"
            raise
        finally:
            size = next(shown_task.completed for shown_task in progress.tasks if shown_task.id == task)
            progress.remove_task(task)
            progress.refresh()
            console.print(_format_result(name, how, time.monotonic() - begin, int(size)))


def _format_result(name: str, how: str, seconds: float, size: int) -> Text:
    ending = "" if how == "done" else f"  {how}"
    return Text.assemble(
        (f"  {name:10}", STYLES[how]), f"{format_duration(seconds):>8}{byte_count(size, None)}{ending}"
    )


@contextlib.contextmanager
def _open_display(console: Console) -> Iterator[Progress]:
    """Yield the display; the outermost step starts and ends it."""
    if _running:
        yield _running[0]
        return
    note = TextColumn("{task.fields[note]}", style="dim", markup=False, table_column=Column(ratio=1, no_wrap=True))
    columns = (SpinnerColumn("line"), TextColumn("{task.description:10}", style="bold", markup=False), _State(), note)
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        _running.append(progress)
        try:
            yield progress
        finally:
            _running.clear()


class _State(ProgressColumn):
    """The time of a step, and its bytes where they are known."""

    def render(self, task: Task) -> Text:
        size = byte_count(int(task.completed), None if task.total is None else int(task.total))
        return Text(f"{format_duration(task.elapsed or 0):>8}{size}", no_wrap=True)
