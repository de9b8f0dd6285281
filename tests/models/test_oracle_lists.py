"""The lists of what drydock and vLLM's classes say differently: each line has its reason."""

from __future__ import annotations

from tests.evidence import oracle
from tests.support.planned import configurations


def test_each_line_has_a_reason() -> None:
    lists = oracle.read_lists()
    lines = [*lists["planned_and_refused"], *lists["refused_and_constructed"], *lists["sizes"].values()]

    assert [line for line in lines if line["because"] not in lists["reasons"]] == []
    assert [model for model, why in lists["not_asked"].items() if why not in lists["reasons"]] == []


def test_each_reason_is_used() -> None:
    lists = oracle.read_lists()
    lines = [*lists["planned_and_refused"], *lists["refused_and_constructed"], *lists["sizes"].values()]

    assert {line["because"] for line in lines} | set(lists["not_asked"].values()) == set(lists["reasons"])


def test_a_shortened_configuration_is_in_no_list() -> None:
    lists = oracle.read_lists()
    named_models = {
        line["model"] for kind in ("planned_and_refused", "refused_and_constructed") for line in lists[kind]
    }
    shortened = {name for name, body in configurations().items() if body.get("shortened")}

    assert shortened
    assert not shortened & (named_models | set(lists["not_asked"]) | set(lists["sizes"]))


def test_what_drydock_refuses_of_a_listed_line_it_still_refuses() -> None:
    lines = oracle.read_lists()["refused_and_constructed"]
    splits = {split.short(): split for _, split in oracle.whole_cases()}

    assert lines
    for line in lines:
        for text in line["splits"]:
            assert oracle.drydock_obstacle(line["model"], splits[text]), (line["model"], text)
