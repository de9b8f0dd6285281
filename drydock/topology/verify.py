"""The known answer of a plan's servers, asked from this machine. IO."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from drydock.core.errors import InputError, VerifyError
from drydock.core.files import format_json
from drydock.run.access import API_KEY
from drydock.topology import topology_keys
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.ports import API
from drydock.topology.render.parts import name_rank_container
from entrypoints.serve import topology_answer
from entrypoints.serve.topology_answer import KnownTopology, ShownAnswers, Unproven, make_server_url


def read_client_key(plan: TopologyPlan) -> str:
    """Return the key of the environment. Raises InputError if the servers require one, and there is none."""
    key = os.environ.get(API_KEY, "")
    if topology_keys.list_router_secrets(plan) and not key:
        secret_file = topology_keys.make_secret_file_name(API_KEY)
        hint = f"compose: `export $(cat FOLDER/{secret_file})`, in the folder that render wrote"
        raise InputError(f"{API_KEY}: not in the environment, and the servers require the key", hint=hint)
    return key


def prove_plan(plan: TopologyPlan, key: str = "") -> ShownAnswers:
    """Ask the servers of a plan. Raises VerifyError."""
    try:
        return topology_answer.prove_servers(
            KnownTopology.of(make_servers_question(plan), partial(topology_answer.ask_server, key=key))
        )
    except Unproven as error:
        raise make_verify_error(error.problems, error.right) from error


def make_verify_error(problems: tuple[str, ...], right: tuple[str, ...] = ()) -> VerifyError:
    """Return the error for servers that do not answer right."""
    hint = "the servers' logs say why (the README in the rendered folder has the command)"
    return VerifyError(*problems, hint=f"{hint}; right: {', '.join(right) or 'none'}")


def make_servers_question(plan: TopologyPlan) -> dict[str, Any]:
    """Return what `health --topology` asks: every server of a plan at its address, and the router. Pure."""
    servers = [
        {
            "role": replica.role,
            "name": name_rank_container(replica, replica.ranks[0]),
            "host": replica.ranks[0].address,
            "port": replica.ranks[0].ports[API],
            "count": 0,
        }
        for replica in plan.replicas
        if API in replica.ranks[0].ports
    ]
    return {"servers": servers, "router": make_server_url(plan.router.address, plan.router.port) if plan.router else ""}


def format_shown_answers(answers: ShownAnswers, *, json: bool) -> str:
    """Format what the known answer showed."""
    return format_json(answers.json) if json else answers.text
