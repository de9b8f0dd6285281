"""`./inv size`: the fewest machines that serve a model, from the plans of the image's entrypoint."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import HostError, InputError
from drydock.run.entrypoint import DoesNotFitError
from drydock.topology import size, topology_page
from drydock.verbs import size_verb

EMPTY = size.Capacity("h100-8x", "8 x H100", "cuda13.0-vllm0.33")
PLAN = {
    "argv": ["vllm", "--tensor-parallel-size", "8", "--data-parallel-size", "2", "--enable-expert-parallel"],
    "uses": [{"number": number, "length": 1000, "tokens": 5500} for number in range(16)],
    "reasons": [
        {"setting": "--tensor-parallel-size", "because": "--optimize latency: the widest: of 8; 4 would do"},
        {"setting": "--max-model-len", "because": "one sequence of 4000 tokens needs more memory"},
    ],
    "findings": [
        {"severity": "PASS", "id": "A-001"},
        {"severity": "INFO", "id": "A-002"},
        {"severity": "FAIL", "id": "A-003"},
    ],
}
FINDINGS = find_variant(read_matrix(DRYDOCK), "cuda").findings


class Image:
    """An image's plan that needs so many machines, or refuses any number with `error`."""

    def __init__(self, plan: dict[str, Any], hosts: int = 1, error: Exception | None = None) -> None:
        self.plan, self.hosts, self.error = plan, hosts, error
        self.asked: list[Sequence[str]] = []
        self.most = 16

    def __call__(self, words: Sequence[str]) -> Any:
        self.asked.append(words)
        count = int(words[1]) if words else 1
        if count > self.most:
            raise HostError("serves on one host only")
        if count >= self.hosts:
            return self.plan
        raise self.error if self.error and count > 1 else DoesNotFitError("with -tp 8: weights take too much")


def test_flags_after_the_dashes_are_those_of_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_flags: list[Sequence[str]] = []
    monkeypatch.setattr(sys, "argv", ["inv", "size", "m", "--", "--enable-lora"])
    monkeypatch.setattr(size, "size_machines", lambda *arguments: [plan_flags.append(arguments[3])] * 0)
    size_verb.size_model.body(Context(), model="m", max_model_len=5)
    assert plan_flags == [("--max-model-len", "5", "--enable-lora")]


def test_a_plan_is_a_row() -> None:
    size_row = size.find_fewest_hosts(EMPTY, Image(PLAN), FINDINGS)
    assert size_row == EMPTY._replace(
        hosts=1,
        split="tp8 dp2 ep",
        why="the widest",
        length=1000,
        length_limit="rule",
        requests=10,
        requests_limit="memory",
        tokens=11_000,
        finding="FAIL A-003",
    )


def test_what_limits_a_number_is_the_memory_the_split_or_a_rule() -> None:
    def limits(uses: Mapping[str, int], *words: str, because: str = "") -> tuple[str, str]:
        reasons = [{"setting": "--max-model-len", "because": because}] if because else []
        plan = PLAN | {"argv": [*PLAN["argv"], *words], "uses": [{"number": 0, **uses}], "reasons": reasons}
        row = size.find_fewest_hosts(EMPTY._replace(device_count=2), Image(plan), FINDINGS)
        return row.length_limit, row.requests_limit

    assert limits({"length": 100, "tokens": 500}) == ("", "split")
    assert limits({"length": 100, "tokens": 500}, "--max-num-seqs", "4") == ("", "rule")
    assert limits({"length": 100, "tokens": 150}, because="one sequence of 200 tokens") == ("memory", "split")
    assert limits({"length": 100, "tokens": 500}, because="graphs for longer ones") == ("rule", "split")
    assert limits({"length": 100, "tokens": 500}, because="the model's own length; compiled for it") == ("", "split")
    assert limits({"length": 0, "tokens": 0}) == ("", "")


def test_the_next_larger_choice_is_free_devices_then_more_machines_then_more_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = size.Recorded("cuda-h100-8x", Path("host.json"), find_variant(read_matrix(DRYDOCK), "cuda"))
    device = {"name": "H100", "memory_total": 1, "busy": False, "health": "ok"}
    facts = {"devices": [device | {"number": number} for number in range(16)], "processor": {"model": "x"}}
    monkeypatch.setattr(size.entrypoint, "ask_entrypoint", lambda *_: facts)

    def larger(image: Image) -> str:
        def answer(_project: object, _variant: object, words: Sequence[str], _variables: object) -> Any:
            assert words[:3] == ("plan", "--json", "--idle")
            return image(words[5:])

        monkeypatch.setattr(size.entrypoint, "answer_for_container", answer)
        return size._size_machine(DRYDOCK, machine, ()).larger

    assert larger(Image(PLAN)) == "2 x tp8 dp2 ep, 10"
    assert larger(Image(PLAN, hosts=16)) == ""
    assert larger(Image(PLAN | {"uses": PLAN["uses"][:4]})) == "4 servers, 40"
    alone = Image(PLAN)
    alone.most = 1
    assert larger(alone) == "2 servers, 20"
    facts["devices"][3]["busy"], facts["devices"][5]["health"] = True, "lost"
    assert size._size_machine(DRYDOCK, machine, ()).in_use == (3, 5)


def test_what_is_of_clients_or_of_who_asks_is_nothing_of_the_machine() -> None:
    asides = size.list_asides(find_variant(read_matrix(DRYDOCK), "cuda"))
    ids = ("PLAN-092", "PLAN-064", "RUN-003", "RUN-004", "HOST-007")  # key, the hub from here, options of a container
    findings = [*({"severity": "WARN", "id": number} for number in ids), {"severity": "INFO", "id": "A-002"}]
    row = size.find_fewest_hosts(EMPTY, Image({**PLAN, "findings": findings}), FINDINGS, asides)
    assert row.finding == "INFO A-002"


def test_requests_are_no_more_than_the_server_runs_at_a_time() -> None:
    limited = PLAN | {"argv": [*PLAN["argv"], "--max-num-seqs", "3"]}
    assert size.find_fewest_hosts(EMPTY, Image(limited), FINDINGS).requests == 6


def test_requests_that_are_needed_come_before_the_size_of_a_machine() -> None:
    answers = [
        EMPTY._replace(machine="small", hosts=1, device_count=1, requests=30, length=8192, tokens=250_000),
        EMPTY._replace(machine="large", hosts=1, device_count=8, requests=64, length=8192, tokens=2_000_000),
        EMPTY._replace(machine="free", hosts=1, device_count=8, requests=20, servers=2, length=8192, tokens=160_000),
        EMPTY._replace(machine="pair", hosts=2, device_count=8, requests=40, length=8192, tokens=350_000),
        EMPTY._replace(machine="unknown", hosts=1, device_count=1),
    ]
    rows = sorted((size.count_servers(row, 64) for row in answers), key=size._order_by_cost)
    needed = {row.machine: (row.needed_servers, row.needed_machines) for row in rows}
    assert [*needed.items()] == [
        ("large", (1, 1)),
        ("free", (4, 2)),
        ("small", (3, 3)),
        ("pair", (2, 4)),
        ("unknown", (0, 0)),
    ]
    text = size.format_capacities("m", rows, 120)
    assert [line.split()[0] for line in text.splitlines() if line.endswith(" *") or " * " in line][:4] == [
        *("free", "small", "pair", "unknown")
    ]
    assert "for 64" in text
    assert "3 servers *" in text
    assert "4 servers on 2 *" in text
    page = topology_page.render_sizes_page("m", rows)
    assert "4 servers on 2 *" in page


def test_what_does_not_fit_one_machine_is_asked_of_more() -> None:
    image = Image(PLAN, hosts=4)
    assert size.find_fewest_hosts(EMPTY, image, FINDINGS).hosts == 4
    assert [tuple(words[:2]) for words in image.asked] == [(), ("--nnodes", "2"), ("--nnodes", "4")]


def test_what_nearly_does_not_fit_takes_more_machines_if_they_help() -> None:
    tight = {"severity": "WARN", "id": "PLAN-028", "found": "--enforce-eager", "text": "The model fits only with less."}

    def ask(words: Sequence[str]) -> Any:
        return PLAN if words and int(words[1]) >= 4 else PLAN | {"findings": [tight]}

    assert size.find_fewest_hosts(EMPTY, ask, FINDINGS).hosts == 4
    assert size.find_fewest_hosts(EMPTY, Image(PLAN | {"findings": [tight]}), FINDINGS).hosts == 1


def test_what_fits_nowhere_says_why() -> None:
    size_row = size.find_fewest_hosts(EMPTY, Image(PLAN, hosts=99), FINDINGS)
    assert (size_row.hosts, size_row.is_too_small) == (0, True)
    alone = size.find_fewest_hosts(EMPTY, Image(PLAN, hosts=99, error=HostError("serves on one host only")), FINDINGS)
    assert alone.because == "with -tp 8: weights take too much"
    text = size.format_capacities("m", [size_row, alone._replace(machine="b", is_too_small=False)], 100)
    assert "too small, also 16 of them: h100-8x" in text
    assert "not b: with -tp 8" in text


def answer_with(
    monkeypatch: pytest.MonkeyPatch, capacities: Mapping[str, size.Capacity]
) -> Callable[[], list[size.Capacity]]:
    """Let each machine answer with a capacity; return a function that asks them all."""
    monkeypatch.setattr(size, "_size_machine", lambda _, machine, __: capacities[machine.name])
    variant = read_matrix(DRYDOCK)[0]
    machines = [size.Recorded(name, Path(name), variant) for name in capacities]
    return lambda: size.size_machines(DRYDOCK, "m", machines)


def test_the_fewest_machines_and_devices_come_first_and_processors_after_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = {"large": (1, 8, 9), "small": (1, 1, 2), "smaller": (1, 1, 1), "many": (2, 1, 99), "processor": (1, 0, 5)}
    capacities = {
        name: EMPTY._replace(machine=name, hosts=hosts, device_count=count, requests=requests)
        for name, (hosts, count, requests) in served.items()
    }
    ask = answer_with(monkeypatch, {**capacities, "none": EMPTY._replace(machine="none")})
    assert [row.machine for row in ask()] == ["small", "smaller", "large", "processor", "many", "none"]


def test_a_model_that_most_machines_cannot_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = EMPTY._replace(because="m is a hub id, and not on this machine yet")
    small = EMPTY._replace(because="needs 80 GiB", is_too_small=True)
    with pytest.raises(InputError, match="m is a hub id"):
        answer_with(monkeypatch, {"a": unknown, "b": unknown, "c": small})()
    assert len(answer_with(monkeypatch, {"a": unknown, "b": small, "c": small})()) == 3
    assert len(answer_with(monkeypatch, {"a": small, "b": small})()) == 2


def test_what_no_list_confirms_is_not_served() -> None:
    doubt = {"severity": "WARN", "id": "PLAN-150", "found": "architecture X", "text": "vLLM may refuse it."}
    capacity = size.find_fewest_hosts(EMPTY, Image({**PLAN, "findings": [doubt]}), FINDINGS)
    assert (capacity.hosts, capacity.because) == (0, "architecture X: vLLM may refuse it.")


def test_the_nearest_machine_says_what_it_lacks_if_none_is_large_enough() -> None:
    rows = [
        EMPTY._replace(machine=name, memory=memory, is_too_small=True, because=f"{name} lacks")
        for name, memory in (("a", 1), ("b", 2))
    ]
    assert "nearest: b (8 x H100): b lacks" in size.format_capacities("m", rows, 100)
    assert "nearest" not in size.format_capacities(
        "m", [*rows, size.find_fewest_hosts(EMPTY, Image(PLAN), FINDINGS)], 100
    )


def test_machines_that_are_for_tests_are_not_offered() -> None:
    offered = {machine.name for machine in size.list_recorded_machines(DRYDOCK)}
    assert {"cuda-h100-8x", "cuda-h100-1x-busy"} & offered == {"cuda-h100-8x"}


def test_a_wrong_word_is_the_users_error() -> None:
    def refuse(_: Sequence[str]) -> Any:
        raise InputError("--max-model-len 99999: the model supports 4096 tokens")

    with pytest.raises(InputError, match="99999"):
        size.find_fewest_hosts(EMPTY, refuse, FINDINGS)


def test_the_recorded_hosts_have_their_variants() -> None:
    variants = {machine.name: machine.variant.accelerator for machine in size.list_recorded_machines(DRYDOCK)}
    assert variants["cuda-h100-8x"] == "cuda"
    assert all(name.partition("-")[0] == accelerator for name, accelerator in variants.items())


def test_the_page_has_the_answer_and_every_machine() -> None:
    size_rows = [
        size.find_fewest_hosts(EMPTY, Image(PLAN), FINDINGS),
        size.find_fewest_hosts(EMPTY._replace(machine="<b>"), Image(PLAN, hosts=99), FINDINGS),
    ]
    text = size.format_capacities("owner/model", [row._replace(in_use=(6,)) for row in size_rows], 100)
    assert "in use or not healthy when recorded: h100-8x 6" in text
    assert "the widest: h100-8x" in text
    assert "1,000 rule" in text
    page_text = topology_page.render_sizes_page("owner/model", size_rows)
    assert "the widest" in page_text
    assert "<b>1 alone</b>" in page_text
    assert "11,000" in page_text
    assert "&lt;b&gt;" in page_text
    assert "with -tp 8: weights take too much" in page_text
