"""Where this drydock is from: what its installer recorded, and what pip gets to make the same wheel again."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from drydock.ci import own_wheel
from drydock.cli.version import read_own_version

ADDRESS = "https://releases.example/drydock_images-0.1.0-py3-none-any.whl"
HASH = "a" * 64


@pytest.mark.parametrize(
    "archive",
    [{"hashes": {"sha256": HASH}}, {"hash": f"sha256={HASH}"}, {"hash": f"sha256={HASH}", "hashes": {"sha256": HASH}}],
)
def test_a_wheel_from_an_address_is_named_by_it(archive: dict[str, Any]) -> None:
    wheel = own_wheel.at_address({"url": ADDRESS, "archive_info": archive})
    assert wheel == (ADDRESS.rpartition("/")[2], HASH, b"", ADDRESS)


@pytest.mark.parametrize(
    ("url", "archive"),
    [
        (ADDRESS, {}),
        (ADDRESS, {"hashes": {"sha512": HASH}}),
        (ADDRESS, None),
        (ADDRESS.replace("https://", "https://me:secret@"), {"hashes": {"sha256": HASH}}),
        (ADDRESS.replace("https://", "file:///"), {"hashes": {"sha256": HASH}}),
        (ADDRESS.replace(".whl", ".tar.gz"), {"hashes": {"sha256": HASH}}),
        ("", {}),
    ],
)
def test_what_others_cannot_reach_or_check_is_no_address(url: str, archive: dict[str, Any] | None) -> None:
    assert own_wheel.at_address({"url": url, "archive_info": archive}) is None


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ({}, f"drydock-images=={read_own_version()}"),
        ({"url": "file:///a/b.whl", "archive_info": {}}, "file:///a/b.whl"),
        ({"url": "file:///checkout", "dir_info": {}}, "file:///checkout"),
        (
            {"url": "https://git.example/drydock.git", "vcs_info": {"vcs": "git", "commit_id": "b" * 40}},
            f"git+https://git.example/drydock.git@{'b' * 40}",
        ),
    ],
)
def test_pip_gets_what_was_installed(origin: dict[str, Any], requirement: str) -> None:
    assert own_wheel.requirement_of(origin) == requirement


@pytest.mark.parametrize("text", ["", "{", "[]", "nothing"])
def test_a_damaged_record_of_the_installer_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "direct_url.json").write_text(text)
    assert own_wheel.read_origin(importlib.metadata.PathDistribution(tmp_path)) == {}


def test_a_file_that_is_no_wheel_says_no_commit(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no wheel")
    assert own_wheel.read_wheel_commit(tmp_path / "x.whl") == ""
    assert own_wheel.read_wheel_commit(tmp_path / "missing.whl") == ""
