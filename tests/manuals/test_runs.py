"""The account runs: each command shows the manual's value on the manual's machine, and each option of a user passes."""

from __future__ import annotations

import shlex

import pytest

from drydock.config.matrix import find_variant
from drydock.config.project_choice import DRYDOCK
from drydock.lock import lockfile, vllm_lists
from tests.evidence import manual_commands, manual_runs, manual_steps
from tests.evidence.manual_commands import Serve, Start
from tests.evidence.manual_steps import Step
from tests.support.hosts import expect

ACCOUNTS = manual_steps.accounts()
MANUALS = manual_commands.manuals()
SERVES = [(row, manual.script) for manual in MANUALS for row in manual.serves]
STARTS = [row for manual in MANUALS for row in manual.starts]


@pytest.mark.parametrize("row", STARTS, ids=lambda row: row.name)
def test_options_of_docker_run_that_are_passed_on_pass_the_parser_of_run(row: Start) -> None:
    assert manual_runs.problem_of_options(row.target, row.yours) == ""


OF_THE_PLUGIN = {"gcu3.4-vllm0.8": {"--quantization-param-path"}}
"""Flags that a plug-in adds again to a vLLM whose release has them no more: vLLM-GCU's readme, lines 174-175."""


def known_flags(target: str) -> frozenset[str]:
    """Return the options of a row's vLLM; empty if its list is only known once its image is built."""
    variant = find_variant(expect.VARIANTS, target)
    lock = lockfile.read_previous(lockfile.path_of_lock(DRYDOCK, variant.id))
    lists = vllm_lists.find_lists(DRYDOCK, variant, lock, variant.platforms[0])
    flags = lists.lists.get("flags", lists.lists.get("flags_of_release", {})) if lists else {}
    return frozenset(flags)


@pytest.mark.parametrize(("row", "script"), SERVES, ids=lambda value: getattr(value, "name", ""))
def test_flags_that_are_passed_on_are_flags_of_the_rows_vllm(row: Serve, script: dict[str, str]) -> None:
    settings = manual_commands.settings(row.command, script)
    flags = known_flags(row.target) | OF_THE_PLUGIN.get(row.target, set())
    assert [name for name in row.yours if name.startswith("-") and known_flags(row.target) and name not in flags] == []
    assert {*row.yours} <= {*settings}


# --- the runs themselves can fail -----------------------------------------------------------------------------------

GAUDI = next(known for known in ACCOUNTS if known.seed == "gaudi2e-manual-1.22.md")


def word(do: str, **more: object) -> tuple[str, str]:
    return manual_runs.judge(Step.model_validate({"lines": "1", "what": "a step", "do": do, **more}), GAUDI)


@pytest.mark.parametrize(
    ("do", "more", "verdict", "problem"),
    [
        ("./inv run --target gaudi2e --model M -- --seed 1", {}, "true", ""),
        ("./inv run --target gaudi2e --model M", {}, "weak", "nothing of what it prints is compared"),
        (
            "./inv run --target gaudi2e --model M",
            {"shows": "--max-num-seqs 128"},
            "weak",
            "shows '--max-num-seqs 128' too",
        ),
        ("./inv run --target gaudi2e --model M", {"shows": "--tensor-parallel-size 4"}, "true", ""),
        ("./inv run --target gaudi2e --model M -- --seed 1", {"shows": "--seed 1"}, "weak", "its own command has"),
        ("./inv build --target gaudi2e", {"shows": "RUN --network=none"}, "weak", "./inv build --target cuda shows"),
        ("curl http://127.0.0.1:8000/v1/chat/completions", {"shows": "Paris"}, "weak", "no counter-case"),
        ("./inv run --target gaudi2e --model M", {"shows": "--max-model-len 4097"}, "false", "shows no"),
        ("./inv run --target gaudi2e --model M -- -tp 3", {}, "false", "exit code 2"),
        ("./inv run --target gaudi2e --model org/unknown", {}, "false", "exit code 4"),
        ("./inv run --target gaudi2e --model M --frob 1", {}, "false", "unknown option --frob"),
        ("./inv entrypoint --target gaudi2e -- check", {"shows": "WARN HOST-001"}, "false", "shows no 'WARN HOST-001'"),
        ("./inv build --target gaudi2e --context nothing=FOLDER", {}, "false", "has no such context"),
        ("./inv build --target gaudi2e --platform linux/arm64", {}, "false", "has no linux/arm64"),
        ("./inv build --target gaudi2e --supplied FOLDER", {}, "false", "takes no supplied files"),
        ("docker run IMG convert --kind none --model /m --output /n", {}, "false", "starts nothing"),
        ("./inv topology plan nothing.yaml", {}, "false", "exit code 2"),
        ("ansible-playbook -i inventory.yml playbook.yml --tags nothing", {}, "false", "the playbook has no tag"),
        ("curl http://127.0.0.1:8001/nothing", {}, "false", "404"),
    ],
)
def test_a_command_is_true_only_if_its_words_would_be_absent_otherwise(
    do: str, more: dict[str, str], verdict: str, problem: str
) -> None:
    outcome = word(do, **more)
    assert outcome[0] == verdict
    assert problem in outcome[1]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("-it", "--cpuset-cpus=0-3"), ""),
        (("--cap-add=SYS_ADMIN",), "unknown option --cap-add"),
        (("--volume=a",), "--volume"),
    ],
)
def test_an_option_that_run_does_not_take_is_a_problem(options: tuple[str, ...], problem: str) -> None:
    message = manual_runs.problem_of_options("cpu", options)
    assert problem in message
    assert bool(problem) == bool(message)


def test_words_of_a_printed_command_are_options_and_arguments() -> None:
    printed = "docker run \\\n  --rm \\\n  --env A=b \\\n  --read-only \\\n  image:tag \\\n  serve --model 'a b'\n"
    assert manual_runs.words_of_docker(printed) == (("--rm", "--env=A=b", "--read-only"), ("serve", "--model", "a b"))
    assert shlex.join(manual_runs.words_of_docker(printed).arguments) == "serve --model 'a b'"
