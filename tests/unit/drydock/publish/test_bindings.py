"""What publish writes into tag.json, and what it accepts of a channel's earlier one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drydock.core.errors import TagError, UntrustedError
from drydock.publish import bindings
from drydock.publish.bindings import DAY, Binding, Subject, Terms
from tests.support.damage import fuzz, survives_damage

NOW = 1_795_000_000
A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
SUBJECT = Subject("r.example/acme/cpu", "cpu-vllm0.32", A, {"linux/amd64": A})


def bind(tag: str, last: Binding | None = None, *, now: int = NOW, **terms: Any) -> Binding:
    return bindings.bind_tag(SUBJECT, tag, Terms(**terms), {last.tag: last} if last else {}, now)


def test_a_release_is_the_same_document_each_time() -> None:
    first, later = (bind("cpu-vllm0.32-1.4.0", release="1.4.0", now=now) for now in (NOW, NOW + DAY))
    assert first == later
    assert (first.channel, first.expires, first.counter) == (None, None, 0)


def test_what_is_attached_is_parsed_again() -> None:
    for binding in (bind("stable", release="1.4.0", expires=90), bind("cpu-vllm0.32-1.4.0", release="1.4.0")):
        attached = binding.attached()
        assert attached.name == "tag.json"
        assert bindings.parse_binding(attached.data, "here") == binding


def test_a_channels_counter_only_grows() -> None:
    first = bind("stable")
    assert first.channel
    assert (first.channel.name, first.counter, first.channel.signed) == ("stable", NOW, NOW)
    at_once = bind("stable", first)
    slow_clock = bind("stable", at_once, now=NOW - DAY)
    later = bind("stable", slow_clock, now=NOW + DAY)
    assert [item.counter - NOW for item in (at_once, slow_clock, later)] == [1, 2, DAY]


def test_a_channel_with_the_variants_name_is_the_same_channel() -> None:
    binding = bind("cpu-vllm0.32-stable", expires=2)
    assert binding.channel
    assert (binding.channel.name, binding.expires) == ("stable", NOW + 2 * DAY)


@pytest.mark.parametrize(("older", "newer"), [("1.3.1", "1.4.0"), ("1.9.0", "1.10.0"), ("1.4.0-rc.2", "1.4.0")])
def test_a_channel_does_not_go_back_to_an_older_release(older: str, newer: str) -> None:
    last = bind("stable", release=newer)
    with pytest.raises(TagError, match=f"names release {newer}, cannot move it back to {older}") as caught:
        bind("stable", last, release=older)
    assert "--allow-rollback" in str(caught.value)
    assert bind("stable", last, release=older, allow_rollback=True).counter == NOW + 1
    assert bind("stable", last, release=newer).release == newer


def test_a_document_about_another_variants_tag_cannot_be_made() -> None:
    with pytest.raises(ValueError, match=r"the tag is 'cuda12\.8-1\.4\.0', expected cpu-vllm0\.32-1\.4\.0"):
        bind("cuda12.8-1.4.0", release="1.4.0")


PROJECT = Subject("r.example/acme/rows", "", A, {}, "project")
MODEL = Subject("r.example/acme/tiny", "", A, {"linux/amd64": A}, "model")
ADOPTED = SUBJECT._replace(kind="adopted")
FOUNDATION = SUBJECT._replace(kind="foundation")
KEY = "f" * 64


@pytest.mark.parametrize(
    ("subject", "tag", "moves"),
    [
        (ADOPTED, "one", True),
        (ADOPTED, "v0.33.0", True),
        (ADOPTED, "cpu-vllm0.32-edge", True),
        (ADOPTED, "acme-1.0.0", False),
        (MODEL, "v1", True),
        (MODEL, "tiny-1.0.0-rc.1", False),
        (MODEL, "a" * 12, False),
        (PROJECT, "latest", True),
        (PROJECT, "a" * 12, False),
        (FOUNDATION, KEY, False),
    ],
)
def test_a_tag_that_the_user_chose_is_bound_as_it_is(subject: Subject, tag: str, moves: bool) -> None:
    binding = bindings.bind_tag(subject, tag, Terms(), {}, NOW)
    assert (binding.kind, binding.tag, bool(binding.channel)) == (subject.kind, tag, moves)
    assert bindings.parse_binding(binding.attached().data, "here") == binding
    if moves:
        assert bindings.bind_tag(subject, tag, Terms(), {tag: binding}, NOW).counter == binding.counter + 1
    else:
        assert bindings.bind_tag(subject, tag, Terms(), {}, NOW + DAY) == binding


def test_an_earlier_version_reads_what_is_attached_to_an_image() -> None:
    assert "kind" not in json.loads(bind("stable", release="1.4.0").attached().data)
    assert json.loads(bindings.bind_tag(MODEL, "v1", Terms(), {}, NOW).attached().data)["kind"] == "model"


@pytest.mark.parametrize(
    ("subject", "tag", "changes", "problem"),
    [
        (MODEL, "v1", {"kind": "image"}, "the platforms or the variant do not fit the kind image"),
        (MODEL, "v1", {"kind": "foundation"}, "do not fit the kind foundation"),
        (MODEL, "v1", {"variant": "cpu-vllm0.32"}, "do not fit the kind model"),
        (MODEL, "v1", {"tag": "v2"}, "the tag is 'v2', expected v1"),
        (MODEL, "a" * 12, {"tag": "b" * 12}, "expected aaaaaaaaaaaa"),
        (PROJECT, "latest", {"platforms": {"linux/amd64": A}}, "do not fit the kind project"),
        (ADOPTED, "acme-1.0.0", {"release": "2.0.0"}, "the tag is 'acme-1.0.0', expected"),
        (ADOPTED, "v0.33.0", {"kind": "image"}, "the channel is 'v0.33.0'"),
        (ADOPTED, "one", {"kind": "signature"}, "kind"),
    ],
)
def test_a_kind_that_does_not_fit_is_refused(subject: Subject, tag: str, changes: dict[str, Any], problem: str) -> None:
    data = json.loads(bindings.bind_tag(subject, tag, Terms(), {}, NOW).attached().data) | changes
    with pytest.raises(UntrustedError, match=problem):
        bindings.parse_binding(json.dumps(data), "here")


def changed(**changes: Any) -> str:
    return json.dumps(json.loads(bind("stable", release="1.4.0").attached().data) | changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema": 2}, "schema"),
        ({"more": 1}, "more"),
        ({"\x1b[2J": 1}, r"tag\.json: \\x1b\[2J: Extra"),
        ({"tag": "latest"}, "the tag is 'latest', expected"),
        ({"variant": "cuda12.8", "tag": "cpu-vllm0.32-stable"}, "expected cuda12.8-stable or stable"),
        ({"repository": "r.example/\x1b[2J"}, "repository"),
        ({"image": "sha256:a"}, "image"),
        ({"platforms": {}}, "platforms"),
        ({"platforms": {"linux/amd64": "x"}}, "platforms"),
        ({"expires": "never"}, "expires"),
        ({"expires": 1 << 60}, "expires"),
        ({"channel": None}, "expected cpu-vllm0.32-1.4.0"),
        ({"channel": {"name": "stable", "counter": -1, "signed": 0}}, "channel.counter"),
        ({"release": "1.4"}, "release"),
    ],
)
def test_a_document_of_another_form_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UntrustedError, match=problem):
        bindings.parse_binding(changed(**changes), "here")


@fuzz
def test_tag_documents_survive_damage() -> None:
    def quiet(text: str) -> None:
        try:
            binding = bindings.parse_binding(text.encode(errors="replace"), "here")
        except UntrustedError as error:
            raise ValueError(str(error)) from error
        assert binding.tag.endswith((binding.release, binding.channel.name) if binding.channel else binding.release)

    valid_bindings = (bind("stable", release="1.4.0", expires=90), bind("cpu-vllm0.32-1.4.0", release="1.4.0"))
    survives_damage(quiet, *(item.attached().data.decode() for item in valid_bindings))
