"""What a supervisor runs, and the few system calls that its modules share. IO."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from entrypoints.core.errors import HOST, EntrypointError

if TYPE_CHECKING:
    from entrypoints.serve.client import Endpoint
    from entrypoints.serve.plugin_files import DrainFile, StacksFolder
    from entrypoints.serve.rank_protocol import Member
    from entrypoints.serve.watch import SharedState

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
FORWARDED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
TAKEN = (*STOPS, *FORWARDED, signal.SIGCHLD)

MORE_PROCESSES = "raise docker's --pids-limit, or Kubernetes' podPidsLimit; vLLM needs some hundred threads"
FOREVER = 3600.0


class ServeJob(NamedTuple):
    """What to run and how. Times are in seconds."""

    spawn: Callable[[], int]
    """Starts vLLM as the leader of a session and returns its pid."""
    endpoint: Endpoint
    model: str
    began: float
    """When this process began, on the monotonic clock."""
    status_port: int
    drain_timeout: float
    drain_pause: float
    """How long new requests are served after SIGTERM; at most half of the drain timeout."""
    stall: float
    """How long nothing may make progress until the server is not ready; 0 does not look."""
    drains_itself: bool
    """vLLM finishes running requests after SIGTERM."""
    refuses: bool
    """drydock's middleware is loaded."""
    drain_file: DrainFile
    until_ready: bool
    """Stop as soon as vLLM is ready (the verb `warm`)."""
    keep_wrong: bool
    """Keep running, not ready, after a wrong answer, for debugging."""
    digest: str
    cache: str = "miss"
    """Whether the compile cache had this plan: hit or miss."""
    on_ready: Callable[[], None] = lambda: None
    """Called once, when the server becomes ready."""
    engines: int = 1
    """Data-parallel engines on this host."""
    prints: bool = False
    """Whether vLLM was only asked to print its help."""
    limits: Callable[[], str] = lambda: ""
    """Tells which limit of the container was enforced since the start; empty if none was."""
    measured: Callable[[], str] = lambda: ""
    """Tells once, when the server is ready, what vLLM measured of its memory against the plan; empty for nothing."""
    refusal: Callable[[], str] = lambda: ""
    """Tells once, when the server has ended, in which words vLLM refused its configuration; empty if it did not."""
    find_plan_hash: Callable[[], str] = lambda: ""
    """Returns what tells this plan from others."""
    stacks: StacksFolder | None = None
    """Where vLLM's processes write their stacks; None where nothing is examined."""
    find_tool: Callable[[], tuple[str, ...]] = lambda: ()
    """Returns the command that shows the state of the devices; empty for none."""
    member: Member | None = None
    """Which of several hosts this is; None on one host."""

    @property
    def headless(self) -> bool:
        """Whether vLLM has no server here."""
        return self.member is not None and self.member.headless


Say = Callable[[str], None]


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process, or to a process group if negative; do nothing if it no longer exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def in_background(shared: SharedState, target: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a daemon thread. Raises HOST."""
    from entrypoints.serve import watch

    try:
        watch.in_background(shared, target, *arguments)
    except RuntimeError as error:  # the kernel refused it
        raise EntrypointError(
            HOST, f"{error}: the container's limit of processes is too low", MORE_PROCESSES
        ) from error
