"""What a user adds to a container: --env, --volume, --network, and a verb after `--`. In every format."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.model.running import Run
from drydock.run import docker, kubernetes, run_verb, user_options
from drydock.run.container import Container, RunRequest
from drydock.run.option_reasons import format_option_reasons
from drydock.run.run_verb import How
from entrypoints.core.redact import is_secret
from tests.support.containers import GPUS, NODES, PRIVILEGED, RUNTIME, machine, made
from tests.support.unknown import UNKNOWN, VALUE
from tests.unit.drydock.run.test_run_verb import CPU, ID, PRINT, FakeHere

MODEL = RunRequest(model="org/model")
SCHEMAS = "1.36"
HOSTILE = ["a\nb: c", "$HOME $(id) ${X}", 'it\'s "quoted"', "a=b=c", " ", "", "雪", "`id`", "- x", "\\", "{{x}}"]


def printed(
    request: RunRequest, form: str, folder: Path, capsys: pytest.CaptureFixture[str], target: str = "cpu"
) -> Any:
    """Return what --print --json gives in one format."""
    run_verb.run_on_engine(DRYDOCK, target, request, How(form, only_print=True, json=True), here=FakeHere(folder))
    return json.loads(capsys.readouterr().out)


def service(data: Any) -> dict[str, Any]:
    (compose_service,) = data["compose"]["services"].values()
    return compose_service  # type: ignore[no-any-return] - as JSON gives it


def pod(data: Any) -> dict[str, Any]:
    workload = next(item for item in data["kubernetes"] if item["kind"] in ("Deployment", "Job"))
    return workload["spec"]["template"]["spec"]  # type: ignore[no-any-return] - as JSON gives it


def variables(data: Any) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in pod(data)["containers"][0]["env"]}


# --- variables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_reaches_every_format_as_it_is(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = MODEL.model_copy(update={"env": (f"VLLM_SOME_NAME={value}",)})

    assert f"VLLM_SOME_NAME={value}" in printed(request, "docker", tmp_path, capsys)["docker"]
    run_verb.run_on_engine(DRYDOCK, "cpu", request, PRINT, here=FakeHere(tmp_path))
    assert f"VLLM_SOME_NAME={value}" in shlex.split(capsys.readouterr().out.replace(" \\\n", " "))
    run_verb.run_on_engine(DRYDOCK, "cpu", request, How("compose"), here=FakeHere(tmp_path))
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
        for how in (How(form, only_print=True), How(form, only_print=True, json=True)):
            run_verb.run_on_engine(DRYDOCK, "cpu", request, how, here=FakeHere(tmp_path))
            output = "".join(capsys.readouterr())
            assert VALUE not in output
            assert all(word.partition("=")[0] in output for word in env)


def test_an_unknown_variables_value_reaches_a_container_that_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = FakeHere(tmp_path, [CPU])
    run_verb.run_on_engine(DRYDOCK, "cpu", MODEL.model_copy(update={"env": (f"HFTOKEN={VALUE}",)}), How(), here=here)
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

    for how in (How(), How("kubernetes")):
        with pytest.raises(InputError, match="your shell has no such variable"):
            run_verb.run_on_engine(DRYDOCK, "cpu", request, how, here=here)
    assert here.became == []
    run_verb.run_on_engine(DRYDOCK, "cpu", request, PRINT, here=here)  # for another machine
    assert "--env VLLM_NOT_THERE" in capsys.readouterr().out


def test_the_users_variable_wins_over_the_record_in_every_format(tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path), env=("HCCL_OP=0", "HF_ENDPOINT=https://hf-mirror.com"))
    words = docker.docker_argv(container)

    assert "HCCL_OP=0" in words
    assert "HCCL_OP=1" not in words
    assert "HF_ENDPOINT" not in words  # by name, the shell's would replace it
    (compose_service,) = docker.compose_project(container)["services"].values()
    assert (compose_service["environment"]["HCCL_OP"], compose_service["environment"]["HF_ENDPOINT"]) == (
        "0",
        "https://hf-mirror.com",
    )
    reason_lines = [*format_option_reasons(NODES, container, "docker")]
    assert "--env HCCL_OP: --env sets it" in reason_lines
    assert not any("HCCL_OP=1" in line for line in reason_lines)
    chosen = made(RUNTIME, machine(tmp_path), env=("HABANA_VISIBLE_DEVICES=2",))
    assert "HABANA_VISIBLE_DEVICES=2" in docker.docker_argv(chosen)
    assert "HABANA_VISIBLE_DEVICES=all" not in docker.docker_argv(chosen)


def test_a_name_alone_replaces_the_records_value_too(tmp_path: Path) -> None:
    container = made(RUNTIME, machine(tmp_path), env=("HABANA_VISIBLE_DEVICES",))

    words = [word for word in docker.docker_argv(container) if word.startswith("HABANA_VISIBLE_DEVICES")]
    assert words == ["HABANA_VISIBLE_DEVICES"]
    assert not any("HABANA_VISIBLE_DEVICES=all" in line for line in format_option_reasons(RUNTIME, container, "docker"))
    pods = kubernetes.make_objects(made(NODES, machine(tmp_path), env=("HCCL_OP",)))[1]
    names = [item["name"] for item in pods["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert names.count("HCCL_OP") == 1


def test_a_misspelling_is_a_warning_and_an_unknown_name_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("HF_ENDPONT=x", "VLLM_SKIP_WARMUPS=1", "LD_PRELOAD=/x.so", "MINE=1", "https_proxy=http://p")
    request = MODEL.model_copy(update={"env": names})
    run_verb.run_on_engine(DRYDOCK, "gaudi2", request, PRINT, here=FakeHere(tmp_path))
    out, err = capsys.readouterr()

    assert "--env HF_ENDPONT: nothing documents this name; did you mean HF_ENDPOINT?" in err
    assert "did you mean VLLM_SKIP_WARMUP?" in err
    assert err.count("did you mean") == 2
    assert all(f"--env {name.partition('=')[0]}" in out for name in names)  # passed all the same


# --- volumes --------------------------------------------------------------------------------------------------------


def test_a_volume_is_mounted_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'a,"b" $c').mkdir()
    request = MODEL.model_copy(update={"volumes": (f'{tmp_path}/a,"b" $c:/data//in/:ro', f"{tmp_path}:/out")})

    argv = printed(request, "docker", tmp_path, capsys)["docker"]
    assert f'type=bind,"source={tmp_path}/a,""b"" $c",target=/data/in,readonly' in argv
    assert f"type=bind,source={tmp_path},target=/out" in argv
    inside, out = service(printed(request, "compose", tmp_path, capsys))["volumes"][:2]
    assert (inside["source"], inside["read_only"]) == (f'{tmp_path}/a,"b" $$c', True)
    assert (out["target"], "read_only" in out) == ("/out", False)
    data = printed(request, "kubernetes", tmp_path, capsys)
    mounts = {item["mountPath"]: item for item in pod(data)["containers"][0]["volumeMounts"]}
    assert (mounts["/data/in"]["readOnly"], mounts["/out"]["readOnly"]) == (True, False)
    paths = {item["name"]: item["hostPath"]["path"] for item in pod(data)["volumes"] if "hostPath" in item}
    assert paths[mounts["/out"]["name"]] == str(tmp_path)
    assert any(line.startswith(f"volume {tmp_path}: must exist on the node") for line in data["remarks"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/a",
        ":/b",
        "/a:",
        "/a:b",
        "/a:/b:rw",
        "/a:/b:ro:z",
        "name:/b",
        "/a/../b:/c",
        "/a:/b/../c",
        "../a:/b",
        "/a\0:/b",
    ],
)
def test_what_is_no_volume_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--volume"):
        user_options.parse_volume(text)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/cache",
        "/cache/models",
        "/tmp",
        "/models",
        "/models/m/x",
        "/opt",
        "/opt/drydock/entrypoints",
        "/dev",
        "/proc",
    ],
)
def test_a_volume_covers_nothing_that_the_container_has(target: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    request = RunRequest(model=str(tmp_path / "m"), volumes=(f"/a:{target}",))

    with pytest.raises(InputError, match=f"--volume …:{target}: ") as raised:
        run_verb.run_on_engine(DRYDOCK, "cpu", request, PRINT, here=FakeHere(tmp_path))
    assert raised.value.hint == "choose another path in the container"


def test_a_volume_covers_no_file_of_the_driver_and_no_other_volume(tmp_path: Path) -> None:
    mount_targets = docker.list_mount_targets(made(NODES, machine(tmp_path)))

    with pytest.raises(InputError, match="/usr/local/Ascend/driver is the driver's"):
        user_options.check_volumes(["/usr/local/Ascend"], mount_targets)
    with pytest.raises(InputError, match="given twice"):
        user_options.check_volumes(["/a", "/a"], mount_targets)
    user_options.check_volumes(["/data", "/data/in", "/models/other", "/dev/dri/by-path", "/cachet"], mount_targets)


def test_a_source_that_is_missing_here_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = MODEL.model_copy(update={"volumes": ("/not/here:/data",)})

    assert "no file or folder /not/here" in printed(request, "docker", tmp_path, capsys)["remarks"]


# --- network --------------------------------------------------------------------------------------------------------


def test_the_machines_network_moves_the_address_into_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = MODEL.model_copy(update={"network": "host", "port": 9000})

    argv = printed(request, "docker", tmp_path, capsys)["docker"]
    assert "--publish" not in argv
    assert argv[argv.index("--network") + 1] == "host"
    assert argv[-6:] == ["--host", "127.0.0.1", "--port", "9000", "--status-port", "9001"]
    compose_service = service(printed(request, "compose", tmp_path, capsys))
    assert (compose_service["network_mode"], "ports" in compose_service) == ("host", False)
    assert pod(printed(request, "kubernetes", tmp_path, capsys))["hostNetwork"] is True


def test_a_network_of_the_engine_keeps_the_published_ports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = MODEL.model_copy(update={"network": "mine"})

    argv = printed(request, "docker", tmp_path, capsys)["docker"]
    assert argv[argv.index("--publish") + 1] == "127.0.0.1:8000:8000"
    data = printed(request, "compose", tmp_path, capsys)
    compose_service = service(data)
    assert (compose_service["networks"], "network_mode" in compose_service) == (["mine"], False)
    assert compose_service["ports"][0] == "127.0.0.1:8000:8000"
    assert data["compose"]["networks"] == {"mine": {"external": True}}
    with pytest.raises(InputError, match="a pod is in the cluster's network"):
        run_verb.run_on_engine(DRYDOCK, "cpu", request, How("kubernetes"), here=FakeHere(tmp_path))


def test_another_network_than_the_records_is_said(tmp_path: Path) -> None:
    container = made(RUNTIME, machine(tmp_path), network="bridge")

    assert "--network bridge replaces host: host is needed" in container.notes
    assert "--publish" in docker.docker_argv(container)
    assert "--network bridge: --network asks for it" in format_option_reasons(RUNTIME, container, "docker")
    with pytest.raises(InputError, match="expected host, or the name of a network"):
        made(RUNTIME, machine(tmp_path), network="container:x y")


# --- verbs and commands ---------------------------------------------------------------------------------------------


def test_words_that_begin_with_a_flag_are_those_of_serve(tmp_path: Path) -> None:
    here = FakeHere(tmp_path, [CPU])

    run_verb.run_on_engine(
        DRYDOCK, "cpu", MODEL.model_copy(update={"arguments": ("--max-model-len", "512")}), here=here
    )
    assert here.became[-5:] == ["serve", "--model", "org/model", "--max-model-len", "512"]
    run_verb.run_on_engine(DRYDOCK, "cpu", MODEL.model_copy(update={"arguments": ("serve", "--x")}), here=here)
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

    assert run_verb.run_on_engine(DRYDOCK, "cpu", MODEL.model_copy(update={"arguments": words}), here=here) == 7
    assert here.became[here.became.index(CPU) + 1 :] == [*expected]
    assert here.became[:3] == ["docker", "run", "--rm"]
    assert not {"--publish", "--restart", "--tty"} & set(here.became)
    assert f"cpu-vllm0-32-{words[0]}" in here.became  # the server may run at the same time


def test_a_terminal_is_passed_through_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, shell = FakeHere(tmp_path, [CPU]), RunRequest(arguments=("bash",))
    monkeypatch.setattr(FakeHere, "terminal", lambda _: True)

    run_verb.run_on_engine(DRYDOCK, "cpu", shell, here=here)
    assert here.became[2:5] == ["--rm", "--interactive", "--tty"]
    run_verb.run_on_engine(DRYDOCK, "cpu", MODEL, here=here)
    assert "--tty" not in here.became
    run_verb.run_on_engine(DRYDOCK, "cpu", shell, How(detach=True), here=here)
    assert "--tty" not in here.became


def test_only_serve_needs_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = FakeHere(tmp_path, [CPU])

    for words in ((), ("--dtype", "half"), ("serve",)):
        with pytest.raises(InputError, match="--model: found none"):
            run_verb.run_on_engine(DRYDOCK, "cpu", RunRequest(arguments=words), here=here)
    run_verb.run_on_engine(DRYDOCK, "cpu", RunRequest(arguments=("facts",)), here=here)
    assert here.became[-1] == "facts"
    model = RunRequest(model=str(tmp_path), arguments=("nvidia-smi",))
    capsys.readouterr()
    run_verb.run_on_engine(DRYDOCK, "cpu", model, here=here)
    assert (
        f"nvidia-smi gets no --model: in the container the model is /models/{tmp_path.name}" in capsys.readouterr().err
    )
    assert f"type=bind,source={tmp_path},target=/models/{tmp_path.name},readonly" in here.became


def test_what_runs_once_asks_for_no_key_and_keeps_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "")
    here = FakeHere(tmp_path, [CPU])

    run_verb.run_on_engine(
        DRYDOCK, "cpu", RunRequest(address="0.0.0.0", arguments=("curl", "--api-key", "s3cret")), here=here
    )
    assert here.became[-3:] == ["curl", "--api-key", "s3cret"]
    assert "s3cret" not in capsys.readouterr().err
    run_verb.run_on_engine(
        DRYDOCK, "cpu", MODEL.model_copy(update={"arguments": ("warm", "--api-key", "s3cret")}), here=here
    )
    assert "s3cret" not in here.became
    assert os.environ["VLLM_API_KEY"] == "s3cret"


def test_a_compose_service_of_a_verb_is_not_restarted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compose_service = service(printed(RunRequest(arguments=("check",)), "compose", tmp_path, capsys))

    assert not {"restart", "ports"} & set(compose_service)
    assert compose_service["command"] == ["check"]


@pytest.mark.parametrize("record", [NODES, RUNTIME, GPUS, PRIVILEGED, Run()])
def test_a_verb_is_a_job_in_kubernetes_that_no_service_selects(record: Run, tmp_path: Path) -> None:
    def documents(**request: Any) -> dict[str, Any]:
        return {item["kind"]: item for item in kubernetes.make_objects(made(record, machine(tmp_path), **request))}

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

    run_verb.run_on_engine(
        DRYDOCK, "cpu", RunRequest(arguments=("warm", "--model", "org/m")), How(detach=True, json=True), here=here
    )
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


@pytest.mark.parametrize("form", run_verb.WRITERS)
def test_the_same_request_gives_the_same_bytes(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = MODEL.model_copy(update={
        "env": ("B=2", "A=1", "HF_TOKEN"), "volumes": ("/b:/x", "/a:/y:ro"), "network": "host", "arguments": ("plan",),
    })  # fmt: skip
    texts = set()
    for _ in range(2):
        run_verb.run_on_engine(DRYDOCK, "cpu", request, How(form, only_print=True), here=FakeHere(tmp_path))
        texts.add(capsys.readouterr().out)

    assert len(texts) == 1


def test_every_option_of_the_user_has_a_reason(tmp_path: Path) -> None:
    container: Container = made(Run(), machine(tmp_path), env=("A=1", "B"), volumes=("/a:/x:ro",), network="mine")
    reason_lines = [*format_option_reasons(Run(), container, "docker")]

    assert "--env A: --env sets it" in reason_lines
    assert "--env B: --env names it: its value is not in any text" in reason_lines
    assert "--mount /x: --volume: /a, read-only" in reason_lines
    assert "--network mine: --network asks for it" in reason_lines


def test_docker_compose_reads_the_same_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = ["docker", "compose", "version"]
    if not shutil.which("docker") or subprocess.run(asks, capture_output=True, check=False).returncode:
        pytest.skip("no docker compose here")
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    (tmp_path / "a $b").mkdir()
    request = MODEL.model_copy(update={
        "env": ("HF_TOKEN", *(f"VLLM_{place}={value}" for place, value in enumerate(HOSTILE))),
        "volumes": (f"{tmp_path}/a $b:/data/in:ro",), "network": "mine", "arguments": ("bash", "-c", "echo $HOME"),
    })  # fmt: skip
    run_verb.run_on_engine(DRYDOCK, "cpu", request, How("compose"), here=FakeHere(tmp_path))
    argv = ["docker", "compose", "-f", "-", "config", "--format", "json"]
    result = subprocess.run(argv, input=capsys.readouterr().out, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    (compose_service,) = json.loads(result.stdout)["services"].values()
    # `config` writes a dollar as two, so that its output can be read again
    assert [
        compose_service["environment"][f"VLLM_{place}"].replace("$$", "$") for place in range(len(HOSTILE))
    ] == HOSTILE
    assert compose_service["environment"]["HF_TOKEN"] == "s3cret"  # noqa: S105 - of the shell
    assert compose_service["command"] == ["bash", "-c", "echo $$HOME"]
    assert compose_service["volumes"][0]["source"].replace("$$", "$") == f"{tmp_path}/a $b"
    assert [*compose_service["networks"]] == ["mine"]


@pytest.mark.parametrize("record", [NODES, RUNTIME, GPUS, PRIVILEGED, Run()])
@pytest.mark.parametrize("words", [(), ("bash", "-c", "echo $HOME")])
def test_every_object_follows_the_schema_of_its_kind(record: Run, words: Sequence[str], tmp_path: Path) -> None:
    env = ("HF_TOKEN", "A_TOKEN", *(f"VLLM_{place}={value}" for place, value in enumerate(HOSTILE)))
    container = made(record, machine(tmp_path), env=env, volumes=("/a:/x:ro", "/b:/y"), network="host", arguments=words)

    for item in kubernetes.make_objects(container.model_copy(update={"nodes": {"a.example/b": "2x2"}})):
        validate(item, SCHEMAS, strict=True)


@pytest.mark.parametrize("words", [(), ("check",)])
def test_a_pod_claims_exactly_its_devices_of_a_device_class(words: Sequence[str], tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path), device_class="gpu.example", devices="0-3", arguments=words)
    documents = {item["kind"]: item for item in kubernetes.make_objects(container)}
    for item in documents.values():
        validate(item, SCHEMAS, strict=True)
    template = documents["ResourceClaimTemplate"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    pod = documents["Job" if words else "Deployment"]["spec"]["template"]["spec"]
    (claim,) = pod["resourceClaims"]
    assert request["exactly"] == {"deviceClassName": "gpu.example", "allocationMode": "ExactCount", "count": 4}
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert pod["containers"][0]["resources"] == {"claims": [{"name": claim["name"]}]}


def test_a_monitor_reads_the_metrics_of_both_ports(tmp_path: Path) -> None:
    *_, monitor = kubernetes.make_objects(made(NODES, machine(tmp_path), monitor=True))
    pod = kubernetes.make_objects(made(NODES, machine(tmp_path)))[1]["spec"]["template"]
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert {item["port"] for item in monitor["spec"]["podMetricsEndpoints"]} == ports == {"http", "status"}


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("cuda", {"monitor": True}, "Kubernetes manifest only"),
        ("cuda", {"device_class": "gpu.example", "format": "compose"}, "Kubernetes manifest only"),
        ("cuda", {"device_class": "A_b", "format": "kubernetes"}, "invalid name"),
        ("cuda", {"device_class": "a..b", "format": "kubernetes"}, "invalid name"),
        ("cuda", {"monitor": True, "format": "kubernetes", "arguments": ("check",)}, "no metrics"),
        ("cpu", {"device_class": "gpu.example", "format": "kubernetes"}, "no device"),
    ],
)
def test_claims_and_monitors_that_cannot_be(target: str, options: dict[str, Any], said: str) -> None:
    how = How(options.pop("format", "docker"), only_print=True)
    with pytest.raises(InputError, match=said):
        run_verb.run_on_engine(
            DRYDOCK, target, RunRequest(model="org/model", **options), how, here=run_verb.Here(DRYDOCK)
        )


def test_a_model_that_is_an_image_is_an_image_volume(tmp_path: Path) -> None:
    image = f"registry.example/m/tiny@sha256:{'1' * 64}"
    container = made(NODES, machine(tmp_path), model=f"oci://{image}")
    _, deployment, _ = kubernetes.make_objects(container)
    validate(deployment, SCHEMAS, strict=True)
    pod = deployment["spec"]["template"]["spec"]
    (volume,) = (pod_volume for pod_volume in pod["volumes"] if "image" in pod_volume)
    assert volume["image"] == {"reference": image, "pullPolicy": "IfNotPresent"}
    mount = {"name": volume["name"], "mountPath": "/models/tiny", "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]
    assert any(
        text.startswith(f"model {image}: an image volume") for text in kubernetes.list_cluster_remarks(container)
    )
