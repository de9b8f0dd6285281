"""Verbs of the CPU image, in real containers: what it answers, whose files it runs, and what it says it is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from drydock.build import build
from drydock.config.matrix import find_variant
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.run import entrypoint
from entrypoints.core import errors
from tests.support import planted_home
from tests.support.hosts import expect
from tests.support.started_containers import Ended, ask_entrypoint, run_container, run_in_container, start_container

HOSTS = ROOT / "tests" / "hosts"
RECORDED = sorted(path.parent.name for path in HOSTS.glob("cpu-*/host.json"))

pytestmark = pytest.mark.proves("cpu-vllm0.32", "packages")


Run = Callable[..., Ended]


@pytest.fixture(scope="session")
def run(built: build.Built) -> Run:
    """Run the image to its end, with folders mounted."""

    def _run(*command: str, mounts: Mapping[str, str] = MappingProxyType({}), **options: Any) -> Ended:
        volumes = [(source, target, "rw" if target == "/cache" else "ro") for source, target in mounts.items()]
        return run_container(built.image, *command, volumes=volumes, **options)

    return _run


@pytest.fixture(scope="module")
def ask(built: build.Built, model: Path) -> Iterator[Run]:
    """Give the image's ENTRYPOINT words, all in one container, which has the model and the recorded hosts."""
    volumes = [(str(model), "/models/smollm2"), (str(HOSTS), str(HOSTS))]
    with start_container(built.image, "sleep", "infinity", volumes=volumes) as container:
        yield partial(ask_entrypoint, container)


@pytest.mark.parametrize("verb", ["facts", "check", "plan --model /nowhere"])
def test_the_checkout_answers_as_the_image_does(ask: Run, verb: str) -> None:
    arguments = (*verb.split(), "--root", str(HOSTS / "cpu-untuned-2s"))

    assert _without_image(arguments) == ask(*arguments)


def test_the_image_adds_its_packages_to_the_version_that_the_checkout_says(ask: Run) -> None:
    here, there = _without_image(("version",)), ask("version")

    assert there.code == here.code == 0
    assert there.stdout.startswith(here.stdout)
    assert "transformers " in there.stdout.removeprefix(here.stdout)


def test_the_checkout_decides_as_the_image_does(run: Run, model: Path, tmp_path: Path) -> None:
    link = tmp_path / "smollm2"  # a path that the container's user may enter
    link.symlink_to(model)
    arguments = ("plan", "--model", str(link), "--root", str(HOSTS / "cpu-untuned-2s"), "--json")

    here = json.loads(_without_image(arguments).stdout)
    there = json.loads(run(*arguments, mounts={str(HOSTS): str(HOSTS), str(model): str(link)}).stdout)

    assert here["findings"] == there["findings"]
    assert _decided(here) == _decided(there) != []


def _without_image(words: Sequence[str]) -> Ended:
    """Run the entrypoint from the checkout, as `./inv entrypoint --target cpu` does."""
    argv, env = entrypoint.argv_of(DRYDOCK, find_variant(expect.VARIANTS, "cpu"), words)
    result = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    return Ended(result.returncode, result.stdout, result.stderr)


def _decided(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [reason for reason in plan["reasons"] if reason["origin"] == "decision"]


@pytest.mark.parametrize(
    "host", [*RECORDED[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in RECORDED[2:])]
)
def test_a_recorded_host_answers_in_the_image_as_it_does_outside(ask: Run, host: str) -> None:
    root = str(HOSTS / host)
    facts = ask("facts", "--json", "--root", root)
    check = ask("check", "--json", "--root", root)
    plan = ask("plan", "--json", "--root", root, "--model", "/models/smollm2")

    assert json.loads(facts.stdout) == json.loads((HOSTS / host / "facts.json").read_text())
    findings = expect.brief(json.loads(check.stdout), expect.profile_of("cpu"))
    assert findings == json.loads((HOSTS / host / "findings.json").read_text())
    assert plan.code in {errors.OK, errors.DOES_NOT_FIT, errors.HOST}
    assert json.loads(plan.stdout)["argv"] if plan.code == errors.OK else "hint: " in plan.stderr
    assert "Traceback" not in plan.stderr


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("bash", "-ic", "true"), {}),
        (("bash", "-lc", "true"), {}),
        (("/usr/bin/python3", "-c", "pass"), {}),
        (("bash", "-ic", "true"), {"environment": {"HOME": ""}}),
    ],
)
@pytest.mark.parametrize("planted", [False, True], ids=["writable", "read-only"], indirect=True)
def test_what_another_user_put_into_the_home_of_the_volume_does_not_run(
    planted: Container, words: tuple[str, ...], options: dict[str, Any]
) -> None:
    ran = ask_entrypoint(planted, *words, **options)
    assert ran.code == 0, ran
    assert planted_home.MARK not in ran.stdout + ran.stderr

    result = ask_entrypoint(planted, *words, environment={"HOME": "/cache/home/."})
    assert planted_home.MARK in result.stdout  # it runs for a user who asks for it, so this test can fail


@pytest.mark.parametrize("words", [("bash", "-ic", "true"), ("/usr/bin/python3", "-c", "pass")])
@pytest.mark.parametrize("planted", [False], ids=["writable"], indirect=True)
def test_nor_does_it_run_for_a_program_that_the_entrypoint_does_not_start(
    planted: Container, words: tuple[str, ...]
) -> None:
    ran = run_in_container(planted, *words)
    assert ran.code == 0, ran
    assert planted_home.MARK not in ran.stdout + ran.stderr

    result = run_in_container(planted, *words, environment={"HOME": "/cache/home/."})
    assert planted_home.MARK in result.stdout


@pytest.fixture(scope="module")
def planted(built: build.Built, request: pytest.FixtureRequest) -> Iterator[Container]:
    """A container with a volume into which another user put files; whether its root is read-only."""
    with planted_home.planted_volume(built.image) as volume:
        options = {"volumes": [(volume, "/cache", "rw")], "read_only": request.param}
        with start_container(built.image, "sleep", "infinity", **options) as container:
            yield container


def test_a_cache_that_cannot_be_written_is_said_in_one_line(run: Run, model: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    mounts = {str(model): "/models/smollm2", str(tmp_path): "/cache"}
    flags = ("--exec", "--host", "192.0.2.1")  # an address that nobody has: vLLM is not started
    options = {"user": "12345:0", "read_only": True, "tmpfs": ("/tmp",)}
    ran = run("serve", "--model", "/models/smollm2", *flags, mounts=mounts, **options)

    assert ran.code == errors.HOST, ran
    assert ran.stderr.count("WARN    HOST-009") == 1


def image(built: build.Built) -> Any:
    return docker.from_env().images.get(built.image).attrs


def test_the_engine_holds_the_very_digest_that_was_built(built: build.Built) -> None:
    assert built.digest == image(built)["Id"]


def test_the_image_runs_as_nobody_special_and_says_what_it_is(built: build.Built) -> None:
    config = image(built)["Config"]

    assert config["User"] == "10001:0"
    assert config["Entrypoint"][1:3] == ["-I", "-S"]
    assert config["Healthcheck"]["Test"][-1] == "health"
    assert config["Healthcheck"]["StartPeriod"] == 10 * 60 * 10**9
    assert config["Labels"]["io.drydock.variant"] == "cpu-vllm0.32"
    assert config["Labels"]["org.opencontainers.image.version"] == "0.32.0"
