"""The inventory, the playbook and its roles, by ansible-lint's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment

from drydock.core.errors import InputError
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import ansible, ranktable, render_plan
from tests.support import topologies
from tests.support.topologies import Marked, load_unsafe

STATIC = sorted([ansible.FOLDER / "playbook.yml", *(ansible.FOLDER / "roles").rglob("*.yml")])
KEYWORDS = {
    *("name", "loop", "loop_control", "register", "when", "until", "retries", "delay", "no_log", "changed_when"),
    *("check_mode", "delegate_to", "become", "failed_when", "ignore_unreachable", "vars"),
}


def rendered(plan: TopologyPlan, hosts: dict[str, Any] | None = None) -> dict[str, str]:
    texts = render_plan(plan, topologies.variant(plan.variant), "ansible", hosts or {})
    assert texts
    return texts


def tasks() -> list[tuple[Path, dict[str, Any]]]:
    paths = [path for path in STATIC if path.parent.name == "tasks"]
    pairs = [(path, task) for path in paths for task in yaml.safe_load(path.read_text())]
    assert pairs
    return pairs


def module(task: dict[str, Any]) -> str:
    (name,) = set(task) - KEYWORDS
    return name


def test_modules_are_named_in_full_and_tasks_have_names() -> None:
    for path, task in tasks():
        assert re.fullmatch(r"(ansible\.builtin|community\.docker)\.[a-z_]+", module(task)), path
        assert task["name"][0].isupper(), path
        assert next(iter(task)) == "name", path


def test_no_task_needs_a_shell_or_kills_processes() -> None:
    for path, task in tasks():
        assert module(task).rpartition(".")[2] not in ("shell", "raw", "script", "expect"), path
        assert not re.search(r"\bps\b|\bkill|rsync|git\b", str(task)), path


def test_commands_are_lists_and_say_whether_they_change_anything() -> None:
    for path, task in tasks():
        if module(task) == "ansible.builtin.command":
            assert set(task["ansible.builtin.command"]) == {"argv"}, path
            assert task["changed_when"] is False, path


def test_every_expression_is_valid_jinja() -> None:
    def expressions(value: Any, key: str = "") -> Iterator[str]:
        if isinstance(value, dict):
            for name, item in value.items():
                yield from expressions(item, name)
        elif isinstance(value, list):
            yield from (text for item in value for text in expressions(item, key))
        elif isinstance(value, str):
            yield f"{{{{ {value} }}}}" if key in ("that", "until", "when") else value

    jinja_texts = [text for _, task in tasks() for text in expressions(task)]
    assert any("extract" in text for text in jinja_texts)
    for text in jinja_texts:
        Environment(autoescape=False).parse(text)  # noqa: S701 - nothing is made of it


def test_files_have_modes_and_variables_of_roles_their_names() -> None:
    for path, task in tasks():
        if module(task) in ("ansible.builtin.copy", "ansible.builtin.file"):
            assert re.fullmatch("0[0-7]{3}", task[module(task)]["mode"]), path
        role = path.parent.parent.name
        assert task.get("register", f"{role}_").startswith(f"{role}_"), path
        assert task.get("loop_control", {}).get("loop_var", f"{role}_").startswith(f"{role}_"), path
    for path in STATIC:
        if path.parent.name == "defaults":
            assert all(name.startswith(f"{path.parent.parent.name}_") for name in yaml.safe_load(path.read_text()))


def test_text_is_as_yamllint_wants_it() -> None:
    plan, hosts = topologies.ascend(devices=2)
    for path, text in rendered(plan, hosts).items():
        if path.endswith(".yml"):
            assert text.startswith("---\n"), path
            assert text.endswith("\n"), path
            assert not re.search(r"[ \t]+$", text, re.MULTILINE), path
            assert not re.search(r"^( *)\w+:\n\1- ", text, re.MULTILINE), path  # indented lists
            assert max(map(len, text.splitlines())) <= 160, path


def test_the_tags_are_the_seeds_and_what_ends_or_fetches_runs_only_when_asked() -> None:
    plays = yaml.safe_load((ansible.FOLDER / "playbook.yml").read_text())
    assert [play["tags"] for play in plays] == [
        ["check"],
        ["ranktable"],
        ["run"],
        ["never", "logs"],
        ["never", "stop"],
        ["never", "preflight"],
    ]
    roles = {role["role"] for play in plays for role in play["roles"]}
    assert roles == {path.name for path in (ansible.FOLDER / "roles").iterdir()}


def test_every_variable_of_a_task_exists() -> None:
    plan = topologies.disaggregated()
    host_variables = load_unsafe(rendered(plan)["host_vars/n2.yml"])
    used_variables = {name for path in STATIC for name in re.findall(r"\b(topology_\w+)", path.read_text())}
    text = (ansible.FOLDER / "roles" / "run" / "tasks" / "container.yml").read_text()
    optional = {*re.findall(r"run_container\.(\w+) \| default", text)}
    options = {*re.findall(r"run_container\.(\w+)", text)}

    assert used_variables - {"topology_secrets"} == set(host_variables)
    for container in [*host_variables["topology_ranks"], *host_variables["topology_routers"]]:
        assert options - optional <= set(container)
        assert set(container) <= options | {"ready", "ready_key", "tries"}


def test_a_changed_option_changes_the_label_by_which_ansible_compares() -> None:
    plan = topologies.trio()
    first = plan.replicas[0].ranks[0]
    fewer = topologies.with_rank(plan, env={"VLLM_HOST_IP": first.address})
    before, after = (
        load_unsafe(rendered(plan_version)["host_vars/cpu0.yml"])["topology_ranks"][0]["labels"][ansible.LABEL]
        for plan_version in (plan, fewer)
    )
    assert before != after


def test_a_machine_gets_the_ranktables_that_its_ranks_read_and_is_asked_for_the_same_addresses() -> None:
    plan, hosts = topologies.ascend(devices=2)
    rank = plan.replicas[0].ranks[0]
    path = ranktable.locate_ranktable(ranktable.make_local_table_name(rank))
    plan = topologies.with_rank(plan, env={**rank.env, "RANK_TABLE_FILE_PATH": path})
    files = rendered(plan, hosts)
    p0_vars, p1_vars = (load_unsafe(files[f"host_vars/{node}.yml"]) for node in ("p0", "p1"))

    assert {f"files/ranktables/{name}" for name in p0_vars["topology_ranktables"]} <= set(files)
    assert ranktable.make_local_table_name(rank) in p0_vars["topology_ranktables"]
    assert {"type": "bind", "source": ansible.RANKTABLE_FOLDER, "target": "/ranktables", "read_only": True} in (
        p0_vars["topology_ranks"][0]["mounts"]
    )
    assert p0_vars["topology_chips"] == [{"device": "0", "address": "10.9.0.1"}, {"device": "1", "address": "10.9.0.2"}]
    assert p1_vars["topology_ranktables"] == []
    compose = render_plan(plan, topologies.variant("ascend"), "compose", hosts)
    assert f"nodes/p0/ranktables/{ranktable.make_local_table_name(rank)}" in compose


def test_groups_of_the_machine_are_looked_up_there() -> None:
    plan, hosts = topologies.ascend(devices=2)
    container = load_unsafe(rendered(plan, hosts)["host_vars/p0.yml"])["topology_ranks"][0]
    assert (container["groups"], container["host_groups"]) == ([], ["HwHiAiUser"])


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("n1.yml", "read its variables for another node too"),
        *(
            (name, "take it for a group or for its own machine")
            for name in ("all", "ungrouped", "localhost", "127.0.0.1")
        ),
        *((name, "take it for a group") for name in ("topology", "topology_prefill", "topology_router")),
    ],
)
def test_a_node_that_ansible_would_take_for_something_else_is_an_error(node: str, problem: str) -> None:
    with pytest.raises(InputError, match=rf"node {re.escape(node)}: Ansible would {problem}"):
        rendered(topologies.with_rank(topologies.disaggregated(), node=node))


def test_every_text_of_a_machine_is_no_template() -> None:
    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                yield from texts(item)
        elif isinstance(value, str):
            yield value

    plan, hosts = topologies.ascend(devices=2)
    for path, text in rendered(plan, hosts).items():
        if path.startswith("host_vars/"):
            host_texts = [*texts(load_unsafe(text))]
            assert host_texts
            assert all(isinstance(item, Marked) for item in host_texts), path
