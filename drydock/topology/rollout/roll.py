"""Replaces all servers of a topology by those of another plan, without an answer from a mixed pair. IO.

The new prefill and decode servers start next to the old ones, on other ports. Once the known answer came through a
router of their own, the router that clients use is started again with the new servers; the old ones finish their
requests and end. If a step fails, the new servers are removed and the old ones serve on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from drydock.core.console import log
from drydock.core.errors import DrydockError, RolloutError
from drydock.topology.planned import TopologyPlan
from drydock.topology.rollout import known, metrics, ready, slices
from drydock.topology.rollout.asking import AskHttp
from drydock.topology.rollout.asking import ask as ask_over_http
from drydock.topology.rollout.known import Asker, ShownAnswers, Wrong
from drydock.topology.rollout.runner import Runner

IDLE = 120.0
"""Seconds that old servers get to finish requests which the old router had sent them; then SIGTERM lets them drain."""
QUIET = 2.0
"""Seconds without a request after which a server counts as idle."""

Keep = Callable[[tuple[TopologyPlan, ...]], None]
"""Notes which plans run; clients use the first."""


class RollOptions(NamedTuple):
    """How a plan is rolled out."""

    number: int
    """Of the new plan."""
    seconds: float
    """How long a start may take."""
    ask: AskHttp = ask_over_http


def roll(old: TopologyPlan, new: TopologyPlan, runner: Runner, keep: Keep, how: RollOptions) -> ShownAnswers:
    """Replace a plan by another one that has names and ports of its own, and return what was shown.

    Raises DrydockError; then the old plan runs as before, or the error says that it could not be restored.
    """
    slices.check_beside(old, new)
    trial = slices.on_trial(new, how.number, old)
    try:
        keep((old, trial))
        runner.start((old, trial))
        ready.wait(trial, runner, how.seconds, how.ask)
        ready.check_images(trial, runner.states())
        known.prove(trial, runner.reach(), how.ask)
        log("the new servers answer right; clients are switched to them")
        behind = old.model_copy(update={"router": None})
        keep((new, behind))
        runner.start((new, behind))
        ready.wait(new, runner, how.seconds, how.ask)
        shown = known.prove(new, runner.reach(), how.ask)
    except (DrydockError, KeyboardInterrupt) as error:
        _restore(old, runner, keep, how, error)
        raise
    _wait_until_idle(behind, runner, how)
    runner.start((new,))
    keep((new,))
    return shown


def _restore(old: TopologyPlan, runner: Runner, keep: Keep, how: RollOptions, error: BaseException) -> None:
    """Let the old plan alone run. Raises RolloutError if it does not."""
    log("a step failed; the new servers are removed, and the old ones serve on")
    try:
        runner.start((old,))
        keep((old,))
        ready.wait(old, runner, how.seconds, how.ask)
    except DrydockError as second:
        problems = (*getattr(error, "problems", (str(error),)), "the old servers could not be restored:")
        raise RolloutError(*problems, *second.problems, hint=second.hint) from second


def _wait_until_idle(old: TopologyPlan, runner: Runner, how: RollOptions) -> None:
    """Wait until no old server has had a request for a while, IDLE seconds at most."""
    asker = Asker(old, runner.reach(), how.ask)
    end, since = time.monotonic() + IDLE, time.monotonic()
    while time.monotonic() < min(end, since + QUIET):
        if _requests(asker):
            since = time.monotonic()
        time.sleep(0.5)


def _requests(asker: Asker) -> float:
    """Return the requests that run or wait in all servers; of a server that does not answer, none."""
    found = 0.0
    for replica in asker.plan.replicas:
        if replica.ranks[0].ports.get("api"):
            try:
                text = asker.metrics(replica)
                found += sum(metrics.total(text, name) or 0.0 for name in (metrics.RUNNING, metrics.WAITING))
            except (Wrong, ValueError):
                continue
    return found
