"""Ansible's own environment: made once, made again after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.core.errors import InputError
from drydock.inputs import locked_environment
from drydock.topology.playbook import environment


@pytest.fixture
def uv_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return what uv was called with; the cache folder is empty."""
    calls: list[tuple[str, ...]] = []

    def uv(_purpose: str, *words: str) -> None:
        calls.append(words)
        if words[0] == "venv":
            Path(words[-1], "bin").mkdir(parents=True)
        elif not (tmp_path / "works").exists():
            raise InputError("no index")

    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(locked_environment, "_run_uv_for", uv)
    (tmp_path / "works").touch()
    return calls


def test_it_is_made_once_with_hashes(uv_calls: list[tuple[str, ...]]) -> None:
    first = environment.prepare_ansible_programs()
    assert environment.prepare_ansible_programs() == first
    assert [words[0] for words in uv_calls] == ["venv", "pip"]
    assert {"--require-hashes", "--no-build"} <= set(uv_calls[1])


def test_an_interrupted_one_is_made_again(uv_calls: list[tuple[str, ...]], tmp_path: Path) -> None:
    (tmp_path / "works").unlink()
    with pytest.raises(InputError):
        environment.prepare_ansible_programs()
    (tmp_path / "works").touch()
    assert (environment.prepare_ansible_programs().parent / locked_environment.MARKER).is_file()
    assert [words[0] for words in uv_calls] == ["venv", "pip", "venv", "pip"]


def test_other_requirements_make_another(uv_calls: list[tuple[str, ...]], tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("ansible==1\n")
    assert environment.prepare_ansible_programs() != environment.prepare_ansible_programs(tmp_path / "other.txt")
    assert str(tmp_path / "other.txt") in uv_calls[-1]


def test_what_another_user_could_have_written_is_not_run(uv_calls: list[tuple[str, ...]]) -> None:
    programs = environment.prepare_ansible_programs()
    programs.chmod(0o777)
    with pytest.raises(InputError, match="every user can write to it") as raised:
        environment.prepare_ansible_programs()
    assert len(uv_calls) == 2
    assert raised.value.hint == f"remove {programs.parent}: the same command makes it again"


def test_every_requirement_has_a_version_and_hashes() -> None:
    text = environment.REQUIREMENTS.read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert any(line.startswith("ansible==") for line in pins)
    assert all("==" in line and line.endswith("\\") for line in pins)
    assert text.count("--hash=sha256:") >= len(pins)
