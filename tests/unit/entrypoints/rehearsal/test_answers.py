"""What vLLM says of a plan: its own words in short, and what says nothing of the plan."""

from __future__ import annotations

import functools
import io
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from entrypoints.plugin.drydock_plugin.supervisor_report import LONGEST, describe_error, list_error_causes
from entrypoints.rehearsal import classes
from entrypoints.rehearsal.answers import answer_all, answer_question, explain_failure

PYDANTIC = """1 validation error for VllmConfig
  Value error, Total number of attention heads (32) must be divisible by tensor parallel size (3). [type=value_error, input_value=ArgsKwargs((), {'model_co...), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.12/v/value_error"""  # noqa: E501


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    """Return an error as it is when it is caught."""
    try:
        raise error from cause  # noqa: TRY301 - it needs a traceback
    except Exception as caught:  # noqa: BLE001 - whatever it is
        return caught


def test_vllms_sentence_is_what_remains_of_its_error() -> None:
    sentence = "Total number of attention heads (32) must be divisible by tensor parallel size (3)."

    assert describe_error(raised(ValueError(PYDANTIC))) == (sentence,)


def test_the_error_that_it_followed_from_is_told_too() -> None:
    error = raised(RuntimeError("architectures failed to be inspected"), ModuleNotFoundError("No module named 'x'"))

    assert describe_error(error) == ("architectures failed to be inspected", "No module named 'x'")


def test_an_error_without_words_is_told_by_its_line_of_code() -> None:
    (words,) = describe_error(raised(AssertionError()))

    assert words.startswith("AssertionError raise error from cause")
    assert words.endswith("test_answers.py")


def test_words_are_bounded() -> None:
    assert len(describe_error(raised(ValueError("x" * 10_000)))[0]) == LONGEST + 1


def test_errors_that_follow_from_each_other_in_a_circle_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert list_error_causes(first) == [first, second]


@pytest.mark.parametrize(
    ("error", "own_code", "explanation"),
    [
        (ValueError("Total number of attention heads (32) must be divisible"), False, ""),
        (ValueError("pass the argument `trust_remote_code=True`"), True, "the model brings its own code"),
        (ValueError("pass the argument `trust_remote_code=True`"), False, ""),
        (NotImplementedError("Could not run 'aten::x' with arguments from the 'Meta' backend"), False, "numbers"),
        (ImportError("libcuda.so.1: cannot open shared object file"), False, "driver"),
        (OSError("/m does not appear to have a file named preprocessor_config.json"), False, "a file"),
        (ModuleNotFoundError("No module named 'torchvision'"), False, ""),
    ],
)
def test_only_what_a_server_would_meet_too_is_a_refusal(error: Exception, own_code: bool, explanation: str) -> None:
    because = explain_failure(raised(error), own_code=own_code)

    assert explanation in because
    assert bool(because) == bool(explanation)


def test_a_platform_that_cannot_be_opened_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = ModuleType("vllm")
    vllm.__version__ = "0.32.0"  # type: ignore[attr-defined] - of the stub
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    output = io.StringIO()

    answer_all([json.dumps({"kind": "npu", "recorded": None}), json.dumps({"folder": "/m", "words": []})], output)

    (answer,) = [record for record in map(json.loads, output.getvalue().splitlines()) if "outcome" in record]
    assert (answer["outcome"], answer["vllm"]) == ("not asked", "0.32.0")
    assert answer["because"].startswith("vLLM's platform npu cannot be opened here")


def test_a_release_whose_classes_cannot_be_built_is_asked_for_its_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SimpleNamespace(parallel_config=SimpleNamespace(pipeline_parallel_size=1, world_size=1))
    monkeypatch.setattr(classes, "parse_command", lambda _: SimpleNamespace(trust_remote_code=False))
    monkeypatch.setattr(classes, "make_configuration", lambda *_: config)
    ask = functools.partial(answer_question, version="0.27.1", say=lambda _: None, builds=False)

    plan = ask({"folder": "/m", "words": []})
    rule = ask({"folder": "/m", "words": [], "ranks": []})

    assert (plan.outcome, plan.checked) == ("not asked", ("command line", "configuration"))
    assert (rule.outcome, rule.checked) == ("constructed", ("command line", "configuration"))
