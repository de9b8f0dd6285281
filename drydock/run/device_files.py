"""Which device files and cards a container gets. Pure, given the machine."""

from __future__ import annotations

from collections.abc import Sequence

from drydock.model.running import DeviceNode, Run
from drydock.run.machine import Machine, assumed, is_pattern, pick


def beyond(run: Run, machine: Machine, wanted: Sequence[int] | None) -> tuple[str, ...]:
    """Return the chosen cards that are not among this machine's, also of those that docker or a runtime passes."""
    found = [(node, machine.matches(node.path)) for node in run.devices if node.each]
    return tuple(
        f"no device {number} among {node.path}"
        for node, paths in found
        if paths
        for number in pick(paths, wanted or ())[1]
    )


def devices(
    run: Run, machine: Machine, wanted: Sequence[int] | None, *, native: bool
) -> tuple[tuple[str, ...], list[str]]:
    """Return the device files to pass, and those that are missing. A container runtime may pass some itself."""
    nodes = [node for node in run.devices if not run.gpus and not (node.each and run.runtime)]
    if not native:
        numbers = wanted if wanted is not None else range(run.usual or 1)
        usual = [node for node in nodes if not node.optional]
        guessed = (path for node in usual for path in assumed(node, numbers))
        return tuple(dict.fromkeys(guessed)), [f"no device {node.path}" for node in usual]
    looked = [_look(node, machine.matches(node.path), wanted) for node in nodes]
    lacking = [text for _, texts in looked for text in texts]
    cards = [node for node in nodes if node.each]
    if cards and not any(_cards_of(run, machine)):
        lacking.append(f"no device {' or '.join(node.path for node in cards)}")
    return tuple(dict.fromkeys(path for paths, _ in looked for path in paths)), lacking


def _look(node: DeviceNode, found: Sequence[str], wanted: Sequence[int] | None) -> tuple[Sequence[str], list[str]]:
    """Return which of the existing device files to pass, and what is missing."""
    if node.each and found and wanted is not None:
        return tuple(pick(found, wanted)[0].values()), []  # see `beyond` for the others
    missing = not found and not node.optional and not is_pattern(node.path)
    return found, [f"no device {node.path}"] if missing else []


def _cards_of(run: Run, machine: Machine) -> list[tuple[str, ...]]:
    """Return the device files of each kind of which every card has one."""
    return [machine.matches(node.path) for node in run.devices if node.each]


def numbers(run: Run, machine: Machine, wanted: Sequence[int] | None) -> Sequence[int]:
    """Return the numbers of the chosen cards, else of this machine's cards, else of as many as usual."""
    if wanted is not None:
        return wanted
    return range(max(map(len, _cards_of(run, machine)), default=0) or run.usual or 1)


def visible(run: Run, wanted: Sequence[int] | None, chosen: Sequence[int]) -> dict[str, str]:
    """Return the variable that selects cards; empty if device files select them, which are renumbered inside."""
    given = any(node.each for node in run.devices) and not run.privileged and not run.runtime
    if not run.visible or run.gpus or given:
        return {}
    name, _, everything = run.visible.value.partition("=")
    if wanted is None and (everything or not run.runtime):
        return {name: everything} if everything else {}
    return {name: ",".join(map(str, chosen))}
