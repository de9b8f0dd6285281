"""Every variant's committed Dockerfile, built on stand-ins by a real BuildKit; its image started on a recorded host.

`./inv test` builds one row of each kind of step, and starts one host of each accelerator in them; `--all` every one.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import docker
import pytest

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
from tests.support.sample import write_model
from tests.support.standins import bake, image
from tests.support.started_containers import Ended, run_container

VARIANTS = [variant for variant in read_matrix(DRYDOCK) if variant.serves]
USUAL = representatives(VARIANTS)
MODEL = "/models/stub"
DIGEST = {"DRYDOCK_IMAGE_DIGEST": f"sha256:{'0' * 64}"}
"""What Kubernetes says of an image; caches are named after it, here and in the container alike."""


def cases(variants: Sequence[Variant] = VARIANTS, *, proving: bool = True) -> list[Any]:
    """Return variants as parameters: those that are not built usually are marked as slow."""
    proofs = {variant.id: [pytest.mark.proves(variant.id, "stand-in")] if proving else [] for variant in variants}
    return [
        pytest.param(variant, id=variant.id, marks=[*proofs[variant.id], *_slow(variant.id not in USUAL)])
        for variant in variants
    ]


def recorded() -> list[Any]:
    """Return the recorded hosts with devices as parameters: all but the first of each accelerator are slow."""
    names = [name for name in expect.names() if not name.startswith("cpu-")]
    usual = [name for name in names if expect.profile_of(name)["variant"] in USUAL]
    first = {name.partition("-")[0]: name for name in reversed(usual)}
    return [pytest.param(name, marks=_slow(name not in first.values())) for name in names]


def _slow(slow: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if slow else []


@pytest.fixture(scope="session")
def built(engine: object, request: pytest.FixtureRequest) -> Iterator[None]:
    """Build all images at once, and remove them again; where one fails, each test builds its own and says why."""
    del engine
    started = time.monotonic()
    variant_ids = asked_for(request.session.items)
    try:
        bake(variant for variant in VARIANTS if variant.id in variant_ids)
        message = f"{len(variant_ids)} variants built on stand-ins in {time.monotonic() - started:.0f} s"
    except BuildError:
        message = f"not all of {len(variant_ids)} variants build on stand-ins"
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line(f"\n{message}") if reporter else log(message)
    yield
    client = docker.from_env()
    for variant in VARIANTS:
        for built_image in inspect_images(client, image(variant.id)):
            client.images.remove(built_image["Id"], force=True)


def asked_for(items: Sequence[pytest.Item]) -> set[str]:
    """Return the ids of the variants whose images the selected tests start."""
    calls = [item.callspec.params for item in items if isinstance(item, pytest.Function) and hasattr(item, "callspec")
             and "built" in item.fixturenames]  # fmt: skip
    hosts = {str(params["host"]) for params in calls if "host" in params}
    return {params["variant"].id for params in calls if "variant" in params} | {
        expect.profile_of(host)["variant"] for host in hosts
    }


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder; nothing reads its weights."""
    return write_model(tmp_path_factory.mktemp("model") / "stub")


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("variant", cases())
def test_the_committed_dockerfile_builds_and_its_image_starts_what_was_planned(variant: Variant, model: Path) -> None:
    if not inspect_images(docker.from_env(), image(variant.id)):
        bake([variant])
    host, expected = planned(variant, model)
    ran = run(image(variant.id), model, "serve", "--root", f"/hosts/{host}", "--exec", "--model", MODEL)

    assert "Traceback" not in ran.stderr, ran.stderr[-2000:]
    assert ran.code == 0, ran.stderr[-2000:]
    recorded = json.loads(ran.stdout.splitlines()[-1])
    assert [recorded["executable"], "-m", variant.module, *recorded["argv"][1:]] == list(expected.argv)
    recorded_env = {name: unkeyed(recorded["env"].get(name, "")) for name in expected.env}
    assert recorded_env == {name: unkeyed(value) for name, value in expected.env.items()}
    for script in variant.setup:
        assert script in recorded["env"]["STUB_SETUP"]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("variant", cases([variant for variant in VARIANTS if variant.setup], proving=False))
def test_a_command_that_an_image_executes_gets_the_environment_of_the_vendors_scripts(
    variant: Variant, model: Path
) -> None:
    show = "import os; print(os.environ['STUB_SETUP'])"
    ran = run(image(variant.id), model, variant.interpreter, "-c", show)

    assert ran.stdout.split() == list(variant.setup), ran.stderr[-2000:]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("host", recorded())
def test_a_recorded_host_answers_in_its_variants_image_as_it_does_outside(host: str, model: Path) -> None:
    profile = expect.profile_of(host)
    golden = {file: json.loads((expect.HOSTS / host / file).read_text()) for file in ("facts.json", "findings.json")}
    name = image(profile["variant"])
    facts, check = (run(name, model, verb, "--json", "--root", f"/hosts/{host}") for verb in ("facts", "check"))
    assert json.loads(facts.stdout) == golden["facts.json"], facts.stderr[-2000:]
    assert expect.brief(json.loads(check.stdout), profile) == golden["findings.json"], check.stderr[-2000:]
    plan = run(name, model, "plan", "--json", "--root", f"/hosts/{host}", "--model", MODEL)
    assert "Traceback" not in plan.stderr
    assert json.loads(plan.stdout)["argv"] if plan.code == 0 else "hint: " in plan.stderr


def test_one_command_builds_and_serves_a_stand_in_without_devices_that_is_never_published(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name = f"drydock-test-{os.getpid()}"
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


@pytest.mark.parametrize("variant", cases())
def test_buildkits_own_checks_find_nothing(variant: Variant, tmp_path: Path) -> None:
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


def planned(variant: Variant, model: Path) -> tuple[str, ServePlan]:
    """Return the first recorded host on which this variant can serve the model, and what it would start."""
    profile = expect.profile_in(variant.id)
    facts_of_model = read_model(str(model))._replace(name=MODEL)
    refused = []
    for host in hosts(variant):
        facts = expect.read(host, profile)
        try:
            return host, make_serve_plan(profile, facts, facts_of_model, parse_user_flags(("--model", MODEL), DIGEST))
        except EntrypointError as error:
            refused.append(f"{host}: {error}")
    raise AssertionError(f"{variant.id}: no recorded host can serve with it: {refused}")


def hosts(variant: Variant) -> list[str]:
    """Return the accelerator's recorded hosts, those recorded for just this variant first."""
    names = [name for name in expect.names() if name.partition("-")[0] == variant.accelerator]
    return sorted(names, key=lambda name: (expect.profile_of(name)["variant"] != variant.id, name))


def run(name: str, model: Path, *words: str) -> Ended:
    """Start a container as an operator would."""
    options = {"network_mode": "none", "read_only": True, "tmpfs": ("/tmp",), "cap_drop": ["ALL"]}
    volumes = [(expect.HOSTS, "/hosts"), (model, MODEL)]
    return run_container(name, *words, env={SERVED: "1", **DIGEST}, volumes=volumes, **options)
