"""A model in a real registry: one digest, nothing sent twice, signed with its bill, and no byte that was changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.attest import cosign, documents
from drydock.config.server_access import Access
from drydock.core import http
from drydock.core.errors import CredentialsError, InputError, RegistryError, TagError
from drydock.inputs import model_images
from drydock.oci.reference import parse_reference
from drydock.publish import model_push
from drydock.publish.repository import Repository
from drydock.verbs.model_push_verb import ModelPushOptions, push_folder
from tests.support.model_folder import FILES, write
from tests.support.servers import FaultyProxy, Registry


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))


def push(folder: Path, name: str, key: Path | None = None) -> model_push.PushedModel:
    return push_folder(ModelPushOptions(folder=str(folder), name=name, sign_key=str(key or "")))


def test_a_model_is_pushed_once_and_signed_with_its_bill(registry: Registry, tmp_path: Path, key: Path) -> None:
    first = push(write(tmp_path / "m"), f"{registry.host}/own/tiny:v1", key)
    second = push(write(tmp_path / "other"), f"oci://{registry.host}/own/tiny", key)

    assert (first.model, first.licence, first.origin, first.layers) == (second.model, "Apache-2.0", "unknown", 3)
    assert first.bytes_sent > sum(map(len, FILES.values()))
    assert second.bytes_sent == 0
    where = parse_reference(first.model.removeprefix("oci://"))
    trust = cosign.Trust(str(key.with_suffix(".pub")))
    cosign.check_digest_signature(where, trust)
    (bill,) = Repository(where.at(""), Access()).documents(first.digest, {documents.MODEL_BOM})
    cosign.check_digest_signature(where.at(bill.manifest), trust)
    assert {component["name"] for component in bill.json()["components"]} == FILES.keys()
    model = model_images.describe_model_image(first.model)
    assert (model / "config.json").read_bytes() == FILES["config.json"]
    with pytest.raises(InputError, match="found a digest"):
        push(tmp_path / "m", first.model)


def test_an_unsteady_network_changes_nothing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "m", {**FILES, "c.safetensors": bytes(range(256)) * 4000})
    monkeypatch.setattr(http, "LONGEST_PAUSE", 0.01)
    proxy = FaultyProxy(registry.port, 0.2, seed=3)
    try:
        pushed = push(folder, f"{proxy.host}/own/unsteady")
    finally:
        proxy.close()
    assert pushed.digest == push(folder, f"{registry.host}/own/unsteady").digest
    for digest, layer in model_push.layers_of(folder)[1].items():
        assert registry.blob_file(digest).read_bytes() == b"".join(layer.pieces(0, layer.size))


def test_a_changed_byte_is_an_error_before_anything_is_parsed(registry: Registry, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", {**FILES, "config.json": json.dumps({"a": "changed later"}).encode()})
    pushed = push(folder, f"{registry.host}/own/changed")
    blob = registry.blob_file(next(iter(model_push.layers_of(folder)[1])))
    blob.write_bytes(blob.read_bytes().replace(b"changed later", b"changed Later"))
    with pytest.raises(RegistryError, match="the registry sent sha256:"):
        model_images.describe_model_image(pushed.model)


def test_a_file_that_becomes_shorter_while_it_is_sent_is_an_error_at_once(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "m")
    hashed = model_push.layers_of(folder)
    monkeypatch.setattr(model_push, "layers_of", lambda _: hashed)
    (folder / "b.safetensors").write_bytes(b"b")
    with pytest.raises(InputError, match=r"b\.safetensors: became shorter while it was read"):
        push(folder, f"{registry.host}/own/shorter")
    (folder / "b.safetensors").unlink()
    with pytest.raises(InputError, match=r"b\.safetensors: No such file"):
        push(folder, f"{registry.host}/own/shorter")


def test_a_key_or_a_registry_that_does_not_open_is_an_error_before_a_file_is_hashed(
    registry: Registry, guarded: Registry, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_push, "layers_of", lambda _: pytest.fail("hashed"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        push(tmp_path / "m", f"{registry.host}/own/late", tmp_path / "no.key")
    with pytest.raises(CredentialsError, match="requires credentials"):
        push(tmp_path / "m", f"{guarded.host}/own/late", key)


def test_a_release_of_a_model_that_names_another_one_is_an_error_before_anything_is_pushed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(write(tmp_path / "m"), f"{registry.host}/own/release:tiny-1.0.0")
    other_model = write(tmp_path / "other", {**FILES, "config.json": b'{"another": 1}'})
    monkeypatch.setattr("drydock.publish.push.push_contents", lambda *_: pytest.fail("pushed"))
    with pytest.raises(TagError, match=r"tiny-1\.0\.0: the release tag already names"):
        push(other_model, f"{registry.host}/own/release:tiny-1.0.0")
