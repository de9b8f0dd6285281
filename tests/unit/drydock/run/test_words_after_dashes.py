"""Words after `--`: a verb or a command instead of serving, in every format."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drydock.core.errors import InputError
from drydock.model.running import Run
from drydock.run import kubernetes_manifest
from drydock.run.container import RunRequest
from tests.support.called_verbs import run_as, run_on_engine
from tests.support.containers import GPUS, NODES, PRIVILEGED, RUNTIME, machine, made
from tests.support.printed_forms import MODEL, printed, service
from tests.unit.drydock.verbs.test_run_verb import CPU, ID, FakeHere


def test_words_that_begin_with_a_flag_are_those_of_serve(tmp_path: Path) -> None:
    here = FakeHere(tmp_path, [CPU])

    run_on_engine("cpu", MODEL.model_copy(update={"arguments": ("--max-model-len", "512")}), here=here)
    assert here.became[-5:] == ["serve", "--model", "org/model", "--max-model-len", "512"]
    run_on_engine("cpu", MODEL.model_copy(update={"arguments": ("serve", "--x")}), here=here)
    assert here.became[-4:] == ["serve", "--model", "org/model", "--x"]
    assert "--publish" in here.became


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("check",), ("check",)),
        (("check", "--json"), ("check", "--json")),
        (("plan", "--json"), ("plan", "--model", "org/model", "--json")),
        (("warm",), ("warm", "--model", "org/model")),
        (("convert", "--model", "/x", "--output", "/out"), ("convert", "--model", "/x", "--output", "/out")),
        (("bench", "--dtype", "half"), ("bench", "--model", "org/model", "--dtype", "half")),
        (("bench", "--url=http://a", "--", "--seed", "1"), ("bench", "--url=http://a", "--", "--seed", "1")),
        (("plan", "--diff", "a", "b"), ("plan", "--diff", "a", "b")),
        (("fabric",), ("fabric",)),
        (("python3", "-c", "print('$X')"), ("python3", "-c", "print('$X')")),
    ],
)
def test_another_word_is_a_verb_or_a_command(words: Sequence[str], expected: Sequence[str], tmp_path: Path) -> None:
    here = FakeHere(tmp_path, [CPU])

    assert run_on_engine("cpu", MODEL.model_copy(update={"arguments": words}), here=here) == 7
    assert here.became[here.became.index(CPU) + 1 :] == [*expected]
    assert here.became[:3] == ["docker", "run", "--rm"]
    assert not {"--publish", "--restart", "--tty"} & set(here.became)
    assert f"cpu-vllm0-32-{words[0]}" in here.became  # the server may run at the same time


def test_a_terminal_is_passed_through_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, shell = FakeHere(tmp_path, [CPU]), RunRequest(arguments=("bash",))
    monkeypatch.setattr(FakeHere, "terminal", lambda _: True)

    run_on_engine("cpu", shell, here=here)
    assert here.became[2:5] == ["--rm", "--interactive", "--tty"]
    run_on_engine("cpu", MODEL, here=here)
    assert "--tty" not in here.became
    run_on_engine("cpu", shell, run_as(detach=True), here=here)
    assert "--tty" not in here.became


def test_only_serve_needs_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = FakeHere(tmp_path, [CPU])

    for words in ((), ("--dtype", "half"), ("serve",)):
        with pytest.raises(InputError, match="--model: no model given"):
            run_on_engine("cpu", RunRequest(arguments=words), here=here)
    run_on_engine("cpu", RunRequest(arguments=("facts",)), here=here)
    assert here.became[-1] == "facts"
    model = RunRequest(model=str(tmp_path), arguments=("nvidia-smi",))
    capsys.readouterr()
    run_on_engine("cpu", model, here=here)
    assert (
        f"nvidia-smi gets no --model: in the container the model is /models/{tmp_path.name}" in capsys.readouterr().err
    )
    assert f"type=bind,source={tmp_path},target=/models/{tmp_path.name},readonly" in here.became


def test_what_runs_once_asks_for_no_key_and_keeps_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "")
    here = FakeHere(tmp_path, [CPU])

    run_on_engine("cpu", RunRequest(address="0.0.0.0", arguments=("curl", "--api-key", "s3cret")), here=here)
    assert here.became[-3:] == ["curl", "--api-key", "s3cret"]
    assert "s3cret" not in capsys.readouterr().err
    run_on_engine("cpu", MODEL.model_copy(update={"arguments": ("warm", "--api-key", "s3cret")}), here=here)
    assert "s3cret" not in here.became
    assert os.environ["VLLM_API_KEY"] == "s3cret"


def test_a_compose_service_of_a_verb_is_not_restarted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compose_service = service(printed(RunRequest(arguments=("check",)), "compose", tmp_path, capsys))

    assert not {"restart", "ports"} & set(compose_service)
    assert compose_service["command"] == ["check"]


@pytest.mark.parametrize("record", [NODES, RUNTIME, GPUS, PRIVILEGED, Run()])
def test_a_verb_is_a_job_in_kubernetes_that_no_service_selects(record: Run, tmp_path: Path) -> None:
    def documents(**request: Any) -> dict[str, Any]:
        return {
            item["kind"]: item for item in kubernetes_manifest.make_objects(made(record, machine(tmp_path), **request))
        }

    verb_documents, served = documents(arguments=("warm",)), documents()
    job = verb_documents["Job"]
    spec = job["spec"]["template"]["spec"]
    labels = job["spec"]["template"]["metadata"]["labels"]

    assert set(verb_documents) == {"PersistentVolumeClaim", "Job"}
    assert (job["apiVersion"], job["spec"]["backoffLimit"], spec["restartPolicy"]) == ("batch/v1", 0, "Never")
    assert not {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "ports"} & set(spec["containers"][0])
    assert not served["Service"]["spec"]["selector"].items() <= labels.items()
    assert verb_documents["PersistentVolumeClaim"] == served["PersistentVolumeClaim"]  # it fills the server's cache
    assert job["metadata"]["name"] != served["Deployment"]["metadata"]["name"]


def test_a_detached_verb_says_how_to_read_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = FakeHere(tmp_path, [CPU])

    run_on_engine("cpu", RunRequest(arguments=("warm", "--model", "org/m")), run_as(detach=True, json=True), here=here)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"id": ID, "name": "cpu-vllm0-32-warm", "image": CPU}
    assert "docker logs --follow cpu-vllm0-32-warm" in err
    assert "readyz" not in err


@pytest.mark.parametrize("word", ["/usr/bin/Python3.11", "über", "--", "..", "a" * 200])
def test_any_command_gives_a_name_that_docker_accepts(word: str, tmp_path: Path) -> None:
    name = made(Run(), machine(tmp_path), arguments=("x" if word == "--" else word,)).name

    assert name.startswith("cpu-vllm0-32-")
    assert len(name) <= 63
    assert name.strip("-").replace("-", "").isalnum()
