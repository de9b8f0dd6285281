"""The list of images: what each is to this checkout, and what may be removed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from drydock.build import checkouts, engine_images
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import EngineError
from drydock.engine import image_loading
from drydock.lock import image_record

CPU = "drydock/cpu-vllm0.32"
STAND_IN = "drydock-stand-in/rocm7.2-vllm0.27"
OTHER = f"sha256:{'b' * 64}"
NOW = dt.datetime(2026, 11, 25, 12, tzinfo=dt.UTC)


def committed() -> str:
    image = image_record.read_platform_record(DRYDOCK, "cpu-vllm0.32", "linux/amd64").verified
    assert image
    return image.digest


def attrs(digest: str, *tags: str, loaded: str = "2026-11-25T09:00:00.123456789Z") -> Any:
    return {"Id": digest, "RepoTags": tags, "Size": 2e9, "Metadata": {"LastTagTime": loaded}}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An engine with images of ours and others; what is removed from it."""
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    checkouts.keep_build(tmp_path, CPU, "linux/amd64", {"image": f"{CPU}:aa"})
    images = [
        attrs(committed(), f"{CPU}:aa", f"{CPU}:latest", "someone/else:1"),
        attrs(OTHER, f"{CPU}:bb", loaded="2026-11-22T09:00:00Z"),
        attrs(f"sha256:{'c' * 64}", f"{STAND_IN}:cc", loaded="2026-11-25T11:55:00Z"),
        attrs(f"sha256:{'d' * 64}", "drydock-test/other:1", "library/debian:12"),
        attrs(f"sha256:{'e' * 64}"),
    ]
    running = [{"Names": ["/server"], "ImageID": OTHER}]
    inspected = {image["Id"]: image for image in images}

    def get_image(digest: str) -> Any:
        if digest not in inspected:
            raise docker.errors.ImageNotFound("another process removed it")
        return SimpleNamespace(attrs=inspected[digest])

    client = SimpleNamespace(
        api=SimpleNamespace(
            images=lambda *_, **_options: [*inspected, f"sha256:{'f' * 64}"],
            containers=lambda **_: running,
        ),
        images=SimpleNamespace(get=get_image),
    )
    monkeypatch.setattr(docker, "from_env", lambda **_: client)
    removed: list[str] = []
    monkeypatch.setattr(image_loading, "remove_image_name", lambda name: bool(removed.append(name)))
    return removed


@pytest.mark.usefixtures("engine")
def test_each_image_is_listed_with_its_state_and_who_keeps_or_uses_it(tmp_path: Path) -> None:
    releases = image_record.read_releases(DRYDOCK).get(committed())
    state = f"committed, {image_record.name_releases(releases)}" if releases else "committed"
    assert engine_images.format_images(engine_images.list_engine_images(DRYDOCK), NOW).splitlines() == [
        f"{CPU}:aa, latest  {state}, 2.0 GB, 2 h ago",
        f"  kept by {tmp_path}",
        f"{CPU}:bb  not committed, 2.0 GB, 3 days ago",
        "  kept by no checkout",
        "  used by server",
        f"{STAND_IN}:cc  stand-in, 2.0 GB, 5 min ago",
        "  kept by no checkout",
    ]
    assert engine_images.format_images([], NOW) == "no image of drydock's\n"


def test_only_what_no_checkout_keeps_and_no_container_uses_is_removed_and_only_after_a_yes(
    engine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    listed_images = engine_images.list_engine_images(DRYDOCK)
    assert [image.tags for image in engine_images.prune_images(listed_images, yes=False)] == [(f"{STAND_IN}:cc",)]
    assert "nothing was removed; --yes removes these 1" in capsys.readouterr().err
    assert engine == []
    engine_images.prune_images(listed_images, yes=True)
    assert engine == [f"{STAND_IN}:cc"]


def test_an_engine_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise docker.errors.DockerException("no socket")

    monkeypatch.setattr(docker, "from_env", refuse)
    with pytest.raises(EngineError, match="cannot connect to the Docker engine: no socket"):
        engine_images.list_engine_images(DRYDOCK)
