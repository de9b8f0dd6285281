"""Absent, present, or a failure that says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoints.core.parse import parse_number
from entrypoints.core.records import Failure
from entrypoints.host.host import Host
from entrypoints.host.source import READ_AT_MOST


def test_a_missing_file_is_absent_and_no_failure(tmp_path: Path) -> None:
    host = Host(str(tmp_path))

    assert host.text("/proc/nothing") is None
    assert host.text("/proc/nothing/below") is None
    assert host.failures == []


def test_a_file_is_read_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "machine").write_text("x86_64\n")
    host = Host(str(tmp_path))

    assert host.text("/machine") == "x86_64\n"
    assert host.texts == {"/machine": "x86_64\n"}


def test_bytes_that_are_no_text_are_a_failure_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ab\xff")
    host = Host(str(tmp_path))

    assert host.text("/x") is None
    assert host.failures == [Failure("/x", "byte 0xff at offset 2", "UTF-8 text")]


def test_a_folder_or_pipe_in_place_of_a_file_is_a_failure_and_never_waits(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    host = Host(str(tmp_path))

    assert host.text("/folder") is None
    assert host.text("/pipe") is None
    assert [failure.where for failure in host.failures] == ["/folder", "/pipe"]


def test_a_loop_of_links_is_a_failure_with_its_errno(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    host = Host(str(tmp_path))

    assert host.text("/loop") is None
    assert "errno 40" in host.failures[0].found


def test_an_endless_file_is_read_to_a_bound_without_cutting_a_character(tmp_path: Path) -> None:
    (tmp_path / "huge").write_text("é" * READ_AT_MOST)
    host = Host(str(tmp_path))
    text = host.text("/huge")

    assert host.failures == []
    assert text is not None
    assert set(text) == {"é"}
    assert len(text.encode()) <= READ_AT_MOST


def test_a_text_that_does_not_parse_is_a_failure_that_quotes_it(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("many\n")
    host = Host(str(tmp_path))

    assert host.parsed("/count", parse_number, -1) == -1
    assert host.failures == [Failure("/count", "'many'", "a decimal number")]


def test_a_file_that_the_kernel_hides_from_this_container_is_absent_where_that_is_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def denied(path: str, _most: int) -> bytes:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr("entrypoints.host.source.read_regular", denied)
    hidden, refused = Host(), Host()

    assert hidden.text("/sys/class/kfd/kfd/topology/nodes/2/gpu_id", hidden=True) is None
    assert hidden.failures == []
    assert refused.text("/sys/class/kfd/kfd/topology/nodes/2/gpu_id") is None
    assert [failure.found for failure in refused.failures] == ["Operation not permitted (errno 1)"]
