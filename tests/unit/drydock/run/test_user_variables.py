"""What `run --env` gives a container, in every format."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.run import docker_command, kubernetes_manifest, user_options
from drydock.run.option_reasons import format_option_reasons
from entrypoints.core.redact import is_secret
from tests.support.called_verbs import run_as, run_on_engine
from tests.support.containers import NODES, RUNTIME, machine, made
from tests.support.printed_forms import HOSTILE, MODEL, printed, service, variables
from tests.support.unknown import UNKNOWN, VALUE
from tests.unit.drydock.verbs.test_run_verb import CPU, PRINT, FakeHere


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_reaches_every_format_as_it_is(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = MODEL.model_copy(update={"env": (f"VLLM_SOME_NAME={value}",)})

    assert f"VLLM_SOME_NAME={value}" in printed(request, "docker", tmp_path, capsys)["docker"]
    run_on_engine("cpu", request, PRINT, here=FakeHere(tmp_path))
    assert f"VLLM_SOME_NAME={value}" in shlex.split(capsys.readouterr().out.replace(" \\\n", " "))
    run_on_engine("cpu", request, run_as("compose"), here=FakeHere(tmp_path))
    (compose_service,) = yaml.safe_load(capsys.readouterr().out)["services"].values()
    assert compose_service["environment"]["VLLM_SOME_NAME"] == value.replace("$", "$$")
    assert variables(printed(request, "kubernetes", tmp_path, capsys))["VLLM_SOME_NAME"] == value.replace("$", "$$")


@pytest.mark.parametrize("form", ["docker", "compose", "kubernetes"])
def test_an_unknown_variables_value_is_in_no_text(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed_variables = [f"{name}={VALUE}" for name in UNKNOWN if not is_secret(name)]  # the others are refused
    for name in UNKNOWN:
        monkeypatch.setenv(name, VALUE)
    for env in (allowed_variables, UNKNOWN):
        request = MODEL.model_copy(update={"env": tuple(env)})
        for how in (run_as(form, only_print=True), run_as(form, only_print=True, json=True)):
            run_on_engine("cpu", request, how, here=FakeHere(tmp_path))
            output = "".join(capsys.readouterr())
            assert VALUE not in output
            assert all(word.partition("=")[0] in output for word in env)


def test_an_unknown_variables_value_reaches_a_container_that_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = FakeHere(tmp_path, [CPU])
    run_on_engine("cpu", MODEL.model_copy(update={"env": (f"HFTOKEN={VALUE}",)}), run_as(), here=here)
    assert f"HFTOKEN={VALUE}" in here.became
    assert VALUE not in "".join(capsys.readouterr())


@pytest.mark.parametrize("text", ["", "=x", "A B=x", "A\nB=x", "1A=x", "A-B", "Ä=x", "$A=x", "A\0=x", "--privileged"])
def test_what_is_no_name_of_a_variable_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected the name of a variable"):
        user_options.parse_variables([text])


def test_a_nul_and_a_name_that_is_given_twice_are_refused() -> None:
    with pytest.raises(InputError, match="NUL"):
        user_options.parse_variables(["A=\0"])
    with pytest.raises(InputError, match="given twice"):
        user_options.parse_variables(["A=1", "A"])


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=hf_x",
        "MODELSCOPE_API_TOKEN=",
        "VLLM_API_KEY=",
        "DB_PASSWORD=pa55",
        "https_proxy=http://me:pass@proxy:3128",
        "X=hf_" + "a" * 30,
    ],
)
def test_a_secrets_value_is_refused_with_what_to_do(text: str) -> None:
    name, _, value = text.partition("=")
    with pytest.raises(InputError) as raised:
        user_options.parse_variables([text])
    assert raised.value.hint == f"export {name} in your shell, and pass --env {name} without a value"
    assert not value or value not in str(raised.value)


def test_the_pages_pass_no_secret_on_a_command_line() -> None:
    pages = [page.read_text() for page in (DRYDOCK.root / "docs").rglob("run.md")]
    page_variables = [text for page in pages for text in re.findall(r"--env (\w+=[^\s`]+)", page)]
    assert "VLLM_USE_MODELSCOPE=True" in page_variables
    for text in page_variables:
        user_options.parse_variables([text])


def test_a_name_alone_is_passed_by_name_and_read_from_a_secret_in_a_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "s3cret")
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    monkeypatch.setenv("https_proxy", "http://me:s3cret@proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    names = ("MODELSCOPE_API_TOKEN", "HF_TOKEN", "https_proxy", "no_proxy")
    request = MODEL.model_copy(update={"env": names})

    argv = printed(request, "docker", tmp_path, capsys)["docker"]
    assert [argv[place - 1] for place, word in enumerate(argv) if word in names] == ["--env"] * 4
    environment = service(printed(request, "compose", tmp_path, capsys))["environment"]
    assert {name: environment[name] for name in names} == dict.fromkeys(names)
    data = printed(request, "kubernetes", tmp_path, capsys)
    pod_variables = variables(data)
    assert pod_variables["no_proxy"] == "localhost"
    reference = {"name": "modelscope-api-token", "key": "MODELSCOPE_API_TOKEN", "optional": False}
    assert pod_variables["MODELSCOPE_API_TOKEN"] == {"secretKeyRef": reference}
    assert pod_variables["HF_TOKEN"]["secretKeyRef"] == {"name": "huggingface", "key": "HF_TOKEN", "optional": False}
    assert pod_variables["https_proxy"]["secretKeyRef"]["name"] == "https-proxy"
    assert any(line.startswith("secret modelscope-api-token: the pod starts only with it") for line in data["remarks"])
    assert "s3cret" not in json.dumps(data)


def test_a_named_variable_must_be_there_before_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_NOT_THERE", raising=False)
    here, request = FakeHere(tmp_path, [CPU]), MODEL.model_copy(update={"env": ("VLLM_NOT_THERE",)})

    for how in (run_as(), run_as("kubernetes")):
        with pytest.raises(InputError, match="your shell has no such variable"):
            run_on_engine("cpu", request, how, here=here)
    assert here.became == []
    run_on_engine("cpu", request, PRINT, here=here)  # for another machine
    assert "--env VLLM_NOT_THERE" in capsys.readouterr().out


def test_the_users_variable_wins_over_the_record_in_every_format(tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path), env=("HCCL_OP=0", "HF_ENDPOINT=https://hf-mirror.com"))
    words = docker_command.docker_argv(container)

    assert "HCCL_OP=0" in words
    assert "HCCL_OP=1" not in words
    assert "HF_ENDPOINT" not in words  # by name, the shell's would replace it
    (compose_service,) = docker_command.compose_project(container)["services"].values()
    assert (compose_service["environment"]["HCCL_OP"], compose_service["environment"]["HF_ENDPOINT"]) == (
        "0",
        "https://hf-mirror.com",
    )
    reason_lines = [*format_option_reasons(NODES, container, "docker")]
    assert "--env HCCL_OP: --env sets it" in reason_lines
    assert not any("HCCL_OP=1" in line for line in reason_lines)
    chosen = made(RUNTIME, machine(tmp_path), env=("HABANA_VISIBLE_DEVICES=2",))
    assert "HABANA_VISIBLE_DEVICES=2" in docker_command.docker_argv(chosen)
    assert "HABANA_VISIBLE_DEVICES=all" not in docker_command.docker_argv(chosen)


def test_a_name_alone_replaces_the_records_value_too(tmp_path: Path) -> None:
    container = made(RUNTIME, machine(tmp_path), env=("HABANA_VISIBLE_DEVICES",))

    words = [word for word in docker_command.docker_argv(container) if word.startswith("HABANA_VISIBLE_DEVICES")]
    assert words == ["HABANA_VISIBLE_DEVICES"]
    assert not any("HABANA_VISIBLE_DEVICES=all" in line for line in format_option_reasons(RUNTIME, container, "docker"))
    pods = kubernetes_manifest.make_objects(made(NODES, machine(tmp_path), env=("HCCL_OP",)))[1]
    names = [item["name"] for item in pods["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert names.count("HCCL_OP") == 1


def test_a_misspelling_is_a_warning_and_an_unknown_name_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("HF_ENDPONT=x", "VLLM_SKIP_WARMUPS=1", "LD_PRELOAD=/x.so", "MINE=1", "https_proxy=http://p")
    request = MODEL.model_copy(update={"env": names})
    run_on_engine("gaudi2", request, PRINT, here=FakeHere(tmp_path))
    out, err = capsys.readouterr()

    assert "--env HF_ENDPONT: nothing documents this name; did you mean HF_ENDPOINT?" in err
    assert "did you mean VLLM_SKIP_WARMUP?" in err
    assert err.count("did you mean") == 2
    assert all(f"--env {name.partition('=')[0]}" in out for name in names)  # passed all the same
