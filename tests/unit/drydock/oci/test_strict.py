"""A document that is an image and an index is refused, as is any other form than that of its media type."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from drydock.core.errors import RegistryError
from drydock.oci import strict
from drydock.oci.strict import DOCKER_INDEX, DOCKER_MANIFEST, INDEX, MANIFEST
from tests.support.damage import fuzz, survives_damage

LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"


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
    return strict.read_strict_manifest(json.dumps(content).encode(), declared, "here")


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
        descriptor(MANIFEST, "e", platform={"os": "unknown", "architecture": "unknown"}),
    )
    assert [strict.platform_of(item["platform"]) for item in read(vendor)[0]["manifests"]] == [
        "linux/amd64",
        "linux/arm/v5",
        "linux/arm/v7",
        "linux/arm64",
        strict.UNKNOWN,
    ]


@pytest.mark.parametrize("declared", [MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_INDEX])
@pytest.mark.parametrize("extra", ["layers", "config"])
def test_an_image_that_is_also_an_index_is_refused(declared: str, extra: str) -> None:
    mixed_manifest = index(entry("b", "amd64"), **{extra: image()[extra]})
    mixed_manifest.pop("mediaType")
    with pytest.raises(RegistryError, match="an image and an index at once"):
        read(mixed_manifest, declared)


@pytest.mark.parametrize(
    ("content", "declared", "problem"),
    [
        (image(), INDEX, "the registry says .*index.*, the content says .*manifest"),
        (index(), MANIFEST, "the registry says .*manifest.*, the content says .*index"),
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
        (index(descriptor(letter="../../x")), "", "manifests.0.digest"),
        (image(mediaType=7), MANIFEST, "the content says 7"),
        ([], MANIFEST, "expected a JSON object, found list"),
    ],
)
def test_another_kind_than_declared_or_another_form_is_refused(content: Any, declared: str, problem: str) -> None:
    with pytest.raises(RegistryError, match=problem):
        read(content, declared)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 200_000, b'{"size": NaN}', b"1" * 5000])
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(RegistryError, match=r"here: invalid JSON|here: expected a JSON object"):
        strict.read_strict_manifest(text, MANIFEST, "here")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"os": "linux", "architecture": ""}, ""),
        ({"architecture": "amd64"}, ""),
        ({"os": "linux", "architecture": "amd64", "variant": None}, "linux/amd64"),
        (None, ""),
    ],
)
def test_a_platform_is_named_whole_or_not_at_all(content: dict[str, Any] | None, expected: str) -> None:
    assert strict.platform_of(read(index(descriptor(MANIFEST, platform=content)))[0]["manifests"][0]["platform"]) == (
        expected
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (image(), ""),
        (index(entry("a", "amd64")), ""),
        (index(descriptor(INDEX)), ""),
        (index(), "an index that lists nothing"),
        (index(descriptor("application/vnd.x")), "an index that lists 'application/vnd.x'"),
        (image(config=descriptor("application/vnd.cncf.helm.config.v1+json")), "an artifact of type '.*helm.*'"),
        (
            image(config=descriptor("application/vnd.oci.empty.v1+json"), artifactType="a/b"),
            "an artifact of type 'a/b'",
        ),
    ],
)
def test_what_is_no_image_is_named(content: dict[str, Any], problem: str) -> None:
    assert re.fullmatch(problem, strict.not_image(read(content)[0]))


def test_an_image_of_docker_before_2016_is_named() -> None:
    with pytest.raises(RegistryError, match="schema 1, which engines no longer pull"):
        read({"schemaVersion": 1}, "application/vnd.docker.distribution.manifest.v1+prettyjws")


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({}, {}),
        ({"config": None, "history": None, "created": None}, {}),
        ({"config": {"Labels": None, "Env": None}}, {}),
        ({"config": {"Labels": {"a": None, "b": "c"}}}, {"a": "", "b": "c"}),
    ],
)
def test_a_configuration_may_have_null_for_what_is_empty(settings: dict[str, Any], labels: dict[str, str]) -> None:
    config = strict.read_config(json.dumps({"os": "linux", "architecture": "amd64", **settings}).encode(), "here")
    assert config == {"os": "linux", "architecture": "amd64", "config": {"Labels": labels}}


@pytest.mark.parametrize("settings", [{"config": []}, {"config": {"Labels": {"a": 1}}}, {"os": 1}, {"created": {}}])
def test_a_configuration_of_another_form_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RegistryError, match="here: "):
        strict.read_config(json.dumps(settings).encode(), "here")


@fuzz
def test_manifests_and_indexes_survive_damage() -> None:
    def quiet(text: str) -> None:
        try:
            content, media_type = strict.read_strict_manifest(text.encode(errors="surrogatepass"), "", "here")
            strict.not_image(content)
            if media_type in strict.INDEXES:
                [strict.platform_of(item.get("platform")) for item in content["manifests"]]
        except RegistryError as error:
            raise ValueError(str(error)) from error
        assert ("manifests" in content) != ("layers" in content)

    samples = (image(), index(entry("a", "amd64"), entry("b", "arm64", variant="v8")))
    survives_damage(quiet, *(json.dumps(sample, indent=1) for sample in samples))
