"""What starts and stops the containers of a topology: Compose on one engine, Ansible on machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from drydock.topology.planned import TopologyPlan


class SeenContainer(NamedTuple):
    """A container as its engine sees it."""

    state: str
    """running, exited, restarting …, as docker names it."""
    image: str
    """The digest of its image."""
    restarts: int = 0
    code: int = 0
    """Exit code of its last end."""


def seen(found: Mapping[str, Any]) -> SeenContainer:
    """Return what `docker container inspect` says of a container. Raises LookupError, TypeError or ValueError."""
    state, restarts = found["State"], int(found.get("RestartCount", 0))
    return SeenContainer(str(state["Status"]), str(found["Image"]), restarts, int(state["ExitCode"]))


class Runner(Protocol):
    """Containers of plans. The first plan is the one whose router clients use."""

    def start(self, wanted: Sequence[TopologyPlan]) -> None:
        """Start what is wanted and not there, and stop what is there and not wanted. Raises DrydockError.

        A container whose options are the same goes on running.
        """

    def stop(self) -> None:
        """Stop and remove every container; models and compiled code stay. Raises DrydockError."""

    def logs(self, names: Sequence[str], lines: int, *, follow: bool) -> None:
        """Print or fetch the last lines of containers; of all without names. Raises DrydockError."""

    def states(self) -> Mapping[str, SeenContainer]:
        """Return container → what its engine says. Raises DrydockError."""

    def reach(self) -> Mapping[str, str]:
        """Return node → the address at which this machine reaches its servers. Raises DrydockError."""
