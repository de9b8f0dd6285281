"""Verbs and own flags; the rest is vLLM's."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.request.arguments import Options, parse_arguments


def refused(*argv: str) -> EntrypointError:
    with pytest.raises(EntrypointError) as error:
        parse_arguments(argv)
    assert error.value.code == USAGE
    return error.value


def test_nothing_at_all_means_serve() -> None:
    assert parse_arguments(()).verb == "serve"


def test_flags_without_a_verb_belong_to_serve() -> None:
    arguments = parse_arguments(("--model", "/m", "--strict"))

    assert (arguments.verb, arguments.vllm, arguments.options.strict) == ("serve", ("--model", "/m"), True)


def test_what_is_no_verb_is_executed_with_all_its_words() -> None:
    arguments = parse_arguments(("bash", "-c", "echo --json", "--strict"))

    assert (arguments.verb, arguments.vllm) == ("exec", ("bash", "-c", "echo --json", "--strict"))


def test_own_flags_come_in_either_form_and_anywhere() -> None:
    arguments = parse_arguments(("serve", "/m", "--status-port=9", "-tp", "2", "--drain-timeout", "1.5", "--exec"))

    assert arguments.options == Options(status_port=9, drain_timeout=1.5, exec_=True)
    assert arguments.vllm == ("/m", "-tp", "2")


def test_vllms_flags_that_begin_like_ours_pass() -> None:
    assert parse_arguments(("serve", "/m", "--root-path", "/x")).vllm == ("/m", "--root-path", "/x")


@pytest.mark.parametrize("argv", [("help",), ("--help",), ("-h",), ("serve", "--help"), ("plan", "x", "-h")])
def test_help_is_help_everywhere(argv: tuple[str, ...]) -> None:
    assert parse_arguments(argv).verb == "help"


def test_health_keeps_its_words() -> None:
    assert parse_arguments(("health", "--status-port", "9")).vllm == ("--status-port", "9")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("facts", "--root"), "value is missing"),
        (("check", "--json=yes"), "takes no value"),
        (("serve", "--status-port", "70000"), "65535"),
        (("serve", "--status-port", "x"), "65535"),
        (("serve", "--drain-timeout", "nan"), "seconds"),
        (("serve", "--drain-timeout", "-1"), "seconds"),
        (("plan", "--record", "x"), "means nothing here"),
        (("plan", "--junit", "x"), "means nothing here"),
        (("plan", "--strict"), "means nothing here"),
        (("warm", "--exec"), "means nothing here"),
        (("serve", "--root", "x"), "means nothing here"),
        (("check", "--jsn"), "unknown argument '--jsn'"),
    ],
)
def test_what_means_nothing_is_refused(argv: tuple[str, ...], said: str) -> None:
    assert said in str(refused(*argv))


def test_a_recorded_host_may_be_served_only_by_becoming_vllm() -> None:
    assert parse_arguments(("serve", "/m", "--root", "x", "--exec")).root == "x"
