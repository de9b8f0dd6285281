"""Images that somebody else put into the cache: what `publish` refuses to sign."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.attest.documents import documents
from drydock.core.errors import RegistryError, UntrustedError
from drydock.lock import proof
from drydock.oci import layout as oci
from drydock.publish.push import built
from tests.support import layouts
from tests.support.filled_registry import StockedRepository
from tests.support.local_registry import PLATFORMS, SITE, Change, Link

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
    "a RECORD without a distribution": (lambda _: owns(SITE, "evil-1"), f"/{SITE}/evil.pth: belongs to no package"),
    "a second RECORD of a pinned distribution": (
        lambda _: owns("opt/venv/lib", "tiny_torch-1.0", Name="tiny-torch", Version="1.0"), "is not where tiny-torch is"
    ),
    "a file through a link": (lambda _: through_a_link, f"/{SITE}/evil.pth: belongs to no package"),
    "another Python": (lambda _: puts(2, "opt/venv/bin/python3", Link(b"/cache/evil")), "is not the base's Python"),
    "another library": (lambda _: puts(2, "opt/venv/lib64", Link(b"/cache/evil")), "is not the base's Python"),
    "another Python's home": (lambda _: puts(2, "opt/venv/pyvenv.cfg", b"home = /cache\n"), "home is '/cache', where"),
    "variables of a vendor's script": (
        lambda _: puts(2, "opt/drydock/environment.json", b'{"LD_PRELOAD": "/cache/evil.so"}'), "is written by no step"
    ),
    "a script of a vendor": (lambda _: puts(2, "opt/drydock/conversions/x/evil.py"), "is written by no step"),
    "a step of images built on it": (lambda _: sets("OnBuild", ["RUN evil"]), r"OnBuild is \['RUN evil'\], expected"),
    "a working folder": (lambda _: sets("WorkingDir", "/cache"), "WorkingDir is '/cache', expected '/'"),
    "a shell": (lambda _: sets("Shell", ["/cache/sh"]), "Shell is "),
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


def renamed(local: StockedRepository, kind: str, change: Callable[[bytes], bytes]) -> None:
    """Change the bytes of an image's manifest or config, and name it by its new digest."""
    folder = local.layout(PLATFORM)
    index = json.loads((folder / "index.json").read_text())
    manifest = oci.blob(folder, index["manifests"][0]["digest"]).read_bytes()
    if kind == "config":
        old = json.loads(manifest)["config"]
        new = layouts.put(folder, change(oci.blob(folder, old["digest"]).read_bytes()))
        manifest = json.dumps({**json.loads(manifest), "config": {**old, **new}}).encode()
    else:
        manifest = change(manifest)
    index["manifests"][0] |= layouts.put(folder, manifest)
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.attack(
    what="the config or the manifest of an image in the cache has a name twice, or in another case, as Go reads it",
    before="publish signed it after a look at the one, and Docker starts the other",
    after="refused before anything of it is read",
)
@pytest.mark.parametrize(
    ("kind", "added"),
    [
        ("config", b', "Config": {"Entrypoint": ["/bin/sh"]}}'),
        ("config", b', "config": {"Entrypoint": ["/bin/sh"]}}'),
        ("config", b', "RootFS": {"diff_ids": []}}'),
        ("manifest", b', "Layers": []}'),
        ("manifest", b', "layers": []}'),
    ],
)
def test_what_docker_reads_in_another_way_is_refused(kind: str, added: bytes, local: StockedRepository) -> None:
    renamed(local, kind, lambda data: data.rstrip()[:-1] + added)
    with pytest.raises(RegistryError, match=r"occurs twice|some clients ignore case"):
        attested(local)


@pytest.mark.attack(
    what="the config of an image in the cache names other layers than those that were checked",
    before="publish did not compare them",
    after="refused",
)
def test_layers_are_those_of_the_config(local: StockedRepository) -> None:
    renamed(local, "config", lambda data: re.sub(rb'"diff_ids": \["sha256:.', b'"diff_ids": ["sha256:f', data))
    with pytest.raises(UntrustedError, match="diff_ids are not those of the layers"):
        attested(local)
