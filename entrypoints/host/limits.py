"""Soft resource limits that serving raises to the hard ones, which any process may. IO in `apply` alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from entrypoints.core.cascade import DECISION
from entrypoints.core.records import Limits, Reason

UNLIMITED = -1
"""As the system writes it (RLIM_INFINITY)."""
MOST_FILES = 1 << 20
"""Docker's usual hard limit; libraries that close every descriptor there might be stall above it."""

_RESOURCES = {"nofile": "RLIMIT_NOFILE", "memlock": "RLIMIT_MEMLOCK"}
_BECAUSE = {
    "nofile": "each client and each file of weights takes a descriptor; soft limit raised to the hard one",
    "memlock": "what devices read directly is locked in memory; soft limit raised to the hard one",
}


def raised(limits: Limits) -> dict[str, int]:
    """Return the soft limits that serving sets, by resource; none for one that is as high as it may be."""
    wanted = {name: _wanted(name, limits) for name in _RESOURCES}
    return {_RESOURCES[name]: value for name, value in wanted.items() if _above(value, getattr(limits, name))}


def _wanted(name: str, limits: Limits) -> int:
    highest = limits.reachable(name)
    if name == "nofile":
        return MOST_FILES if highest is None else min(highest, MOST_FILES)
    return UNLIMITED if highest is None else highest


def _above(value: int, soft: int | None) -> bool:
    return soft is not None and (value == UNLIMITED or value > soft)


def reasons(limits: Limits) -> tuple[Reason, ...]:
    """Return why each limit is set, and what it was."""
    values = raised(limits)
    return tuple(
        Reason(resource, show(values[resource]), DECISION, _BECAUSE[name], (f"{getattr(limits, name)}, as it was",))
        for name, resource in _RESOURCES.items()
        if resource in values
    )


def show(value: int) -> str:
    """Format a limit."""
    return "unlimited" if value == UNLIMITED else str(value)


def apply(limits: Mapping[str, int], say: Callable[[str], None]) -> None:
    """Set soft limits of this process, which vLLM inherits; one that the kernel refuses is said and stays."""
    if not limits:
        return
    import resource

    for name, value in limits.items():
        number = getattr(resource, name)
        try:
            resource.setrlimit(number, (value, resource.getrlimit(number)[1]))
        except (OSError, ValueError) as error:
            say(f"WARN {name} stays at {show(resource.getrlimit(number)[0])}, not {show(value)}: {error}")
