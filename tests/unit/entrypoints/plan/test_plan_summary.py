"""The lines above a plan's command: what serves where, how much, what to look at, and what changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from entrypoints.checks.findings import list_asker_ids, sort_worst_first
from entrypoints.core.records import Device, Finding, Reason, ServePlan, Use
from entrypoints.plan.plan_summary import measure_load, summary_text
from entrypoints.plan.recipes import SWITCHED_OFF
from tests.support.sample import facts

GIB = 1 << 30
PROFILE: Mapping[str, Any] = {
    "variant": "cuda13.0-vllm0.33",
    "vllm": "0.33.0",
    "findings": {"RUN-003": {"about": ["container", "asker"]}, "PLAN-022": {"about": []}},
    "checks": [{"id": "HOST-007", "fact": "derived.nofile"}, {"id": "CUDA-001", "fact": "versions.driver"}],
}
DEVICES = tuple(Device(number, "H100", 80 * GIB, 0, 0) for number in range(4))
WARNING = Finding("PLAN-022", "WARN", "A process holds a device.", "1", "none", "stop it", "host", "a page")
CHOICES = "--max-model-len, --max-num-seqs, --tensor-parallel-size, --optimize latency|throughput"
NOTE = WARNING._replace(id="PLAN-064", severity="INFO")


def reasons(settings: Mapping[str, str], origin: str = "decision") -> tuple[Reason, ...]:
    return tuple(Reason(name, value, origin, "because") for name, value in settings.items())


def plan(settings: Mapping[str, str], uses: tuple[Use, ...] = (), **changes: Any) -> ServePlan:
    serve_plan = ServePlan(("vllm",), {}, reasons(settings), (), "Qwen/Qwen3-8B", "0.0.0.0", 8000, uses=uses)
    return serve_plan._replace(**changes)


def use(number: int, length: int = 1000, tokens: int = 10_000, engine: int = 0) -> Use:
    return Use(number, engine, 80 * GIB, 0, 0, 0, length, tokens)


def lines(serve_plan: ServePlan, profile: Mapping[str, Any] = PROFILE) -> list[str]:
    return summary_text(profile, facts(devices=DEVICES), serve_plan).splitlines()


def test_a_plan_begins_with_four_comments_and_an_empty_line() -> None:
    serve_plan = plan({"--tensor-parallel-size": "2"}, (use(0), use(1)), findings=(NOTE, WARNING))

    assert lines(serve_plan) == [
        "# Qwen/Qwen3-8B on 2 x H100, TP 2, with vLLM 0.33.0 (cuda13.0-vllm0.33)",
        "# requests of up to 1,000 tokens, prompt and answer together; 10 of that length at a time, more if shorter",
        "# look at WARN PLAN-022: A process holds a device.",
        f"# to change it: {CHOICES}, or any flag of vLLM; what you set wins",
        "",
    ]


@pytest.mark.parametrize(
    ("settings", "uses", "load"),
    [
        ({}, (), (0, 0, 0, False)),
        ({}, (use(0, tokens=0),), (1000, 0, 0, False)),
        ({"--data-parallel-size": "2"}, (use(0), use(1, engine=1)), (1000, 20, 20_000, False)),
        ({"--max-num-seqs": "4", "--data-parallel-size": "2"}, (use(0),), (1000, 8, 20_000, True)),
        ({"--max-num-seqs": "40"}, (use(0),), (1000, 10, 10_000, False)),
    ],
)
def test_the_load_is_that_of_all_engines(
    settings: Mapping[str, str], uses: tuple[Use, ...], load: tuple[int, int, int, bool]
) -> None:
    assert measure_load(plan(settings, uses)) == load


def test_what_only_vllm_knows_and_what_is_fine_is_said() -> None:
    unknown = lines(plan({}, findings=(NOTE,)))

    assert unknown[1] == "# only vLLM knows how long and how many requests it serves at a time"
    assert unknown[2] == "# no finding needs attention"


def test_what_the_user_has_set_is_not_proposed() -> None:
    chosen = reasons({"--max-model-len": "4096", "--tensor-parallel-size": "2"}, "command line")
    assert "to change it: --max-num-seqs, --optimize" in lines(plan({}, reasons=chosen))[3]


def test_the_lines_have_the_users_language() -> None:
    words = {"no finding needs attention": "没有需要处理的检查项"}
    assert lines(plan({}), {**PROFILE, "words": words})[2] == "# 没有需要处理的检查项"


def test_of_two_findings_what_stops_the_server_is_named_first() -> None:
    stopping = WARNING._replace(id="PLAN-063", stops=True)
    serve_plan = plan({}, (use(0),), findings=(NOTE, WARNING, stopping))
    assert any("look at WARN PLAN-063" in line for line in lines(serve_plan))
    failing = WARNING._replace(id="RUN-001", severity="FAIL")
    assert any("look at FAIL RUN-001" in line for line in lines(serve_plan._replace(findings=(stopping, failing))))


def test_the_container_in_which_someone_asks_is_no_headline() -> None:
    capability, files = WARNING._replace(id="RUN-003", severity="FAIL"), WARNING._replace(id="HOST-007")
    serve_plan = plan({}, (use(0),), findings=(capability, files, NOTE))
    alone = "# no finding of the host needs attention; of this container and its start: FAIL RUN-003, WARN HOST-007"
    assert lines(serve_plan)[2] == alone
    assert lines(serve_plan._replace(findings=(capability, WARNING)))[2].startswith("# look at WARN PLAN-022")
    assert [item.id for item in sort_worst_first(serve_plan.findings, list_asker_ids(PROFILE))] == [
        *("PLAN-064", "RUN-003", "HOST-007")
    ]


def test_what_a_recipe_sets_and_switches_off_is_said() -> None:
    off = ("--enable-prefix-caching", "false")
    because = "recipe m of 2026-08-03, verified on h100"
    recipe = (
        Reason("--block-size", "32", "recipe", because),
        Reason(*off, "recipe", because, (SWITCHED_OFF[off],)),
        Reason("VLLM_USE_DEEP_GEMM", "1", "recipe", because),
    )
    text = lines(plan({}, (use(0),), reasons=recipe))
    assert text[3] == f"# {because}, sets: --block-size 32, --no-enable-prefix-caching, VLLM_USE_DEEP_GEMM=1"
    assert text[4] == f"# it switches off what vLLM has on: --no-enable-prefix-caching (not {SWITCHED_OFF[off]})"
    assert len([line for line in text if line]) <= 8
