"""What ansible-playbook prints → counts, failures and answers; its environment; how it is started."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from drydock.core.errors import BuildError, InputError
from drydock.topology.playbook import run
from drydock.topology.playbook.run import Counts, Events, Failure, Ssh


def event(kind: str, **fields: Any) -> bytes:
    return json.dumps({"_event": kind, **fields}).encode() + b"\n"


def result(kind: str, task: str, node: str, **found: Any) -> bytes:
    return event(kind, task={"name": task}, hosts={node: found})


def read(*lines: bytes, keep: tuple[str, ...] = ()) -> Events:
    events = Events(keep, lambda *_: None)
    for line in lines:
        events.take(line)
    return events


def test_failures_say_node_task_and_text() -> None:
    events = read(
        result("v2_runner_on_failed", "run : Keep the container running", "n0", msg="no such image"),
        result("v2_runner_on_unreachable", "check : Ask", "n1", msg="Host key verification failed.", unreachable=True),
        event("v2_playbook_on_stats", stats={"n0": {"ok": 2, "failures": 1}, "n1": {"unreachable": 1}}),
    )
    assert events.failures == [
        Failure("n0", "run : Keep the container running", "no such image", unreachable=False),
        Failure("n1", "check : Ask", "Host key verification failed.", unreachable=True),
    ]
    assert events.counts == {"n0": Counts(ok=2, failures=1), "n1": Counts(unreachable=1)}


def test_of_a_loop_only_the_failed_items_are_told() -> None:
    items = [{"msg": "fine"}, {"failed": True, "msg": "found no /srv/m"}, {"failed": True, "msg": "found no /srv/n"}]
    events = read(result("v2_runner_on_failed", "t", "n0", msg="One or more items failed", results=items))
    assert [failure.text for failure in events.failures] == ["found no /srv/m found no /srv/n"]


def test_answers_are_kept_for_the_tasks_that_were_named_also_if_they_failed() -> None:
    events = read(
        result("v2_runner_on_ok", "preflight : Ask", "n0", stdout="{}"),
        result("v2_runner_on_failed", "preflight : Ask", "n1", stdout="", msg="no"),
        result("v2_runner_on_ok", "preflight : Other", "n0", stdout="x"),
        keep=("Ask",),
    )
    assert events.answers == {"Ask": {"n0": {"stdout": "{}"}, "n1": {"stdout": "", "msg": "no"}}}


@pytest.mark.parametrize(
    "line",
    [b"[]\n", b"7\n", b"\xff\xfe\n", b"{\n", b'{"_event": []}\n', b"[" * 100_000 + b"\n", b"NaN\n"],
)
def test_what_is_no_event_changes_nothing(line: bytes) -> None:
    events = read(line)
    assert (events.counts, events.failures) == ({}, [])


@pytest.mark.parametrize(
    "fields",
    [
        {"hosts": []},
        {"hosts": {"n": 7}},
        {"task": 7, "hosts": {"n": {"results": 7}}},
        {"task": {"name": ["x"]}, "hosts": {"n": {"results": [None, 7]}}},
        {"stats": {"n": {"ok": "many", "failures": None}}},
        {"stats": 7},
    ],
)
@pytest.mark.parametrize("kind", ["v2_runner_on_failed", "v2_playbook_on_stats", "v2_playbook_on_task_start"])
def test_events_of_another_form_raise_nothing(kind: str, fields: dict[str, Any]) -> None:
    read(event(kind, **fields))


def test_a_machine_cannot_write_to_the_terminal_or_say_too_much() -> None:
    text = "a" * 100_000 + "\x1b]0;title\x07 end"
    (failure,) = read(result("v2_runner_on_failed", "t\x1b[31m", "n0", msg=text)).failures
    assert "\x1b" not in failure.text + failure.task
    assert failure.text.endswith("end")
    assert len(failure.text) < 2 * run.TEXT_AT_MOST


def test_ansible_gets_no_setting_of_the_users_and_checks_host_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSIBLE_HOST_KEY_CHECKING", "false")
    monkeypatch.setenv("ANSIBLE_LIBRARY", "/tmp/mine")
    monkeypatch.setenv("PYTHONPATH", "/tmp/mine")
    known = tmp_path / "known_hosts"
    found = run.environment(tmp_path, tmp_path, Ssh(user="ops", known_hosts=str(known)))

    assert found["ANSIBLE_HOST_KEY_CHECKING"] == "true"
    assert not {"ANSIBLE_LIBRARY", "PYTHONPATH"} & set(found)
    assert "StrictHostKeyChecking=yes" in found["ANSIBLE_SSH_ARGS"]
    assert f"UserKnownHostsFile={known}" in found["ANSIBLE_SSH_ARGS"]
    assert found["ANSIBLE_REMOTE_USER"] == "ops"
    assert "ANSIBLE_PRIVATE_KEY_FILE" not in found


# --- the process ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("playbook.yml", "inventory.yml"):
        (tmp_path / name).write_text("---\n")
    return tmp_path


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script in the place of ansible-playbook."""
    own = folder / "bin"
    own.mkdir()
    (own / "ansible-playbook").write_text(f"#!/bin/sh\n{script}\n")
    (own / "ansible-playbook").chmod(stat.S_IRWXU)
    monkeypatch.setattr(run, "programs", lambda: own)


STATS = """echo '{"_event": "v2_playbook_on_stats", "stats": {"n0": {"ok": 1, "changed": 1}}}'"""


def test_the_words_of_the_command_and_private_variables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        'printf "%s\\n" "$@" > words; for last; do case "$last" in @*) stat -c %a "${last#@}" > mode;; esac; done\n'
    )
    stand_in(folder, monkeypatch, script + STATS)
    played = run.playbook(
        folder,
        ("check", "run"),
        limit=("n0",),
        check=True,
        variables={"topology_secrets": {"A": "no-word-of-the-command"}},
    )
    words = (folder / "words").read_text()

    assert "--tags\ncheck,run\n--limit\nn0\n--check\n" in words
    assert "no-word-of-the-command" not in words
    assert (folder / "mode").read_text() == "600\n"
    assert (played.good, played.changed) == (True, 1)


def test_a_play_that_reaches_nobody_is_an_error_with_ansibles_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(folder, monkeypatch, "echo '[ERROR]: no inventory' >&2; exit 4")
    with pytest.raises(BuildError, match=r"ended with 4 before any machine answered:\n\[ERROR\]: no inventory"):
        run.playbook(folder)


def test_it_is_ended_after_its_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(folder, monkeypatch, "echo $$ > pid; exec sleep 60")
    with pytest.raises(BuildError, match="did not end within 0 s"):
        run.playbook(folder, seconds=0.3)
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


def test_an_endless_answer_ends_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LINE_AT_MOST", 1000)
    stand_in(folder, monkeypatch, "exec yes | tr -d '\\n'")
    with pytest.raises(BuildError, match="found an answer of more than 1000 bytes"):
        run.playbook(folder)


def test_a_folder_without_a_playbook_and_an_unknown_tag_are_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found no playbook\.yml, expected what"):
        run.playbook(tmp_path / "nowhere")
    with pytest.raises(InputError, match="tag stopp: unknown, expected one of check"):
        run.playbook(folder, ("stopp",))
