"""Every variant's committed Dockerfile, built on stand-ins by a real BuildKit; its image started on a recorded host.

A row's stand-in is started once, by its ENTRYPOINT, and asked everything else in that container. `./inv test` builds
one row of each kind of step, and asks one host of each accelerator in them; `--all` every one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import docker
import pytest
from docker.models.containers import Container

from drydock.build import standins
from drydock.build.build_job import prepare_job
from drydock.build.standins import SERVED
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.console import log
from drydock.core.errors import BuildError
from drydock.core.paths import ROOT
from drydock.engine.connection import inspect_images
from drydock.model.variant import Variant
from drydock.prove import demo
from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import ServePlan
from entrypoints.model.read import read_model
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.dockerfile_shapes import representatives
from tests.support.hosts import expect
from tests.support.ports import free_port
from tests.support.sample import write_model
from tests.support.standins import bake, image
from tests.support.started_containers import Ended, ask_entrypoint, start_container

VARIANTS = {variant.id: variant for variant in read_matrix(DRYDOCK) if variant.serves}
USUAL = representatives(VARIANTS.values())
MODEL = "/models/stub"
DIGEST = {"DRYDOCK_IMAGE_DIGEST": f"sha256:{'0' * 64}"}
"""What Kubernetes says of an image; caches are named after it, here and in the container alike."""


def list_rows(variants: Iterable[Variant] = VARIANTS.values()) -> list[Any]:
    """Return rows as parameters: those that are not built usually are marked as slow."""
    return [pytest.param(variant.id, marks=_slow(variant.id not in USUAL)) for variant in variants]


def list_recorded_hosts() -> list[Any]:
    """Return rows and recorded hosts with devices as parameters: all but the first of each accelerator are slow."""
    rows = {name: expect.profile_of(name)["variant"] for name in expect.names() if not name.startswith("cpu-")}
    first = {name.partition("-")[0]: name for name in reversed(rows) if rows[name] in USUAL}
    return [pytest.param(rows[name], name, id=name, marks=_slow(name not in first.values())) for name in rows]


def _slow(slow: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if slow else []


class StandIn(NamedTuple):
    """A stand-in that serves, in a container that an operator started."""

    variant: Variant
    host: str
    """The recorded host on which it serves."""
    plan: ServePlan
    """What it would start there, as this checkout says."""
    container: Container

    def ask(self, *words: str) -> Ended:
        """Give the image's ENTRYPOINT words, in the container that runs."""
        return ask_entrypoint(self.container, *words)


@pytest.fixture(scope="session")
def built(engine: object, request: pytest.FixtureRequest) -> Iterator[None]:
    """Build all images at once, and remove them again; where one fails, each test builds its own and says why."""
    del engine
    started = time.monotonic()
    calls = [item.callspec for item in request.session.items if isinstance(item, pytest.Function)
             and "standin" in item.fixturenames]  # fmt: skip
    variant_ids = {str(call.params["standin"]) for call in calls}
    try:
        bake(VARIANTS[variant_id] for variant_id in sorted(variant_ids))
        message = f"{len(variant_ids)} variants built on stand-ins in {time.monotonic() - started:.0f} s"
    except BuildError:
        message = f"not all of {len(variant_ids)} variants build on stand-ins"
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line(f"\n{message}") if reporter else log(message)
    yield
    client = docker.from_env()
    for variant_id in VARIANTS:
        for built_image in inspect_images(client, image(variant_id)):
            client.images.remove(built_image["Id"], force=True)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder; nothing reads its weights."""
    return write_model(tmp_path_factory.mktemp("model") / "stub")


@pytest.fixture(scope="module")
def standin(built: None, model: Path, request: pytest.FixtureRequest) -> Iterator[StandIn]:
    """A row's stand-in, started once by its ENTRYPOINT; all tests of the row ask it, one after the other."""
    del built
    variant = VARIANTS[request.param]
    if not inspect_images(docker.from_env(), image(variant.id)):
        bake([variant])
    host, expected = plan_on_first_host(variant, model)
    words = ("serve", "--root", f"/hosts/{host}", "--exec", "--model", MODEL)
    with start_container(image(variant.id), *words, **make_operator_options(model, "serve")) as container:
        yield StandIn(variant, host, expected, container)


@pytest.mark.standins
@pytest.mark.parametrize("standin", list_rows(), indirect=True)
def test_the_committed_dockerfile_builds_and_its_image_starts_what_was_planned(standin: StandIn) -> None:
    report = read_report(standin.container)
    variant, expected, log_text = standin.variant, standin.plan, standin.container.logs(stdout=False).decode()

    assert "Traceback" not in log_text, log_text[-2000:]
    assert report, log_text[-2000:]
    assert [report["executable"], "-m", variant.module, *report["argv"][1:]] == list(expected.argv)
    reported_env = {name: unkeyed(report["env"].get(name, "")) for name in expected.env}
    assert reported_env == {name: unkeyed(value) for name, value in expected.env.items()}
    for script in variant.setup:
        assert script in report["env"]["STUB_SETUP"]


@pytest.mark.standins
@pytest.mark.parametrize("standin", list_rows(variant for variant in VARIANTS.values() if variant.setup), indirect=True)
def test_a_command_that_an_image_executes_gets_the_environment_of_the_vendors_scripts(standin: StandIn) -> None:
    show = "import os; print(os.environ['STUB_SETUP'])"
    ran = standin.ask(standin.variant.interpreter, "-c", show)

    assert ran.stdout.split() == list(standin.variant.setup), ran.stderr[-2000:]


@pytest.mark.standins
@pytest.mark.parametrize(("standin", "host"), list_recorded_hosts(), indirect=["standin"])
def test_a_recorded_host_answers_in_its_variants_image_as_it_does_outside(standin: StandIn, host: str) -> None:
    profile = expect.profile_of(host)
    golden = {file: json.loads((expect.HOSTS / host / file).read_text()) for file in ("facts.json", "findings.json")}
    facts, check = (standin.ask(verb, "--json", "--root", f"/hosts/{host}") for verb in ("facts", "check"))
    assert json.loads(facts.stdout) == golden["facts.json"], facts.stderr[-2000:]
    assert expect.brief(json.loads(check.stdout), profile) == golden["findings.json"], check.stderr[-2000:]
    plan = standin.ask("plan", "--json", "--root", f"/hosts/{host}", "--model", MODEL)
    assert "Traceback" not in plan.stderr
    assert json.loads(plan.stdout)["argv"] if plan.code == 0 else "hint: " in plan.stderr


def test_one_command_builds_and_serves_a_stand_in_without_devices_that_is_never_published(tmp_path: Path) -> None:
    port, name = free_port(), f"drydock-test-{os.getpid()}"
    host = ["--root", str(expect.HOSTS / "rocm-mi300x-8x" / "host.json")]
    words = ["--target", "mi300x", "--stand-ins", *host, "--name", name, "--port", str(port), "--cache", str(tmp_path)]
    tmp_path.chmod(0o777)
    command = [sys.executable, "tasks.py", "run", *words, "--detach", "--json"]
    try:
        result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr[-3000:]
        started = json.loads(result.stdout)
        end = time.monotonic() + 60
        while demo.fetch_status(started["ready"])[0] != 200 and time.monotonic() < end:
            time.sleep(0.2)
        container = docker.from_env().containers.get(name)
        answer = demo.ask_chat_question(container, demo.QUESTION)
        logs = container.logs().decode()
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=False, capture_output=True)
    image = docker.from_env().images.get(started["image"])

    assert "This is a stand-in" in answer
    assert "stand-in: there is no vLLM in it" in result.stderr
    assert "--data-parallel-size = 8" in logs  # decided for the recorded host's eight devices
    reports = [json.loads(line) for line in logs.splitlines() if line.startswith("{")]  # among lines of standard error
    assert [report["env"]["STUB_VLLM"] for report in reports] == ["serve"]
    assert started["image"].startswith("drydock-stand-in/rocm7.2-vllm0.27:")
    assert image.labels["io.drydock.stand-in"] == "base,wheels"
    of_the_row = prepare_job(DRYDOCK, "mi300x").layout  # what publish, audit and bundle read
    assert standins.stand_in(DRYDOCK, "mi300x").kept_layout not in {None, of_the_row}


@pytest.mark.parametrize("row", list_rows())
def test_buildkits_own_checks_find_nothing(row: str, tmp_path: Path) -> None:
    variant = VARIANTS[row]
    names = ["base", "wheels", "tools", "entrypoints", *(item.name for item in (*variant.sources, *variant.supplied))]
    contexts = [word for name in names for word in ("--build-context", f"{name}={tmp_path}")]
    folder = ROOT / "images" / variant.id
    result = subprocess.run(
        ["docker", "buildx", "build", "--check", *contexts, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]


def unkeyed(value: str) -> str:
    """Return a cache's path without its plan's key, which counts all that the container's environment says."""
    return re.sub(r"(?<=/cache/compiled/)([^/]+)-[0-9a-f]{12}(?=/)", r"\1", value)


def plan_on_first_host(variant: Variant, model: Path) -> tuple[str, ServePlan]:
    """Return the first recorded host on which this variant can serve the model, and what it would start."""
    profile = expect.profile_in(variant.id)
    facts_of_model = read_model(str(model))._replace(name=MODEL)
    refused = []
    for host in list_hosts(variant):
        facts = expect.read(host, profile)
        try:
            return host, make_serve_plan(profile, facts, facts_of_model, parse_user_flags(("--model", MODEL), DIGEST))
        except EntrypointError as error:
            refused.append(f"{host}: {error}")
    raise AssertionError(f"{variant.id}: no recorded host can serve with it: {refused}")


def list_hosts(variant: Variant) -> list[str]:
    """Return the accelerator's recorded hosts, those recorded for just this variant first."""
    names = [name for name in expect.names() if name.partition("-")[0] == variant.accelerator]
    return sorted(names, key=lambda name: (expect.profile_of(name)["variant"] != variant.id, name))


def make_operator_options(model: Path, served: str = "1") -> dict[str, Any]:
    """Return how an operator starts a stand-in; its vLLM prints what it was started with, then ends or serves."""
    options: dict[str, Any] = {"network_mode": "none", "read_only": True, "tmpfs": ("/tmp",), "cap_drop": ["ALL"]}
    return options | {"env": {SERVED: served, **DIGEST}, "volumes": [(expect.HOSTS, "/hosts"), (model, MODEL)]}


def read_report(container: Container) -> dict[str, Any]:
    """Wait until the stub says what it was started with, and return that; empty if the container ends before."""
    output = b""
    for chunk in container.logs(stderr=False, stream=True, follow=True):
        output += chunk
        for line in output.splitlines(keepends=True):
            if line.startswith(b"{") and line.endswith(b"\n"):
                report: dict[str, Any] = json.loads(line)
                return report
    return {}
