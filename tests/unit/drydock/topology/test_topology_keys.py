"""A topology's secrets are made once, in files that only their owner can read, and are in nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.core.errors import InputError
from drydock.model.record import dump_record
from drydock.topology import topology_keys
from drydock.topology.render import FORMATS
from tests.support import topologies
from tests.support.called_verbs import render_topology

KEY = "sk-canary.of~the-test=="


def test_a_value_is_random_stays_and_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("VLLM_API_KEY", "DRYDOCK_GROUP_SECRET")
    first = topology_keys.ensure_secrets(tmp_path / "new", names)

    assert len({*first.values(), *topology_keys.ensure_secrets(tmp_path / "other", names).values()}) == 4
    assert topology_keys.ensure_secrets(tmp_path / "new", names) == first
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()} == {0o600}
    assert not any(value in str(capsys.readouterr()) for value in first.values())


def test_a_key_of_the_shell_is_in_the_file_and_in_no_rendered_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setenv("DRYDOCK_GROUP_SECRET", KEY)
    for make, kinds in ((topologies.disaggregated, FORMATS[:4]), (topologies.two_nodes, ("compose", "ansible"))):
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps(dump_record(make())))
        for kind in kinds:
            render_topology(plan, kind, tmp_path / f"{make.__name__}-{kind}")

    key_files = {path.name for path in tmp_path.rglob("*") if path.is_file() and KEY in path.read_text()}
    assert key_files == {"VLLM_API_KEY.env", "DRYDOCK_GROUP_SECRET.env"}
    assert KEY not in str(capsys.readouterr())


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        (f"VLLM_API_KEY={KEY}\n", 0o640, "other users can read it"),
        ("", 0o600, "expected one line, VLLM_API_KEY, = and its value"),
        (f"OTHER={KEY}\n", 0o600, "expected one line"),
        ("VLLM_API_KEY=a b\n", 0o600, "expected one line"),
        ("VLLM_API_KEY=a$b\n", 0o600, "expected one line"),
        (f"VLLM_API_KEY={KEY}\nPATH=/x\n", 0o600, "expected one line"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, mode: int, problem: str) -> None:
    file = tmp_path / "VLLM_API_KEY.env"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(InputError, match=problem) as raised:
        topology_keys.ensure_secrets(tmp_path, ("VLLM_API_KEY",))
    assert KEY not in str(raised.value)


def test_a_variable_that_no_client_can_send_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "$(reboot)")
    with pytest.raises(InputError, match="VLLM_API_KEY: a value that clients cannot send"):
        topology_keys.ensure_secrets(tmp_path, ("VLLM_API_KEY",))
