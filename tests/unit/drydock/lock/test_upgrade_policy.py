"""What a new lock takes over from the committed one."""

from __future__ import annotations

from drydock.lock.upgrade_policy import Kept, Upgrade
from drydock.model.locked import LockedImageBase, LockedPlatform, LockedSource, LockedWheel
from drydock.model.variant import SourceCode

URL = "https://example.org/a-1.tar.bz2"
BASE = LockedImageBase(kind="image", reference="example.org/a:1", digest=None, verified=False, source="a test")


def wheel(name: str, version: str) -> LockedWheel:
    return LockedWheel(
        name=name, version=version, filename=f"{name}-{version}-py3-none-any.whl", size=1, sha256="0" * 64
    )


def kept(*sources: LockedSource) -> Kept:
    layers = {"rest": (wheel("setuptools", "84"), wheel("numpy", "1"))}
    pins = LockedPlatform(base=BASE, layers=layers, tools=(), build=(wheel("setuptools", "79"),), sources=sources)
    return Kept(pins=pins)


def test_the_image_and_what_compiles_it_each_keep_their_version() -> None:
    assert dict(kept().list_preferred()) == {"setuptools": "84", "numpy": "1"}
    assert dict(kept().list_preferred(building=True)) == {"setuptools": "79", "numpy": "1"}


def test_a_release_archive_stays_while_its_address_and_hash_do() -> None:
    pin = LockedSource(name="a", url=URL, sha256="1" * 64, verified=True, source="a test")
    source_code = SourceCode(name="a", url=URL, sha256="1" * 64, source="a page")

    assert kept(pin).kept_source(source_code) == pin
    assert kept(pin).kept_source(source_code.model_copy(update={"sha256": "2" * 64})) is None
    assert kept(pin).kept_source(source_code.model_copy(update={"url": URL.replace("1", "2")})) is None


def test_what_is_to_be_upgraded_is_not_preferred() -> None:
    upgraded = kept()._replace(upgrade=Upgrade(names=frozenset({"numpy"})))
    assert "numpy" not in dict(upgraded.list_preferred())
