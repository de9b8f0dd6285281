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


def extended(run: Run, cards: int, arguments: Sequence[str], machine: Machine, *, native: bool) -> tuple[Run, str]:
    """Return the record with what this container needs in addition, and a remark, empty without one."""
    options = [more for more in run.more if cards >= more.cards and _hosts(arguments) >= more.hosts]
    known = [more for more in options if not more.pci or (native and not machine.pci.isdisjoint(more.pci))]
    unknown = [more for more in options if more.pci and not native]
    for more in known:
        run = _with(run, more)
    return run, "; ".join(f"only {more.where}, also {' '.join(_options(more))}" for more in unknown)


def _hosts(arguments: Sequence[str]) -> int:
    text = access.value_of(arguments, HOSTS_FLAG) or "1"
    return int(text) if text.isdecimal() else 1


def _with(run: Run, more: More) -> Run:
    added = {
        "devices": (*run.devices, *more.devices),
        "capabilities": (*run.capabilities, *more.capabilities),
        "network": more.network or run.network,
    }
    return run.model_copy(update=added)


def _options(more: More) -> Iterable[str]:
    yield from (f"--device {node.path}" for node in more.devices)
    yield from (f"--cap-add {word.value}" for word in more.capabilities)
    if more.network:
        yield f"--network {more.network.value}"
