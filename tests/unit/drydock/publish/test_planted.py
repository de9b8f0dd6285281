"""Images that somebody else put into the cache: what `publish` refuses to sign."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.attest.documents import documents
from drydock.core.errors import UntrustedError
from drydock.lock import proof
from drydock.oci import layout as oci
from drydock.publish.push import built
from tests.support.filled_registry import StockedRepository
from tests.support.local_registry import PLATFORMS, SITE, Change

PLATFORM = PLATFORMS[0]
OTHER = f"sha256:{'0' * 64}"
ROOT_USER = b"root:x:0:0:root:/root:/bin/bash\nevil::0:0::/:/bin/sh\n"
MODULE = f"{SITE}/tiny_torch.py"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StockedRepository:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    return StockedRepository(tmp_path)


def attested(local: StockedRepository) -> list[str]:
    """Return the names of what `publish` would attach and sign."""
    return [
        item.name
        for layout in built(local.variant, local.root)
        for item in documents(layout.job, layout.folder, layout.manifest, "registry.example/cpu")
    ]


def test_an_image_of_what_the_repository_pins_is_attested(local: StockedRepository) -> None:
    assert attested(local) == ["lock.json", "licences.json", "provenance.json", "sbom.spdx.json"]
    local.record(PLATFORM, oci.read_digest(local.layout(PLATFORM)))
    assert "provenance.json" in attested(local)


@pytest.mark.attack(
    what="the cache holds another image than the one whose digest the lock records",
    before="publish signed it",
    after="publish refuses it and names both digests",
)
def test_another_digest_than_the_lock_records_is_refused(local: StockedRepository) -> None:
    local.record(PLATFORM, OTHER)
    with pytest.raises(UntrustedError, match=f"the kept image is sha256:[0-9a-f]+, expected {OTHER}, which"):
        built(local.variant, local.root)


def test_another_digest_than_the_proof_records_is_refused(local: StockedRepository) -> None:
    shown = proof.Proof(date="2026-11-21", digest=OTHER, inputs_sha256=local.job(PLATFORM).inputs_sha256, shown={})
    proof.write_proof(local.root, local.variant.id, shown)
    with pytest.raises(UntrustedError, match=f"expected {OTHER}, which"):
        built(local.variant, local.root)


def puts(number: int, path: str, content: bytes = b"evil") -> Change:
    def change(layers: list[dict[str, bytes]], _: dict[str, Any]) -> None:
        layers[number][path] = content

    return change


def sets(name: str, value: object) -> Change:
    def change(_: list[dict[str, bytes]], config: dict[str, Any]) -> None:
        config[name] = value

    return change


def preloads(_: list[dict[str, bytes]], config: dict[str, Any]) -> None:
    config["Env"] = [*config["Env"], "LD_PRELOAD=/cache/evil.so"]


def resealed(local: StockedRepository) -> Change:
    """Change a module, and its hash in the RECORD beside it."""
    name, _ = local.wheels["torch"]

    def change(layers: list[dict[str, bytes]], _: dict[str, Any]) -> None:
        record = f"{SITE}/{name.partition('-py3')[0]}.dist-info/RECORD"
        old, new = (
            base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            for content in (layers[1][MODULE], b"evil")
        )
        assert old in layers[1][record]
        layers[1][record] = layers[1][record].replace(old, new)
        layers[1][MODULE] = b"evil"

    return change


PLANTED: dict[str, tuple[Callable[[StockedRepository], Change], str]] = {
    "a cron job": (lambda _: puts(2, "etc/cron.d/evil"), "/etc/cron.d/evil: belongs to no package"),
    "a crontab": (lambda _: puts(2, "var/spool/cron/crontabs/root"), "/var/spool/cron/crontabs/root: belongs to no"),
    "a back door": (lambda _: puts(2, "usr/local/bin/python3"), "/usr/local/bin/python3: belongs to no package"),
    "a key of root": (lambda _: puts(2, "root/.ssh/authorized_keys"), "/root/.ssh/authorized_keys: belongs to no"),
    "a script of drydock": (lambda _: puts(2, "opt/drydock/evil.sh"), "/opt/drydock/evil.sh: belongs to no package"),
    "a program of venv": (lambda _: puts(2, "opt/venv/bin/python3"), "/opt/venv/bin/python3: belongs to no package"),
    "a cron job in the base": (lambda _: puts(0, "etc/cron.d/evil"), "layer 0: is the layer of base sha256:"),
    "a package's file in the base": (lambda _: puts(0, "usr/lib/libc6/data"), "layer 0: is the layer of base sha256:"),
    "a package's file above": (lambda _: puts(2, "usr/lib/libc6/data"), "/usr/lib/libc6/data: belongs to no package"),
    "a removed file": (lambda _: puts(2, "usr/lib/libc6/.wh.data"), r"/usr/lib/libc6/\.wh\.data: belongs to no"),
    "a user": (lambda _: puts(2, "etc/passwd", ROOT_USER), "/etc/passwd: is not the base's file"),
    "a wheel's module": (lambda _: puts(1, MODULE), f"/{MODULE}: does not match its hash in"),
    "a module and RECORD": (resealed, f"/{MODULE}: is not the file of tiny_torch-1.0"),
    "a changed entrypoint": (
        lambda _: puts(2, "opt/drydock/entrypoints/__main__.py"), "__main__.py: is not this repository's file"
    ),
    "a new entrypoint": (lambda _: puts(2, "opt/drydock/entrypoints/evil.py"), "evil.py: is not in this repository"),
    "a variable": (lambda _: preloads, "config: Env: 'LD_PRELOAD=/cache/evil.so' is not in"),
    "a start command": (lambda _: sets("Entrypoint", ["/bin/sh"]), r"config: Entrypoint is \['/bin/sh'\], expected"),
    "a health check": (lambda _: sets("Healthcheck", {"Test": ["CMD", "/bin/sh"]}), "config: Healthcheck is "),
    "a user to run as": (lambda _: sets("User", "0:0"), "config: User is '0:0', expected '10001:0'"),
}  # fmt: skip


@pytest.mark.attack(
    what="a back door in the layers of an image in the cache: cron job, program, user, package file, module, setting",
    before="files below etc, root, usr/local and var counted as generated, and file contents were not compared",
    after="publish names each file that lock and repository do not account for, and signs nothing",
)
@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_into_an_image_is_named(name: str, local: StockedRepository) -> None:
    planted, said = PLANTED[name]
    local.write_build(PLATFORM, planted(local))
    with pytest.raises(UntrustedError, match=said):
        attested(local)
