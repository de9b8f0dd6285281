"""Options that only some containers need: with many cards, or of a server on several hosts. Pure, given the machine.

Whether the cards of another machine need them is unknown here: a remark then names the options, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drydock.model.running import More, Run
from drydock.run import access
from drydock.run.machine import Machine

HOSTS_FLAG = "--nnodes"
"""vLLM's flag for the number of hosts of one server."""
EXPERT_FLAG = "--enable-expert-parallel"
TENSOR_FLAGS, PIPELINE_FLAGS = ("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp")


def extend_run_record(
    run: Run, cards: int, arguments: Sequence[str], machine: Machine, *, native: bool
) -> tuple[Run, str]:
    """Return the record with what this container needs in addition, and a remark, empty without one."""
    cards = min(cards, _count_ranks(arguments) or cards)
    options = [more for more in run.more if cards >= more.cards and _count_hosts(arguments) >= more.hosts]
    matching_options = [more for more in options if not more.pci or (native and not machine.pci.isdisjoint(more.pci))]
    unknown = [more for more in options if more.pci and not native]
    for more in matching_options:
        run = _add_options(run, more)
    return run, "; ".join(f"only {more.where}, also {' '.join(_list_more_options(more))}" for more in unknown)


def _count_hosts(arguments: Sequence[str]) -> int:
    return _parse_flag_number(arguments, HOSTS_FLAG) or 1


def _count_ranks(arguments: Sequence[str]) -> int:
    """Return how many cards compute together, if the user sets it; else 0. One card by itself needs no links.

    Experts are spread over the cards of all engines.
    """
    if any(word.partition("=")[0] == EXPERT_FLAG for argument in arguments for word in argument.split()):
        return 0
    tensor = next(filter(None, (_parse_flag_number(arguments, name) for name in TENSOR_FLAGS)), 0)
    return tensor * next(filter(None, (_parse_flag_number(arguments, name) for name in PIPELINE_FLAGS)), 1)


def _parse_flag_number(arguments: Sequence[str], name: str) -> int:
    text = access.value_of(arguments, name) or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0  # noqa: PLR2004 - more than any host


def _add_options(run: Run, more: More) -> Run:
    added = {
        "devices": (*run.devices, *more.devices),
        "capabilities": (*run.capabilities, *more.capabilities),
        "network": more.network or run.network,
    }
    return run.model_copy(update=added)


def _list_more_options(more: More) -> Iterable[str]:
    yield from (f"--device {node.path}" for node in more.devices)
    yield from (f"--cap-add {word.value}" for word in more.capabilities)
    if more.network:
        yield f"--network {more.network.value}"
