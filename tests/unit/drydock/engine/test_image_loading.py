"""What counts as loaded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import docker as docker_sdk
import pytest

from drydock.core.errors import EngineError
from drydock.engine import image_loading
from drydock.oci import image_layout
from tests.support import layouts
from tests.support.loopback import Loopback


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    return layouts.write(tmp_path, b"a layer", suffix="")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """An engine that takes everything and has no image before."""
    sent_layouts: list[Path] = []
    monkeypatch.setattr(image_loading, "list_held_blobs", lambda _: frozenset())
    monkeypatch.setattr(image_loading, "send_layout", lambda layout, *_: sent_layouts.append(layout))
    return sent_layouts


def test_a_damaged_layout_is_not_sent(layout: Path, sent: list[Path]) -> None:
    image_layout.path_of_blob(layout, image_layout.read_manifest(layout)["layers"][0]["digest"]).write_bytes(b"another")
    with pytest.raises(EngineError, match=r"damaged: .*; nothing was loaded"):
        image_loading.load_layout(layout, "drydock/cpu:1")
    assert sent == []


def test_an_image_that_the_engine_has_in_part_is_not_loaded(
    layout: Path, sent: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_loading, "is_whole", lambda *_: False)
    with pytest.raises(EngineError, match=f"accepted {image_layout.read_digest(layout)}, but lacks parts of it"):
        image_loading.load_layout(layout, "drydock/cpu:1")
    assert sent == [layout]
    monkeypatch.setattr(image_loading, "is_whole", lambda digest, _: digest == image_layout.read_digest(layout))
    image_loading.load_layout(layout, "drydock/cpu:1")


def test_another_layout_that_is_damaged_tells_nothing_about_the_engine(
    layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = layouts.write(tmp_path / "damaged", b"another", suffix="")
    monkeypatch.setattr(
        image_loading, "_all_complete_manifests", lambda: frozenset(map(image_layout.read_digest, (layout, damaged)))
    )
    held_layers = image_loading.list_held_blobs([layout])
    image_layout.path_of_blob(damaged, image_layout.read_digest(damaged)).write_bytes(b"[]")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "index.json").write_text("{")
    assert image_loading.list_held_blobs([layout, damaged, tmp_path / "empty"]) == held_layers != frozenset()


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker that reads an archive and then writes a file, whose path is returned."""
    (tmp_path / "bin").mkdir()
    fake, load_marker = tmp_path / "bin" / "docker", tmp_path / "loaded"
    fake.write_text(f"#!/bin/sh\ncat > /dev/null && touch {load_marker}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    return load_marker


class Counted:
    """A step that counts, and is interrupted at the first byte if asked."""

    def __init__(self, *, interrupted: bool = False) -> None:
        self.total: int | None = None
        self.bytes = 0
        self._interrupted = interrupted

    @contextlib.contextmanager
    def __call__(self, _name: str, total: int | None = None) -> Iterator[Counted]:
        self.total = total
        yield self

    def note(self, text: str) -> None:
        """Show nothing."""

    def advance(self, count: int) -> None:
        self.bytes += count
        if self._interrupted:
            raise KeyboardInterrupt


def test_a_load_counts_the_bytes_that_it_sends(layout: Path, docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_loading, "show_step", counted := Counted())
    blobs = sum(item["size"] for item in image_layout.read_descriptors(layout))
    image_loading.send_layout(layout, "drydock/cpu:1", ())

    assert docker.exists()
    assert counted.total == blobs <= counted.bytes


def test_an_interrupted_load_leaves_no_process(layout: Path, docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def popen(*arguments: Any, **keywords: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **keywords))
        return started[-1]

    monkeypatch.setattr(image_loading, "show_step", Counted(interrupted=True))
    monkeypatch.setattr(image_loading.subprocess, "Popen", popen)
    with pytest.raises(KeyboardInterrupt):
        image_loading.send_layout(layout, "drydock/cpu:1", ())

    assert started[0].returncode == -signal.SIGKILL
    assert not docker.exists()


def test_one_question_tells_an_images_names_and_that_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    image, latest, digest = "drydock/cpu:1", "drydock/cpu:latest", f"sha256:{'1' * 64}"
    filters = json.dumps({"reference": [image, latest]})
    question = f"/v1.47/images/json?{urlencode({'manifests': 'true', 'filters': filters})}"
    whole, partial = ([{"ID": digest, "Available": available}] for available in (True, False))
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    with Loopback() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url.replace("http:", "tcp:"))
        for manifests, names in ((whole, {image, latest}), (partial, set())):
            answer = [{"Id": digest, "RepoTags": [image, latest], "Manifests": manifests}]
            engine.files[question] = json.dumps(answer).encode()
            assert image_loading.list_names_if_running(image, digest) == names
        assert [path for path, *_ in engine.requests] == [question, question]
    assert image_loading.list_names_if_running(image, digest) == set()


def test_an_image_that_an_engine_takes_too_long_to_remove_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as engine:  # it accepts a question and answers none
        address = f"tcp://127.0.0.1:{engine.getsockname()[1]}"
        client = docker_sdk.DockerClient(address, version=image_loading.API, timeout=1)
        monkeypatch.setattr(image_loading, "connect_engine", lambda **_: client)
        assert image_loading.remove_image_name("drydock/cpu:1") is False
    assert "drydock/cpu:1: not removed: the engine did not answer within 10 minutes" in capsys.readouterr().err
