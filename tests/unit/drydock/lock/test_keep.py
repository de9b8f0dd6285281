from __future__ import annotations

import pytest

from drydock.lock.keep import Kept, Upgrade
from drydock.model.locked import LockedPlatform, LockedWheel


def wheel(name: str, version: str) -> LockedWheel:
    filename = f"{name}-{version}-py3-none-any.whl"
    return LockedWheel(name=name, version=version, filename=filename, sha256="0" * 64, size=1)


PINS = LockedPlatform.model_construct(
    layers={"dependencies": (wheel("setuptools", "84.2.1"), wheel("six", "1.17.0"))},
    build=(wheel("setuptools", "79.0.1"), wheel("cmake", "4.0.0")),
)


@pytest.mark.parametrize(("build", "version"), [(False, "84.2.1"), (True, "79.0.1")])
def test_image_and_compiler_each_keep_their_own_version_of_a_distribution(build: bool, version: str) -> None:
    preferred = dict(Kept(PINS).preferred(build=build))

    assert preferred == {"setuptools": version, "six": "1.17.0", "cmake": "4.0.0"}


def test_what_is_to_be_upgraded_is_not_preferred() -> None:
    assert "six" not in dict(Kept(PINS, upgrade=Upgrade(names=frozenset({"six"}))).preferred())
