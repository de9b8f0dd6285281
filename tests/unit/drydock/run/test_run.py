"""The task `run`: what it prints, what it starts, and its errors."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from drydock.core.errors import HostError, InputError, TargetError
from drydock.core.paths import ROOT
from drydock.run import run
from drydock.run.container import RunRequest
from drydock.run.docker import docker_argv
from tests.support.containers import NODES, machine, made

MODEL = RunRequest(model="org/model")
DIGEST = f"sha256:{'ab' * 32}"
PINNED = f"registry.example/vllm@{DIGEST}"


class FakeHere(run.Here):
    """A fake machine and engine; docker's command is only stored."""

    def __init__(self, folder: Path, images: Sequence[str] = ()) -> None:
        self.machine = machine(folder)
        self.images = images
        self.became: list[str] = []

    def digest(self, image: str) -> str:
        return DIGEST if image in self.images else ""

    def become(self, argv: Sequence[str]) -> None:
        self.became = [*argv]


def test_printing_needs_no_image_and_writes_only_data_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = FakeHere(tmp_path)

    run.run("cpu", MODEL, only_print=True, here=here)

    out, err = capsys.readouterr()
    assert shlex.split(out.replace("\\\n", " "))[:2] == ["docker", "run"]
    assert "--cap-add SYS_NICE: with several NUMA nodes" in err
    assert here.became == []


def test_a_machine_with_the_accelerator_lists_what_it_lacks_and_another_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.run("cpu", RunRequest(model="/data/not/here"), only_print=True, here=FakeHere(tmp_path))

    assert "no folder /data/not/here" in capsys.readouterr().err
    assert not made(NODES, machine(tmp_path)).native


def test_compose_and_kubernetes_are_printed_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = FakeHere(tmp_path)

    run.run("cpu", MODEL, form="compose", here=here)
    assert set(yaml.safe_load(capsys.readouterr().out)) == {"services", "volumes"}
    run.run("cpu", MODEL, form="k8s", here=here)
    out, err = capsys.readouterr()
    assert [document["kind"] for document in yaml.safe_load_all(out)][1] == "Deployment"
    assert "exists on this machine only: push it" in err
    assert here.became == []


def test_the_logged_command_is_the_one_that_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = FakeHere(tmp_path, ["drydock/cpu-vllm0.32:latest"])

    run.run("cpu", MODEL, here=here)

    out, err = capsys.readouterr()
    assert out == ""
    assert here.became[:3] == ["docker", "run", "--rm"]
    assert shlex.split(err[err.index("docker run") :].replace("\\\n", " ")) == here.became
    assert f"DRYDOCK_IMAGE_DIGEST={DIGEST}" in here.became


@pytest.mark.parametrize("form", run.WRITERS)
def test_the_digest_is_set_for_a_pinned_reference_and_not_for_a_tag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    here = FakeHere(tmp_path, ["registry.example/vllm:1"])

    run.run("cpu", MODEL.model_copy(update={"image": PINNED}), form=form, only_print=True, here=here)
    assert capsys.readouterr().out.count(DIGEST) == 2  # the reference and the variable
    run.run("cpu", MODEL.model_copy(update={"image": "registry.example/vllm:1"}), form=form, only_print=True, here=here)
    assert "DRYDOCK_IMAGE_DIGEST" not in capsys.readouterr().out


@pytest.mark.attack(
    what="a user of the machine runs ps while `invoke run` serves with --api-key",
    before="the command line of docker contained the key",
    after="docker passes the key on by name, from its own environment",
)
@pytest.mark.parametrize("words", [("--api-key", "s3cret"), ("--api_key=s3cret",)])
def test_an_api_key_is_passed_by_name_and_not_printed(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "weaker")
    here = FakeHere(tmp_path, ["drydock/cpu-vllm0.32:latest"])
    run.run("cpu", RunRequest(model="org/model", arguments=(*words, "--port", "9")), here=here)
    assert "s3cret" not in "".join((*capsys.readouterr(), *here.became))
    assert here.became[-2:] == ["--port", "9"]
    assert here.became[here.became.index("VLLM_API_KEY") - 1] == "--env"
    assert os.environ["VLLM_API_KEY"] == "s3cret"


def test_several_api_keys_are_passed_but_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = FakeHere(tmp_path, ["drydock/cpu-vllm0.32:latest"])
    run.run("cpu", RunRequest(model="org/model", arguments=("--api-key", "s3cret", "s4cret")), here=here)
    assert "cret" not in "".join(capsys.readouterr()).replace("secret", "")
    assert here.became[-3:] == ["--api-key", "s3cret", "s4cret"]


def test_a_missing_image_has_the_build_command_as_hint(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="image not found") as raised:
        run.run("cpu", MODEL, here=FakeHere(tmp_path))
    assert (raised.value.hint, raised.value.code) == ("run `./inv build --target cpu`", 9)


def test_docker_pulls_an_image_of_a_registry(tmp_path: Path) -> None:
    here = FakeHere(tmp_path)

    run.run("cpu", RunRequest(model="org/model", image="registry.example/vllm:1"), here=here)

    assert "registry.example/vllm:1" in here.became


def test_everything_that_this_machine_lacks_is_listed_at_once(tmp_path: Path) -> None:
    wanted = made(NODES, machine(tmp_path))

    with pytest.raises(HostError) as raised:
        run.require(wanted, "ascend", FakeHere(tmp_path))
    assert len(raised.value.problems) == 4
    assert "no device /dev/davinci[0-9]* on this machine" in raised.value.problems
    assert docker_argv(wanted)


def test_an_unknown_format_or_target_has_the_nearest_as_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--format compos") as raised:
        run.run("cpu", MODEL, form="compos", here=FakeHere(tmp_path))
    assert raised.value.hint == "did you mean 'compose'?"
    with pytest.raises(TargetError):
        run.run("gaudi9", MODEL, here=FakeHere(tmp_path), root=ROOT)
