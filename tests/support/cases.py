"""One test for many cases: it lists every case that is wrong, instead of being a test for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def for_each(cases: Iterable[Any], name: Callable[[Any], str] = str) -> Callable[[Callable[..., None]], Any]:
    """Make a test that calls the decorated function with each case; a tuple is several arguments."""

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            listed = list(cases)
            assert listed, "no cases"
            wrong = {}
            for case in listed:
                try:
                    check(*case) if isinstance(case, tuple) and not hasattr(case, "_fields") else check(case)
                except AssertionError as error:
                    wrong[name(case)] = str(error)
            assert not wrong, "\n\n".join(f"{case}: {message}" for case, message in wrong.items())

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
