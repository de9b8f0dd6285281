"""The task topology verify: the known answer of a plan's servers, asked from this machine. IO."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from drydock.core.errors import InputError, VerifyError
from drydock.core.files import dumps
from drydock.core.project import Project
from drydock.run.access import API_KEY
from drydock.topology import keys, known_answer
from drydock.topology import tasks as topologies
from drydock.topology.known_answer import KnownTopology, ShownAnswers, Unproven, url_of
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.ports import API
from drydock.topology.render.parts import container_name


def verify(project: Project, file: Path, model: str = "", target: str = "") -> ShownAnswers:
    """Ask the servers of a topology.yaml or a plan at their addresses. Raises InputError and VerifyError."""
    plan = topologies.planned(project, file, model, target)
    key = os.environ.get(API_KEY, "")
    if keys.of_router(plan) and not key:
        hint = f"compose: `export $(cat FOLDER/{keys.file_name(API_KEY)})`, in the folder that render wrote"
        raise InputError(f"{API_KEY}: not in the environment, and the servers require the key", hint=hint)
    return prove(plan, key)


def prove(plan: TopologyPlan, key: str = "") -> ShownAnswers:
    """Ask the servers of a plan. Raises VerifyError."""
    try:
        return known_answer.prove(KnownTopology.of(question(plan), partial(known_answer.ask, key=key)))
    except Unproven as error:
        raise failure(error.problems, error.right) from error


def failure(problems: tuple[str, ...], right: tuple[str, ...] = ()) -> VerifyError:
    """Return the error for servers that do not answer right."""
    hint = "the servers' logs say why (the README in the rendered folder has the command)"
    return VerifyError(*problems, hint=f"{hint}; right: {', '.join(right) or 'none'}")


def question(plan: TopologyPlan) -> dict[str, Any]:
    """Return what known_answer.py asks: every server of a plan at its address, and the router. Pure."""
    servers = [
        {
            "role": replica.role,
            "name": container_name(replica, replica.ranks[0]),
            "host": replica.ranks[0].address,
            "port": replica.ranks[0].ports[API],
            "count": 0,
        }
        for replica in plan.replicas
        if API in replica.ranks[0].ports
    ]
    return {"servers": servers, "router": url_of(plan.router.address, plan.router.port) if plan.router else ""}


def report(shown: ShownAnswers, *, json: bool) -> str:
    """Format what the known answer showed."""
    return dumps(shown.json) if json else shown.text
