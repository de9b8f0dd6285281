"""What each container of a topology does now: phase, image, requests, transfers, and what needs attention. IO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from drydock.core.console import printable
from drydock.model.record import Record
from drydock.run.container import name_of
from drydock.topology.planned import Rank, Replica, TopologyPlan
from drydock.topology.ports import API, STATUS
from drydock.topology.render.parts import container_name
from drydock.topology.rollout import metrics, slices
from drydock.topology.rollout.asking import OK, AskHttp, NoAnswer
from drydock.topology.rollout.asking import ask as ask_over_http
from drydock.topology.rollout.ready import router_url
from drydock.topology.rollout.runner import SeenContainer
from drydock.topology.words import url

if TYPE_CHECKING:  # rich is slow to import
    from rich.console import Group

SECONDS = 3.0
"""For one answer, so that a node that is off does not hold up the others."""
AT_A_TIME = 32
GONE = "gone"
COLUMNS = ("node", "container", "role", "state", "image", "running", "transferred", "expired")
_SHORT = 19
"""Characters of a digest that are shown: sha256: and twelve digits."""


class Row(Record):
    """One container."""

    node: str
    name: str
    role: str
    state: str
    """ready, the phase of the start, or what the engine says."""
    ready: bool
    image: str
    """Its image's digest."""
    running: int | None = None
    """Requests; None where a rank does not tell."""
    transferred: int | None = None
    """Tokens of prompts that a decode server got from prefill servers."""
    expired: int | None = None
    """Requests whose KV cache a prefill server freed before anyone read it."""
    late: int | None = None
    """Reads of a KV cache that a prefill server had freed before."""
    failed: int | None = None
    """Failures of a decode server to get a KV cache."""
    restarts: int = 0
    reason: str = ""
    """Why it is not ready."""


def rows(
    plans: Sequence[TopologyPlan],
    states: Mapping[str, SeenContainer],
    reach: Mapping[str, str],
    ask: AskHttp = ask_over_http,
) -> tuple[Row, ...]:
    """Return a row for each container of the plans, in their order."""
    each = [(plan, replica, rank) for plan in plans for replica, rank in slices.ranks_of(plan)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        ranks = pool.map(lambda one: _rank(one[1], one[2], states, reach, ask), each)
        routers = pool.map(lambda plan: _router(plan, states, reach, ask), (plan for plan in plans if plan.router))
        return (*ranks, *routers)


def alerts(found: Sequence[Row]) -> Iterator[str]:
    """Yield what needs attention."""
    for row in found:
        if row.expired:
            yield (
                f"{row.name}: the KV cache of {row.expired} requests expired before a decode server had read it, "
                f"and {row.late or 0} were read after that, so their answers can be wrong: "
                "give the lease more time, or send fewer requests (docs/topology.md)"
            )
        if row.failed:
            yield (
                f"{row.name}: {row.failed} failures to get a KV cache from a prefill server, whose requests got 500: "
                "see its log; if its network interface was created again, start it again (docs/topology.md)"
            )
        if not row.ready:
            yield f"{row.name}: not ready: {row.reason or row.state}"
        if row.restarts:
            yield f"{row.name}: its engine started it again {row.restarts} times"
    images: dict[str, list[str]] = {}
    for row in found:
        if row.role != "router" and row.image:
            images.setdefault(row.image, []).append(row.name)
    if len(images) > 1:
        listed = "; ".join(f"{image[:_SHORT]} {', '.join(names)}" for image, names in images.items())
        yield f"the servers run different images, whose KV caches may not fit: {listed}"


def table(found: Sequence[Row]) -> Group:
    """Return what is drawn on a terminal."""
    from rich.console import Group  # noqa: PLC0415 - see above
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(*COLUMNS, box=None, header_style="bold", pad_edge=False)
    for row in found:
        colour = "green" if row.ready else "red" if row.state in ("exited", "dead", GONE) else "yellow"
        drawn.add_row(*(Text(word, colour if place == COLUMNS.index("state") else "") for place, word in _cells(row)))
    return Group(drawn, *(Text(f"alert: {printable(text)}", "red") for text in alerts(found)))


def as_text(found: Sequence[Row]) -> str:
    """Return the table as plain text."""
    lines = [COLUMNS, *(tuple(word for _, word in _cells(row)) for row in found)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(COLUMNS))]
    padded = ("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "".join(f"{line}\n" for line in (*padded, *(f"alert: {text}" for text in alerts(found))))


def _cells(row: Row) -> Iterator[tuple[int, str]]:
    numbers = ("" if number is None else str(number) for number in (row.running, row.transferred, row.expired))
    words = (row.node, row.name, row.role, row.state, row.image[:_SHORT], *numbers)
    yield from enumerate(map(printable, words))


# --- one container --------------------------------------------------------------------------------------------------


def _rank(
    replica: Replica, rank: Rank, states: Mapping[str, SeenContainer], reach: Mapping[str, str], ask: AskHttp
) -> Row:
    name = container_name(replica, rank)
    seen = states.get(name, SeenContainer(GONE, ""))
    address = reach.get(name_of(rank.node), rank.address)
    ready, phase, reason = _phase(url(address, rank.ports[STATUS]), ask)
    counted = _counts(url(address, rank.ports[API]), replica.role, ask) if API in rank.ports else {}
    return Row(
        node=rank.node,
        name=name,
        role=replica.role if rank.rank == 0 else f"{replica.role}, rank {rank.rank}",
        state=phase if seen.state in ("running", GONE) and phase else seen.state,
        ready=ready,
        image=seen.image,
        restarts=seen.restarts,
        reason=reason,
        **counted,
    )


def _phase(base: str, ask: AskHttp) -> tuple[bool, str, str]:
    """Return whether a rank is ready, its phase, and why it is not ready."""
    try:
        reply = ask(f"{base}/readyz", None, SECONDS)
        said = reply.json()
    except NoAnswer as error:
        return False, "", f"no answer: {error}"
    return reply.status == OK, str(said.get("phase") or "")[:80], str(said.get("reason") or "")[:300]


def _counts(base: str, role: str, ask: AskHttp) -> dict[str, int]:
    """Return what a server counts; nothing if it does not answer."""
    try:
        text = ask(f"{base}/metrics", None, SECONDS).text
        found = {"running": metrics.total(text, metrics.RUNNING)}
        if role == "decode":
            found |= {"transferred": metrics.transferred(text), "failed": metrics.total(text, metrics.FAILED)}
        if role == "prefill":
            found |= {"expired": metrics.expired(text), "late": metrics.total(text, metrics.LATE)}
    except (NoAnswer, ValueError):
        return {}
    return {name: int(value) for name, value in found.items() if value is not None}


def _router(plan: TopologyPlan, states: Mapping[str, SeenContainer], reach: Mapping[str, str], ask: AskHttp) -> Row:
    if plan.router is None:
        raise ValueError("a plan without a router")
    seen = states.get(plan.router.name, SeenContainer(GONE, ""))
    try:
        ready, reason = ask(f"{router_url(plan, reach)}/readiness", None, SECONDS).status == OK, ""
    except NoAnswer as error:
        ready, reason = False, f"no answer: {error}"
    return Row(
        node=plan.router.node,
        name=plan.router.name,
        role="router",
        state="ready" if ready else seen.state,
        ready=ready,
        image=seen.image,
        restarts=seen.restarts,
        reason=reason,
    )
