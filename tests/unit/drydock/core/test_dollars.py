"""What Compose and Kubernetes would expand stays as it was written."""

from __future__ import annotations

from drydock.core.dollars import double_dollars_of_texts


def test_texts_are_doubled_at_every_depth_and_keys_and_numbers_stay() -> None:
    document = {"$key": ["$A", ("${B}", 1)], "env": {"C": "$(D)", "E": None, "F": True}}

    assert double_dollars_of_texts(document) == {
        "$key": ["$$A", ["$${B}", 1]],
        "env": {"C": "$$(D)", "E": None, "F": True},
    }
