"""Docker commands and compose files of a container."""

from __future__ import annotations

import csv
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from drydock.model.running import Run
from drydock.run import apptainer, docker_command, podman
from drydock.run.container import FOR_BUCKETS, Container
from tests.support.containers import GPUS, NODES, PRIVILEGED, RECORDS, RUNTIME, machine, made, node, word
from tests.support.printed_forms import compose_schema


def options(container: Container) -> dict[str, list[str]]:
    """Return flag → values of the docker command."""
    flag_values: dict[str, list[str]] = {}
    for flag, *values in docker_command.docker_options(container):
        flag_values.setdefault(flag, []).extend(values)
    return flag_values


def service(container: Container) -> dict[str, Any]:
    """Return the only service of a compose file."""
    (compose_service,) = yaml.safe_load(docker_command.compose_text(container))["services"].values()
    return compose_service  # type: ignore[no-any-return] - as YAML gives it


def test_a_mount_survives_dockers_csv_parser(tmp_path: Path) -> None:
    container = made(Run(), machine(tmp_path), model='/data/a,b "c"', cache="/fast, disk")
    model, cache = (next(csv.reader([text])) for text in options(container)["--mount"])
    assert model == ["type=bind", 'source=/data/a,b "c"', 'target=/models/a,b "c"', "readonly"]
    assert cache == ["type=bind", "source=/fast, disk", "target=/cache"]


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
def test_the_printed_command_is_the_one_that_is_run(tmp_path: Path, record: Run) -> None:
    devices = "" if record == Run() else "0,1"
    container = made(record, machine(tmp_path, ["/etc/group"]), devices=devices, arguments=("--json", '{"a": "$b c"}'))

    assert shlex.split(docker_command.docker_text(container).replace("\\\n", " ")) == docker_command.docker_argv(
        container
    )


@pytest.mark.parametrize("record", [NODES, RUNTIME, GPUS, Run()])
def test_nothing_is_granted_by_default(tmp_path: Path, record: Run) -> None:
    container = made(record, machine(tmp_path))

    assert options(container)["--cap-drop"] == ["ALL"]
    assert "no-new-privileges" in options(container)["--security-opt"]
    assert {"--read-only", "--tmpfs"} <= set(options(container))
    assert not {"--privileged", "--init"} & set(options(container))
    assert service(container)["cap_drop"] == ["ALL"]
    assert service(container)["read_only"] is True
    assert "no-new-privileges:true" in service(container)["security_opt"]


def test_docker_gets_devices_groups_files_and_limits(tmp_path: Path) -> None:
    files = ["/dev/davinci0", "/dev/davinci_manager", "/dev/devmm_svm", "/usr/local/Ascend/driver/x"]
    flag_values = options(made(NODES, machine(tmp_path, files, "HwHiAiUser:x:1000:\n"), model=str(tmp_path), port=9000))

    assert flag_values["--device"] == ["/dev/davinci0", "/dev/davinci_manager", "/dev/devmm_svm"]
    assert flag_values["--group-add"] == ["1000"]
    assert flag_values["--ulimit"] == ["memlock=-1:-1"]
    assert flag_values["--shm-size"] == ["16g"]
    assert flag_values["--publish"] == ["127.0.0.1:9000:8000", "127.0.0.1:9001:8001"]
    assert flag_values["--env"] == ["HCCL_OP=1", "VLLM_API_KEY"]  # a folder needs no token of the hub
    driver = "/usr/local/Ascend/driver"
    assert f"type=bind,source={driver},target={driver},readonly" in flag_values["--mount"]
    assert f"type=bind,source={tmp_path},target=/models/{tmp_path.name},readonly" in flag_values["--mount"]
    assert flag_values["--mount"][-1] == "type=volume,source=drydock-cpu-cache,target=/cache"


def test_a_token_is_passed_by_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("VLLM_API_KEY", "hf_secret")
    container = made(Run(), machine(tmp_path))

    assert options(container)["--env"] == ["HF_TOKEN", "HF_ENDPOINT", "VLLM_API_KEY"]
    assert service(container)["environment"] == {"HF_TOKEN": None, "HF_ENDPOINT": None, "VLLM_API_KEY": None}
    assert "hf_secret" not in docker_command.docker_text(container) + docker_command.compose_text(container)


@pytest.mark.parametrize(
    ("model", "secret"), [("s3://b-1/m", "AWS_SECRET_ACCESS_KEY"), ("gs://b-1/m", "GOOGLE_CLOUD_PROJECT")]
)
def test_a_buckets_credentials_are_passed_by_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, secret: str
) -> None:
    monkeypatch.setenv(secret, "s3cret")
    container = made(Run(), machine(tmp_path), model=model)

    variable_names = [*FOR_BUCKETS[model[:2]], "VLLM_API_KEY"]
    assert options(container)["--env"] == variable_names
    assert service(container)["environment"] == dict.fromkeys(variable_names)
    texts = (
        docker_command.docker_text(container),
        docker_command.compose_text(container),
        podman.quadlet_text(container),
    )
    assert all(secret in text and "s3cret" not in text for text in (*texts, apptainer.apptainer_text(container)))
    assert {"HF_TOKEN", *FOR_BUCKETS["gs"]}.isdisjoint(FOR_BUCKETS["s3"])


def test_an_image_that_was_built_here_is_never_pulled(tmp_path: Path) -> None:
    local, published = (made(Run(), machine(tmp_path), image=name) for name in ("", "registry.example/vllm:1"))

    assert options(local)["--pull"] == ["never"]
    assert service(local)["pull_policy"] == "never"
    assert "--pull" not in options(published)
    assert "pull_policy" not in service(published)


def test_several_gpus_are_quoted_for_dockers_parser(tmp_path: Path) -> None:
    assert options(made(GPUS, machine(tmp_path), devices="1,2"))["--gpus"] == ['"device=1,2"']
    assert options(made(GPUS, machine(tmp_path), devices="1"))["--gpus"] == ["device=1"]


def test_a_privileged_container_drops_no_capabilities(tmp_path: Path) -> None:
    container = made(PRIVILEGED, machine(tmp_path))

    assert not {"--cap-drop", "--cap-add", "--device"} & set(options(container))
    assert options(container)["--user"] == ["0:0"]
    assert (service(container)["privileged"], "cap_drop" in service(container)) == (True, False)


def test_with_the_hosts_network_no_port_is_published(tmp_path: Path) -> None:
    container = made(RUNTIME, machine(tmp_path))

    assert "--publish" not in options(container)
    assert (options(container)["--network"], options(container)["--runtime"]) == (["host"], ["habana"])
    assert "ports" not in service(container)
    assert (service(container)["network_mode"], service(container)["ipc"]) == ("host", "host")


def test_another_command_publishes_no_port_and_may_keep_the_container(tmp_path: Path) -> None:
    argv = docker_command.docker_argv(
        made(Run(), machine(tmp_path)), lifetime=(), command=("facts", "--record", "/cache/h")
    )

    assert argv[-4:] == ["drydock/cpu-vllm0.32:latest", "facts", "--record", "/cache/h"]
    assert not {"--publish", "--rm"} & set(argv)


def test_a_cache_with_a_slash_is_a_folder(tmp_path: Path) -> None:
    container = made(Run(), machine(tmp_path), cache="/srv/cache")

    assert options(container)["--mount"] == ["type=bind,source=/srv/cache,target=/cache"]
    assert service(container)["volumes"] == [{"type": "bind", "source": "/srv/cache", "target": "/cache"}]
    assert "volumes" not in yaml.safe_load(docker_command.compose_text(container))


def test_a_command_for_elsewhere_stops_without_the_key_that_it_requires(tmp_path: Path) -> None:
    text = docker_command.shell_text(made(Run(), machine(tmp_path), address="0.0.0.0", port=9000))
    script = text.partition("docker run")[0] + "echo started"
    codes = {}
    for key in ("", "k"):
        result = subprocess.run(["sh", "-c", script], env={"VLLM_API_KEY": key}, capture_output=True, check=False)
        codes[key] = (result.returncode == 0, result.stdout)

    assert "--publish 0.0.0.0:9000:8000" in text
    assert codes == {"": (False, b""), "k": (True, b"started\n")}
    local = made(Run(), machine(tmp_path))
    assert docker_command.shell_text(local) == docker_command.docker_text(local)
    opened = made(Run(), machine(tmp_path), address="::", no_api_key=True)
    assert "--publish '[::]:8000:8000'" in docker_command.shell_text(opened)
    assert "VLLM_API_KEY:?" not in docker_command.shell_text(opened)


# --- compose --------------------------------------------------------------------------------------------------------


def test_compose_requires_the_key_that_other_machines_must_send(tmp_path: Path) -> None:
    compose_service = service(made(Run(), machine(tmp_path), address="10.0.0.1"))

    assert compose_service["ports"] == ["10.0.0.1:8000:8000", "127.0.0.1:8001:8001"]
    assert compose_service["environment"]["VLLM_API_KEY"] == "${VLLM_API_KEY:?set the key that clients must send}"
    assert service(made(Run(), machine(tmp_path)))["environment"]["VLLM_API_KEY"] is None


def test_compose_and_docker_get_the_same_options(tmp_path: Path) -> None:
    files = ["/dev/davinci0", "/dev/davinci_manager", "/dev/devmm_svm", "/usr/local/Ascend/driver/x"]
    container = made(NODES, machine(tmp_path, files, "HwHiAiUser:x:1000:\n"))
    compose_service = service(container)

    assert compose_service["devices"][0] == "/dev/davinci0:/dev/davinci0"
    assert compose_service["group_add"] == ["1000"]
    assert compose_service["ulimits"] == {"memlock": {"soft": -1, "hard": -1}}
    assert compose_service["shm_size"] == "16g"
    assert compose_service["volumes"][0]["bind"] == {"create_host_path": False}
    assert compose_service["volumes"][-1] == {"type": "volume", "source": "cache", "target": "/cache"}
    assert compose_service["command"] == list(container.arguments)


def test_compose_escapes_dollars_and_writes_security_options_with_colons(tmp_path: Path) -> None:
    compose_service = service(made(RUNTIME, machine(tmp_path), arguments=("$HOME",)))

    assert compose_service["command"][-1] == "$$HOME"
    assert compose_service["security_opt"] == ["no-new-privileges:true", "seccomp:unconfined"]
    assert compose_service["environment"]["HABANA_VISIBLE_DEVICES"] == "all"


@pytest.mark.parametrize(("devices", "chosen"), [("", {"count": "all"}), ("1,2", {"device_ids": ["1", "2"]})])
def test_compose_reserves_gpus(tmp_path: Path, devices: str, chosen: dict[str, Any]) -> None:
    compose_service = service(made(GPUS, machine(tmp_path), devices=devices))

    reserved = {"driver": "nvidia", "capabilities": ["gpu"], **chosen}
    assert compose_service["deploy"] == {"resources": {"reservations": {"devices": [reserved]}}}


def test_an_unknown_group_is_a_comment_in_compose(tmp_path: Path) -> None:
    text = docker_command.compose_text(made(NODES, machine(tmp_path)))

    assert text.startswith("# group HwHiAiUser: replace it by its number")
    assert yaml.safe_load(text)["services"]["cpu-vllm0-32"]["group_add"] == ["HwHiAiUser"]


def test_a_model_that_is_an_image_is_pulled_and_mounted_by_digest(tmp_path: Path) -> None:
    image = f"registry.example:5000/m/tiny@sha256:{'1' * 64}"
    container = made(Run(), machine(tmp_path), model=f"oci://{image}")
    assert options(container)["--mount"][0] == f"type=image,source={image},target=/models/tiny,readonly"
    assert f"docker pull --quiet {image} &&\ndocker run" in docker_command.shell_text(container)
    assert (container.downloads, container.missing_parts, container.arguments[2]) == ((), (), "/models/tiny")
    mounted = {"type": "image", "source": image, "target": "/models/tiny", "read_only": True}
    assert service(container)["volumes"][0] == mounted
    jsonschema.validate(yaml.safe_load(docker_command.compose_text(container)), compose_schema())


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
def test_every_file_follows_the_compose_specification_and_has_no_empty_key(tmp_path: Path, record: Run) -> None:
    container = made(record, machine(tmp_path), model=str(tmp_path))

    jsonschema.validate(yaml.safe_load(docker_command.compose_text(container)), compose_schema())
    assert all(service(container).values())


@pytest.mark.parametrize("limit", ["memlock", "memlock=x", "Memlock=1"])
def test_an_invalid_ulimit_is_an_error_in_the_record(limit: str) -> None:
    with pytest.raises(ValueError, match="ulimits"):
        Run.model_validate({"ulimits": [word(limit)], "devices": [node("/dev/a")]})
