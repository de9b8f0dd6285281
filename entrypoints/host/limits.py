"""Soft resource limits that serving raises to the hard limits, as any process may do. IO only in `apply_limits`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from entrypoints.core.records import Limits, Reason
from entrypoints.core.settings_precedence import DECISION

UNLIMITED = -1
"""As the system writes it (RLIM_INFINITY)."""
MOST_FILES = 1 << 20
"""Docker's usual hard limit. Above it, libraries that close every possible descriptor take very long."""

_RESOURCES = {"nofile": "RLIMIT_NOFILE", "memlock": "RLIMIT_MEMLOCK"}
_BECAUSE = {
    "nofile": "each client and each weight file needs a descriptor; the soft limit is raised to the hard limit",
    "memlock": "memory that devices read directly is locked; the soft limit is raised to the hard limit",
}


def choose_raised_limits(limits: Limits) -> dict[str, int]:
    """Return the soft limits that serving sets, by resource. A limit that is already high enough is left out."""
    targets = {name: _choose_target(name, limits) for name in _RESOURCES}
    return {_RESOURCES[name]: value for name, value in targets.items() if _is_above(value, getattr(limits, name))}


def _choose_target(name: str, limits: Limits) -> int:
    highest = limits.reachable(name)
    if name == "nofile":
        return MOST_FILES if highest is None else min(highest, MOST_FILES)
    return UNLIMITED if highest is None else highest


def _is_above(value: int, soft: int | None) -> bool:
    return soft is not None and (value == UNLIMITED or value > soft)


def make_limit_reasons(limits: Limits) -> tuple[Reason, ...]:
    """Return why each limit is set, and its previous value."""
    values = choose_raised_limits(limits)
    return tuple(
        Reason(
            resource,
            format_limit(values[resource]),
            DECISION,
            _BECAUSE[name],
            (f"{getattr(limits, name)} was set before",),
        )
        for name, resource in _RESOURCES.items()
        if resource in values
    )


def format_limit(value: int) -> str:
    """Format a limit."""
    return "unlimited" if value == UNLIMITED else str(value)


def apply_limits(limits: Mapping[str, int], log: Callable[[str], None]) -> None:
    """Set soft limits of this process, which vLLM inherits. A limit that the kernel refuses is logged and kept."""
    if not limits:
        return
    import resource

    for name, value in limits.items():
        kind = getattr(resource, name)
        try:
            resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
        except (OSError, ValueError) as error:
            log(f"WARN {name} stays at {format_limit(resource.getrlimit(kind)[0])}, not {format_limit(value)}: {error}")
