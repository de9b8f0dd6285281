"""Waits until every container of a plan is ready; fails early if one keeps ending. IO."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from drydock.core.console import log
from drydock.core.errors import RolloutError
from drydock.run.container import name_of
from drydock.topology.planned import TopologyPlan
from drydock.topology.ports import STATUS
from drydock.topology.render.parts import container_name
from drydock.topology.rollout import slices
from drydock.topology.rollout.asking import OK, AskHttp, NoAnswer
from drydock.topology.rollout.asking import ask as ask_over_http
from drydock.topology.rollout.runner import Runner, SeenContainer
from drydock.topology.words import url

EVERY = 1.0
"""Seconds between two questions."""
RESTARTS = 3
"""So many restarts of a container while it starts are a failure."""
ENDED = ("exited", "dead", "removing")


class Awaited(NamedTuple):
    """A container, and where it says that it is ready."""

    name: str
    ready: str
    """URL that answers 200."""
    phase: str = ""
    """URL with the phase of the start; empty for a router."""


def wanted_of(plan: TopologyPlan, reach: Mapping[str, str]) -> Iterator[Awaited]:
    """Yield every rank, then the router, which waits for the ranks."""
    for replica, rank in slices.ranks_of(plan):
        base = url(reach.get(name_of(rank.node), rank.address), rank.ports[STATUS])
        yield Awaited(container_name(replica, rank), f"{base}/readyz", f"{base}/startupz")
    if plan.router:
        yield Awaited(plan.router.name, f"{router_url(plan, reach)}/readiness")


def router_url(plan: TopologyPlan, reach: Mapping[str, str]) -> str:
    """Return the router's address; empty without a router."""
    router = plan.router
    return url(reach.get(name_of(router.node), router.address), router.port) if router else ""


def wait(plan: TopologyPlan, runner: Runner, seconds: float, ask: AskHttp = ask_over_http) -> None:
    """Wait for all containers of a plan, and log their phases. Raises RolloutError that names those that are not."""
    end = time.monotonic() + seconds
    open_ = [*wanted_of(plan, runner.reach())]
    said: dict[str, str] = {}
    before = {name: seen.restarts for name, seen in runner.states().items()}
    while open_:
        reasons = {each: _reason(each, ask) for each in open_}
        open_ = [each for each, why in reasons.items() if why]
        _tell({each.name: reasons[each] for each in open_}, said)
        if not open_:
            return
        _check_alive(open_, runner.states(), before)
        if time.monotonic() > end:
            problems = (f"{each.name}: not ready after {seconds:.0f} s: {reasons[each]}" for each in open_)
            raise RolloutError(*problems, hint="`./inv topology logs FILE` shows why; `down` removes what was started")
        time.sleep(EVERY)


def check_images(plan: TopologyPlan, states: Mapping[str, SeenContainer]) -> None:
    """Raise RolloutError if the servers' images differ: their KV caches may not fit, and their answers differ."""
    found: dict[str, list[str]] = {}
    for each in slices.ranks_of(plan):
        name = container_name(*each)
        if name in states:
            found.setdefault(states[name].image, []).append(name)
    if len(found) > 1:
        problems = (f"{', '.join(names)}: image {image}" for image, names in found.items())
        raise RolloutError(
            "the servers run different images, expected one digest on every node:",
            *problems,
            hint="`image: NAME@sha256:…` in topology.yaml names one for all nodes",
        )


def _reason(one: Awaited, ask: AskHttp) -> str:
    """Return why a container is not ready; empty if it is."""
    try:
        reply = ask(one.ready)
        if reply.status == OK:
            return ""
        phase = str(ask(one.phase).json().get("phase") or "") if one.phase else ""
        reason = str(reply.json().get("reason") or "") if one.phase else ""
    except NoAnswer as error:
        return f"no answer: {error}"
    return ", ".join(filter(None, (phase, reason if reason != phase else ""))) or f"it answers {reply.status}"


def _tell(now: Mapping[str, str], said: dict[str, str]) -> None:
    """Log each new phase once."""
    for name, text in now.items():
        if said.get(name) != text:
            log(f"{name}: {text}")
            said[name] = text


def _check_alive(open_: Sequence[Awaited], states: Mapping[str, SeenContainer], before: Mapping[str, int]) -> None:
    """Raise RolloutError if a container is gone, has ended for good, or keeps ending."""
    problems = []
    for each in open_:
        seen = states.get(each.name)
        if seen is None:
            problems.append(f"{each.name}: its container is gone")
        elif seen.state in ENDED or seen.restarts - before.get(each.name, 0) >= RESTARTS:
            problems.append(f"{each.name}: {seen.state}, exit code {seen.code}, {seen.restarts} restarts")
    if problems:
        raise RolloutError(*problems, hint="`./inv topology logs FILE` shows why")
