"""What a hostile registry may answer when it is asked for a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drydock.config.server_access import Access
from drydock.core.errors import CredentialsError, RegistryError
from drydock.oci.manifest import Manifest, to_manifest
from drydock.oci.reference import parse_reference
from drydock.registry.manifests import INDEX, MANIFEST, Manifests, fallback_tag
from drydock.registry.registry_client import Client
from tests.support.fake_registry import Answer, Fake, Seen

QUICK = Access(pause=0.001, timeout=5)
CONFIG = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": f"sha256:{'c' * 64}", "size": 2}
IMAGE = to_manifest({"schemaVersion": 2, "mediaType": MANIFEST, "config": CONFIG, "layers": []})
OTHER = to_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": []})
INDEX_OF_ONE = to_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": [IMAGE.descriptor()]})


def ask(folder: Path, headers: dict[str, str], body: bytes, name: str = "v1") -> Manifest | None:
    with Fake(lambda _: Answer(200, headers, body)) as fake:
        return Manifests(Client(parse_reference(f"{fake.host}/some/image"), QUICK), folder).find(name)


def test_the_media_type_is_the_registrys_or_the_contents(tmp_path: Path) -> None:
    for headers in ({"Content-Type": MANIFEST}, {"Content-Type": f"{MANIFEST}; charset=utf-8"}, {}):
        assert ask(tmp_path, headers, IMAGE.data, IMAGE.digest) == IMAGE


def test_another_kind_than_declared_is_refused(tmp_path: Path) -> None:
    """Which forms are refused is shown of `strict.read`."""
    with pytest.raises(RegistryError, match=r"v1: the registry says .*index.*, the content says .*manifest"):
        ask(tmp_path, {"Content-Type": INDEX}, IMAGE.data)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"size": 7}, "states another type or size"),
        ({"mediaType": "application/vnd.docker.distribution.manifest.v2+json"}, "states another type or size"),
        ({"digest": OTHER.digest}, "does not have it"),
    ],
)
def test_an_entry_of_an_index_that_states_something_else_is_refused(
    tmp_path: Path, entry: dict[str, Any], problem: str
) -> None:
    served = {f"/v2/some/image/manifests/{IMAGE.digest}": Answer(200, {"Content-Type": MANIFEST}, IMAGE.data)}
    with Fake(lambda request: served.get(request.path, Answer(404))) as fake:
        there = Manifests(Client(parse_reference(f"{fake.host}/some/image"), QUICK), tmp_path)
        assert there.listed(IMAGE.descriptor()) == IMAGE
        with pytest.raises(RegistryError, match=problem):
            there.listed(IMAGE.descriptor() | entry)


# --- referrers ------------------------------------------------------------------------------------------------------


class Stored:
    """A registry that keeps manifests. `api`: its answer to requests for referrers; `immutable`: no tag moves."""

    def __init__(self, api: Answer, *, gitlab: bool = False, immutable: int = 0) -> None:
        self.api, self.gitlab, self.immutable = api, gitlab, immutable
        self.manifests: dict[str, Manifest] = {}

    def __call__(self, request: Seen) -> Answer:
        kind, _, name = request.path.removeprefix("/v2/some/image/").partition("/")
        if kind == "referrers":
            return self.api
        if request.method == "PUT":
            if self.immutable and name in self.manifests:
                return Answer(self.immutable, body=b'{"errors": [{"code": "TAG_INVALID", "message": "immutable"}]}')
            manifest = Manifest(request.body, request.headers["Content-Type"])
            self.manifests |= {name: manifest, manifest.digest: manifest}
            return Answer(201)
        if self.gitlab and name not in self.manifests:
            name = name.replace("sha256-", "sha256:")
        document = self.manifests.get(name)
        return Answer(200, {"Content-Type": document.media_type}, document.data) if document else Answer(404)


def artifact(kind: str, subject: Manifest) -> Manifest:
    content = {"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": kind, "config": CONFIG, "layers": []}
    return to_manifest({**content, "subject": subject.descriptor()})


def referred(stored: Stored, folder: Path, subject: Manifest, *kinds: str) -> list[str]:
    """Attach artifacts to a manifest; return the types that the registry then lists."""
    with Fake(stored) as fake:
        there = Manifests(Client(parse_reference(f"{fake.host}/some/image"), QUICK), folder)
        there.push(subject)
        for kind in kinds:
            there.refer(artifact(kind, subject))
        return [item["artifactType"] for item in there.referrers(subject.digest)]


@pytest.mark.parametrize(
    "api",
    [
        *(Answer(status) for status in (400, 404, 405, 406, 410, 415, 422, 501)),
        Answer(200, {}, b"<html>"),
        Answer(200, {}, b"null"),
    ],
)
def test_a_registry_without_a_referrers_api_gets_the_list_under_a_tag(tmp_path: Path, api: Answer) -> None:
    assert referred(Stored(api), tmp_path, IMAGE, "a/first", "a/second") == ["a/first", "a/second"]


@pytest.mark.parametrize("status", [401, 403, 429, 505])
def test_another_refusal_of_the_referrers_api_is_an_error(tmp_path: Path, status: int) -> None:
    with pytest.raises((RegistryError, CredentialsError), match=rf"(answered|returned) {status}"):
        referred(Stored(Answer(status)), tmp_path, IMAGE)


@pytest.mark.parametrize("subject", [IMAGE, INDEX_OF_ONE])
def test_a_tag_that_names_the_subject_itself_is_no_list(tmp_path: Path, subject: Manifest) -> None:
    assert referred(Stored(Answer(404), gitlab=True), tmp_path, subject) == []
    assert referred(Stored(Answer(404), gitlab=True), tmp_path, subject, "a/b", "c/d") == ["a/b", "c/d"]


def test_a_list_of_a_wrong_type_is_not_replaced(tmp_path: Path) -> None:
    """Registries on a plain file server answer text/plain: the list under the tag would lose what others attached."""
    stored = Stored(Answer(404))
    assert referred(stored, tmp_path, IMAGE, "a/first") == ["a/first"]
    tag = fallback_tag(IMAGE.digest)
    stored.manifests[tag] = before = stored.manifests[tag]._replace(media_type="text/plain")

    with pytest.raises(RegistryError, match="the registry says that it is text/plain"):
        referred(stored, tmp_path, IMAGE, "a/second")
    assert stored.manifests[tag] == before


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_any_success_means_that_a_manifest_is_stored(tmp_path: Path, status: int) -> None:
    with Fake(lambda _: Answer(status)) as fake:
        Manifests(Client(parse_reference(f"{fake.host}/some/image"), QUICK), tmp_path).push(IMAGE)


@pytest.mark.parametrize("refused", ["the artifact", "the list"])
def test_a_registry_that_takes_no_artifact_or_no_list_is_explained(tmp_path: Path, refused: str) -> None:
    def answer(request: Seen) -> Answer:
        is_list = request.path.endswith(fallback_tag(IMAGE.digest))
        return Answer(404 if request.method == "GET" else 405 if is_list or refused == "the artifact" else 201)

    with Fake(answer) as fake, pytest.raises(RegistryError, match="answered 405") as error:
        Manifests(Client(parse_reference(f"{fake.host}/some/image"), QUICK), tmp_path).refer(artifact("a/b", IMAGE))
    assert "artifacts of OCI 1.1" in error.value.hint


@pytest.mark.parametrize("other", [IMAGE, Manifest(b"{}", "application/vnd.x"), Manifest(b"no JSON", "")])
def test_a_tag_that_names_no_index_is_no_list(tmp_path: Path, other: Manifest) -> None:
    stored = Stored(Answer(404))
    stored.manifests[fallback_tag(OTHER.digest)] = other
    assert referred(stored, tmp_path, OTHER) == []
    assert referred(stored, tmp_path, OTHER, "a/b") == ["a/b"]


# --- tags that do not move ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 403, 409, 412])
def test_a_list_under_an_immutable_tag_is_explained(tmp_path: Path, status: int) -> None:
    stored = Stored(Answer(404), immutable=status)
    with pytest.raises(RegistryError) as caught:
        referred(stored, tmp_path, IMAGE, "a/first", "a/second")
    assert f"{fallback_tag(IMAGE.digest)}: the registry does not let this tag move" in str(caught.value)
    assert "exclude `sha256-*`" in str(caught.value)


def test_a_refused_tag_that_names_the_image_already_is_set(tmp_path: Path) -> None:
    with Fake(Stored(Answer(404), immutable=400)) as fake:
        there = Manifests(Client(parse_reference(f"{fake.host}/some/image"), QUICK), tmp_path)
        for _ in range(2):
            there.push(IMAGE, "v1")
