from __future__ import annotations

from drydock.core.differences import find_differences


def test_each_name_that_differs_comes_with_both_values_in_the_order_of_the_records() -> None:
    old, new = {"b": 1, "same": 2, "a": None}, {"c": 3, "b": 4, "same": 2}
    assert [*find_differences(old, new)] == [("b", 1, 4), ("c", None, 3)]
