from __future__ import annotations

import pytest

from drydock.core.errors import InputError
from drydock.core.network_settings import is_loopback
from drydock.oci.reference import parse_reference

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag", "digest"),
    [
        ("ubuntu", "docker.io", "library/ubuntu", "", ""),
        ("ubuntu:24.04", "docker.io", "library/ubuntu", "24.04", ""),
        ("vllm/vllm-openai:v0.32.0", "docker.io", "vllm/vllm-openai", "v0.32.0", ""),
        ("index.docker.io/library/ubuntu", "docker.io", "library/ubuntu", "", ""),
        ("localhost/a", "localhost", "a", "", ""),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000", "a/b", "", ""),
        ("[::1]:5000/a/b:c", "[::1]:5000", "a/b", "c", ""),
        (f"r.example/a__b/c-d.e:t@{DIGEST}", "r.example", "a__b/c-d.e", "t", DIGEST),
        (f"https://r.example:444/a@{DIGEST}", "r.example:444", "a", "", DIGEST),
    ],
)
def test_references(text: str, host: str, repository: str, tag: str, digest: str) -> None:
    assert parse_reference(text)[:4] == (host, repository, tag, digest)


@pytest.mark.parametrize(
    "text",
    ["", "r.example/", "r.example/A", "r.example/a:b c", "r.example/a@sha256:12", "r.example/a@", "ftp://r/a",
     "r.example/a//b", "r.example/a:" + "t" * 129, "r.example/../a", "r.example/a?x=1"],
)  # fmt: skip
def test_invalid_references_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="invalid") as raised:
        parse_reference(text)
    assert "password" not in str(raised.value)


@pytest.mark.parametrize("secret", ["user:secret", "user:sec/secret", "secret", "user:secret@secret"])
@pytest.mark.parametrize("scheme", ["", "https://"])
def test_credentials_in_an_address_are_refused_and_not_shown(scheme: str, secret: str) -> None:
    with pytest.raises(InputError, match=f"^'r.example/a@{DIGEST}': invalid: found credentials") as refused:
        parse_reference(f"{scheme}{secret}@r.example/a@{DIGEST}")
    assert "secret" not in str(refused.value)


def test_names() -> None:
    reference = parse_reference(f"r.example/a:t@{DIGEST}")
    assert (str(reference), reference.name) == (f"r.example/a:t@{DIGEST}", DIGEST)
    assert (str(reference.tagged("u")), str(reference.at(DIGEST)), parse_reference("r.example/a").name) == (
        "r.example/a:u",
        f"r.example/a@{DIGEST}",
        "latest",
    )


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1:5000", True), ("127.9.9.9", True), ("localhost:1", True), ("[::1]:5000", True), ("[::1]", True),
     ("10.0.0.1:5000", False), ("127.0.0.1.example", False), ("r.example", False)],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
