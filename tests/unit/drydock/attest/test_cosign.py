from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from drydock.attest.cosign import Signer, Trust, check_data, check_digest_signature, require_signer, sign_digests
from drydock.core.errors import InputError, RegistryError, UntrustedError
from drydock.oci.reference import parse_reference

DIGEST = f"sha256:{'a' * 64}"
WHERE = parse_reference(f"127.0.0.1:5000/a@{DIGEST}")


def cosign(folder: Path, script: str) -> dict[str, str]:
    """Write a fake cosign that records its arguments, and return an environment that finds it."""
    program = folder / "cosign"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{script}\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_signing_with_a_key_uses_no_transparency_log(tmp_path: Path) -> None:
    sign_digests([WHERE], Signer("k"), cosign(tmp_path, 'case "$1" in verify) echo "Error: none" >&2; exit 1;; esac'))
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["public-key", "verify", "sign"]
    assert calls[-1].endswith(f"127.0.0.1:5000/a@{DIGEST}")
    assert {"--tlog-upload=false", "--allow-http-registry"} <= set(calls[-1].split())


def test_a_claim_is_signed_and_required(tmp_path: Path) -> None:
    env = cosign(tmp_path, 'case "$1" in verify) echo "Error: none" >&2; exit 1;; esac')
    sign_digests([WHERE], Signer("k", claims={"key": "a b"}), env)
    with pytest.raises(UntrustedError):
        check_digest_signature(WHERE, Trust(key="k", claims={"key": "a b"}), env)
    calls = (tmp_path / "calls").read_text().splitlines()[1:]
    assert [call.split()[0] for call in calls] == ["verify", "sign", "verify"]
    assert all(" --annotations=key=a b " in call for call in calls)


def test_a_signed_digest_is_not_signed_again(tmp_path: Path) -> None:
    sign_digests([WHERE], Signer("k"), cosign(tmp_path, f"echo {DIGEST}"))
    assert "sign " not in (tmp_path / "calls").read_text()


def test_all_unsigned_digests_are_signed_in_one_call(tmp_path: Path) -> None:
    second = parse_reference(f"127.0.0.1:5000/a@sha256:{'b' * 64}")
    script = f'case "$1$*" in verify*{DIGEST}) echo {DIGEST};; verify*) exit 1;; esac'
    third = second._replace(digest=f"sha256:{'c' * 64}")
    sign_digests([WHERE, second, third], Signer("k"), cosign(tmp_path, script))
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["public-key", "verify", "verify", "verify", "sign"]
    assert calls[-1].split()[-2:] == [f"127.0.0.1:5000/a@{item.digest}" for item in (second, third)]


def test_keyless_signing_uses_cosigns_defaults(tmp_path: Path) -> None:
    sign_digests([WHERE], Signer(""), cosign(tmp_path, ""))
    assert (tmp_path / "calls").read_text().split()[:2] == ["sign", "--yes"]


def test_cosigns_error_is_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="exit 1: no such token"):
        sign_digests([WHERE], Signer(""), cosign(tmp_path, "echo 'Error: no such token' >&2; exit 1"))
    with pytest.raises(UntrustedError, match="no valid signature: none"):
        check_digest_signature(WHERE, Trust(key="k"), cosign(tmp_path, "echo 'Error: none' >&2; exit 1"))


def test_a_signature_for_another_digest_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UntrustedError, match="for another digest"):
        check_digest_signature(WHERE, Trust(key="k"), cosign(tmp_path, f"echo sha256:{'b' * 64}"))


def test_without_cosign_the_hint_shows_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cosign: not found") as caught:
        check_digest_signature(WHERE, Trust(key="k"), {"PATH": str(tmp_path)})
    assert "testing" in caught.value.hint


def test_an_identity_requires_an_issuer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--identity requires --issuer"):
        check_digest_signature(WHERE, Trust(identity="me"), {"PATH": str(tmp_path)})


# --- with an identity -----------------------------------------------------------------------------------------------

SIGNER = Trust(identity="me@example.com", issuer="https://issuer.example")
VERIFY = f"verify --certificate-identity {SIGNER.identity} --certificate-oidc-issuer {SIGNER.issuer}"
REST = f"--allow-http-registry 127.0.0.1:5000/a@{DIGEST}"


def test_an_identity_is_verified_with_cosigns_defaults(tmp_path: Path) -> None:
    check_digest_signature(WHERE, SIGNER, cosign(tmp_path, f"echo {DIGEST}"))
    assert (tmp_path / "calls").read_text() == f"{VERIFY} {REST}\n"


def test_a_signing_configuration_is_passed_to_cosign(tmp_path: Path) -> None:
    sign_digests([WHERE], Signer("", config="c.json"), cosign(tmp_path, ""))
    assert (tmp_path / "calls").read_text() == f"sign --yes --signing-config c.json {REST}\n"


@pytest.mark.parametrize(
    ("root", "flags"),
    [
        ({"tlogs": [{}], "ctlogs": [{}]}, ""),
        ({"tlogs": [{}], "timestampAuthorities": [{}]}, " --insecure-ignore-sct"),
        ({"timestampAuthorities": [{}]}, " --use-signed-timestamps --insecure-ignore-tlog --insecure-ignore-sct"),
    ],
)
def test_checks_without_a_service_in_the_trusted_root_are_skipped(tmp_path: Path, root: object, flags: str) -> None:
    file = tmp_path / "root.json"
    file.write_text(json.dumps(root))
    check_digest_signature(WHERE, SIGNER._replace(root=str(file)), cosign(tmp_path, f"echo {DIGEST}"))
    assert (tmp_path / "calls").read_text() == f"{VERIFY} --trusted-root {file}{flags} {REST}\n"


@pytest.mark.parametrize("text", ["", "{}", None])
def test_an_invalid_trusted_root_is_an_error(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "root.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=r"--trusted-root .*root\.json"):
        check_digest_signature(WHERE, SIGNER._replace(root=str(file)), cosign(tmp_path, ""))
    assert not (tmp_path / "calls").exists()


# --- before anything is made or sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("open /nope.key: no such file or directory", "cosign generate-key-pair"),
        ("unsupported pem type: PUBLIC KEY", "expected cosign's private key"),
        ("loading URL: env var $KEY not found", "env://NAME"),
        ("decrypt: encrypted: decryption failed", "COSIGN_PASSWORD"),
    ],
)
def test_a_key_that_does_not_open_is_named_with_what_to_do(tmp_path: Path, message: str, hint: str) -> None:
    env = cosign(tmp_path, f"echo 'Error: {message}' >&2; exit 1")
    with pytest.raises(InputError) as caught:
        require_signer(Signer("some.key"), env)
    assert caught.value.problems == (f"signing with some.key: {message}",)
    assert hint in caught.value.hint


def test_a_signer_is_required_to_have_cosign_and_its_services(tmp_path: Path) -> None:
    for signer in (Signer("k"), Signer("")):
        with pytest.raises(InputError, match="cosign: not found"):
            require_signer(signer, {"PATH": str(tmp_path)})
    env = cosign(tmp_path, "")
    with pytest.raises(InputError, match=r"--signing-config .*services\.json: no such file"):
        require_signer(Signer("", config=str(tmp_path / "services.json")), env)
    require_signer(Signer("", config=__file__), env)
    require_signer(None, {"PATH": str(tmp_path)})


@pytest.mark.parametrize("reason", ["open cosign.pub: no such file or directory", "PEM decoding failed"])
def test_a_public_key_that_cannot_be_read_says_nothing_of_the_signature(tmp_path: Path, reason: str) -> None:
    env = cosign(tmp_path, f"echo 'Error: loading verifier from key opts: loading public key: {reason}' >&2; exit 1")
    for verify in (lambda: check_digest_signature(WHERE, Trust(key="k"), env), lambda: check_data(b"", b"", "k", env)):
        with pytest.raises(InputError) as caught:
            verify()
        assert caught.value.problems == (f"--key k: {reason}",)
