"""A real registry for all tests that need one, and small images to publish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.keys import key_pair
from tests.support.local_registry import LocalRepository
from tests.support.servers import Registry


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything below this folder needs more than a Python: the real registry."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that takes everything from anybody."""
    found = Registry(tmp_path_factory.mktemp("registry"))
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that wants to know who asks."""
    found = Registry(tmp_path_factory.mktemp("guarded"), users=True)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRepository:
    """A repository with built images for two platforms, in a cache of its own."""
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    return LocalRepository(tmp_path)


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key pair of cosign's, which is installed where it is missing."""
    return key_pair(tmp_path_factory.mktemp("keys"))
