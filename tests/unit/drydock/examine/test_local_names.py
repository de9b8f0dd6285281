"""References to images of this machine's engine, which no registry is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.engine import image_loading
from drydock.examine import image, image_diff, remote_image
from tests.support.called_verbs import call_verb


def engine_with(labels: dict[str, str] | None) -> Any:
    """Return what connects to an engine with one image of these labels, or with none."""

    def get(name: str) -> SimpleNamespace:
        if labels is None:
            raise docker.errors.ImageNotFound(name)
        return SimpleNamespace(labels=labels)

    return lambda: SimpleNamespace(images=SimpleNamespace(get=get))


@pytest.mark.parametrize(
    "name",
    ["drydock/cpu-vllm0.32", "drydock/cpu-vllm0.32:latest", "drydock-stand-in/gaudi2:1", "ce9000ee8a89",
     f"sha256:{'a' * 64}"],
)  # fmt: skip
def test_a_local_image_is_said_to_be_local_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(remote_image, "Repository", lambda *_, **__: pytest.fail("asked a registry"))

    with pytest.raises(InputError, match="an image of this machine's engine") as error:
        image.inspect_image(DRYDOCK, name)
    assert f"`docker image inspect {name}`" in error.value.hint
    with pytest.raises(InputError, match="an image of this machine's engine"):
        image_diff.diff_images(name, name)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("mine:dev", {image_loading.LABEL: "cpu-vllm0.32"}, True),
        ("debian:12", {}, False),
        ("mine:dev", None, False),
        ("acme/cpu:dev", {image_loading.LABEL: "cpu-vllm0.32"}, False),
        ("docker.io/drydock/cpu", {image_loading.LABEL: "cpu-vllm0.32"}, False),
        ("127.0.0.1:5000/cpu", {image_loading.LABEL: "cpu-vllm0.32"}, False),
    ],
)
def test_a_name_without_a_slash_is_local_if_the_engine_has_it_from_drydock(
    monkeypatch: pytest.MonkeyPatch, name: str, labels: dict[str, str] | None, expected: bool
) -> None:
    monkeypatch.setattr(remote_image, "connect_engine", engine_with(labels))

    assert remote_image.is_local_name(name) is expected


@pytest.mark.parametrize("name", ["cpu-vllm0.32", "cpu", "cpu-x86", "cpu-vllm0.32:latest"])
@pytest.mark.parametrize(
    ("labels", "state", "advice"),
    [
        (None, "it has no image on this machine", "`./inv build --target cpu"),
        (
            {image_loading.LABEL: "cpu-vllm0.32"},
            "drydock/cpu-vllm0.32 is in this machine's engine",
            "docker image inspect",
        ),
    ],
)
def test_a_rows_name_is_no_image_of_docker_hub(
    monkeypatch: pytest.MonkeyPatch, name: str, labels: dict[str, str] | None, state: str, advice: str
) -> None:
    monkeypatch.setattr(remote_image, "Repository", lambda *_, **__: pytest.fail("asked a registry"))
    monkeypatch.setattr(remote_image, "connect_engine", engine_with(labels))

    for verb, options in (
        ("image inspect", {"reference": name}),
        ("image diff", {"old": "r.example/acme/cpu:1", "new": name}),
        ("image verify", {"reference": name, "unsigned": True}),
        ("image audit", {"reference": name, "unsigned": True}),
    ):
        with pytest.raises(InputError, match=r"the row cpu-vllm0\.32 of the matrix") as error:
            call_verb(verb, **options)
        assert state in str(error.value)
        assert advice in error.value.hint


def test_a_name_that_no_row_has_is_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_image, "connect_engine", engine_with(None))
    for name in ("debian:12", "r.example/cpu", "docker.io/library/cpu"):
        remote_image.refuse_row_name(DRYDOCK, name)
