"""What `lock` says of inputs that stay unresolved. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drydock.core.errors import UnresolvedError
from drydock.model.locked import Lock

OPERATORS = "only an operator has"
"""How a lock says that an input is in no registry and no index."""


def list_unresolved_inputs(locks: Mapping[str, Lock]) -> dict[str, dict[str, dict[str, str]]]:
    """Return variant → platform → context → why it is not pinned."""
    contexts = {
        name: {platform: dict(pinned.unresolved) for platform, pinned in lock.platforms.items() if pinned.unresolved}
        for name, lock in locks.items()
    }
    return {name: platforms for name, platforms in contexts.items() if platforms}


def unresolved_error(missing: Mapping[str, Mapping[str, Mapping[str, str]]]) -> UnresolvedError:
    """Return the error that names every unresolved input."""
    lines = [
        f"{name}: {platform}: {context} is unresolved: {reason}"
        for name, platforms in missing.items()
        for platform, contexts in platforms.items()
        for context, reason in contexts.items()
    ]
    return UnresolvedError(*lines, hint=f"what could be pinned is; {_way_out(lines)}")


def _way_out(lines: Iterable[str]) -> str:
    """Return what to do about unresolved inputs: some only an operator has, others only a network."""
    supply = "pass the vendor's files with --supplied FOLDER" if any(OPERATORS in line for line in lines) else ""
    reached = "run it where the servers can be reached, or name mirrors in mirrors.yaml"
    return f"{supply}; for the others {reached}" if supply else reached
