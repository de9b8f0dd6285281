"""Steps that the probes of several accelerators share: tools in order, device files. IO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from entrypoints.facts.probes.common.tools import run_tool
from entrypoints.host.host import Host, Run

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


def first_answer(host: Host, run: Run, steps: Iterable[tuple[tuple[str, ...], Callable[[str], T]]]) -> T | None:
    """Run tools in order and return the first answer that is not empty. A step is a command and its parser.

    If a later form of a tool answers without failure, an earlier one that this version does not have is no failure.
    """
    before = len(host.failures)
    for command, parse in steps:
        failures = len(host.failures)
        answer = run_tool(host, run, command, parse)
        if answer:
            if len(host.failures) == failures:
                del host.failures[before:]
            return answer
    return None


def check_device_file(host: Host, path: str) -> bool:
    """Tell whether a device file can be opened. If it exists but cannot be opened, add a failure."""
    if host.openable(path):
        return True
    if host.exists(path):
        expected = "docker run --group-add with the number of its group"
        host.fail(path, "no read and write permission for this user", expected)
    return False


def drop_empty_values(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values that are not empty."""
    return {name: value for name, value in values.items() if value}
