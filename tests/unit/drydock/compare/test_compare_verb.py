"""`./inv compare`: what it prints, and its exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from drydock.compare.comparison import Comparison, compare_command
from drydock.compare.host_plans import find_recorded_hosts
from drydock.compare.pasted_command import PastedCommand, parse_command_words, read_command
from drydock.compare.verdict_text import format_comparison
from drydock.compare.vllm_version import find_served_version
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import BlockedError, DrydockError, InputError, ManualError, TargetError, UncertainError
from drydock.topology.size import HOSTS
from tests.support.called_verbs import call_verb

MODEL = "Qwen/Qwen3-8B"
OLD, NEW = "cuda12.9-vllm0.18", "cuda13.0-vllm0.33"
H100 = str(HOSTS / "cuda-h100-8x" / "host.json")


@pytest.fixture(autouse=True)
def without_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def command(*flags: str) -> PastedCommand:
    return parse_command_words(("vllm", "serve", MODEL, *flags))


def compared(*flags: str, roots: tuple[str, ...] = ()) -> Comparison:
    names = (OLD, NEW) if roots else ("0.18", "0.33")
    old, new = find_served_version(DRYDOCK, "--from", names[0]), find_served_version(DRYDOCK, "--to", names[1])
    hosts = find_recorded_hosts(DRYDOCK, roots, old, new)
    return compare_command(DRYDOCK, command(*flags), old, new, hosts)


def print_comparison(monkeypatch: pytest.MonkeyPatch, *flags: str, **options: Any) -> None:
    """Compare as the verb does, with the command after --."""
    monkeypatch.setattr(sys, "argv", ["inv", "compare", "--", "vllm", "serve", MODEL, *flags])
    call_verb("compare", **{"from_": "0.18", "to": "0.33", "json": True, **options})


def test_the_first_line_has_the_verdict_and_the_worst_comes_first() -> None:
    lines = format_comparison(
        compared("-q", "gguf", "--disable-log-requests", "-tp", "2"), 100, every=False
    ).splitlines()

    assert lines[0] == "blocked: vllm-0.18.0 → vllm-0.33.0: 1 blocked, 1 manual, 2 safe"
    assert [line.split()[0] for line in lines if line.startswith(("blocked ", "manual ", "safe "))] == [
        "blocked",
        "manual",
        "safe",
        "safe",
    ]
    assert "  --gpu-memory-utilization: 0.9 → 0.92" in lines
    assert "quantisations:" not in lines


def test_all_also_lists_what_this_command_does_not_have() -> None:
    text = format_comparison(compared(), 100, every=True)

    assert "quantisations:\n  - bitsandbytes, cpu_awq, gguf" in text
    assert "  - P2pNcclConnector\n" in text
    assert "values of --mamba-cache-mode:\n  - all\n" in text


def test_the_plans_of_both_rows_are_compared_on_a_recorded_host() -> None:
    comparison = compared("--max-model-len", "8192", "--calculate-kv-scales", roots=(H100,))

    assert comparison.left_out == ("--calculate-kv-scales",)
    assert [plan.host for plan in comparison.plans] == ["cuda-h100-8x"]
    changes = {change.name: (change.old, change.new) for change in comparison.plans[0].changes}
    assert changes["--calculate-kv-scales"] == ("", None)
    assert "drydock's plan of this model, without --calculate-kv-scales:" in format_comparison(
        comparison, 100, every=False
    )


@pytest.mark.parametrize(
    ("flags", "error", "code"),
    [
        (("-q", "gguf"), BlockedError, 14),
        (("--swap-space", "4"), ManualError, 21),
        (("--hf-overrides", '{"a": 1}'), UncertainError, 16),
    ],
)
def test_the_exit_code_is_that_of_the_verdict(
    flags: tuple[str, ...],
    error: type[DrydockError],
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(error) as raised:
        print_comparison(monkeypatch, *flags)

    assert raised.value.code == code
    assert json.loads(capsys.readouterr().out)["judgments"][0]["verdict"] != "safe"


def test_a_safe_command_ends_without_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_comparison(monkeypatch, "-tp", "2", all=True)
    printed = json.loads(capsys.readouterr().out)

    assert printed["verdict"] == "safe"
    assert printed["to"] == {
        "name": "vllm-0.33.0",
        "row": "",
        "distribution": "vllm",
        "version": "0.33.0",
        "assumed": "",
    }
    assert {
        "list": "load_formats",
        "gone": ["bitsandbytes", "gguf"],
        "added": ["ipc_cache", "modelexpress"],
    } in printed["lists"]


@pytest.mark.parametrize("name", ["0.18", "v0.18.0", "vllm==0.18.0", "vllm-0.18"])
def test_a_version_is_known_by_its_number(name: str) -> None:
    assert find_served_version(DRYDOCK, "--from", name).name == "vllm-0.18.0"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("0.32", InputError, "--to 0.32: several versions begin so"),
        ("0.99", InputError, "--to 0.99: drydock has read no such version"),
        ("cudda", TargetError, "--to: unknown target 'cudda'"),
        ("xpu-vllm0.16", TargetError, "--to: the row 'xpu-vllm0.16' is retired"),
        ("router", InputError, "--to router: router0.1 serves no model"),
    ],
)
def test_a_name_that_means_no_version_says_what_does(name: str, error: type[DrydockError], message: str) -> None:
    with pytest.raises(error, match=message):
        find_served_version(DRYDOCK, "--to", name)


def test_plans_need_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="is no row, so there is no plan"):
        print_comparison(monkeypatch, to=NEW, root=[H100])


def test_the_command_is_read_from_a_file_or_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("export A=1\nvllm serve m \\\n  -tp 2\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(script.read_bytes())))

    assert read_command((), str(script)) == read_command((), "-") == PastedCommand(("m", "-tp", "2"), {"A": "1"})


@pytest.mark.parametrize(
    ("words", "file", "message"),
    [
        ((), "", "found no command"),
        (("vllm", "serve", "m"), "serve.sh", "found both"),
        ((), "/no/such/file", "No such file"),
    ],
)
def test_no_command_says_how_to_give_one(words: tuple[str, ...], file: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_command(words, file)
