"""Manifests and indexes that two clients could read in two ways are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drydock.core.errors import RegistryError
from drydock.oci import strict
from drydock.oci.strict import DOCKER_INDEX, DOCKER_MANIFEST, INDEX, MANIFEST
from tests.support.damage import fuzz, survives_damage

LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"

WINDOWS = {"os": "windows", "architecture": "amd64"}


def descriptor(media_type: str = LAYER, letter: str = "a", **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{letter * 64}", "size": 12, **more}


def image(**changes: Any) -> dict[str, Any]:
    config = descriptor("application/vnd.oci.image.config.v1+json")
    return {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [descriptor()], **changes}


def entry(letter: str, architecture: str, **more: str) -> dict[str, Any]:
    return descriptor(MANIFEST, letter, platform={"os": "linux", "architecture": architecture, **more})


def index(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(entries), **changes}


def read(content: Any, declared: str = "") -> tuple[dict[str, Any], str]:
    return strict.read(json.dumps(content).encode(), declared, "here")


def test_what_registries_serve_is_read() -> None:
    assert read(image())[1] == MANIFEST
    assert read(image(mediaType=DOCKER_MANIFEST), DOCKER_MANIFEST)[1] == DOCKER_MANIFEST
    without = {name: value for name, value in image().items() if name != "mediaType"}
    assert read(without, MANIFEST)[1] == MANIFEST
    vendor = index(
        entry("a", "amd64"),
        entry("b", "arm", variant="v5"),
        entry("c", "arm", variant="v7"),
        entry("d", "arm64", variant="v8"),
        *(descriptor(MANIFEST, letter, platform={"os": "unknown", "architecture": "unknown"}) for letter in "ef"),
        *(
            descriptor(MANIFEST, "f", platform={"os": "windows", "architecture": "amd64", "os.version": v})
            for v in "12"
        ),
    )
    assert [platform for platform, _ in strict.entries(read(vendor)[0], "here")] == [
        "linux/amd64",
        "linux/arm/v5",
        "linux/arm/v7",
        "linux/arm64",
        strict.UNKNOWN,
        strict.UNKNOWN,
        "windows/amd64",
        "windows/amd64",
    ]


@pytest.mark.attack(
    what="a manifest is an image and an index at once, so that two clients pull two images",
    before="verified as an index, whatever the layers were",
    after="refused, everywhere a manifest is read",
)
@pytest.mark.parametrize("declared", [MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_INDEX])
@pytest.mark.parametrize("extra", ["layers", "config"])
def test_an_image_that_is_also_an_index_is_refused(declared: str, extra: str) -> None:
    both = index(entry("b", "amd64"), **{extra: image()[extra]})
    both.pop("mediaType")
    with pytest.raises(RegistryError, match="an image and an index at once"):
        read(both, declared)


@pytest.mark.parametrize(
    ("content", "declared", "problem"),
    [
        (image(), INDEX, "the registry says .*index.*, the content says .*manifest"),
        (index(), MANIFEST, "the registry says"),
        ({**image(), "mediaType": ""}, "", "found the media type ''"),
        (image(), "text/html", "found the media type 'text/html'"),
        (image(mediaType=""), INDEX, "manifests: Field required"),
        (index(mediaType=""), MANIFEST, "config: Field required"),
        (image(schemaVersion=1), "", "schemaVersion"),
        (image(layers=None), "", "layers"),
        (image(layers=[descriptor(size=-1)]), "", "layers.0.size"),
        (image(layers=[descriptor(size="12")]), "", "layers.0.size"),
        (image(layers=[descriptor(letter="../../x")]), "", "layers.0.digest"),
        (index(entry("a", "\x1b[2J")), "", "manifests.0.platform.architecture"),
        (index(entry("a", "")), "", "manifests.0.platform.architecture"),
        (image(mediaType=7), MANIFEST, "the content says 7"),
        ([], MANIFEST, "expected an object, found list"),
    ],
)
def test_another_kind_than_declared_or_another_form_is_refused(content: Any, declared: str, problem: str) -> None:
    with pytest.raises(RegistryError, match=problem):
        read(content, declared)


@pytest.mark.attack(
    what="a manifest has a name twice, or in another case, which Go reads and Python does not",
    before="the last one, or the one in the right case, was verified",
    after="refused",
)
@pytest.mark.parametrize("name", ["layers", "Layers", "LAYERS", "layer\u017f", "Manifests", "Config"])
def test_a_name_that_another_client_reads_is_refused(name: str) -> None:
    text = json.dumps(image(), ensure_ascii=False)
    evil = json.dumps([descriptor(letter="e")])
    text = f'{text[:-1]}, "{name}": {evil}}}'
    with pytest.raises(RegistryError, match=r"occurs twice|ignore case"):
        strict.read(text.encode(), MANIFEST, "here")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 200_000, b'{"size": NaN}', b"1" * 5000])
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(RegistryError, match=r"here: invalid manifest"):
        strict.read(text, MANIFEST, "here")


@pytest.mark.attack(
    what="an index has two images for one platform, or an entry without a platform",
    before="the last image was verified, clients pull the first",
    after="refused",
)
@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ((entry("e", "amd64"), entry("a", "amd64")), "several entries for linux/amd64"),
        ((entry("e", "arm64"), entry("a", "arm64", variant="v8")), "several entries for linux/arm64"),
        ((entry("e", "amd64", **{"os.version": "1"}), entry("a", "amd64")), "several entries for linux/amd64"),
        ((descriptor(MANIFEST, "e"), entry("a", "amd64")), "has no platform"),
        (
            (descriptor(INDEX, "e", platform={"os": "linux", "architecture": "amd64"}),),
            "expected an image, found",
        ),
    ],
)
def test_an_index_in_which_clients_may_choose_is_refused(entries: tuple[dict[str, Any], ...], problem: str) -> None:
    with pytest.raises(RegistryError, match=problem):
        strict.entries(read(index(*entries))[0], "here")


@fuzz
def test_manifests_and_indexes_survive_damage() -> None:
    def quiet(text: str) -> None:
        try:
            content, media_type = strict.read(text.encode(errors="surrogatepass"), "", "here")
            found = strict.entries(content, "here") if media_type in strict.INDEXES else []
        except RegistryError as error:
            raise ValueError(str(error)) from error
        assert ("manifests" in content) != ("layers" in content)
        known = [platform for platform, _ in found if platform.startswith("linux/")]
        assert len(set(known)) == len(known)

    samples = (image(), index(entry("a", "amd64"), entry("b", "arm64", variant="v8")))
    survives_damage(quiet, *(json.dumps(sample, indent=1) for sample in samples))
