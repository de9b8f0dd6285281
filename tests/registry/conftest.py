"""A real registry for all tests that need one, and small images to publish."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_registry import LocalRepository
from tests.support.servers import Registry
from tests.support.signed_image import AMD64, Signed
from tests.support.sigstore import key_pair


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that takes everything from anybody."""
    with Registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that wants to know who asks."""
    with Registry(tmp_path_factory.mktemp("guarded"), users=True) as server:
        yield server


@pytest.fixture(scope="session")
def other_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A second one, which cannot mount what the first one has."""
    with Registry(tmp_path_factory.mktemp("other")) as server:
        yield server


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRepository:
    """A repository with built images for two platforms, in a cache of its own."""
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    return LocalRepository(tmp_path)


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key pair of cosign's, which is installed where it is missing."""
    return key_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Iterator[Signed]:
    """Published and signed, in a registry of its own; beside it a copy of everything as it was then."""
    folder = tmp_path_factory.mktemp("published")
    registry = Registry(folder / "now" / "registry")
    registry.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRYDOCK_CACHE", str(folder / "now" / "cache"))
        local = LocalRepository(folder / "now", platforms=(AMD64,), salt="signed")
        signed_image = Signed(registry, local, key, "published")
    for name in CHANGED:
        shutil.copytree(folder / "now" / name, folder / "then" / name)
    yield signed_image
    registry.stop()


CHANGED = ("registry/data", "repository/images", "cache")
"""What tests change, and what is put back before the next one."""


@pytest.fixture
def signed(once: Signed, monkeypatch: pytest.MonkeyPatch) -> Signed:
    now = once.registry.folder.parent
    for name in CHANGED:
        shutil.rmtree(now / name)
        shutil.copytree(now.parent / "then" / name, now / name)
    monkeypatch.setenv("DRYDOCK_CACHE", str(once.local.cache))
    monkeypatch.setattr(once, "public", once.public)
    return once
