"""What Compose and Ansible are given, and the folder in which it is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from drydock.core.errors import EngineError, InputError
from drydock.engine import compose as plugin
from drydock.topology.playbook import run as running
from drydock.topology.render import render
from drydock.topology.rollout import ansible, slices, state, verbs
from drydock.topology.rollout.ansible import Ansible
from drydock.topology.rollout.compose import Compose, project_files
from drydock.topology.rollout.state import TopologyPlace, TopologyState, checked_format
from tests.support import topologies

PLAN = topologies.disaggregated(1, 1)
HOLDER = "registry.example/first@sha256:" + "c" * 64


def services(*plans: Any) -> dict[str, Any]:
    text = project_files(plans, topologies.variant("cpu"), HOLDER, {})["compose.yaml"]
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def test_every_node_outlives_its_ranks() -> None:
    found = services(PLAN)

    assert {name for name in found if name.startswith("node.")} == {"node.n0", "node.n1"}
    assert found["node.n0"]["image"] == HOLDER
    assert found["prefills-0-0"]["network_mode"] == "service:node.n0"
    assert found["router"]["network_mode"] == "service:node.n1"


def test_a_plan_beside_another_changes_nothing_of_it() -> None:
    new = slices.on_trial(slices.numbered(PLAN, 2), 2, PLAN).model_copy(update={"image": "registry.example/new"})
    before, both = services(PLAN), services(PLAN, new)

    assert {name: both[name] for name in before} == before
    assert {*both} - {*before} == {"prefills-s2-0-0", "decodes-s2-0-0", "router-s2"}
    assert both["decodes-s2-0-0"]["image"] == "registry.example/new"


def test_the_nodes_stay_when_all_servers_are_replaced() -> None:
    new = slices.numbered(PLAN, 2).model_copy(update={"image": "registry.example/new"})
    before, after = services(PLAN), services(new)

    assert {name: each for name, each in after.items() if name.startswith("node.")} == {
        name: each for name, each in before.items() if name.startswith("node.")
    }


# --- Ansible --------------------------------------------------------------------------------------------------------


def test_the_old_servers_of_a_roll_are_not_started_again() -> None:
    """While they finish their requests, they have no router any more; Compose starts a changed service again."""
    behind = PLAN.model_copy(update={"router": None})
    before, during = services(PLAN), services(slices.numbered(PLAN, 2), behind)
    first, second = (
        render(plan, topologies.variant("cpu"), "ansible", {})["host_vars/n0.yml"] for plan in (PLAN, behind)
    )

    assert {name: during[name] for name in before if name != "router"} == {
        name: service for name, service in before.items() if name != "router"
    }
    assert first == second  # of a node without the router


def test_removal_names_only_what_goes() -> None:
    gone = slices.without(slices.on_trial(PLAN, 2, PLAN), (PLAN,))
    assert gone
    files = ansible.removal(gone)
    hosts = yaml.safe_load(files["host_vars/n1.yml"])

    assert hosts == {"topology_ranks": [], "topology_routers": [{"name": "router-s2", "stop_timeout": 30}]}
    assert "playbook.yml" in files


class Recorded(Ansible):
    """Notes what Ansible would do."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, topologies.variant("cpu"), (PLAN,), {})
        self.done: list[tuple[str, str]] = []

    def _playbook(self, folder: Path, tags: Sequence[str], more: Mapping[str, Any] | None = None) -> None:
        _ = more
        self.done.append((folder.name, ",".join(tags)))


def test_what_is_wanted_runs_before_the_rest_is_removed(tmp_path: Path) -> None:
    runner = Recorded(tmp_path)
    new = slices.numbered(PLAN, 2)
    runner.start((new, PLAN.model_copy(update={"router": None})))
    runner.start((new,))

    run = "check,ranktable,run"
    assert runner.done == [("plan-0", run), ("plan-1", run), ("plan-0", run), ("gone", "stop")]
    removed = yaml.safe_load((tmp_path / "gone" / "host_vars" / "n0.yml").read_text())
    assert [each["name"] for each in removed["topology_ranks"]] == ["prefills-0-0"]
    assert yaml.safe_load((tmp_path / "gone" / "host_vars" / "n1.yml").read_text())["topology_routers"] == []


CONTAINER = {"Name": "/a-0-0", "Image": "sha256:x", "RestartCount": 1, "State": {"Status": "exited", "ExitCode": 3}}


def test_each_machine_is_asked_for_its_containers() -> None:
    files = ansible.looking(PLAN)

    assert yaml.safe_load(files["host_vars/n1.yml"]) == {"topology_names": ["decodes-0-0", "router"]}
    (play,) = yaml.safe_load(files["playbook.yml"])
    assert play["tasks"][0]["ansible.builtin.command"]["argv"] == ansible.INSPECT


def test_what_machines_say_of_their_containers_is_read() -> None:
    assert ansible._seen({"stdout": json.dumps([CONTAINER])}, "n0") == {"a-0-0": ("exited", "sha256:x", 1, 3)}
    assert ansible._seen({"stdout": ""}, "n0") == {}


@pytest.mark.parametrize("said", [{}, {"stdout": 3}, {"stdout": "{"}, {"stdout": "[3]"}, {"stdout": '[{"Name": "a"}]'}])
def test_any_other_answer_is_an_error(said: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="node n0: docker container inspect: an unexpected answer"):
        ansible._seen(said, "n0")


def test_each_task_that_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = running.Failure("n0", "Start the ranks", "no such image", unreachable=False)
    monkeypatch.setattr(running, "playbook", lambda *_, **__: running.Played({}, (failure,), {}))
    with pytest.raises(EngineError, match="n0: Start the ranks: no such image"):
        Ansible(tmp_path, topologies.variant("cpu"), (), {}).start((PLAN,))


def test_logs_of_machines_are_fetched_whole(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not with Ansible"):
        Recorded(tmp_path).logs(["a"], 10, follow=False)


# --- the folder -----------------------------------------------------------------------------------------------------


def kept(file: Path) -> TopologyState:
    return TopologyState(file=str(file), name="x", format="compose", holder="i", plans=(PLAN,))


def test_the_folder_has_the_name_of_the_file(tmp_path: Path) -> None:
    assert TopologyPlace(Path("a/Trio_2.yaml"), root=tmp_path).folder == tmp_path / ".cache" / "topology" / "trio-2"
    assert TopologyPlace(tmp_path / "two" / "topology.yaml", root=tmp_path).name == "two"
    assert TopologyPlace(Path("a.yaml"), output=str(tmp_path / "o")).folder == tmp_path / "o"


def test_one_file_has_one_place_however_its_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "two" / "below")
    whole = TopologyPlace(tmp_path / "two" / "topology.yaml", root=tmp_path)
    whole.write(kept(whole.file))

    for path in ("../topology.yaml", "../../two/./topology.yaml"):
        assert TopologyPlace(Path(path), root=tmp_path).read() == kept(whole.file)
    assert TopologyPlace(Path("a.yaml"), output="../o").folder == tmp_path / "two" / "o"


def test_a_long_name_is_cut_to_an_identifier(tmp_path: Path) -> None:
    place = TopologyPlace(tmp_path / f"{'a' * 62}-{'b' * 100}.yaml", root=tmp_path)
    assert place.name == "a" * 62
    assert TopologyState(**{**dict(kept(place.file)), "name": place.name}).name == place.name


def test_what_runs_is_read_again(tmp_path: Path) -> None:
    place = TopologyPlace(tmp_path / "a.yaml", root=tmp_path)
    assert place.read() is None
    place.write(kept(place.file))

    assert place.running() == kept(place.file)
    place.forget()
    with pytest.raises(InputError, match="not started from here"):
        place.running()


def test_the_folder_of_another_file_is_refused(tmp_path: Path) -> None:
    place = TopologyPlace(tmp_path / "a" / "trio.yaml", root=tmp_path)
    place.write(kept(tmp_path / "b" / "trio.yaml"))
    with pytest.raises(InputError, match=r"it runs .*/b/trio\.yaml, not .*/a/trio\.yaml"):
        place.read()


@pytest.mark.parametrize(("change", "problem"), [({"numbr": 1}, "numbr"), ({"plans": []}, "plans: .* at least 1")])
def test_a_broken_state_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    place = TopologyPlace(tmp_path / "a.yaml", root=tmp_path)
    place.write(kept(place.file))
    path = place.folder / state.STATE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=problem):
        place.read()


@pytest.mark.parametrize("output", ["/dev/null", "/dev/null/x", "state", "lock"])
def test_a_folder_that_is_none_is_named_before_anything_starts(tmp_path: Path, output: str) -> None:
    (tmp_path / "state" / state.STATE).mkdir(parents=True)
    (tmp_path / "lock" / "lock").mkdir(parents=True)
    place = TopologyPlace(tmp_path / "a.yaml", output=str(tmp_path / output))
    with pytest.raises(InputError, match=r"/dev/null: found a file, expected a folder|found a folder, expected a file"):
        verbs.down(place)


def test_compose_is_started_only_with_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "ensure", lambda: None)
    (tmp_path / "compose.yaml").mkdir()
    with pytest.raises(InputError, match=r"compose\.yaml: found a folder, expected a file"):
        Compose("p", tmp_path, topologies.variant("cpu"), HOLDER, {}).start((PLAN,))


def test_kubernetes_is_left_to_the_cluster() -> None:
    with pytest.raises(InputError, match="the cluster starts") as raised:
        checked_format("kubernetes")
    assert "kubectl apply -k" in raised.value.hint
    with pytest.raises(InputError, match="--format compos: unknown format"):
        checked_format("compos")


def test_up_of_another_plan_is_refused_while_one_runs(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(PLAN.model_dump_json())
    place = TopologyPlace(file, root=tmp_path)
    place.write(kept(file.absolute()).model_copy(update={"number": 2}))
    with pytest.raises(InputError, match="another plan of it runs, by compose"):
        verbs.up(place, "compose", verbs.Options())


def test_an_old_compose_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "find", lambda: "2.20.1")
    monkeypatch.setattr(plugin.debian, "is_debian", lambda: False)
    with pytest.raises(EngineError, match=r"docker compose: found 2\.20\.1, expected 2\.36 or newer"):
        plugin.ensure()
