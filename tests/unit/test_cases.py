"""A test of many cases runs all of them and lists those that are wrong."""

from __future__ import annotations

import pytest

from tests.support.cases import for_each


def test_every_wrong_case_is_listed_with_its_message() -> None:
    seen: list[int] = []

    @for_each([1, 2, 3, 4])
    def check(number: int) -> None:
        seen.append(number)
        assert number % 2, f"{number} is even"

    with pytest.raises(AssertionError, match=r"2: 2 is even\n(.*\n)+4: 4 is even") as raised:
        check()
    assert "3:" not in str(raised.value)
    assert seen == [1, 2, 3, 4]


def test_no_cases_at_all_fail() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        for_each([])(str)()
