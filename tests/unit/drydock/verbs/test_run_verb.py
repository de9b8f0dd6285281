"""The task `run`: what it prints, what it starts, and its errors."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import EngineError, HostError, InputError, TargetError
from drydock.model.variant import Engines
from drydock.run import forms, needed_image
from drydock.run.container import Container, RunRequest
from drydock.run.docker_command import docker_argv
from drydock.run.engine import Here, LocalImage
from tests.support.called_verbs import run_as, run_on_engine
from tests.support.containers import NODES, machine, made
from tests.support.sample import write_model

MODEL = RunRequest(model="org/model")
DIGEST = f"sha256:{'ab' * 32}"
PINNED = f"registry.example/vllm@{DIGEST}"


CPU = "drydock/cpu-vllm0.32:latest"
PRINT = run_as(only_print=True)
ID = "f" * 64


class FakeHere(Here):
    """A fake machine and engine; docker's command is only stored."""

    def __init__(self, folder: Path, images: Sequence[str] = (), stand_in: str = "") -> None:
        super().__init__(DRYDOCK)
        self.machine = machine(folder)
        self.images = [*images]
        self.stand_in = stand_in
        self.became: list[str] = []
        self.version = "28.5.1"
        self.limits: tuple[str, ...] = ()

    def image(self, name: str) -> LocalImage | None:
        return LocalImage(DIGEST, self.stand_in) if name in self.images else None

    def find_own_image(self, repository: str) -> str:
        return name if (name := f"{repository}:latest") in self.images else ""

    def docker_version(self) -> str:
        return self.version

    def engine_limits(self) -> Sequence[str]:
        return self.limits

    def pull(self, container: Container) -> None:
        self.images.append(container.image)

    def attach(self, argv: Sequence[str], container: Container, *, terminal: bool = False) -> int:  # noqa: ARG002 - as in Here
        self.became = [*argv]
        return 7

    def detach(self, argv: Sequence[str], container: Container) -> str:
        self.attach(argv, container)
        return ID


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the key of the shell or of another test."""
    monkeypatch.setenv("VLLM_API_KEY", "")  # so that it is absent after the test too
    monkeypatch.delenv("VLLM_API_KEY")


def test_printing_needs_no_image_and_writes_only_data_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = FakeHere(tmp_path)

    run_on_engine("cpu", MODEL, PRINT, here=here)

    out, err = capsys.readouterr()
    assert shlex.split(out.replace("\\\n", " "))[:2] == ["docker", "run"]
    assert "--cap-add SYS_NICE: with several NUMA nodes" in err
    assert here.became == []


def test_a_machine_with_the_accelerator_lists_what_it_lacks_and_another_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_on_engine("cpu", RunRequest(model="/data/not/here"), PRINT, here=FakeHere(tmp_path))

    assert "no folder /data/not/here" in capsys.readouterr().err
    assert not made(NODES, machine(tmp_path)).native


def test_compose_and_kubernetes_are_printed_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = FakeHere(tmp_path)

    run_on_engine("cpu", MODEL, run_as("compose"), here=here)
    assert set(yaml.safe_load(capsys.readouterr().out)) == {"services", "volumes"}
    run_on_engine("cpu", MODEL, run_as("kubernetes"), here=here)
    out, err = capsys.readouterr()
    assert [document["kind"] for document in yaml.safe_load_all(out)][1] == "Deployment"
    assert "exists on this machine only: push it" in err
    assert here.became == []


@pytest.mark.parametrize("form", ["docker", "compose", "kubernetes", "quadlet"])
@pytest.mark.parametrize(
    ("target", "groups"),
    [
        ("rocm", ["video", "render"]),
        ("xpu", ["render", "video"]),
        ("ascend", ["HwHiAiUser"]),
        *((target, []) for target in ("cuda", "tpu", "habana")),
    ],
)
def test_of_a_group_of_unknown_number_one_sentence_says_what_to_do(
    target: str, groups: list[str], form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_on_engine(target, MODEL, run_as(form, only_print=True), here=FakeHere(tmp_path))
    advice = "left out; add its number" if form == "kubernetes" else "replace it by its number"

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("group ")]
    assert [line.removeprefix("group ").partition(":")[0] for line in lines] == groups
    assert all(advice in line for line in lines)


def test_the_logged_command_is_the_one_that_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = FakeHere(tmp_path, [CPU])

    code = run_on_engine("cpu", MODEL, here=here)

    out, err = capsys.readouterr()
    assert out == ""
    assert code == 7
    assert here.became[:3] == ["docker", "run", "--rm"]
    assert shlex.split(err[err.index("docker run") :].replace("\\\n", " ")) == here.became
    assert f"DRYDOCK_IMAGE_DIGEST={DIGEST}" in here.became


@pytest.mark.parametrize("form", forms.WRITERS)
def test_the_digest_is_set_for_a_pinned_reference_and_not_for_a_tag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    here = FakeHere(tmp_path, ["registry.example/vllm:1"])

    run_on_engine("cpu", MODEL.model_copy(update={"image": PINNED}), run_as(form, only_print=True), here=here)
    assert capsys.readouterr().out.count(DIGEST) == 2  # the reference and the variable
    run_on_engine(
        "cpu",
        MODEL.model_copy(update={"image": "registry.example/vllm:1"}),
        run_as(form, only_print=True),
        here=here,
    )
    assert "DRYDOCK_IMAGE_DIGEST" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--api-key", "s3cret", "s4cret"), ("--api_key=s3cret", "s4cret")])
def test_an_api_key_is_passed_by_name_and_not_printed(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "weaker")
    here = FakeHere(tmp_path, [CPU])
    run_on_engine("cpu", RunRequest(model="org/model", arguments=(*words, "--port", "9")), here=here)
    assert "cret" not in "".join((*capsys.readouterr(), *here.became)).replace("secret", "")
    assert here.became[-2:] == ["--port", "9"]
    assert here.became[here.became.index("VLLM_API_KEY") - 1] == "--env"
    assert os.environ["VLLM_API_KEY"] == "s3cret\ns4cret"


def test_a_missing_image_has_the_build_command_as_hint(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="image not found") as raised:
        run_on_engine("cpu", MODEL, here=FakeHere(tmp_path))
    assert (raised.value.hint, raised.value.code) == ("run `./inv build --target cpu`", 9)


def test_an_engine_that_does_not_answer_is_named_before_an_image_that_is_not_built(tmp_path: Path) -> None:
    class SilentHere(FakeHere):
        def image(self, name: str) -> LocalImage | None:
            raise EngineError(f"no Docker engine answers: {name}")

    with pytest.raises(EngineError, match=f"no Docker engine answers: {CPU}"):
        run_on_engine("cpu", MODEL, here=SilentHere(tmp_path))


def test_docker_pulls_an_image_of_a_registry(tmp_path: Path) -> None:
    here = FakeHere(tmp_path)

    run_on_engine("cpu", RunRequest(model="org/model", image="registry.example/vllm:1"), here=here)

    assert "registry.example/vllm:1" in here.images
    assert f"DRYDOCK_IMAGE_DIGEST={DIGEST}" in here.became


def test_a_model_that_is_an_image_is_pulled_if_the_engine_lacks_it(tmp_path: Path) -> None:
    here, image = FakeHere(tmp_path, [CPU]), f"registry.example/m/tiny@sha256:{'1' * 64}"

    for _ in range(2):
        run_on_engine("cpu", RunRequest(model=f"oci://{image}"), here=here)

    assert here.images == [CPU, image]
    assert f"DRYDOCK_IMAGE_DIGEST={DIGEST}" in here.became


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("20.10.24+dfsg1", True),
        ("19.03.15", True),
        ("22.06.0-beta.0", True),
        ("23.0.0", False),
        ("28.5.1", False),
        ("", False),
    ],
)
def test_an_engine_that_cannot_unpack_the_image_is_told_in_one_line_before_the_pull(
    version: str, old: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = FakeHere(tmp_path)
    here.version = version
    published = RunRequest(model="org/model", image="registry.example/vllm:1")

    run_on_engine("cpu", published, here=here)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(lines) == old
    if old:
        assert (
            f"this engine is Docker {version}, which cannot unpack zstd layers: update it to 23.0 or later" in lines[0]
        )
        assert "skopeo copy --dest-compress-format gzip" in lines[0]
    run_on_engine("cpu", published, here=here)  # it is there now
    assert "warning: " not in capsys.readouterr().err


def test_an_old_engine_is_enough_for_gzip_and_every_output_has_the_oldest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = FakeHere(tmp_path)
    for form in forms.WRITERS:
        run_on_engine("ascend", MODEL, run_as(form, only_print=True), here=here)
        assert "engine: Docker 20.10 or containerd 1.4, or later: layers are gzip" in capsys.readouterr().err
        run_on_engine("cpu", MODEL, run_as(form, only_print=True), here=here)
        assert "engine: Docker 23.0 or containerd 1.5, or later: layers are zstd" in capsys.readouterr().err
    assert needed_image.too_old(made(NODES, machine(tmp_path)), "20.10.24")
    gzip = made(NODES, machine(tmp_path)).model_copy(update={"oldest": Engines(docker="20.10", containerd="1.4")})
    assert needed_image.too_old(gzip, "20.10.24") == ()


def test_everything_that_this_machine_lacks_is_listed_at_once(tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path))

    with pytest.raises(HostError) as raised:
        needed_image.require_image(container, "ascend", FakeHere(tmp_path))
    assert len(raised.value.problems) == 4
    assert "no device /dev/davinci[0-9]* on this machine" in raised.value.problems
    assert docker_argv(container)


@pytest.mark.parametrize(
    ("missing", "hint"),
    [
        (("no folder /m",), "name a folder or file of this machine, or a model's hub id, OWNER/NAME; --print"),
        (("no device /dev/x",), "load the driver; --print"),
        (("no device /dev/x", "no file or folder /v"), "load the driver; name a folder or file"),
    ],
)
def test_what_is_missing_has_its_own_remedy(missing: tuple[str, ...], hint: str, tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path)).model_copy(update={"missing_parts": missing})
    with pytest.raises(HostError) as raised:
        needed_image.check_present(container)
    assert raised.value.hint.startswith(hint)


def test_an_unknown_target_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TargetError):
        run_on_engine("gaudi9", MODEL, here=FakeHere(tmp_path))


# --- who can connect ------------------------------------------------------------------------------------------------


def test_a_row_that_reads_no_bucket_names_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cpu-vllm0\.32 reads no model from s3://; these do: .*cuda13\.0-vllm0\.33"):
        run_on_engine("cpu", RunRequest(model="s3://models/m"), here=FakeHere(tmp_path))
    with pytest.raises(InputError, match="without credentials") as raised:
        run_on_engine("cuda", RunRequest(model="s3://key:hunter2@models/m"), here=FakeHere(tmp_path))
    assert "hunter2" not in str(raised.value)


def published(here: FakeHere) -> str:
    return here.became[here.became.index("--publish") + 1]


def test_only_this_machine_can_connect_unless_the_user_asks_for_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = FakeHere(tmp_path, [CPU])

    run_on_engine("cpu", MODEL, here=here)
    assert published(here) == "127.0.0.1:8000:8000"
    assert (
        "--publish 127.0.0.1:8000: only this machine can connect; --port 0.0.0.0:8000 lets" in capsys.readouterr().err
    )
    monkeypatch.setenv("VLLM_API_KEY", "k")
    run_on_engine("cpu", MODEL.model_copy(update={"address": "10.0.0.1"}), here=here)
    assert published(here) == "10.0.0.1:8000:8000"
    assert "other machines can connect" in capsys.readouterr().err


def test_other_machines_need_a_key_or_the_users_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, everywhere = FakeHere(tmp_path, [CPU]), MODEL.model_copy(update={"address": "0.0.0.0"})
    file = tmp_path / "key"
    file.write_text("s3cret\n")

    with pytest.raises(InputError, match="other machines can reach this address, and no API key is set") as raised:
        run_on_engine("cpu", everywhere, here=here)
    assert all(way in raised.value.hint for way in ("VLLM_API_KEY", "--api-key-file", "--no-api-key", "--port 8000"))
    assert here.became == []
    run_on_engine("cpu", everywhere.model_copy(update={"no_api_key": True}), here=here)
    assert published(here) == "0.0.0.0:8000:8000"
    run_on_engine("cpu", everywhere.model_copy(update={"api_key_file": str(file)}), here=here)
    assert os.environ["VLLM_API_KEY"] == "s3cret"
    assert "s3cret" not in "".join((*here.became, *capsys.readouterr()))


@pytest.mark.parametrize("address", ["", "0.0.0.0"])
def test_an_empty_key_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    here, monitored = FakeHere(tmp_path, [CPU]), MODEL.model_copy(update={"arguments": ("check",)})
    monkeypatch.setenv("VLLM_API_KEY", "")
    with pytest.raises(InputError, match="VLLM_API_KEY: found no key"):
        run_on_engine("cpu", MODEL.model_copy(update={"address": address}), here=here)
    assert here.became == []
    run_on_engine("cpu", monitored, here=here)  # no server
    assert here.became[-1] == "check"


LOCAL = "localhost,127.0.0.1,[::1]"


@pytest.mark.parametrize(
    ("update", "names"),
    [
        ({"address": "127.0.0.2", "name": "llm"}, f"{LOCAL},127.0.0.2,llm"),
        ({"address": "::1"}, f"{LOCAL},cpu-vllm0-32"),
        ({"network": "host"}, LOCAL),
        ({"network": "host", "arguments": ("--host", "localhost")}, LOCAL),
        ({"no_api_key": True}, f"{LOCAL},cpu-vllm0-32"),
        ({"env": ("DRYDOCK_ALLOWED_HOSTS=llm.example",)}, "llm.example"),
        ({"address": "0.0.0.0", "no_api_key": True}, ""),
        ({"address": "0.0.0.0"}, ""),
        ({"api_key_file": "f"}, ""),
        ({"arguments": ("--api-key", "k")}, ""),
        ({"arguments": ("check",)}, ""),
        ({"network": "none"}, ""),
    ],
)
def test_a_server_on_loopback_without_a_key_gets_its_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], update: dict[str, object], names: str
) -> None:
    run_on_engine("cpu", MODEL.model_copy(update=update), PRINT, here=FakeHere(tmp_path))
    words = shlex.split(capsys.readouterr().out.replace("\\\n", " "))
    assert [word for word in words if "ALLOWED_HOSTS" in word] == [f"DRYDOCK_ALLOWED_HOSTS={names}"] * bool(names)


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("docker", f"{LOCAL},cpu-vllm0-32"),
        ("compose", f"{LOCAL},cpu-vllm0-32"),
        ("quadlet", f"{LOCAL},cpu-vllm0-32"),
        ("apptainer", LOCAL),
        ("kubernetes", ""),  # its clients send a key, and other names
    ],
)
def test_every_format_has_the_names_and_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, names: str
) -> None:
    run_on_engine("cpu", MODEL, run_as(form, only_print=True), here=FakeHere(tmp_path))
    out, err = capsys.readouterr()
    assert names in out
    assert ("DRYDOCK_ALLOWED_HOSTS" in out) == bool(names)
    (*reason,) = (line for line in err.splitlines() if "DRYDOCK_ALLOWED_HOSTS" in line)
    assert [names in line and "a proxy's" in line for line in reason] == [True] * bool(names)


@pytest.mark.parametrize("form", forms.WRITERS)
def test_no_printed_form_has_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    request = MODEL.model_copy(update={"arguments": ("--api-key", "s3cret", "--dtype", "half")})

    run_on_engine("cpu", request, run_as(form, only_print=True), here=FakeHere(tmp_path))
    out, err = capsys.readouterr()
    assert "s3cret" not in out + err
    assert "--api-key" not in out.replace("vllm-api-key", "")
    assert "VLLM_API_KEY" in out
    assert "half" in out
    assert "VLLM_API_KEY" in err  # what to do


def test_a_pod_has_no_address_of_this_machine_and_always_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = FakeHere(tmp_path)

    run_on_engine("cpu", MODEL, run_as("kubernetes"), here=here)
    assert "name: vllm-api-key" in capsys.readouterr().out
    with pytest.raises(InputError, match="a pod has no address of this machine"):
        run_on_engine("cpu", MODEL.model_copy(update={"address": "127.0.0.1"}), run_as("kubernetes"), here=here)


def test_a_server_on_the_hosts_network_listens_on_loopback_and_in_a_pod_on_every_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_on_engine("cloudmatrix384", MODEL, PRINT, here=FakeHere(tmp_path))
    out, err = capsys.readouterr()
    assert "--network host" in out
    assert "--host 127.0.0.1" in out
    assert "--host 127.0.0.1: only this machine can connect" in err
    run_on_engine("cloudmatrix384", MODEL, run_as("kubernetes"), here=FakeHere(tmp_path))
    (args,) = (
        document["spec"]["template"]["spec"]["containers"][0]["args"]
        for document in yaml.safe_load_all(capsys.readouterr().out)
        if document["kind"] == "Deployment"
    )
    assert args[3:5] == ["--host", "0.0.0.0"]


# --- output ---------------------------------------------------------------------------------------------------------


def test_a_detached_container_is_started_at_once_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = FakeHere(tmp_path, [CPU])

    assert run_on_engine("cpu", MODEL, run_as(detach=True), here=here) == 0
    out, err = capsys.readouterr()
    assert out == f"cpu-vllm0-32\n{ID}\n"
    assert here.became[:3] == ["docker", "run", "--detach"]
    assert shlex.split(err[err.index("docker run") : err.index("ready when")].replace("\\\n", " ")) == here.became
    assert "docker logs --follow cpu-vllm0-32" in err
    run_on_engine("cpu", MODEL, run_as(detach=True, json=True), here=here)
    assert json.loads(capsys.readouterr().out) == {
        "id": ID,
        "name": "cpu-vllm0-32",
        "image": CPU,
        "address": "127.0.0.1:8000",
        "ready": "http://127.0.0.1:8001/readyz",
    }


@pytest.mark.parametrize("form", forms.WRITERS)
def test_what_is_printed_is_also_there_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    run_on_engine("cpu", MODEL, run_as(form, only_print=True), here=FakeHere(tmp_path))
    text, stderr = capsys.readouterr()
    run_on_engine("cpu", MODEL, run_as(form, only_print=True, json=True), here=FakeHere(tmp_path))
    out, err = capsys.readouterr()
    data = json.loads(out)

    assert err == ""
    assert data["remarks"] == stderr.splitlines()
    renderers = {
        "docker": lambda: shlex.split(text.replace("\\\n", " ")),
        "compose": lambda: yaml.safe_load(text),
        "kubernetes": lambda: [*yaml.safe_load_all(text)],
        "quadlet": lambda: {
            part.partition("]")[0]: [[*line.split("=", 1)] for line in part.splitlines()[1:] if line]
            for part in text.split("\n[")
            for part in [part.removeprefix("[")]
        },
        "apptainer": lambda: ["sh", "-c", text],
    }
    assert data[form] == renderers[form]()


@pytest.mark.parametrize("json_", [False, True])
def test_the_printed_command_detaches_as_the_one_that_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, json_: bool
) -> None:
    run_on_engine("cpu", MODEL, run_as(detach=True, only_print=True, json=json_), here=FakeHere(tmp_path))
    words = re.findall(r"[\w-]+", capsys.readouterr().out)

    assert ("--detach" in words, "--rm" in words) == (True, False)


def test_a_server_without_a_model_gets_the_only_one_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, nothing = FakeHere(tmp_path, [CPU]), RunRequest(arguments=("--max-model-len", "64"))
    with pytest.raises(InputError, match=f"no model given; there is no folder {tmp_path}/models"):
        run_on_engine("cpu", nothing, here=here)
    write_model(tmp_path / "models/org/one")
    assert run_on_engine("cpu", nothing, here=here) == 7
    assert here.became[-5:] == ["serve", "--model", "/models/org/one", "--max-model-len", "64"]
    assert f"type=bind,source={tmp_path}/models,target=/models,readonly" in here.became
    assert f"model {tmp_path}/models/org/one: the only model below {tmp_path}/models\n" in capsys.readouterr().err
    with pytest.raises(InputError, match="found none"):  # a manifest is for other machines
        run_on_engine("cpu", nothing, run_as("kubernetes"), here=here)

    write_model(tmp_path / "models/two")
    with pytest.raises(InputError, match=r"are 2 models: .*/models/two; .*/models/org/one") as error:
        run_on_engine("cpu", nothing, here=here)
    assert f"./inv run --target cpu-vllm0.32 --model {tmp_path}/models/two names one" in error.value.hint


@pytest.mark.parametrize(
    "request_",
    [
        RunRequest(volumes=("/data:/models:ro",)),
        RunRequest(volumes=("/data/m:/models/m:ro",)),
        RunRequest(env=("DRYDOCK_MODELS=/mnt/models",), volumes=("/data:/mnt/models",)),
        RunRequest(arguments=("plan",)),
        RunRequest(arguments=("serve", "org/model")),
    ],
)
def test_a_container_with_models_of_its_own_chooses_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request_: RunRequest
) -> None:
    run_on_engine("cpu", request_, PRINT, here=FakeHere(tmp_path))

    assert "--model" not in capsys.readouterr().out


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    for how in (run_as("kubernetes", detach=True), run_as("compose", detach=True), run_as(json=True)):
        with pytest.raises(InputError):
            run_on_engine("cpu", MODEL, how, here=FakeHere(tmp_path, [CPU]))
    two_keys = MODEL.model_copy(update={"api_key_file": "f", "arguments": ("--api-key=k",)})
    with pytest.raises(InputError, match="both give the key"):
        run_on_engine("cpu", two_keys, here=FakeHere(tmp_path, [CPU]))


def test_cards_that_this_machine_does_not_have_are_refused_in_print_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = FakeHere(tmp_path)
    here.machine = machine(tmp_path, ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"])
    beyond = MODEL.model_copy(update={"devices": "1,2"})

    with pytest.raises(HostError, match=r"no device 2 among /dev/nvidia\[0-9\]\*"):
        run_on_engine("cuda", beyond, PRINT, here=here)
    run_on_engine("cuda", beyond.model_copy(update={"devices": "1"}), PRINT, here=here)
    assert "--gpus device=1" in capsys.readouterr().out


# --- stand-ins ------------------------------------------------------------------------------------------------------


def test_an_image_with_stand_ins_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "drydock-stand-in/cpu-vllm0.32:latest"
    request = MODEL.model_copy(update={"image": name})

    run_on_engine("cpu", request, here=FakeHere(tmp_path, [name], "base,wheels"))
    assert f"{name}: contains stand-ins for base,wheels: it is not what its lock pins" in capsys.readouterr().err
    run_on_engine("cpu", request, PRINT, here=FakeHere(tmp_path))
    assert f"{name}: contains stand-ins" in capsys.readouterr().err
    with pytest.raises(HostError) as raised:
        run_on_engine("cpu", MODEL, here=FakeHere(tmp_path, [name]))
    assert raised.value.hint == f"run `./inv build --target cpu`; --image {name} runs the one built with stand-ins"


def test_what_the_engine_lacks_is_said_before_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = FakeHere(tmp_path, [CPU])
    here.limits = ("the engine is rootless",)

    run_on_engine("cpu", MODEL, here=here)

    assert "warning: the engine is rootless\n" in capsys.readouterr().err


CPUSET = MODEL.model_copy(update={"cpuset_cpus": "0,1,8", "cpuset_mems": "0"})


def test_a_container_gets_the_users_cpus_and_memory_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_on_engine("cpu", CPUSET, run_as("docker", only_print=True), here=FakeHere(tmp_path))
    command = capsys.readouterr().out
    assert "--cpuset-cpus 0-1,8" in command
    assert "--cpuset-mems 0" in command
    run_on_engine("cpu", CPUSET, run_as("quadlet", only_print=True), here=FakeHere(tmp_path))
    assert "PodmanArgs=--cpuset-cpus 0-1,8" in capsys.readouterr().out
    only_cpus = CPUSET.model_copy(update={"cpuset_mems": ""})
    run_on_engine("cpu", only_cpus, run_as("compose", only_print=True), here=FakeHere(tmp_path))
    assert "cpuset: 0-1,8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("form", "changes", "words"),
    [
        ("kubernetes", {}, "a pod's CPUs are the kubelet's to choose"),
        ("compose", {}, "--cpuset-mems: Compose has no key for it"),
        ("docker", {"cpuset_cpus": "0-"}, "--cpuset-cpus '0-': expected"),
        ("docker", {"cpuset_mems": "all"}, "--cpuset-mems 'all': expected"),
    ],
)
def test_cpus_that_a_format_cannot_give_are_refused(
    form: str, changes: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        run_on_engine("cpu", CPUSET.model_copy(update=changes), run_as(form, only_print=True), here=FakeHere(tmp_path))
