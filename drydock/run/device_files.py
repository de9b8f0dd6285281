"""Which device files (`run` of accelerator.yaml) and cards a container gets. Pure, given the machine."""

from __future__ import annotations

from collections.abc import Sequence

from drydock.model.running import DeviceNode, Run
from drydock.run.machine import Machine, assume_device_files, is_pattern, pick_device_files


def list_absent_cards(run: Run, machine: Machine, chosen_numbers: Sequence[int] | None) -> tuple[str, ...]:
    """Return the chosen cards that are not among this machine's, also of those that docker or a runtime passes."""
    matched_nodes = [(node, machine.matches(node.path)) for node in run.devices if node.each]
    return tuple(
        f"no device {number} among {node.path}"
        for node, paths in matched_nodes
        if paths
        for number in pick_device_files(paths, chosen_numbers or ())[1]
    )


def choose_device_files(
    run: Run, machine: Machine, chosen_numbers: Sequence[int] | None, *, native: bool
) -> tuple[tuple[str, ...], list[str]]:
    """Return the device files to pass, and those that are missing. A container runtime may pass some itself."""
    nodes = [node for node in run.devices if not run.gpus and not (node.each and run.runtime)]
    if not native:
        numbers = chosen_numbers if chosen_numbers is not None else range(run.usual or 1)
        usual = [node for node in nodes if not node.optional]
        guessed = (path for node in usual for path in assume_device_files(node, numbers))
        return tuple(dict.fromkeys(guessed)), [f"no device {node.path}" for node in usual]
    looked = [_match_device_node(node, machine.matches(node.path), chosen_numbers) for node in nodes]
    lacking = [text for _, texts in looked for text in texts]
    cards = [node for node in nodes if node.each]
    if cards and not any(_cards_of(run, machine)):
        lacking.append(f"no device {' or '.join(node.path for node in cards)}")
    return tuple(dict.fromkeys(path for paths, _ in looked for path in paths)), lacking


def _match_device_node(
    node: DeviceNode, paths: Sequence[str], chosen_numbers: Sequence[int] | None
) -> tuple[Sequence[str], list[str]]:
    """Return which of the existing device files to pass, and what is missing."""
    if node.each and paths and chosen_numbers is not None:
        return tuple(pick_device_files(paths, chosen_numbers)[0].values()), []  # see `list_absent_cards` for the others
    missing = not paths and not node.optional and not is_pattern(node.path)
    return paths, [f"no device {node.path}"] if missing else []


def _cards_of(run: Run, machine: Machine) -> list[tuple[str, ...]]:
    """Return the device files of each kind of which every card has one."""
    return [machine.matches(node.path) for node in run.devices if node.each]


def choose_card_numbers(run: Run, machine: Machine, chosen_numbers: Sequence[int] | None) -> Sequence[int]:
    """Return the numbers of the chosen cards, else of this machine's cards, else of as many as usual."""
    if chosen_numbers is not None:
        return chosen_numbers
    return range(max(map(len, _cards_of(run, machine)), default=0) or run.usual or 1)


def select_visible_cards(run: Run, chosen_numbers: Sequence[int] | None, chosen: Sequence[int]) -> dict[str, str]:
    """Return the variable that selects cards; empty if device files select them, which are renumbered inside."""
    has_device_files = any(node.each for node in run.devices) and not run.privileged and not run.runtime
    if not run.visible or run.gpus or has_device_files:
        return {}
    name, _, everything = run.visible.value.partition("=")
    if chosen_numbers is None and (everything or not run.runtime):
        return {name: everything} if everything else {}
    return {name: ",".join(map(str, chosen))}
