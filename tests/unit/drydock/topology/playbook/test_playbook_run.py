"""How ansible-playbook is started, its environment, and what is shown of its output."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from drydock.core.errors import EngineError, InputError
from drydock.model.shared_options import SshOptions
from drydock.topology.playbook import playbook_run


def test_ansible_gets_no_setting_of_the_users_and_checks_host_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSIBLE_HOST_KEY_CHECKING", "false")
    monkeypatch.setenv("ANSIBLE_LIBRARY", "/tmp/mine")
    monkeypatch.setenv("PYTHONPATH", "/tmp/mine")
    known_hosts = tmp_path / "known_hosts"
    ansible_env = playbook_run.make_ansible_environment(
        tmp_path, tmp_path, SshOptions(user="ops", known_hosts=str(known_hosts))
    )

    assert ansible_env["ANSIBLE_HOST_KEY_CHECKING"] == "true"
    assert not {"ANSIBLE_LIBRARY", "PYTHONPATH"} & set(ansible_env)
    assert "StrictHostKeyChecking=yes" in ansible_env["ANSIBLE_SSH_ARGS"]
    assert f"UserKnownHostsFile={known_hosts}" in ansible_env["ANSIBLE_SSH_ARGS"]
    assert ansible_env["ANSIBLE_REMOTE_USER"] == "ops"
    assert "ANSIBLE_PRIVATE_KEY_FILE" not in ansible_env


# --- the process ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("playbook.yml", "inventory.yml"):
        (tmp_path / name).write_text("---\n")
    return tmp_path


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script in the place of ansible-playbook."""
    program_folder = folder / "bin"
    program_folder.mkdir()
    (program_folder / "ansible-playbook").write_text(f"#!/bin/sh\n{script}\n")
    (program_folder / "ansible-playbook").chmod(stat.S_IRWXU)
    monkeypatch.setattr(playbook_run, "prepare_ansible_programs", lambda: program_folder)


def test_the_words_of_the_command_and_private_variables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        'printf "%s\\n" "$@" > words; for last; do case "$last" in @*) stat -c %a "${last#@}" > mode;; esac; done\n'
    )
    stand_in(folder, monkeypatch, script)
    playbook_run.run_playbook(folder, ("check", "run"), variables={"topology_secrets": {"A": "no-word-of-the-command"}})
    words = (folder / "words").read_text()

    assert "--tags\ncheck,run\n" in words
    assert "no-word-of-the-command" not in words
    assert (folder / "mode").read_text() == "600\n"


def test_a_task_that_fails_is_an_error_and_each_line_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(folder, monkeypatch, "echo 'fatal: [n0]: FAILED!'; echo '[ERROR]: no' >&2; exit 2")
    messages: list[str] = []
    with pytest.raises(EngineError, match="ansible-playbook --tags run: exit 2"):
        playbook_run.run_playbook(folder, ("run",), on_line=messages.append)
    assert messages == ["fatal: [n0]: FAILED!", "[ERROR]: no"]


def test_a_machine_cannot_write_to_the_terminal_or_say_too_much(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(folder, monkeypatch, "head -c 100000 /dev/zero | tr '\\0' a; printf '\\033]0;title\\007 end\\n'")
    messages: list[str] = []
    playbook_run.run_playbook(folder, on_line=messages.append)
    (line,) = messages
    assert "\x1b" not in line
    assert line.endswith("end")
    assert len(line) < 2 * playbook_run.TEXT_AT_MOST


def test_it_is_ended_after_its_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(folder, monkeypatch, "echo $$ > pid; exec sleep 60")
    with pytest.raises(EngineError, match="did not end within 0 s"):
        playbook_run.run_playbook(folder, seconds=0.3)
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


def test_a_folder_without_a_playbook_and_an_unknown_tag_are_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found no playbook\.yml, expected what"):
        playbook_run.run_playbook(tmp_path / "nowhere")
    with pytest.raises(InputError, match="tag stopp: unknown, expected one of check"):
        playbook_run.run_playbook(folder, ("stopp",))
