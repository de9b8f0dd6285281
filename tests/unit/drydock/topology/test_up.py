"""`topology up` and `down`: the engine's own command, in the folder that was rendered, and then the known answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import EngineError, InputError, VerifyError
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.topology import up, verify
from drydock.topology.answer_program import make_answer_program
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.playbook import playbook_run
from drydock.verbs.topology_up_verb import TopologyUpOptions, start_and_verify
from entrypoints.serve.topology_answer import ShownAnswers, Unproven
from tests.support import topologies
from tests.support.called_verbs import call_verb

SHOWN = ShownAnswers(alone=("whole",))


def write(folder: Path, plan: TopologyPlan | None = None) -> Path:
    file = folder / "duo.json"
    file.write_text(format_json(dump_record(plan or topologies.disaggregated(1, 1))))
    return file


def start(file: Path, kind: str, output: str) -> ShownAnswers:
    return start_and_verify(DRYDOCK, TopologyUpOptions(file=str(file), format=kind, output=output))


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker that notes its words, and answers exec with what was shown; files say what fails, or is an old image."""
    program = tmp_path / "bin" / "docker"
    answer = f"[ -e {tmp_path}/wrong ] && {{ cat {tmp_path}/wrong; exit 8; }}; echo '{json.dumps(SHOWN.json)}'"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
printf '%s\\n' "$*" >> {tmp_path}/calls
case "$*" in
*\\ health\\ *) [ -e {tmp_path}/old ] && exit 7; {answer};;
*\\ exec\\ *) cat > {tmp_path}/program; {answer};;
*) [ ! -e {tmp_path}/fails ];; esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(up, "ensure_compose", lambda: "2.40")
    return tmp_path


def calls(engine: Path) -> list[str]:
    return (engine / "calls").read_text().splitlines()


def test_compose_is_refused_for_addresses_that_no_network_has(engine: Path) -> None:
    plan = topologies.with_rank(topologies.disaggregated(), address="192.168.7.7")
    with pytest.raises(InputError, match="expected one network"):
        start(write(engine, plan), "compose", str(engine / "out"))
    assert not (engine / "calls").exists()


def test_compose_starts_it_and_a_container_of_it_asks_for_the_known_answer(engine: Path) -> None:
    output = engine / "out"
    proof = start(write(engine), "compose", str(output))

    assert proof == SHOWN
    compose = f"compose --project-name drydock-duo --file {output}/compose.yaml"
    started, question_call = calls(engine)
    assert started == f"{compose} up --wait --wait-timeout 3600 --remove-orphans"
    in_router = f"{compose} exec --no-TTY router /usr/bin/python3 -I -S"
    assert question_call.startswith(f"{in_router} /opt/drydock/entrypoints health --topology {{")
    assert not (engine / "program").exists()
    assert (output / "VLLM_API_KEY.env").is_file()

    call_verb("topology down", file=str(write(engine)), output=str(output))
    assert calls(engine)[-1] == f"{compose} down --remove-orphans"


def test_an_older_image_whose_health_answers_by_its_exit_code_alone_gets_the_program(engine: Path) -> None:
    (engine / "old").touch()

    assert start(write(engine), "compose", str(engine / "out")) == SHOWN
    assert "router /usr/bin/python3 -I -S - --topology {" in calls(engine)[-1]
    assert (engine / "program").read_text() == make_answer_program()


def test_servers_that_answer_wrong_end_it_with_what_they_said(engine: Path) -> None:
    (engine / "wrong").write_text(json.dumps(Unproven(["p → d: wrong answer"], ["q → d"]).json))
    with pytest.raises(VerifyError, match="p → d: wrong answer") as raised:
        start(write(engine), "compose", str(engine / "out"))
    assert raised.value.hint.endswith("right: q → d")
    assert len(calls(engine)) == 2


@pytest.mark.parametrize("answer", ["[]", "{", "{}", '{"problems": 3, "right": []}'])
def test_another_answer_than_the_verbs_is_an_error_of_the_engine(engine: Path, answer: str) -> None:
    (engine / "wrong").write_text(answer)
    with pytest.raises(EngineError, match="health --topology"):
        start(write(engine), "compose", str(engine / "out"))


def test_what_compose_cannot_start_names_the_command_of_the_logs(engine: Path) -> None:
    (engine / "fails").touch()
    with pytest.raises(EngineError, match="docker compose up: exit 1") as raised:
        start(write(engine), "compose", str(engine / "out"))
    assert f"--file {engine}/out/compose.yaml logs" in raised.value.hint


def test_an_image_that_no_registry_has_must_be_built_and_is_never_pulled(engine: Path) -> None:
    (engine / "fails").touch()
    plan = topologies.disaggregated(1, 1).model_copy(update={"image": "drydock/cpu-vllm0.32:0123456789ab"})
    with pytest.raises(
        EngineError, match=r"image drydock/cpu-vllm0\.32:0123456789ab: not in this machine's engine"
    ) as raised:
        start(write(engine, plan), "compose", str(engine / "out"))
    assert "./inv build --target" in raised.value.hint
    assert calls(engine) == ["image inspect drydock/cpu-vllm0.32:0123456789ab"]


def test_ansible_runs_the_playbook_with_the_secrets_and_this_machine_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[tuple[Sequence[str], Any]] = []
    monkeypatch.setattr(
        playbook_run, "run_playbook", lambda _, tags, **more: played.append((tags, more.get("variables")))
    )
    monkeypatch.setattr(verify, "prove_plan", lambda _, key: ShownAnswers(alone=(key,)))
    proof = start(write(tmp_path), "ansible", str(tmp_path / "out"))
    call_verb("topology down", file=str(write(tmp_path)), format="ansible", output=str(tmp_path / "out"))

    key = (tmp_path / "out" / "VLLM_API_KEY.env").read_text().strip().removeprefix("VLLM_API_KEY=")
    assert proof.alone == (key,)
    secrets = {"topology_secrets": {"VLLM_API_KEY": key}}
    assert played == [(("check", "ranktable", "run"), secrets), (("stop",), None)]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("", r"--format: missing; the plan's machines are n0 \(10\.2\.0\.10\), n1 \(10\.2\.0\.11\)"),
        ("kubernetes", "the cluster starts, watches and replaces it"),
        ("slurm", "the cluster starts, watches and replaces it"),
        ("nomad", "--format nomad: unknown format"),
    ],
)
def test_a_plan_of_machines_is_started_only_where_the_user_says(tmp_path: Path, kind: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        start(write(tmp_path), kind, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_was_not_started_from_here_is_not_stopped(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found nothing that up started"):
        call_verb("topology down", file=str(write(tmp_path)), output=str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("path", "name"), [("a/b/topology.yaml", "b"), ("a/B_1/plan.json", "b-1"), ("x/Duo.json", "duo")]
)
def test_a_topology_is_called_as_its_file_or_its_folder(path: str, name: str) -> None:
    assert up.name_topology(Path(path)) == name


def test_verify_needs_the_key_that_the_servers_require(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(InputError, match="VLLM_API_KEY: not in the environment"):
        call_verb("topology verify", file=str(write(tmp_path)))
