from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import HostError, InputError
from drydock.core.paths import ROOT
from drydock.run.entrypoint import (
    compare_plans,
    describe_unchecked,
    exec_entrypoint,
    make_entrypoint_error,
    with_root,
)
from tests.support import terminal
from tests.support.hosts.trees import HOSTS


def test_a_root_before_the_dashes_is_the_entrypoints() -> None:
    assert with_root(("check",), "host.json") == ("check", "--root", "host.json")
    assert with_root(("check",), "") == ("check",)
    with pytest.raises(InputError, match="--root is given twice"):
        with_root(("check", "--root", "a"), "b")


@pytest.mark.parametrize("words", [("explain", "ERROR 137"), ("version",), ("help",), ("--help",)])
def test_a_verb_that_reads_no_host_takes_the_row_of_a_recorded_one(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"root": str(HOSTS / "habana-gaudi3-8x")}
    subprocess.run([sys.executable, "-c", CALL, json.dumps([options, words])], check=False, cwd=ROOT)

    out, err = capfd.readouterr()
    assert "(habana)" in err
    assert "--root" not in err
    assert out


CALL = """
import json, sys
from drydock.verbs import entrypoint_verb
options, words = json.loads(sys.argv[1])
entrypoint_verb.exec_image_verb(entrypoint_verb.PlannedRowOptions(target="auto", **options), *words)
"""


@pytest.mark.parametrize("locale", ["C", "zh_CN.UTF-8"])
@pytest.mark.parametrize("text", ["drydock: a:b\n\nhint: c\n", "drydock: a:b\n\n提示：c\n"])
def test_the_hint_of_the_entrypoint_is_the_hint_of_the_error(
    text: str, locale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    is_spoken = "hint" in text or locale != "C"

    error = make_entrypoint_error(2, text)

    assert (error.problems, error.hint) == ((("a:b",), "c") if is_spoken else (("a:b\n\n提示：c",), ""))


def test_the_plans_of_two_machine_types_are_compared_with_the_row_of_each() -> None:
    hosts = (str(HOSTS / "habana-gaudi2-8x"), str(HOSTS / "habana-gaudi3-8x"))
    words = ("--model", "Qwen/Qwen3-32B")

    text = compare_plans(DRYDOCK, "auto", hosts, words, ("VLLM_PORT=29000",))
    changes = {
        change["setting"]: change for change in json.loads(compare_plans(DRYDOCK, "auto", hosts, (*words, "--json")))
    }

    assert "  - " in text
    assert "  + " in text
    assert "VLLM_PORT" not in text  # both have it
    assert "habana1.22-fork0.9" in changes["HOME"]["first"]["value"]
    assert "habana1.24-plugin0.26" in changes["HOME"]["second"]["value"]
    *settings, folders = [line for line in text.splitlines() if not line.startswith(" ")]
    assert changes.keys() == {*settings, *folders.partition(": ")[2].split(", ")}


def test_plans_that_cannot_be_made_are_the_error_of_the_host() -> None:
    hosts = (str(HOSTS / "tpu-v4-4x-held"), str(HOSTS / "tpu-v5p-4x"))

    with pytest.raises(HostError, match="none of 4 devices is healthy and free"):
        compare_plans(DRYDOCK, "tpu", hosts, ("--model", "Qwen/Qwen3-8B"))


BECOME = """
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.run.entrypoint import exec_entrypoint
host = ROOT / "tests" / "hosts" / "cpu-untuned-2s"
exec_entrypoint(DRYDOCK, find_variant(read_matrix(DRYDOCK), "cpu"), ("check", "--root", str(host)))
"""


def test_check_has_colours_on_a_terminal_unless_told_otherwise() -> None:
    screens = [terminal.run([sys.executable, "-c", BECOME], env)[1] for env in ({}, {"NO_COLOR": "1"})]

    assert [bool(terminal.COLOURS.search(screen)) for screen in screens] == [True, False]
    assert "FAIL    HOST-011" in screens[1]


PLAN_WITH_VARIABLE = """
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.run.entrypoint import exec_entrypoint
host = str(ROOT / "tests" / "hosts" / "cpu-xeon8380-2s")
words = ("plan", "--json", "--model", "Qwen/Qwen2-0.5B-Instruct", "--root", host)
exec_entrypoint(DRYDOCK, find_variant(read_matrix(DRYDOCK), "cpu"), words, ("VLLM_CPU_KVCACHE_SPACE=7", "FROM_SHELL"))
"""


def test_variables_of_the_container_are_an_input_of_the_plan() -> None:
    env = {**os.environ, "FROM_SHELL": "1"}
    argv = [sys.executable, "-c", PLAN_WITH_VARIABLE]
    result = subprocess.run(argv, check=False, env=env, capture_output=True, text=True)
    reasons = {reason["setting"]: reason for reason in json.loads(result.stdout)["reasons"]}

    assert result.returncode == 0
    assert (reasons["VLLM_CPU_KVCACHE_SPACE"]["value"], reasons["VLLM_CPU_KVCACHE_SPACE"]["origin"]) == (
        "7",
        "environment",
    )


def test_a_variable_that_the_shell_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    with pytest.raises(InputError, match="--env ABSENT: your shell has no such variable"):
        exec_entrypoint(DRYDOCK, find_variant(read_matrix(DRYDOCK), "cpu"), ("version",), ("ABSENT",))


def test_a_plan_says_where_flags_are_not_checked() -> None:
    variants = read_matrix(DRYDOCK)
    assert describe_unchecked(DRYDOCK, find_variant(variants, "cpu"), ("plan",)) == ""
    assert "are not checked" in describe_unchecked(DRYDOCK, find_variant(variants, "gaudi2"), ("plan",))
    assert describe_unchecked(DRYDOCK, find_variant(variants, "gaudi2"), ("check",)) == ""
