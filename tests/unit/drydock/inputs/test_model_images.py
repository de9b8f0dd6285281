"""Models in registries: by digest only, read without their weights, and checked before anything is parsed."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.core.errors import DrydockError, InputError, RegistryError, UntrustedError
from drydock.inputs import model_images
from drydock.inputs.models import MANIFEST, ModelFile, ModelFolder
from drydock.publish.model_push import layers_of
from drydock.registry import registry_client
from tests.support import layouts
from tests.support.fake_registry import Answer, Fake, Seen
from tests.support.hashes import sha256
from tests.support.model_folder import FILES, write

TYPE = "application/vnd.oci.image.manifest.v1+json"


def digest_of(data: bytes) -> str:
    return f"sha256:{sha256(data)}"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry_client, "ATTEMPTS", 1)


class Model:
    """A registry with a model: its manifest and first layer; weights are not there at all."""

    def __init__(self, first: bytes, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        self.first = first
        layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest_of(first), "size": len(first)}
        config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest_of(b"{}"), "size": 2}
        content = {"schemaVersion": 2, "mediaType": TYPE, "config": config, "layers": [layer]}
        change(content)
        self.manifest = json.dumps(content).encode()
        self.digest = digest_of(self.manifest)

    def __call__(self, request: Seen) -> Answer:
        if "/manifests/" in request.path:
            return Answer(200, {"Content-Type": TYPE}, self.manifest)
        return Answer(200, {}, self.first)


def pushed(folder: Path) -> bytes:
    """Return the first layer that `model push` makes."""
    layer = next(iter(layers_of(folder)[1].values()))
    return b"".join(layer.pieces(0, layer.size))


def test_a_plan_reads_the_small_files_and_the_size_of_the_weights_once(tmp_path: Path) -> None:
    with Fake(Model(pushed(write(tmp_path / "m")))) as registry:
        address = f"oci://{registry.host}/own/tiny@{registry.answer.digest}"  # type: ignore[attr-defined]
        words = model_images.replace_model_address(("plan", "--json", f"--model={address}"))
        request_count = len(registry.seen)
        assert model_images.replace_model_address(("plan", "--json", f"--model={address}")) == words
        assert len(registry.seen) == request_count == 2
    *plan_words, flag, folder = words
    assert (plan_words, flag) == (["plan", "--json", "--model=/models/tiny"], "--model-config")
    assert (Path(folder) / "config.json").read_bytes() == FILES["config.json"]
    index = json.loads((Path(folder) / model_images.INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(len(FILES[name]) for name in FILES if name.endswith(".safetensors"))
    assert model_images.replace_model_address(("plan", "--model", "org/name")) == ("plan", "--model", "org/name")


def test_a_tag_is_an_error_that_names_the_digest(tmp_path: Path) -> None:
    with Fake(Model(pushed(write(tmp_path / "m")))) as registry, pytest.raises(InputError) as raised:
        model_images.by_digest(f"oci://{registry.host}/own/tiny:v1")
    assert "found the tag 'v1', expected a digest" in str(raised.value)
    assert f"/own/tiny@{registry.answer.digest}" in raised.value.hint  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({"a.safetensors": 5, "b.safetensors": 7, "c.bin": 100, "sub/d.safetensors": 9}, 12),
        ({"pytorch_model.bin": 100, "training_args.bin": 3}, 100),
        ({"model.gguf": 100}, 0),
    ],
)
def test_the_weights_are_those_that_vllm_loads(files: dict[str, int], size: int) -> None:
    model_files = {name: ModelFile(sha256="0" * 64, size=file_size) for name, file_size in files.items()}
    assert model_images.weights_size(ModelFolder(schema_=1, hub="", name="", revision="", files=model_files)) == size


def entry(name: str, data: bytes = b"{}", **fields: Any) -> tuple[str, bytes, dict[str, Any]]:
    return name, data, fields


def other_type(content: dict[str, Any]) -> None:
    content["layers"][0]["mediaType"] += "+gzip"


def too_large(content: dict[str, Any]) -> None:
    content["layers"][0]["size"] = 1 << 40


def shorter(content: dict[str, Any]) -> None:
    content["layers"][0]["size"] = 10


def another(content: dict[str, Any]) -> None:
    content["layers"][0]["digest"] = digest_of(b"another")


GOOD = entry("config.json")
LINK = entry("config.json", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")
HOSTILE: dict[str, tuple[bytes, Callable[[dict[str, Any]], None], type[DrydockError], str]] = {
    "another image": (b"x", other_type, UntrustedError, "not a model, expected a first layer"),
    "no layer": (
        b"x",
        lambda content: content.update(layers=[]),
        UntrustedError,
        "not a model, expected a first layer",
    ),
    "a huge layer": (b"x", too_large, UntrustedError, "at most 128 MiB"),
    "more than it says": (layouts.tar([GOOD]), shorter, RegistryError, "sends more than the 10 bytes expected"),
    "other bytes": (layouts.tar([GOOD]), another, RegistryError, "the registry sent sha256:"),
    "no tar": (b"x" * 2000, lambda _: None, UntrustedError, "not the files of a model: damaged"),
    "a link": (layouts.tar([LINK]), lambda _: None, UntrustedError, "no regular file"),
    "a way out": (layouts.tar([entry("../config.json")]), lambda _: None, UntrustedError, "not safe as a path"),
    "an absolute path": (layouts.tar([entry("/etc/x")]), lambda _: None, UntrustedError, "not safe as a path"),
    "no list": (layouts.tar([GOOD]), lambda _: None, UntrustedError, f"{MANIFEST} is missing, or none of ours"),
    "another list": (layouts.tar([GOOD, entry(MANIFEST, b'{"x": 1}')]), lambda _: None, UntrustedError, "none of ours"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_image_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    first, change, error, message = HOSTILE[name]
    with Fake(Model(first, change)) as registry, pytest.raises(error, match=message):
        model_images.describe_model_image(f"oci://{registry.host}/own/x@{registry.answer.digest}")  # type: ignore[attr-defined]
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]
    assert not (tmp_path / "cache" / "config.json").exists()
