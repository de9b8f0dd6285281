"""The name under which an image is verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.attest import documents
from drydock.attest.cosign import trust_of
from drydock.core.errors import InputError, UntrustedError
from drydock.examine import tag_binding
from drydock.examine.tag_binding import Named
from drydock.model.shared_options import TrustOptions
from drydock.oci.reference import parse_reference
from drydock.publish import bindings
from drydock.publish.bindings import DAY, Binding, Subject, Terms
from drydock.publish.repository import Referrer
from tests.support.called_verbs import call_verb
from tests.support.damage import fuzz, survives_damage

NOW = 1_795_000_000
A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
REPOSITORY, VARIANT = "r.example/acme/cpu", "cpu-vllm0.32"
PLATFORMS = {"linux/amd64": A}


def bind(tag: str = "stable", image: str = A, *, at: int = NOW, expires: int = 0, repository: str = "") -> Binding:
    release = "1.0.0" if tag.endswith("1.0.0") else ""
    subject = Subject(repository or REPOSITORY, VARIANT, image, {"linux/amd64": image})
    return bindings.bind_tag(subject, tag, Terms(release, expires), {}, at)


def name(reference: str = f"{REPOSITORY}:stable", *, max_age: int = 0, mirror_of: str = "", days: int = 0) -> Named:
    named_tag = tag_binding.make_image_name(parse_reference(reference), mirror_of, A, PLATFORMS, max_age)
    return named_tag._replace(now=NOW + days * DAY)


def choose(where: Named, *tag_bindings: Binding) -> Binding | None:
    chosen = tag_binding.choose_tag_binding([("artifact", item) for item in tag_bindings], where)
    return chosen[1] if chosen else None


# --- which document counts ------------------------------------------------------------------------------------------


def test_the_newest_document_of_a_tag_counts() -> None:
    old, new, stable = bind(), bind(at=NOW + 5), bind(f"{VARIANT}-stable", at=NOW + 9)
    assert choose(name(), new, old, stable) == new
    brief, long = (bind(f"{VARIANT}-1.0.0", expires=days) for days in (1, 9))
    assert choose(name(f"{REPOSITORY}:{VARIANT}-1.0.0"), long, brief) == long
    assert choose(name(f"{REPOSITORY}:{VARIANT}-1.0.0"), long, bind(f"{VARIANT}-1.0.0"), brief) == bind(
        f"{VARIANT}-1.0.0"
    )


@pytest.mark.parametrize("reference", [f"{REPOSITORY}:other", REPOSITORY, f"{REPOSITORY}:other@{A}"])
def test_a_tag_that_no_document_names_is_refused(reference: str) -> None:
    with pytest.raises(UntrustedError, match=r"no tag.json binds the tag (other|latest) to .* tags are: stable\. "):
        choose(name(reference), bind())
    with pytest.raises(UntrustedError, match="published tags are: none"):
        choose(name(reference), bind(name(reference).tag, B))


def test_a_copy_in_another_repository_is_refused_unless_the_origin_is_named() -> None:
    for reference in ("mirror.example/acme/cpu:stable", "r.example/other/cpu:stable", f"mirror.example/acme/cpu@{A}"):
        with pytest.raises(UntrustedError, match=f"--mirror-of {REPOSITORY}"):
            choose(name(reference), bind())
        assert choose(name(reference, mirror_of=REPOSITORY), bind()) == bind()
    with pytest.raises(UntrustedError, match="--mirror-of"):
        choose(name(mirror_of="r.example/other/cpu"), bind())
    with pytest.raises(InputError, match="without tag or digest"):
        name(mirror_of=f"{REPOSITORY}:stable")


def test_a_digest_needs_no_tag_but_the_right_repository() -> None:
    assert choose(name(f"{REPOSITORY}@{A}"), bind()) == bind()
    assert choose(name(f"{REPOSITORY}@{A}")) is None


def test_release_json_of_earlier_versions_still_binds_a_release() -> None:
    text = json.dumps({"schema": 1, "repository": "acme/cpu", "tag": f"{VARIANT}-1.0.0", "image": A})
    where = name(f"{REPOSITORY}:{VARIANT}-1.0.0")
    binding = tag_binding.read_binding(Referrer(documents.RELEASE, text.encode(), "artifact"), where)
    assert choose(where, binding) == bind(f"{VARIANT}-1.0.0")
    with pytest.raises(UntrustedError, match=r"--mirror-of r\.example/acme/cpu"):
        choose(name(f"r.example/other/cpu:{VARIANT}-1.0.0"), binding)
    with pytest.raises(UntrustedError, match=r"no tag\.json binds the tag stable"):
        choose(name(), binding)
    for change in ("stable", "1.0.0", 1):
        broken = json.dumps(json.loads(text) | {"tag": change}).encode()
        with pytest.raises(UntrustedError, match=r"release\.json"):
            tag_binding.read_binding(Referrer(documents.RELEASE, broken, "artifact"), where)


# --- what it says ---------------------------------------------------------------------------------------------------


def problem(binding: Binding, where: Named, variant: str = VARIANT) -> str:
    return "\n".join(tag_binding.find_binding_problems(binding, where, variant))


def test_a_document_that_agrees_has_no_problem() -> None:
    assert problem(bind(expires=3), name(max_age=3, days=2)) == ""
    assert problem(bind(), name(days=4000)) == ""


def test_another_variant_is_a_problem() -> None:
    assert "stable belongs to cpu-vllm0.32, the image is cuda12.8" in problem(bind(), name(), "cuda12.8")


def test_other_platforms_are_a_problem() -> None:
    more = name()._replace(platforms={**PLATFORMS, "linux/arm64": B})
    assert "found linux/amd64, linux/arm64; expected linux/amd64" in problem(bind(), more)
    assert "the platforms differ" in problem(bind(), name()._replace(platforms={"linux/amd64": B}))


def test_a_tag_that_expired_is_a_problem() -> None:
    for tag in ("stable", f"{VARIANT}-1.0.0"):
        where = name(f"{REPOSITORY}:{tag}", days=3)
        assert f"the tag {tag} expired on 2026-11-2" in problem(bind(tag, expires=2), where)
        assert problem(bind(tag, expires=4), where) == ""


def test_a_channel_that_is_too_old_is_a_problem() -> None:
    assert "more than 2 days ago (--max-age)" in problem(bind(), name(max_age=2, days=3))
    for reference in (f"{REPOSITORY}:{VARIANT}-1.0.0", f"{REPOSITORY}@{A}"):
        with pytest.raises(InputError, match="only a channel has an age"):
            name(reference, max_age=2)


def test_a_digest_is_valid_as_long_as_one_of_its_tags() -> None:
    brief, lasting = bind(expires=1), bind(f"{VARIANT}-1.0.0")
    assert choose(name(f"{REPOSITORY}@{A}"), brief, lasting) == lasting
    assert choose(name(), brief, lasting) == brief


def test_a_key_and_an_identity_exclude_each_other() -> None:
    with pytest.raises(InputError, match="--verify-key and --identity exclude each other"):
        trust_of(TrustOptions(verify_key="key", identity="me", issuer="https://issuer"))


def test_without_key_or_identity_only_looking_is_possible() -> None:
    def refused(key: str, *, unsigned: bool) -> InputError:
        with pytest.raises(InputError) as caught:
            call_verb("image verify", reference="r.example/a/b:c", verify_key=key, unsigned=unsigned)
        return caught.value

    assert "image verify: found neither --verify-key nor --identity" in str(refused("", unsigned=False))
    assert "--unsigned" in refused("", unsigned=False).hint
    assert "--unsigned excludes --verify-key" in str(refused("key", unsigned=True))


def test_a_time_in_the_future_is_a_problem() -> None:
    assert "signed in the future" in problem(bind(at=NOW + DAY), name())
    assert problem(bind(at=NOW + 60), name()) == ""
    assert "signed in the future" in problem(bind(at=(1 << 53) - 1), name())


# --- what was seen before -------------------------------------------------------------------------------------------


def test_a_channel_that_goes_back_is_refused(tmp_path: Path) -> None:
    for image, at in ((A, NOW), (A, NOW), (B, NOW + 1)):
        tag_binding.remember_channel(bind(image=image, at=at), name(), tmp_path)
    with pytest.raises(UntrustedError, match=rf"counter is {NOW} .*verified {NOW + 1} \({B}\)"):
        tag_binding.remember_channel(bind(), name(), tmp_path)
    tag_binding.remember_channel(bind(), name(f"{REPOSITORY}:stable@{A}"), tmp_path)
    tag_binding.remember_channel(bind(f"{VARIANT}-stable"), name(f"{REPOSITORY}:{VARIANT}-stable"), tmp_path)
    tag_binding.remember_channel(bind(repository="r.example/b/cpu"), name("r.example/b/cpu:stable"), tmp_path)


def test_a_mirror_that_goes_back_behind_its_origin_is_refused(tmp_path: Path) -> None:
    tag_binding.remember_channel(bind(at=NOW + 1), name(), tmp_path)
    with pytest.raises(UntrustedError, match="A mirror may lag behind"):
        tag_binding.remember_channel(bind(), name("mirror.example/cpu:stable", mirror_of=REPOSITORY), tmp_path)


def test_a_damaged_memory_is_an_error(tmp_path: Path) -> None:
    tag_binding.remember_channel(bind(), name(), tmp_path)
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(b"\xff{")
    with pytest.raises(InputError, match="invalid record of a verified channel") as caught:
        tag_binding.remember_channel(bind(), name(), tmp_path)
    assert str(file) in str(caught.value)


@fuzz
def test_memories_survive_damage(tmp_path: Path) -> None:
    def quiet(text: str) -> None:
        try:
            tag_binding.parse_remembered(text, "here")
        except InputError as error:
            raise ValueError(str(error)) from error

    tag_binding.remember_channel(bind(), name(), tmp_path)
    survives_damage(quiet, next(tmp_path.rglob("*.json")).read_text())
