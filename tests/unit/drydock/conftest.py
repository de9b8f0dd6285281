"""A web server on the loopback address that can misbehave, and distributions small enough to make on the fly."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drydock.inputs.store import Store
from tests.support.loopback import Loopback
from tests.support.small_wheel import make_small_wheel


@pytest.fixture
def server() -> Iterator[Loopback]:
    with Loopback() as loopback:
        yield loopback


@pytest.fixture
def other_server() -> Iterator[Loopback]:
    """Another origin, for redirects."""
    with Loopback() as loopback:
        yield loopback


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def make_wheel() -> Callable[..., tuple[str, bytes]]:
    """Return (file name, bytes) of a wheel."""
    return make_small_wheel


@pytest.fixture
def make_deb() -> Callable[..., bytes]:
    """Return the bytes of a Debian package: an ar archive of three members (deb(5))."""

    def make(fields: dict[str, str], files: dict[str, bytes]) -> bytes:
        control = "".join(f"{key}: {value}\n" for key, value in fields.items()).encode()
        members = {
            "debian-binary": b"2.0\n",
            "control.tar.gz": _tar({"./control": control}),
            "data.tar.gz": _tar(files),
        }
        return b"!<arch>\n" + b"".join(_ar_member(name, data) for name, data in members.items())

    return make


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.mode = 0o755
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _ar_member(name: str, data: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
    return header + data + b"\n" * (len(data) % 2)
