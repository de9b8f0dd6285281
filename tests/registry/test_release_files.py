"""The checksums of a release are signed, by a key or an identity, as cosign verifies it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from drydock.attest import cosign
from drydock.attest.cosign import Signer
from drydock.cli.version import read_own_version
from drydock.core.errors import InputError, UntrustedError
from drydock.core.project import Project
from drydock.development import release_files
from tests.support.git import git
from tests.support.released import copied
from tests.support.sigstore import ISSUER, Sigstore, key_pair, token


def test_a_release_is_signed_with_a_key(tmp_path: Path) -> None:
    version = read_own_version()
    folder = copied(tmp_path / "drydock", version)
    git(folder, "tag", "--annotate", "--message", version, f"v{version}")
    key = key_pair(tmp_path)

    *_, sums, signature = release_files.make_release_files(Project(folder), tmp_path / "dist", Signer(str(key)))

    public = str(key.with_suffix(".pub"))
    cosign.check_data(sums.read_bytes(), signature.read_bytes(), public)
    with pytest.raises(UntrustedError):
        cosign.check_data(sums.read_bytes() + b"\n", signature.read_bytes(), public)


def test_a_key_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    key_pair(tmp_path)
    with pytest.raises(InputError, match="signing with /nowhere"):
        cosign.sign_data(b"data", Signer("/nowhere"))


def test_data_is_signed_with_an_identity(tmp_path: Path) -> None:
    key_pair(tmp_path)  # installs cosign
    services = Sigstore(tmp_path / "sigstore")
    services.start()
    environment = {**os.environ, "SIGSTORE_ID_TOKEN": token("release@example.org")}
    try:
        signed = cosign.sign_data(b"data", Signer("", config=services.config), environment)
    finally:
        services.stop()

    (tmp_path / "data").write_bytes(b"data")
    (tmp_path / "signature").write_bytes(signed)
    verify = ["cosign", "verify-blob", "--certificate-oidc-issuer", ISSUER, "--trusted-root", services.root]
    verify += ["--use-signed-timestamps", "--insecure-ignore-tlog", "--insecure-ignore-sct", "--bundle", "signature"]
    for who, code in (("release@example.org", 0), ("other@example.org", 1)):
        words = [*verify, "--certificate-identity", who, "data"]
        assert bool(subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode) == bool(code)
