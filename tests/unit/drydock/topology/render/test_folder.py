"""A folder has the files of the plan that was rendered last, and what is not ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.model.record import dump_record
from drydock.topology import planned_file
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import FORMATS
from tests.support import topologies
from tests.support.called_verbs import render_topology
from tests.support.topology_files import EXAMPLES, write_model

ONE = topologies.disaggregated(1, 1)
TWO = topologies.with_replica(topologies.disaggregated(2, 1), 1, group="more")
"""A plan with a group more than ONE, on a node more."""


def render_into(folder: Path, plan: TopologyPlan, kind: str = "compose") -> Path:
    file = folder.parent / "plan.json"
    file.write_text(json.dumps(dump_record(plan)))
    render_topology(file, kind, folder)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Return what was rendered, and the user's own; not the secrets, which are random."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "VLLM_API_KEY.env"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind not in ("ranktable", "slurm")])  # one file each
def test_what_a_plan_no_longer_has_goes(tmp_path: Path, kind: str) -> None:
    fresh = render_into(tmp_path / "fresh", ONE, kind)
    used_folder = render_into(tmp_path / "used", TWO, kind)
    assert content(used_folder).keys() - content(fresh).keys()
    render_into(used_folder, ONE, kind)
    assert content(used_folder) == content(fresh)
    assert sorted(used_folder.rglob("*")) == sorted(used_folder / path.relative_to(fresh) for path in fresh.rglob("*"))


def test_files_of_one_engine_and_of_another_kind_of_pods_go(tmp_path: Path) -> None:
    folder = render_into(tmp_path / "out", ONE)
    render_into(folder, topologies.with_rank(ONE, address="192.168.7.7"))
    assert not (folder / "compose.yaml").exists()

    pods = render_into(tmp_path / "pods", ONE, "kubernetes")
    render_into(pods, ONE, "disaggregatedset")
    assert content(pods) == content(render_into(tmp_path / "set", ONE, "disaggregatedset"))


def test_other_formats_and_files_of_the_user_stay(tmp_path: Path) -> None:
    folder = render_into(tmp_path / "out", TWO)
    render_into(folder, TWO, "ansible")
    (folder / "nodes" / "n1" / ".env").write_text("mine")
    before = content(folder)
    render_into(folder, ONE, "ansible")
    assert (
        content(folder).items()
        >= {path: data for path, data in before.items() if path.startswith(("nodes/", "compose.yaml"))}.items()
    )
    render_into(folder, ONE)
    assert (folder / "nodes" / "n1" / ".env").read_text() == "mine"


def test_a_topology_yaml_renders_as_its_plan(tmp_path: Path) -> None:
    source = EXAMPLES / "deepseek-gaudi3-2nodes.yaml"
    model = str(write_model(tmp_path / "model", "deepseek-ai/DeepSeek-R1"))
    plan = planned_file.plan_topology_file(DRYDOCK, source, model)
    render_topology(source, "kubernetes", tmp_path / "yaml", model=model)
    assert content(tmp_path / "yaml") == content(render_into(tmp_path / "plan", plan, "kubernetes"))


@pytest.mark.parametrize("known", [True, False])
def test_a_file_of_the_user_is_not_written_over(tmp_path: Path, known: bool) -> None:
    folder = tmp_path / "out"
    if known:
        render_into(folder, ONE)
    folder.mkdir(exist_ok=True)
    (folder / "compose.yaml").write_text("mine")
    with pytest.raises(InputError, match=r"compose\.yaml: it was changed since it was rendered, or something else"):
        render_into(folder, TWO)
    assert (folder / "compose.yaml").read_text() == "mine"
    assert not (folder / "nodes" / "n2").exists()


@pytest.mark.parametrize("way", ["edited", "a link", "behind a link"])
def test_what_was_changed_is_not_removed_and_nothing_else_is_written(tmp_path: Path, way: str) -> None:
    folder = render_into(tmp_path / "out", TWO)
    path = folder / "nodes" / "n2" / "compose.yaml"
    elsewhere = tmp_path / "elsewhere"
    if way == "edited":
        path.write_text("mine")
    else:
        moved = path if way == "a link" else path.parent
        moved.rename(elsewhere)
        moved.symlink_to(elsewhere)
    before = content(folder)
    with pytest.raises(InputError, match=r"nodes/n2/compose\.yaml: this plan has no such file, and it was changed"):
        render_into(folder, ONE)
    assert content(folder) == before
    assert path.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"files": {"../plan.json": "%s"}}', '{"files": {"/etc/x": "%s"}}', "{}"])
def test_a_list_that_names_other_files_is_refused(tmp_path: Path, text: str) -> None:
    folder = render_into(tmp_path / "out", TWO)
    (folder / ".drydock-compose").write_text(text.replace("%s", "a" * 64))
    with pytest.raises(InputError, match=r"\.drydock-compose: "):
        render_into(folder, ONE)
    assert (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("name", ["compose.yaml", "nodes/n1/compose.yaml", ".drydock-compose"])
def test_a_folder_in_the_place_of_a_file_is_named_before_anything_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "out" / name).mkdir(parents=True)
    with pytest.raises(InputError, match=f"{name}: found a folder, expected a file"):
        render_into(tmp_path / "out", ONE)
    assert not content(tmp_path / "out")


@pytest.mark.parametrize("output", ["plan.json", "plan.json/x", "/dev/null", "x" * 300])
def test_an_output_that_cannot_be_a_folder_is_named(tmp_path: Path, output: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(dump_record(ONE)))
    with pytest.raises(InputError, match=r"found a file, expected a folder|File name too long"):
        render_topology(file, "compose", tmp_path / output)
