"""The tasks topology up, down, status, logs and roll. IO."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.config.matrix import find, read_matrix
from drydock.core.console import emit
from drydock.core.errors import InputError
from drydock.core.files import dumps
from drydock.core.paths import ROOT
from drydock.model.record import dump
from drydock.run.docker import START_SECONDS
from drydock.topology import verbs as topologies
from drydock.topology.planned import TopologyPlan
from drydock.topology.playbook.run import Ssh
from drydock.topology.render import hosts_of
from drydock.topology.rollout import known, ready, slices
from drydock.topology.rollout import roll as rolling
from drydock.topology.rollout.known import Pair, ShownAnswers
from drydock.topology.rollout.state import TopologyPlace, TopologyState, checked_format

EVERY = 2.0
"""Seconds between two tables of `status --watch`."""


class Options(NamedTuple):
    """The options of up and roll."""

    model: str = ""
    target: str = ""
    hosts: str = ""
    """Folder with recorded hosts, for ranktables; without it, a topology.yaml's own."""
    seconds: float = 0.0
    """How long a start may take; 0: as the accelerator's record says."""
    ssh: Ssh = Ssh()


def up(place: TopologyPlace, kind: str, options: Options) -> ShownAnswers:
    """Start a topology, wait until all is ready, and ask for the known answer. Raises DrydockError."""
    chosen = checked_format(kind)
    with place.alone():
        plan = topologies.planned(place.file, options.model, options.target)
        old = place.read()
        if old and (old.number > 1 or old.plans != (plan,) or old.format != chosen):
            text = f"{place.file}: another plan of it runs, by {old.format}"
            raise InputError(text, hint="`topology roll` replaces its servers; `topology down` stops them")
        state = TopologyState(
            file=str(place.file),
            name=place.name,
            format=chosen,
            holder=plan.image,
            ssh=options.ssh,
            plans=(plan,),
        )
        runner = place.runner(state, hosts_of(place.file, plan, options.hosts))
        place.write(state)
        runner.start((plan,))
        ready.wait(plan, runner, options.seconds or patience(plan))
        ready.check_images(plan, runner.states())
        return known.prove(plan, runner.reach())


def down(place: TopologyPlace) -> None:
    """Stop a topology and remove its containers. Raises DrydockError."""
    with place.alone():
        place.runner(place.running(), {}).stop()
        place.forget()


def logs(place: TopologyPlace, names: Sequence[str], lines: int, *, follow: bool) -> None:
    """Print the containers' last lines. Raises DrydockError."""
    place.runner(place.running(), {}).logs(names, lines, follow=follow)


def status(place: TopologyPlace, *, watch: bool, json: bool) -> None:
    """Print what each container does; with `watch`, draw it again until Ctrl-C. Raises DrydockError."""
    from drydock.topology.rollout import watch as watching

    def now() -> tuple[watching.Row, ...]:
        state = place.running()
        runner = place.runner(state, {})
        return watching.rows(state.plans, runner.states(), runner.reach())

    if json:
        found = now()
        emit(dumps({"rows": [dump(row) for row in found], "alerts": [*watching.alerts(found)]}))
    elif watch:
        from rich.console import Console
        from rich.live import Live

        with Live(watching.table(now()), console=Console(), auto_refresh=False) as live:
            while True:
                time.sleep(EVERY)
                live.update(watching.table(now()), refresh=True)
    else:
        emit(watching.as_text(now()))


def roll(place: TopologyPlace, file: Path, options: Options) -> ShownAnswers:
    """Replace the servers of a running topology by those of a file, or of itself. Raises DrydockError."""
    with place.alone():
        state = place.running()
        if len(state.plans) > 1:
            text = f"{place.file}: an earlier roll was interrupted, and two plans run"
            raise InputError(text, hint="`topology down` and `topology up` start it again")
        old, number = state.plans[0], state.number + 1
        new = topologies.planned(file, options.model, options.target, lambda base: slices.port_base(old, base))
        new = slices.numbered(new, number)
        runner = place.runner(state, hosts_of(file, new, options.hosts))

        def keep(plans: tuple[TopologyPlan, ...]) -> None:
            count = state.number if plans[0] == old else number
            place.write(state.model_copy(update={"plans": plans, "number": count}))

        return rolling.roll(old, new, runner, keep, rolling.RollOptions(number, options.seconds or patience(new)))


def patience(plan: TopologyPlan) -> float:
    """Return the seconds that a first start may take: it loads weights and compiles."""
    start = find(read_matrix(ROOT), plan.variant).run.start
    return float(max(START_SECONDS, 60 * int(start.value.removesuffix("m")) if start else 0))


def report(shown: ShownAnswers, *, json: bool) -> str:
    """Format what the known answer showed."""
    if json:
        return dumps(dump(shown))
    lines = [*(_line(pair) for pair in (*shown.pairs, *([shown.router] if shown.router else [])))]
    lines += [f"{name}: answers right" for name in shown.alone]
    return "".join(f"{line}\n" for line in lines)


def _line(pair: Pair) -> str:
    way = f"{pair.prefill} → {pair.decode}" if pair.prefill else f"router → {pair.decode}"
    return f"{way}: right, {pair.transferred} of {pair.tokens} tokens of the prompt transferred"
