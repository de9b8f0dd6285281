"""Verbs and drydock's flags; the rest is vLLM's."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.request.arguments import Options, parse_arguments


def refused(*argv: str) -> EntrypointError:
    with pytest.raises(EntrypointError) as error:
        parse_arguments(argv)
    assert error.value.code == USAGE
    return error.value


def test_no_words_mean_serve() -> None:
    assert parse_arguments(()).verb == "serve"


def test_flags_without_a_verb_belong_to_serve() -> None:
    arguments = parse_arguments(("--model", "/m", "--strict"))

    assert (arguments.verb, arguments.vllm, arguments.options.strict) == ("serve", ("--model", "/m"), True)


def test_an_unknown_first_word_is_executed_with_all_its_words() -> None:
    arguments = parse_arguments(("bash", "-c", "echo --json", "--strict"))

    assert (arguments.verb, arguments.vllm) == ("exec", ("bash", "-c", "echo --json", "--strict"))


def test_drydocks_flags_are_accepted_anywhere_and_in_both_forms() -> None:
    arguments = parse_arguments(("serve", "/m", "--status-port=9", "-tp", "2", "--drain-timeout", "1.5", "--exec"))

    assert arguments.options == Options(status_port=9, drain_timeout=1.5, exec_=True)
    assert arguments.vllm == ("/m", "-tp", "2")


@pytest.mark.parametrize(
    ("words", "stall"), [((), None), (("--stall-seconds", "0"), 0.0), (("--stall-seconds=90",), 90.0)]
)
def test_no_stall_time_is_the_plans_and_0_is_none(words: tuple[str, ...], stall: float | None) -> None:
    assert parse_arguments(("serve", "/m", *words)).options.stall == stall


def test_vllms_flags_that_begin_like_ours_pass() -> None:
    assert parse_arguments(("serve", "/m", "--root-path", "/x")).vllm == ("/m", "--root-path", "/x")


@pytest.mark.parametrize("argv", [("help",), ("--help",), ("-h",), ("serve", "--help"), ("plan", "x", "-h")])
def test_help_is_help_everywhere(argv: tuple[str, ...]) -> None:
    assert parse_arguments(argv).verb == "help"


def test_health_keeps_its_words() -> None:
    assert parse_arguments(("health", "--status-port", "9")).vllm == ("--status-port", "9")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("facts", "--root"), "--root requires a value"),
        (("check", "--json=yes"), "--json takes no value, found 'yes'"),
        (("plan", "--diff", "a"), "--diff requires a value"),
        (("serve", "--status-port", "70000"), "65535"),
        (("serve", "--status-port", "x"), "65535"),
        (("serve", "--side-channel-port", "0"), "--side-channel-port 0: expected a port from 1 to 65535"),
        (("serve", "--drain-timeout", "nan"), "seconds"),
        (("serve", "--drain-timeout", "-1"), "--drain-timeout -1: expected seconds"),
        (("serve", "--drain-pause", "soon"), "--drain-pause soon: expected seconds"),
        (("serve", "--stall-seconds", "inf"), "--stall-seconds inf: expected seconds"),
        (("plan", "--record", "x"), "--record cannot be used with plan"),
        (("plan", "--junit", "x"), "--junit cannot be used with plan"),
        (("plan", "--strict"), "--strict cannot be used with plan"),
        (("warm", "--exec"), "--exec cannot be used with warm"),
        (("serve", "--root", "x"), "--root requires --exec"),
        (("check", "--jsn"), "unknown argument '--jsn'\n\nhint: did you mean --json?"),
        (("version", "loudly"), "flags of version: --json"),
        (
            ("check", "--only", "bad"),
            "--only bad: unknown severity 'bad'\n\nhint: write one or several of fail,warn,unk",
        ),
        (("check", "--only", "fail,"), "--only fail,: unknown severity ''"),
        (("check", "--only", "fail", "--fix-script"), "--only cannot be used with --fix-script"),
    ],
)
def test_misplaced_and_invalid_flags_are_refused(argv: tuple[str, ...], message: str) -> None:
    assert message in str(refused(*argv))


def test_only_takes_severities_in_a_list_and_again() -> None:
    assert parse_arguments(("check",)).only == ()
    assert parse_arguments(("check", "--only", "Fail,warn", "--only=pass")).only == ("FAIL", "WARN", "PASS")


def test_serve_accepts_a_recorded_host_with_exec() -> None:
    assert parse_arguments(("serve", "/m", "--root", "x", "--exec")).root == "x"
