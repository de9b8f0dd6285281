"""`--target auto` and `./inv entrypoint`: which variant each recorded host gets, why, and what needs the image."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drydock.build import build, build_job, pins
from drydock.config.matrix import find_variant
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import HostError, InputError, TargetError
from drydock.core.paths import ROOT
from drydock.engine import daemon
from drydock.model.variant import Variant
from drydock.run import auto, entrypoint
from drydock.run.container import RunRequest
from drydock.run.engine import Here, LocalImage
from drydock.run.needed_image import Building
from drydock.topology import size
from entrypoints.checks.grants import examine_facts
from entrypoints.core.records import Facts, to_json
from tests.support.called_verbs import run_on_engine
from tests.support.containers import machine
from tests.support.hosts import expect
from tests.support.hosts.trees import HOSTS

VARIANTS = expect.VARIANTS
GAUDI2 = str(HOSTS / "habana-gaudi2-8x")

OTHER_THAN_PLANNED = {
    "ascend-cloudmatrix384": "ascend9.1-a3-vllm0.23",  # OmniInfer is a choice, not a property of the machine
    "cpu-kunpeng920-4s": "cpu-arm64-official-vllm0.27",  # the plans of all processors are those of one image
    "cpu-z15": "cpu-s390x-vllm0.27",
    "cuda-h100-1x-r535": "cuda12.9-vllm0.18",  # the driver is too old for the one it is planned with, as in the next
    "habana-gaudi2e-untuned": "habana1.18-vllm0.8",
    "neuron-inf2.24xlarge": "neuron2.20-vllm0.6",
    "enflame-s60-2x-tops3.2": "gcu3.5-vllm0.9.2",  # older stacks of these are planned, but nothing requires them
    "enflame-s60-8x": "gcu3.5-vllm0.9.2",
    "tpu-v5p-4x": "tpu-vllm0.21",
    "xpu-flex170-1x": "xpu-vllm0.30",
    "openvino-xeon8380-2s": "cpu-vllm0.32",  # a processor
}
"""Hosts that get another variant than the one that their plans are made with (expect.py)."""


@functools.cache
def _profile(variant: str) -> dict[str, Any]:
    return expect.profile_in(variant)


@functools.lru_cache(maxsize=64)
def _facts(host: str, accelerator: str) -> Facts:
    return expect.read(host, _profile(find_variant(VARIANTS, accelerator).id))


def _ask(host: str, variant: Variant, verb: str) -> Any:
    """Answer what the entrypoint would print, without a process for each question."""
    facts = _facts(host, variant.accelerator)
    return to_json(facts if verb == "facts" else examine_facts(_profile(variant.id), facts))


def choose(host: str) -> auto.Choice:
    return auto.choose_variant(VARIANTS, functools.partial(_ask, host))


@pytest.mark.parametrize("host", [name for name in expect.names() if name != "cpu-power9"])
def test_every_recorded_host_gets_a_variant_of_its_accelerator(host: str) -> None:
    chosen = choose(host)

    assert chosen.variant.id == OTHER_THAN_PLANNED.get(host, expect.profile_of(host)["variant"])
    assert chosen.variant.accelerator == host.partition("-")[0].replace("openvino", "cpu")
    assert any(line.startswith(f"{chosen.variant.id}: ") for line in chosen.reasons)


@pytest.mark.parametrize("host", [path.parent.name for path in sorted(size.HOSTS.glob("*/host.json"))])
def test_size_plans_a_recorded_host_with_the_row_of_auto(host: str) -> None:
    row = size.read_rows_of_hosts().get(host, {})
    if "odd" in row:
        assert "served" not in row
        return
    if host.startswith("openvino"):  # runs on a processor, and only who names it gets it
        return
    machines = {machine.name: machine for machine in size.list_recorded_machines(DRYDOCK)}
    assert machines[host].variant.id == choose(host).variant.id


def test_the_hosts_named_above_are_those_that_differ() -> None:
    assert all(expect.profile_of(host)["variant"] != variant for host, variant in OTHER_THAN_PLANNED.items())


def test_reasons_say_what_was_found_and_why_not_the_others() -> None:
    fit = [variant.id for variant in VARIANTS if variant.accelerator == "habana" and not variant.default]
    older = [name for name in fit if name != "habana1.24-plugin0.26"]
    without = {"habana", "cpu", "openvino", "router"}  # found, or without devices of their own
    absent = sorted({variant.accelerator for variant in VARIANTS} - without)
    assert choose("habana-gaudi2-8x").reasons == (
        "found 8 x HL-225 (habana), driver 1.22.0, x86_64",
        "habana1.22-fork0.9: the default of habana",
        "not habana1.24-plugin0.26: driver = 1.22.0, expected 1.23 or later",
        f"these fit too: {', '.join(older)}",
        f"no device of {', '.join(absent)}",
    )


def test_reasons_name_wrong_cards_and_warnings() -> None:
    reasons = choose("rocm-mi250x-4x").reasons

    assert "rocm6.3-vllm0.8: matrix.yaml names it for gfx90a" in reasons
    assert "not rocm6.3-navi-vllm0.8: architectures = gfx90a, expected one of gfx1100" in reasons
    assert any(line.startswith("warning: driver = 6.3.6, expected 6.7 or later: ") for line in reasons)


@pytest.mark.parametrize(
    ("host", "card"),
    [
        ("enflame-s60-2x", "I20"),
        ("enflame-s60-2x", "L300"),
        ("ascend-910b3-8x", "310"),
        ("habana-gaudi2-8x", "HL-999"),
        ("neuron-trn2n.48xlarge", "Trainium9"),
        ("rocm-rx7900xtx-2x", "AMD Radeon RX 6900 XT"),
        ("tpu-v6e-8x", "TPU v9"),
        ("xpu-b580-1x", "Intel Arc A310"),
    ],
)
def test_cards_that_are_named_but_not_supported_are_not_taken(host: str, card: str) -> None:
    def ask(variant: Variant, verb: str) -> Any:
        facts = _facts(host, variant.accelerator)
        devices = tuple(device._replace(name=card, architecture="") for device in facts.devices)
        changed = facts._replace(devices=devices)
        return to_json(changed if verb == "facts" else examine_facts(_profile(variant.id), changed))

    with pytest.raises(HostError, match=f"architectures = {card}"):
        auto.choose_variant(VARIANTS, ask)


def test_a_machine_without_devices_gets_the_processor_s_variant() -> None:
    reasons = choose("cpu-xeon8380-2s").reasons

    assert reasons[:2] == ("found no accelerator on this x86_64 machine", "cpu-vllm0.32: the default of cpu")
    assert "not cpu-arm64-vllm0.32: it is for linux/arm64, this machine is x86_64" in reasons


def test_a_machine_for_which_there_is_no_variant_is_an_error_that_lists_them() -> None:
    with pytest.raises(HostError, match="ppc64le") as error:
        choose("cpu-power9")
    assert len(error.value.problems) == 1 + sum(variant.accelerator == "cpu" for variant in VARIANTS)


def test_a_matrix_without_processors_has_nothing_for_a_machine_without_devices() -> None:
    cards = [variant for variant in VARIANTS if variant.accelerator in ("cuda", "rocm")]

    with pytest.raises(HostError, match="found no device of cuda, rocm"):
        auto.choose_variant(cards, functools.partial(_ask, "cpu-xeon8380-2s"))


def test_a_driver_that_is_too_old_for_every_variant_is_an_error_that_says_what_to_do() -> None:
    def ask(variant: Variant, verb: str) -> Any:
        answer = _ask("cuda-h100-1x-r535", variant, verb)
        return answer if verb == "facts" else [{**item, "severity": "FAIL"} for item in answer]

    with pytest.raises(
        HostError, match=r"not cuda13.0-vllm0.33: .*driver = 535.104.12, expected 580 or later"
    ) as error:
        auto.choose_variant(VARIANTS, ask)
    assert error.value.hint.endswith("; --target cpu serves without the cards")


def test_a_remedy_says_of_a_row_that_it_has_no_image_for_the_machine() -> None:
    def ask(variant: Variant, verb: str) -> Any:
        facts = _facts("cuda-gb10", variant.accelerator)
        changed = facts._replace(versions={**facts.versions, "driver": "540.4.0", "driver_branch": "540"})
        return to_json(changed if verb == "facts" else examine_facts(_profile(variant.id), changed))

    with pytest.raises(HostError, match=r"not cuda12.9-vllm0.18: it is for linux/amd64") as error:
        auto.choose_variant([variant for variant in VARIANTS if variant.accelerator == "cuda"], ask)
    assert "--target cuda12.9" not in error.value.hint
    assert "(but cuda12.9-vllm0.18 has no image for aarch64)" in error.value.hint


def test_devices_of_two_accelerators_are_an_error_that_names_both() -> None:
    def ask(variant: Variant, verb: str) -> Any:
        host = {"cuda": "cuda-h100-8x", "rocm": "rocm-mi300x-8x"}.get(variant.accelerator, "cpu-xeon8380-2s")
        return _ask(host, variant, verb)

    with pytest.raises(TargetError, match="8 x NVIDIA H100") as error:
        auto.choose_variant(VARIANTS, ask)
    assert error.value.hint == "choose one: --target cuda or --target rocm"


@pytest.mark.parametrize("has_driver_files", [True, False], ids=["the driver's own files", "no file"])
def test_a_device_that_cannot_be_read_is_an_error_and_not_a_guess(tmp_path: Path, has_driver_files: bool) -> None:
    host = expect.document("cuda-h100-8x")
    broken = {"rc": 9, "stdout": "", "stderr": "Driver/library version mismatch"}
    host["commands"] = dict.fromkeys(host["commands"], broken)
    if not has_driver_files:
        host["files"] = {path: text for path, text in host["files"].items() if "/driver/nvidia/gpus" not in path}
    recorded = tmp_path / "host.json"
    recorded.write_text(json.dumps(host))

    with pytest.raises(HostError, match=r"cuda: nvidia-smi.*Driver/library version mismatch") as error:
        auto.resolve_target(DRYDOCK, "auto", str(recorded))
    assert error.value.hint.startswith("Reboot the host, or unload and load the nvidia modules")
    assert error.value.hint.endswith("; or name a target: ./inv matrix lists them")


@pytest.mark.parametrize("text", [None, "{", '{"files": 3}'])
def test_a_recorded_host_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, text: str | None) -> None:
    recorded = tmp_path / "host.json"
    if text is not None:
        recorded.write_text(text)

    with pytest.raises(InputError, match=f"--root {recorded}: ") as error:
        auto.resolve_target(DRYDOCK, "auto", str(recorded))
    assert "facts --record host.json" in error.value.hint


def test_the_task_asks_the_entrypoint_and_prints_the_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert auto.resolve_id(DRYDOCK, "auto", GAUDI2) == "habana1.22-fork0.9"
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "auto: found 8 x HL-225 (habana), driver 1.22.0, x86_64"
    assert auto.resolve_id(DRYDOCK, "gaudi3") == "gaudi3"
    with pytest.raises(InputError, match="--root"):
        auto.resolve_id(DRYDOCK, "gaudi3", GAUDI2)


# --- ./inv entrypoint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"), [(("version",), 0), (("check", "--root", GAUDI2), 0), (("plan", "--model", "/nowhere"), 4)]
)
def test_the_entrypoint_runs_from_the_checkout_with_its_exit_code(words: tuple[str, ...], code: int) -> None:
    argv, env = entrypoint.argv_of(DRYDOCK, find_variant(VARIANTS, "gaudi2"), words)

    result = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    assert result.returncode == code
    assert {0: "habana1.22-fork0.9" in result.stdout or "HPU-009" in result.stdout, 4: "/nowhere" in result.stderr}[
        code
    ]


def test_the_task_becomes_the_entrypoint_of_the_variant_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *what: became.append(what))

    entrypoint.exec_entrypoint(
        DRYDOCK,
        auto.resolve_target(DRYDOCK, "auto", entrypoint.recorded_host(("facts", "--root", GAUDI2))),
        ("version",),
    )

    ((_, argv, env),) = became
    assert argv[-2:] == [str(ROOT / "entrypoints"), "version"]
    assert json.loads(Path(env["DRYDOCK_PROFILE"]).read_text())["variant"] == "habana1.22-fork0.9"


def test_the_entrypoint_gets_no_more_of_the_shell_than_a_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left_out = str(tmp_path)
    for name in ("HF_TOKEN", "https_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "kept")
    for name in ("HOME", "CUDA_VISIBLE_DEVICES", "VLLM_USE_V1", "PYTHONPATH"):
        monkeypatch.setenv(name, left_out)

    _, env = entrypoint.argv_of(DRYDOCK, find_variant(VARIANTS, "cpu"), ("facts",))

    assert env.keys() >= {"HF_TOKEN", "https_proxy", "HTTP_PROXY", "PATH", "DRYDOCK_PROFILE"}
    assert left_out not in env.values()


@pytest.mark.parametrize("words", [(), ("serve", "--model", "m"), ("--model", "m"), ("warm",), ("bash",), ("health",)])
def test_a_verb_that_needs_vllm_says_that_it_needs_the_image(words: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="needs the image") as error:
        entrypoint.check_verb("gaudi2", words)
    assert "./inv run --target gaudi2" in error.value.hint


def test_verbs_that_need_no_image_pass() -> None:
    for word in (*entrypoint.WITHOUT_IMAGE, "--help", "-h"):
        entrypoint.check_verb("cpu", (word,))
    with pytest.raises(InputError, match="chekc: expected one of plan, check"):
        entrypoint.check_verb("cpu", ("chekc",))


@pytest.mark.parametrize(
    ("words", "host"),
    [
        ((), ""),
        (("plan", "--model", "m"), ""),
        (("check", "--root"), ""),
        (("check", "--root", "a", "--json"), "a"),
        (("check", "--root=a b"), "a b"),
        (("plan", "--rootless", "x", "--root", "a"), "a"),
    ],
)
def test_the_recorded_host_is_read_from_the_entrypoint_s_words(words: tuple[str, ...], host: str) -> None:
    assert entrypoint.recorded_host(words) == host


# --- run ------------------------------------------------------------------------------------------------------------


def test_run_with_auto_builds_what_is_not_built_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(daemon, "ensure_engine", lambda: None)
    monkeypatch.setattr(build_job, "prepare_job", lambda _, target: target)
    monkeypatch.setattr(pins, "pin_missing", lambda job: job)
    monkeypatch.setattr(Here, "find_own_image", lambda *_: "")
    monkeypatch.setattr(
        build, "build_image", lambda job: built.append(job) or SimpleNamespace(image=f"drydock/{job}:1")
    )
    local_image = LocalImage(f"sha256:{'ab' * 32}")
    monkeypatch.setattr(Here, "image", lambda *_: local_image if built else None)
    monkeypatch.setattr(Here, "attach", lambda _, argv, _wanted, **_more: built.extend(argv[:2]) or 0)
    here = Building(DRYDOCK)
    here.machine = machine(tmp_path)

    run_on_engine("cpu", RunRequest(model="org/model"), here=here)

    assert built == ["cpu-vllm0.32", "docker", "run"]
