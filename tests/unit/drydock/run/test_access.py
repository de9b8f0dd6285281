"""Addresses to publish on, and the API key that clients must send."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.core.errors import InputError
from drydock.run.access import (
    Listening,
    check_variable,
    is_exposed,
    parse_port,
    read_keys,
    require_key,
    value_of,
    without_key,
)


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("65534", ("", 65534)),
        ("127.0.0.1:9000", ("127.0.0.1", 9000)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:8000", ("::1", 8000)),
        ("[::]:8000", ("::", 8000)),
    ],
)
def test_a_port_may_have_an_address_as_in_docker(text: str, published: tuple[str, int]) -> None:
    assert parse_port(text) == Listening(*published)


@pytest.mark.parametrize("text", ["0", "65535", "-5", "abc", "", "8000 ", "127.0.0.1:", "127.0.0.1:65535"])
def test_a_port_leaves_room_for_the_status_port(text: str) -> None:
    with pytest.raises(InputError, match="expected a number from 1 to 65534"):
        parse_port(text)


@pytest.mark.parametrize("text", [":8000", "localhost:8000", "1.2.3:8000", "8000:8000", "::1:8000", "[127.0.0.1]:8000"])
def test_an_address_is_a_number_and_ipv6_has_brackets(text: str) -> None:
    with pytest.raises(InputError, match=r"no IP address|in brackets"):
        parse_port(text)


@pytest.mark.parametrize(
    ("address", "reachable"),
    [
        ("127.0.0.1", False),
        ("127.1.2.3", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.0.0.1", True),
        ("gpu7", True),
    ],
)
def test_only_loopback_is_out_of_reach(address: str, reachable: bool) -> None:
    assert is_exposed(address) is reachable


def test_literal_keys_are_taken_out_in_every_spelling() -> None:
    for words in (("--api-key", "k"), ("--api_key=k",), ("--api-key=k",)):
        assert without_key((*words, "--port", "9")) == (("--port", "9"), ("k",))
    assert without_key(("--api-key", "a", "--port", "9", "--api-key=b", "c")) == (("--port", "9"), ("b", "c"))
    assert without_key(("--port", "9")) == (("--port", "9"), ())
    assert without_key(("--api-key-file", "/f")) == (("--api-key-file", "/f"), ())


def test_the_last_value_of_a_flag_counts() -> None:
    assert value_of(("--host", "a", "--host=b"), "--host") == "b"
    assert value_of(("--host",), "--host") == value_of(("--hosts", "a"), "--host") == ""


def test_a_key_file_has_one_key_a_line(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    assert read_keys(str(file)) == ("s3cret",)
    wrong = {b"": "no key", b" \n\t\n": "no key", b"a b": "found a space", b"\xff": "not UTF-8", "ä".encode(): "ASCII"}
    for content, problem in wrong.items():
        file.write_bytes(content)
        with pytest.raises(InputError, match=problem):
            read_keys(str(file))
    with pytest.raises(InputError, match="No such file"):
        read_keys(str(tmp_path / "absent"))


def test_an_address_that_others_reach_requires_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(InputError, match=r"--port \[::\]:8000: other machines can reach this address"):
        require_key("::", 8000)
    check_variable()
    monkeypatch.setenv("VLLM_API_KEY", "k")
    require_key("::", 8000)
    check_variable()


@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_a_variable_without_a_key_is_an_error_and_not_the_users_word_for_none(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", value)
    with pytest.raises(InputError, match="VLLM_API_KEY: found no key") as raised:
        check_variable()
    assert "${KEY:-}" in raised.value.hint


@pytest.mark.parametrize(
    "words", [("--api-key",), ("--api-key", ""), ("--api-key=",), ("--api_key= ",), ("--api-key", "--port", "9")]
)
def test_a_flag_without_a_key_is_not_left_out_silently(words: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="--api-key: found no key"):
        without_key(words)
