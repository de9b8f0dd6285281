"""How drydock's plan of a command's model changes between two rows, on recorded hosts. IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.compare.vllm_version import ServedVersion
from drydock.core.differences import find_differences
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.inputs import model_images
from drydock.model.variant import Variant
from drydock.run.recorded_plans import PlanQuestion, RecordedPlan, make_recorded_plans
from drydock.topology.plan_diff import split_command_options
from drydock.topology.size import list_recorded_machines

COMMAND = "command"
"""What comes before the first flag of a plan."""


class ChangedSetting(NamedTuple):
    """A flag or variable of a plan that differs; None: a plan does not have it."""

    name: str
    old: str | None
    new: str | None
    because: str = ""
    """The new plan's reason; that of the old one for what the new one does not have."""


class ChangedPlan(NamedTuple):
    """What differs between the plans of two rows on one host."""

    host: str
    changes: tuple[ChangedSetting, ...]
    old_problem: str = ""
    """Why the old row has no plan there; empty if it has one."""
    new_problem: str = ""


class PlannedSide(NamedTuple):
    """A row, and what is planned with it."""

    variant: Variant
    words: tuple[str, ...]
    env: Mapping[str, str]


def find_recorded_hosts(project: Project, roots: Sequence[str], old: ServedVersion, new: ServedVersion) -> list[Path]:
    """Return the recorded hosts that are named, or else those of the rows' accelerator that come with drydock.

    Raises InputError if plans are asked for and a side is no row.
    """
    if old.variant is None or new.variant is None:
        if roots:
            name = old.name if old.variant is None else new.name
            raise InputError(f"--root: {name} is no row, so there is no plan", hint="./inv matrix lists the rows")
        return []
    if roots:
        return [Path(root) for root in roots]
    if old.variant.accelerator != new.variant.accelerator:
        return []
    return [
        host.path for host in list_recorded_machines(project) if host.variant.accelerator == new.variant.accelerator
    ]


def compare_plans(project: Project, hosts: Sequence[Path], old: PlannedSide, new: PlannedSide) -> list[ChangedPlan]:
    """Return what differs on each host, in the order of the hosts."""
    sides = [
        make_recorded_plans(
            project,
            [
                PlanQuestion(side.variant, host, model_images.replace_model_address(side.words), side.env)
                for host in hosts
            ],
        )
        for side in (old, new)
    ]
    return [compare_plan(name_host(host), *plans) for host, *plans in zip(hosts, *sides, strict=True)]


def name_host(host: Path) -> str:
    """Return the name of a recorded host."""
    return host.parent.name if host.name == "host.json" and host.parent.name else host.name


def compare_plan(name: str, old: RecordedPlan, new: RecordedPlan) -> ChangedPlan:
    """Return what differs between two plans of one host."""
    if old.error or new.error:
        return ChangedPlan(name, (), old.problem, new.problem)
    reasons = {**_list_reasons(old), **_list_reasons(new)}
    return ChangedPlan(
        name,
        tuple(
            ChangedSetting(*change, reasons.get(change[0].removeprefix("env "), ""))
            for change in find_differences(_list_settings(old), _list_settings(new))
        ),
    )


def _list_settings(plan: RecordedPlan) -> Mapping[str, str]:
    """Return a plan's flags and variables."""
    settings = split_command_options(tuple(plan.document["argv"]))
    flags = {name: value for name, value in settings.items() if name != COMMAND}
    return {**flags, **{f"env {name}": value for name, value in plan.list_variables().items()}}


def _list_reasons(plan: RecordedPlan) -> dict[str, str]:
    return {reason["setting"]: reason["because"] for reason in plan.document.get("reasons", ())}
