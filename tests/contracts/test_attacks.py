"""The page of attacks lists what the tests stage."""

from __future__ import annotations

from tests.support import attacks


def test_the_page_of_attacks_is_generated_from_the_tests() -> None:
    assert attacks.PAGE.read_text() == attacks.page(), "run tests/support/attacks.py"
