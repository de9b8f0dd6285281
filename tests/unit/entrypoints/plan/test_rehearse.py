"""`plan --rehearse`: what the program with vLLM's Python is asked, and what becomes of its answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from entrypoints.core.errors import HOST, REFUSED, EntrypointError
from entrypoints.core.records import CachePlan, Device, Processor, ServePlan
from entrypoints.model.config import parse_config
from entrypoints.model.read import ModelFacts, parse_model
from entrypoints.plan import rehearse
from tests.support.sample_facts import facts

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 512, "vocab_size": 9}
ANSWER = {"outcome": "constructed", "vllm": "0.32.0", "checked": ["command line"], "sizes": {"0": 1 << 30}, "words": [],
          "because": "", "seconds": 1.0}  # fmt: skip


def program(folder: Path, *lines: str) -> str:
    """Write what stands for vLLM's Python: it keeps its question, and runs these lines."""
    path = folder / "python"
    keep = f"import json, os, sys, time; sys.stdin and open({str(folder / 'question')!r}, 'w').write(sys.stdin.read())"
    path.write_text("\n".join((f"#!{sys.executable}", keep, *lines)) + "\n")
    path.chmod(0o755)
    return str(path)


def printing(*records: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"print({json.dumps(record)!r}, flush=True)" for record in records)


def case(python: str, model: ModelFacts | None = None, limit: float = 10.0) -> rehearse.Case:
    argv = (python, "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/m", "-tp", "2")
    cache = CachePlan(folders={"VLLM_CACHE_ROOT": "/cache/vllm", "HF_HOME": "/cache/hub"})
    plan = ServePlan(argv, {}, (), (), "/models/m", "127.0.0.1", 8000, cache=cache)
    read = model or parse_model("/models/m", parse_config(CONFIG), "config.json")
    return rehearse.Case({"python": python, "accelerator": "cpu"}, facts({}), read, plan, False, limit)


def asked(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "question").read_text().splitlines()]


def ask(rehearsed: rehearse.Case, tmp_path: Path) -> rehearse.Rehearsal:
    return rehearse.rehearse_plan(rehearsed, {**os.environ, "TMPDIR": str(tmp_path)}, lambda _: None)


def test_vllm_gets_the_plans_words_and_only_the_configuration(tmp_path: Path) -> None:
    lines = ["question = json.loads(open(sys.argv[0].replace('python', 'question')).read().splitlines()[1])"]
    lines += ["found = sorted(os.listdir(question['folder']))"]
    lines += [f"print(json.dumps({{**{ANSWER!r}, 'words': found + [os.environ['HF_HUB_OFFLINE']]}}))"]
    lines[0] = f"question = json.loads(open({str(tmp_path / 'question')!r}).read().splitlines()[1])"

    rehearsal = ask(case(program(tmp_path, *lines)), tmp_path)

    platform, question = asked(tmp_path)
    assert platform == {"kind": "cpu", "recorded": None}
    assert question["words"] == ["--model", "/models/m", "-tp", "2"]
    assert rehearsal.words == ("config.json", "1")
    assert not Path(question["folder"]).exists()


def test_caches_of_the_server_are_not_written() -> None:
    env = rehearse.make_rehearsal_environment(
        case("python").plan, {"VLLM_CACHE_ROOT": "/cache/vllm", "HF_HOME": "/h"}, "/private"
    )

    assert env["VLLM_CACHE_ROOT"] == "/private/cache/VLLM_CACHE_ROOT"
    assert env["HF_HOME"] == "/h"


def test_phases_are_told_as_they_come(tmp_path: Path) -> None:
    phase_lines: list[str] = []
    python = program(tmp_path, *printing({"phase": "is imported"}, {"phase": "checks"}, ANSWER))

    rehearsal = rehearse.rehearse_plan(case(python), {**os.environ, "TMPDIR": str(tmp_path)}, phase_lines.append)

    assert rehearsal.outcome == rehearse.CONSTRUCTED
    assert [line.rpartition("vLLM ")[2] for line in phase_lines[1:]] == ["is imported", "checks"]
    assert "takes this plan, by its command line; a rank has up to 1.00 GiB" in rehearse.format_rehearsal(rehearsal)


@pytest.mark.parametrize(
    ("lines", "limit", "because"),
    [
        (("time.sleep(60)",), 0.5, "while vLLM checks, it gave no answer within 0.5 s"),
        (("sys.stderr.write('warned\\nFatal: out of memory\\n')", "sys.exit(3)"), 10.0, "exit code 3: Fatal: out of"),
        (("os.kill(os.getpid(), 9)",), 10.0, "exit code -9: it wrote nothing"),
    ],
)
def test_a_program_without_an_answer_refuses_nothing(
    tmp_path: Path, lines: tuple[str, ...], limit: float, because: str
) -> None:
    python = program(tmp_path, *printing({"phase": "checks"}), *lines)

    rehearsal = ask(case(python, limit=limit), tmp_path)

    assert rehearsal.outcome == rehearse.NOT_ASKED
    assert because in rehearsal.because
    assert rehearse.format_rehearsal(rehearsal).startswith("rehearsal: not asked: while vLLM checks, it")


def test_a_refusal_has_vllms_words_and_its_exit_code() -> None:
    rehearsal = rehearse.Rehearsal("refused", "0.32.0", ("command line",), words=("576 is not divisible", "a cause"))

    error = rehearse.make_refusal(rehearsal)

    assert error.code == REFUSED
    assert error.message == "vLLM 0.32.0 refuses this plan: 576 is not divisible -- from: a cause"
    assert "it took: command line" in error.hint


def test_what_a_shortened_configuration_lacks_is_no_refusal() -> None:
    rehearsal = rehearse.Rehearsal("refused", "0.32.0", words=("no attribute rotary_dim",))

    assert rehearse.excuse_shortened(rehearsal, "").outcome == "refused"
    excused = rehearse.excuse_shortened(rehearsal, "rotary_dim")
    assert excused.outcome == rehearse.NOT_ASKED
    assert "(rotary_dim)" in rehearse.format_rehearsal(excused)


def test_without_a_configuration_nothing_is_asked(tmp_path: Path) -> None:
    unknown = ModelFacts("s3://b/m", False, "", "", None, None, "only vLLM reads it")

    assert ask(case("/no/python", unknown), tmp_path).outcome == rehearse.NOT_ASKED


def test_an_image_side_without_vllm_says_so(tmp_path: Path) -> None:
    with pytest.raises(EntrypointError) as caught:
        ask(case("/no/such/python"), tmp_path)

    assert caught.value.code == HOST
    assert "cannot be run" in caught.value.message


@pytest.mark.parametrize(
    ("accelerator", "recorded"),
    [
        ("cpu", {"architecture": "X86", "amx": True, "memory": 0}),
        ("cuda", {"capability": [8, 9], "name": "L40S", "memory": 48, "devices": 2}),
        ("habana", None),
    ],
)
def test_a_recorded_platform_is_described(accelerator: str, recorded: object) -> None:
    devices = (Device(0, "L40S", 48, 0, 0, architecture="9.0"), Device(1, "L40S", 48, 0, 0, architecture="8.9"))
    host = facts({})._replace(devices=devices, processor=Processor("x86_64", "", "", ("amx_tile",)))
    host = host._replace(memory=host.memory._replace(total=0))
    rehearsed = case("python")._replace(facts=host, profile={"accelerator": accelerator}, recorded=True)

    assert rehearse.describe_platform(rehearsed) == {"kind": accelerator, "recorded": recorded}
    assert rehearse.describe_platform(rehearsed._replace(recorded=False))["recorded"] is None


def test_mistrals_own_file_keeps_its_name(tmp_path: Path) -> None:
    model = ModelFacts("m", False, "", "", None, None, "", table={"dim": 4096, "n_layers": 2})

    rehearse.write_model(model, str(tmp_path / "model"))

    assert json.loads((tmp_path / "model" / "params.json").read_text()) == {"dim": 4096, "n_layers": 2}


def test_the_words_of_a_host_without_clients_begin_after_serve() -> None:
    argv = ("python3", "-m", "vllm.entrypoints.cli.main", "serve", "/models/m", "--headless")

    assert rehearse.list_server_words(argv) == ("/models/m", "--headless")
