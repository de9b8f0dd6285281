"""Processes read from made-up and real /proc trees."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from entrypoints.host.processes import (
    Process,
    command_line,
    is_listening,
    list_children,
    list_session_processes,
    list_titled_processes,
    read_process_age,
)


def make_process(root: Path, pid: int, parent: int, leader: int, title: str, state: str = "S") -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    rest = " ".join(["0"] * 30)
    (folder / "stat").write_text(f"{pid} (a name) with ) in it) {state} {parent} {pid} {leader} {rest}")
    (folder / "cmdline").write_text(title.replace(" ", "\0") + "\0")
    (folder / "maps").write_text(
        "7f00-7f01 r--p 00000000 fe:00 12    /models/a b/model.safetensors\n"
        "7f01-7f02 r--p 00000000 fe:00 13    /usr/lib/libc.so.6\n"
        "7f02-7f03 rw-p 00000000 00:00 0\n"
    )


def test_a_session_is_found_with_the_weights_that_titled_processes_map(tmp_path: Path) -> None:
    make_process(tmp_path, 10, 1, 10, "python -m vllm")
    make_process(tmp_path, 11, 10, 10, "VLLM::Worker")
    make_process(tmp_path, 12, 1, 12, "bash")
    assert sorted(list_session_processes(10, str(tmp_path))) == [
        Process("VLLM::Worker", ("/models/a b/model.safetensors",)),
        Process("python -m vllm", ()),
    ]


def test_a_helper_that_an_engine_core_has_just_forked_is_none_of_vllms_processes(tmp_path: Path) -> None:
    make_process(tmp_path, 10, 1, 10, "vllm serve")
    make_process(tmp_path, 11, 10, 10, "VLLM::EngineCore")
    make_process(tmp_path, 12, 11, 10, "VLLM::EngineCore")  # a fork that has not replaced itself by a compiler yet
    make_process(tmp_path, 13, 11, 10, "VLLM::Worker_TP0")
    make_process(tmp_path, 14, 10, 10, "VLLM::EngineCore", state="Z")
    make_process(tmp_path, 15, 1, 15, "VLLM::EngineCore")
    assert list_titled_processes(10, str(tmp_path)) == {11: "VLLM::EngineCore", 13: "VLLM::Worker_TP0"}


def test_children_leave_out_zombies_and_other_peoples(tmp_path: Path) -> None:
    make_process(tmp_path, 10, 1, 10, "a")
    make_process(tmp_path, 11, 1, 10, "b", state="Z")
    make_process(tmp_path, 12, 10, 10, "c")
    assert list_children(1, str(tmp_path)) == (10,)


def test_a_process_that_is_gone_is_not_among_the_results(tmp_path: Path) -> None:
    (tmp_path / "proc" / "10").mkdir(parents=True)
    assert list_session_processes(10, str(tmp_path)) == ()
    assert command_line(10, str(tmp_path)) == ()


def test_a_title_that_setproctitle_padded_is_trimmed(tmp_path: Path) -> None:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cmdline").write_text("VLLM::Worker" + " " * 40 + "\0")
    assert command_line(7, str(tmp_path)) == ("VLLM::Worker",)


def test_this_process_is_as_old_as_it_has_used_time() -> None:
    first = read_process_age()
    time.sleep(0.05)
    assert 0.03 < read_process_age() - first < 5
    assert command_line(os.getpid())


def test_a_listening_port_is_seen_and_a_connected_one_is_not() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        assert is_listening(server.getsockname()[1])
        assert not is_listening(client.getsockname()[1])


def test_without_proc_net_nothing_listens(tmp_path: Path) -> None:
    assert not is_listening(80, str(tmp_path))
    assert read_process_age(str(tmp_path)) == 0.0
