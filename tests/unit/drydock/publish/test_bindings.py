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
