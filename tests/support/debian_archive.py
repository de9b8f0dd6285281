"""A small signed Debian archive on a loopback server."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hashes import sha256
from tests.support.loopback import Loopback

needs_apt_and_gpg = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("gpg")), reason="needs apt-get, and gpg to sign a repository with"
)


def describe_package(name: str, number: int, more: str = "", architecture: str = "amd64") -> str:
    """Return a package's paragraph of an index, with a hash that is its number."""
    return (
        f"Package: {name}\nVersion: 1:1.0-1\nArchitecture: {architecture}\n"
        f"Maintainer: x <x@x.example>\nDescription: x\n"
        f"Filename: pool/main/{name}_1.0-1_{architecture}.deb\nSize: 7\nSHA256: {number:064x}\n{more}\n\n"
    )


@contextmanager
def serve_archive(server: Loopback, folder: Path, indexes: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Serve indexes of packages by architecture; yield the environment that selects the archive."""
    keyring, newer = folder / "keyring.gpg", ("1.0-1", "1.0-1+deb12u1")
    security = {architecture: text.replace(*newer) for architecture, text in indexes.items()}
    for root, suite, texts in (
        ("debian", "bookworm", indexes),
        ("debian", "bookworm-updates", dict.fromkeys(indexes, "")),
        ("debian-security", "bookworm-security", security),
    ):
        files = {f"main/binary-{architecture}/Packages": text.encode() for architecture, text in texts.items()}
        files |= {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}
        server.files |= {f"/{root}/dists/{suite}/{name}": data for name, data in files.items() if name.endswith(".gz")}
        release = _format_release(suite, tuple(indexes), files)
        server.files[f"/{root}/dists/{suite}/InRelease"] = _sign_release(release, folder, keyring)
    try:
        yield {"DRYDOCK_DEBIAN_MIRROR": f"{server.url}/debian", "DRYDOCK_DEBIAN_KEYRING": str(keyring)}
    finally:
        subprocess.run(["gpgconf", "--homedir", str(folder / "gpg"), "--kill", "gpg-agent"], check=True)


def _format_release(suite: str, architectures: tuple[str, ...], files: Mapping[str, bytes]) -> str:
    hashes = "".join(f" {sha256(data)} {len(data)} {name}\n" for name, data in files.items())
    return (
        f"Origin: Debian\nSuite: {suite}\nCodename: {suite}\nArchitectures: {' '.join(architectures)}\n"
        f"Components: main\nDate: Sat, 21 Nov 2020 00:00:00 UTC\nSHA256:\n{hashes}"
    )


def _sign_release(text: str, folder: Path, keyring: Path) -> bytes:
    home = folder / "gpg"
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
    if not home.is_dir():
        home.mkdir(mode=0o700)
        key = ["--quick-generate-key", "drydock test <test@test.example>", "ed25519", "sign", "never"]
        subprocess.run([*gpg, *key], check=True, capture_output=True)
        subprocess.run([*gpg, "--output", str(keyring), "--export"], check=True, capture_output=True)
    return subprocess.run([*gpg, "--clearsign"], input=text.encode(), check=True, capture_output=True).stdout
