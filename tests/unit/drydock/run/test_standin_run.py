"""`run --stand-ins`: a stub in place of vLLM, on the machine's devices or on a recorded host."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.build import build, standins
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import HostError, InputError
from drydock.core.paths import ROOT
from drydock.engine import daemon
from drydock.run.container import RunRequest
from drydock.run.engine import Here, LocalImage
from drydock.run.needed_image import Building
from tests.support.called_verbs import run_as, run_on_engine
from tests.support.containers import machine

HOST = ROOT / "tests" / "hosts" / "rocm-mi300x-8x" / "host.json"
IMAGE = "drydock-stand-in/rocm7.2-vllm0.27:abababababab"


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that is run; the image is built at once."""
    argv: list[str] = []
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(daemon, "ensure_engine", lambda: None)
    monkeypatch.setattr(standins, "stand_in", lambda _, target: target)
    built_image = build.Built(
        variant="", platform="", image=IMAGE, digest="", inputs_sha256="", layout="", seconds=0, phases={}
    )
    monkeypatch.setattr(build, "build_image", lambda _: built_image)
    monkeypatch.setattr(Here, "image", lambda _, name: LocalImage("d", "base") if name == IMAGE else None)
    monkeypatch.setattr(Here, "attach", lambda _, words, *__, **___: argv.extend(words) or 0)
    return argv


def start(folder: Path, request: RunRequest, *devices: str, target: str = "mi300x") -> None:
    here = Building(DRYDOCK)
    here.machine = machine(folder, devices)
    run_on_engine(target, request.model_copy(update={"stand_ins": True}), here=here)


def test_on_a_recorded_host_it_starts_without_devices_and_reads_that_host(tmp_path: Path, started: list[str]) -> None:
    start(tmp_path, RunRequest(host=str(HOST)))

    assert not {"--device", "--group-add", "--ipc"} & {*started}
    assert f"type=bind,source={HOST},target=/recorded-host.json,readonly" in started
    assert {"STUB_VLLM=serve", "rocm7-2-vllm0-27-stand-in"} <= {*started}
    image = started.index(IMAGE)
    assert started[image:] == [IMAGE, "serve", "--model", "/models/stand-in", "--root", "/recorded-host.json", "--exec"]


def test_the_users_model_words_and_variables_win(tmp_path: Path, started: list[str]) -> None:
    env = ("STUB_VLLM=print",)
    start(tmp_path, RunRequest(host=str(HOST.parent), model="org/model", env=env, arguments=("check", "--json")))

    assert started[started.index(IMAGE) + 1 :] == ["check", "--root", "/recorded-host", "--json"]
    assert "STUB_VLLM=print" in started
    assert "STUB_VLLM=serve" not in started


def test_on_the_machine_itself_it_gets_the_devices_and_is_supervised(tmp_path: Path, started: list[str]) -> None:
    devices = ("/dev/kfd", "/dev/dri/renderD128")
    start(tmp_path, RunRequest(), *devices)

    assert {*devices} <= {*started}
    assert started[started.index(IMAGE) + 1 :] == ["serve", "--model", "/models/stand-in"]


def test_without_devices_a_recorded_host_is_asked_for(tmp_path: Path, started: list[str]) -> None:
    with pytest.raises(HostError, match="this machine has none of its devices") as raised:
        start(tmp_path, RunRequest())

    assert "tests/hosts/rocm-*/host.json" in raised.value.hint
    assert started == []


def test_a_manifest_would_need_an_image_that_is_pushed() -> None:
    request = RunRequest(host=str(HOST), stand_ins=True)
    with pytest.raises(InputError, match="a stand-in stays on this machine"):
        run_on_engine("mi300x", request, run_as("kubernetes"), here=Building(DRYDOCK))


def test_a_row_without_vllm_is_refused(tmp_path: Path, started: list[str]) -> None:
    with pytest.raises(InputError, match=r"router0\.1 has no vLLM"):
        start(tmp_path, RunRequest(), target="router")

    assert started == []
