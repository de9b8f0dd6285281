"""What `run --volume` mounts, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.core.errors import InputError
from drydock.run import docker_command, user_options
from drydock.run.container import RunRequest
from tests.support.called_verbs import run_on_engine
from tests.support.containers import NODES, machine, made
from tests.support.printed_forms import MODEL, pod, printed, service
from tests.unit.drydock.verbs.test_run_verb import PRINT, FakeHere


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
        run_on_engine("cpu", request, PRINT, here=FakeHere(tmp_path))
    assert raised.value.hint == "choose another path in the container"


def test_a_volume_covers_no_file_of_the_driver_and_no_other_volume(tmp_path: Path) -> None:
    mount_targets = docker_command.list_mount_targets(made(NODES, machine(tmp_path)))

    with pytest.raises(InputError, match="/usr/local/Ascend/driver is the driver's"):
        user_options.check_volumes(["/usr/local/Ascend"], mount_targets)
    with pytest.raises(InputError, match="given twice"):
        user_options.check_volumes(["/a", "/a"], mount_targets)
    user_options.check_volumes(["/data", "/data/in", "/models/other", "/dev/dri/by-path", "/cachet"], mount_targets)


def test_a_source_that_is_missing_here_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = MODEL.model_copy(update={"volumes": ("/not/here:/data",)})

    assert "no file or folder /not/here" in printed(request, "docker", tmp_path, capsys)["remarks"]
