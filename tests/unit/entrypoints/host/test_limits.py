"""Soft limits are raised to the hard ones, which any process may, and that is said."""

from __future__ import annotations

import resource

import pytest

from entrypoints.core.records import Limits
from entrypoints.host import limits


@pytest.mark.parametrize(
    ("host_limits", "expected"),
    [
        (Limits(1024, 65536, None, 524288, 65536), {"RLIMIT_NOFILE": 524288}),
        (Limits(1024, 65536, None, None, None), {"RLIMIT_NOFILE": limits.MOST_FILES, "RLIMIT_MEMLOCK": -1}),
        (Limits(1024, 65536, None, 1 << 30, 65536), {"RLIMIT_NOFILE": limits.MOST_FILES}),
        (Limits(1048576, None, None, 1048576, None), {}),
        (Limits(None, None, None, None, None), {}),
        (Limits(1024, 65536, None), {}),  # a host that was recorded without its hard limits
    ],
)
def test_a_limit_is_raised_as_far_as_it_may_be(host_limits: Limits, expected: dict[str, int]) -> None:
    assert limits.choose_raised_limits(host_limits) == expected


def test_each_raised_limit_has_its_reason_and_what_it_was() -> None:
    reasons = limits.make_limit_reasons(Limits(1024, 65536, None, 524288, None))

    assert [(reason.setting, reason.value, reason.origin) for reason in reasons] == [
        ("RLIMIT_NOFILE", "524288", "decision"),
        ("RLIMIT_MEMLOCK", "unlimited", "decision"),
    ]
    assert reasons[0].instead == ("1024 was set before",)


def test_a_limit_is_set_for_this_process_and_what_it_starts() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    messages: list[str] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        limits.apply_limits({"RLIMIT_NOFILE": min(soft, 300)}, messages.append)

        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(soft, 300)
        assert messages == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_that_the_kernel_refuses_is_said_and_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    messages: list[str] = []
    limits.apply_limits({"RLIMIT_NOFILE": before[1] + 1}, messages.append)

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    assert messages[0].startswith(f"WARN RLIMIT_NOFILE stays at {before[0]}, not {before[1] + 1}: ")
