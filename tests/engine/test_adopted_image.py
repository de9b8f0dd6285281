"""An image as another team builds and publishes it, adopted from a real registry: bench's plain image, with vLLM."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from docker.models.containers import Container

from bench import plain_image, ship_rows
from drydock.adopt.adopted_image import AdoptedImage
from drydock.core.files import parse_any_json
from drydock.core.project import Project
from drydock.engine.connection import connect_engine
from drydock.engine.run_container import run_to_end
from drydock.lock import vllm_lists
from drydock.prove import demo, smollm2
from drydock.verbs import adopt_verb
from drydock.verbs.adopt_verb import AdoptOptions
from entrypoints.core.errors import REFUSED
from entrypoints.request.vllm_lists import VllmLists
from tests.engine.test_cpu_guard import KEY, LISTED, ask
from tests.engine.test_packages import cached, forget
from tests.registry.test_adopt import make_project
from tests.registry.test_projects import verb
from tests.support import imported_lists
from tests.support.servers import Registry
from tests.support.started_containers import Ended, run_container

pytestmark = pytest.mark.packages

ROW, PYTHON = "vllm-cpu-v0.32.0", "/opt/venv/bin/python3"
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
OTHER_MACHINE = {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "12345", **NO_ENGINE}
MODEL = ("--model", "/models/smollm2", "--served-model-name", "smollm2")


class Adopted(NamedTuple):
    """What two machines made of one image of others."""

    results: tuple[AdoptedImage, AdoptedImage]
    projects: tuple[Project, Project]
    caches: tuple[Path, Path]
    base_bytes: int
    """Bytes of the registry before, which has the base alone."""
    added_bytes: tuple[int, int]
    """Bytes by which the registry grew at each adoption."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """Build the image of another team and push it into an empty registry, which is removed at the end."""
    server = Registry(tmp_path_factory.mktemp("registry"))
    server.start()
    before = cached()
    try:
        image = plain_image.build_plain_image(plain_image.fetch_plain_contexts())
        ship_rows.push_plain(image, server.host)  # which removes the image's last name, and so the image
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.folder)
        plain_image.remove_plain_images()
        forget(cached() - before)


@pytest.fixture(scope="module")
def adopted(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Adopted:
    """Adopt it on one machine whose drydock never read this release, then on another; neither has an engine."""
    base, folder = f"{registry.host}/plain:latest", tmp_path_factory.mktemp("machines")
    options = AdoptOptions(image=base, to=f"{registry.host}/acme/vllm", row=ROW, accelerator="cpu", read_layers=True)
    projects = make_project(folder / "acme"), make_project(folder / "another name")
    caches = folder / "cache", folder / "other cache"
    sizes = [ship_rows.count_stored_bytes(registry.folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRYDOCK_CACHE", str(caches[0]))
        patch.setenv("DOCKER_HOST", NO_ENGINE["DOCKER_HOST"])
        patch.setattr(vllm_lists, "find_version", lambda *_: None)
        first = adopt_verb.adopt_base(projects[0], options)
    sizes.append(ship_rows.count_stored_bytes(registry.folder))
    words = ("--to", f"{registry.host}/other/vllm", "--row", ROW, "--accelerator", "cpu", "--read-layers", "--json")
    printed = verb(projects[1].root, "adopt", base, *words, DRYDOCK_CACHE=str(caches[1]), **OTHER_MACHINE)
    sizes.append(ship_rows.count_stored_bytes(registry.folder))
    second = AdoptedImage.model_validate(parse_any_json(printed))
    return Adopted((first, second), projects, caches, sizes[0], (sizes[1] - sizes[0], sizes[2] - sizes[1]))


@pytest.fixture(scope="module")
def image(adopted: Adopted) -> Iterator[str]:
    """Pull the adopted image as its digest; remove it at the end."""
    client = connect_engine()
    name = adopted.results[0].image
    client.images.pull(name)
    yield name
    client.images.remove(str(client.images.get(name).id), force=True)


@pytest.fixture(scope="module")
def model(image: str) -> Path:
    return smollm2.make_small_model(image)


@pytest.fixture(scope="module")
def server(image: str, model: Path) -> Iterator[Container]:
    # It has a compiler, so its vLLM would compile the model first, for minutes on two cores.
    with demo.run_model_server(image, model, "--enforce-eager", environment={"VLLM_API_KEY": KEY}) as container:
        demo.wait_until_ready(container)
        yield container


@pytest.fixture(scope="module")
def lists(image: str) -> dict[str, Any]:
    """Return what the image says of its vLLM."""
    content: dict[str, Any] = json.loads(run_to_end(image, ("cat", "/opt/drydock/vllm.json")))
    return content


@pytest.fixture(scope="module")
def imported(image: str) -> dict[str, Any]:
    """Return what its vLLM says after it was imported."""
    program, caches = Path(imported_lists.__file__).read_text(), {"NUMBA_CACHE_DIR": "/tmp", "HOME": "/tmp"}
    output = run_to_end(image, (PYTHON, "-c", program), environment=caches)
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def run(image: str, model: Path, *words: str) -> Ended:
    """Run a verb in the image, without network."""
    return run_container(image, *words, seconds=600, volumes=[(str(model), "/models/smollm2")], network_mode="none")


# --- what is written ------------------------------------------------------------------------------------------------


def test_two_machines_make_one_digest_and_no_blob_of_the_base_is_sent_or_stored(adopted: Adopted) -> None:
    first, second = adopted.results
    added = sum(first.layers.values())
    assert (first.digest, first.layers) == (second.digest, second.layers)
    assert adopted.base_bytes > 1 << 30
    assert added < adopted.added_bytes[0] < added + 500_000, "its two layers, its configuration and its documents"
    assert adopted.added_bytes[1] < 500_000, "documents, which name the repository"
    assert [result.blobs["mounted"] for result in adopted.results] == [4, 4]
    assert max(result.bytes_sent for result in adopted.results) < 2 * added
    for cache in adopted.caches:
        assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) < 10_000_000


def test_both_projects_have_the_same_row(adopted: Adopted) -> None:
    for name in (f"images/{ROW}/vllm.json", f"images/{ROW}/Dockerfile"):
        first, second = ((project.root / name).read_bytes() for project in adopted.projects)
        assert first == second


# --- what it knows of its vLLM --------------------------------------------------------------------------------------


def test_its_lists_are_what_its_imported_vllm_says(lists: dict[str, Any], imported: dict[str, Any]) -> None:
    assert lists["assumed"] == ""
    assert len(imported["lists"]) == 12
    for name, entries in imported["lists"].items():
        assert lists[name] == entries, name
    assert {*imported["options"]} == VllmLists(lists).option_strings()


# --- what it does ---------------------------------------------------------------------------------------------------


def test_check_and_plan_work_in_it_and_what_its_vllm_lacks_is_refused(image: str, model: Path) -> None:
    checked = run(image, model, "check", "--json")
    assert checked.code == 0, checked.stderr
    planned = run(image, model, "plan", *MODEL, "--json")
    assert planned.code == 0, planned.stderr
    assert json.loads(planned.stdout)["argv"][0] == PYTHON
    refused = run(image, model, "plan", *MODEL, "--tool-call-parser", "no-such-parser", "--enable-auto-tool-choice")
    assert refused.code == REFUSED, refused.stderr


def test_it_serves_after_a_known_answer_and_its_guard_is_closed(server: Container) -> None:
    assert "prefill and decode agree" in demo.known_answers(server)[0]
    code, output = server.exec_run([PYTHON, "-I", "-S", "/opt/drydock/entrypoints", "health"])
    assert code == 0, output
    for path in ("/v1/models", "/tokenize", "/invocations", *LISTED["admin"]):
        assert ask(server, "POST", path) == ask(server, "POST", path, "wrong") == 401, path
    assert {ask(server, "POST", path, KEY) for path in LISTED["admin"]} == {404}
    assert ask(server, "GET", "/health") == ask(server, "GET", "/v1/models", KEY) == 200
