"""Images that somebody else put into the cache: what `publish` refuses to sign."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.attest.documents import make_documents
from drydock.core.errors import UntrustedError
from drydock.core.project import Project
from drydock.lock import image_record
from drydock.oci import image_layout
from drydock.publish.push import list_built_layouts
from tests.support.filled_registry import StockedRepository
from tests.support.local_registry import PLATFORMS, SITE, VARIANT, Change, Link, publish

PLATFORM = PLATFORMS[0]
OTHER = f"sha256:{'0' * 64}"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StockedRepository:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    return StockedRepository(tmp_path)


def attested(local: StockedRepository) -> list[str]:
    """Return the names of what `publish` would attach and sign."""
    return [
        item.name
        for layout in list_built_layouts(Project(local.root), local.variant)
        for item in make_documents(layout.job, layout.folder, layout.manifest, "registry.example/cpu")
    ]


def test_an_image_of_what_the_repository_pins_is_attested(local: StockedRepository) -> None:
    assert attested(local) == ["lock.json", "licences.json", "provenance.json", "sbom.spdx.json"]


def test_without_a_recorded_digest_nothing_is_published(local: StockedRepository) -> None:
    local.forget(PLATFORM)
    digest = image_layout.read_digest(local.layout(PLATFORM))
    with pytest.raises(UntrustedError, match=f"records no digest for these inputs, expected {digest}") as error:
        publish(local.root, "registry.example")
    assert f"./inv verify --target {VARIANT} --record" in error.value.hint


def test_another_digest_than_the_verified_one_is_refused(local: StockedRepository) -> None:
    local.record(PLATFORM, OTHER)
    with pytest.raises(UntrustedError, match=f"the kept image is sha256:[0-9a-f]+, expected {OTHER}, which"):
        list_built_layouts(Project(local.root), local.variant)


def test_another_digest_than_the_tested_one_is_refused(local: StockedRepository) -> None:
    local.forget(PLATFORM)
    project, inputs = Project(local.root), local.job(PLATFORM).inputs_sha256
    evidence = image_record.make_evidence(project, OTHER, inputs, ["a test"])
    record = image_record.PlatformRecord(image={"hardware": evidence})
    image_record.write_platform_record(project, local.variant.id, PLATFORM, record)
    with pytest.raises(UntrustedError, match=f"expected {OTHER}, which"):
        list_built_layouts(Project(local.root), local.variant)


def puts(number: int, path: str, content: bytes = b"evil") -> Change:
    def change(layers: list[dict[str, bytes]], _: dict[str, Any]) -> None:
        layers[number][path] = content

    return change


def owns(folder: str, name: str, **fields: str) -> Change:
    """Add a start-up file of Python, and a RECORD that names it as part of a distribution."""

    def change(layers: list[dict[str, bytes]], _: dict[str, Any]) -> None:
        text = b"import evil"
        digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
        layers[2][f"{folder}/evil.pth"] = text
        metadata = "".join(f"{key}: {value}\n" for key, value in fields.items())
        if metadata:
            layers[2][f"{folder}/{name}.dist-info/METADATA"] = metadata.encode()
        layers[2][f"{folder}/{name}.dist-info/RECORD"] = (
            f"evil.pth,sha256={digest},11\n{name}.dist-info/METADATA,sha256="
            f"{base64.urlsafe_b64encode(hashlib.sha256(metadata.encode()).digest()).rstrip(b'=').decode()},\n"
            f"{name}.dist-info/RECORD,,\n"
        ).encode()

    return change


def through_a_link(layers: list[dict[str, bytes]], _: dict[str, Any]) -> None:
    """Write a file through a link in one layer, and remove the link in the next."""
    layers.append({"opt/venv/way": Link(b"lib/python3.11/site-packages")})
    layers.append({"opt/venv/way/evil.pth": b"import evil"})
    layers.append({"opt/venv/.wh.way": b""})


PLANTED: dict[str, tuple[Callable[[StockedRepository], Change], str]] = {
    "a cron job": (lambda _: puts(2, "etc/cron.d/evil"), "/etc/cron.d/evil: belongs to no package"),
    "a crontab": (lambda _: puts(2, "var/spool/cron/crontabs/root"), "/var/spool/cron/crontabs/root: belongs to no"),
    "a back door": (lambda _: puts(2, "usr/local/bin/python3"), "/usr/local/bin/python3: belongs to no package"),
    "a key of root": (lambda _: puts(2, "root/.ssh/authorized_keys"), "/root/.ssh/authorized_keys: belongs to no"),
    "a script of drydock": (lambda _: puts(2, "opt/drydock/evil.sh"), "/opt/drydock/evil.sh: belongs to no package"),
    "a program of venv": (lambda _: puts(2, "opt/venv/bin/python3"), "/opt/venv/bin/python3: belongs to no package"),
    "a package's file above": (lambda _: puts(2, "usr/lib/libc6/data"), "/usr/lib/libc6/data: belongs to no package"),
    "a removed file": (lambda _: puts(2, "usr/lib/libc6/.wh.data"), r"/usr/lib/libc6/\.wh\.data: belongs to no"),
    "a RECORD without a distribution": (lambda _: owns(SITE, "evil-1"), f"/{SITE}/evil.pth: belongs to no package"),
    "a second RECORD of a pinned distribution": (
        lambda _: owns("opt/venv/lib", "tiny_torch-1.0", Name="tiny-torch", Version="1.0"), "is not where tiny-torch is"
    ),
    "a file through a link": (lambda _: through_a_link, f"/{SITE}/evil.pth: belongs to no package"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_into_an_image_is_named(name: str, local: StockedRepository) -> None:
    planted, message = PLANTED[name]
    local.record(PLATFORM, image_layout.read_digest(local.write_build(PLATFORM, planted(local))))
    with pytest.raises(UntrustedError, match=message):
        attested(local)
