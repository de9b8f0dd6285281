"""The page of a plan and of a check: complete, escaped, self-contained."""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser
from shlex import join

import pytest

from entrypoints.checks.grants import examine_facts
from entrypoints.core.errors import DOES_NOT_FIT, EntrypointError
from entrypoints.core.records import Facts, Group, RankPlan, Reason, ServePlan, Use
from entrypoints.core.units import GIB
from entrypoints.pages.page import render_check_page, render_plan_page, render_refusal_page
from entrypoints.pages.page_frame import split_command_lines
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support import sample
from tests.support.cases import for_each
from tests.support.hosts import expect
from tests.support.hosts.host_models import MODELS

VOID = ("meta", "br", "circle", "line")
HOSTILE = '"><script>alert(1)</script><img src=//example.org>'


class Page(HTMLParser):
    """Collects the tags, attributes and text of a page, and checks that tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def planned(name: str) -> tuple[Facts, ServePlan] | None:
    """Plan a recorded host for the first model that fits it; None if none does."""
    profile = expect.profile_of(name)
    facts = expect.read(name, profile)
    for model in MODELS.values():
        try:
            return facts, make_serve_plan(profile, facts, model, parse_user_flags(("--model", model.name), {}, ()))
        except EntrypointError:
            continue
    return None


PLANS = {name: plan for name in expect.names() if (plan := planned(name))}


@for_each(PLANS)
def test_every_recorded_host_has_a_page_of_its_plan(name: str) -> None:
    facts, plan = PLANS[name]

    page = Page(render_plan_page("a-variant", facts, plan))

    assert f"Plan for {plan.model}" in page.text
    for device in facts.devices:
        assert ("title", device.name) in page.attributes
    for reason in plan.reasons:
        assert reason.because in page.text, reason.setting
    for finding in plan.findings:
        assert finding.severity == "PASS" or finding.text in page.text, finding.id


def h100(uses: tuple[Use, ...], **settings: str) -> str:
    """Return the page of a plan for eight H100."""
    facts = expect.read("cuda-h100-8x", expect.profile_of("cuda-h100-8x"))
    reasons = tuple(Reason(f"--{name.replace('_', '-')}", value, "default", "why") for name, value in settings.items())
    return render_plan_page("cuda", facts, ServePlan(("vllm",), {}, reasons, (), "m", "", 0, uses=uses))


def test_a_page_shows_which_devices_serve_and_which_are_idle() -> None:
    uses = tuple(Use(number, number // 2, 80 * GIB, 30 * GIB, 2 * GIB, 40 * GIB) for number in range(4))

    page = h100(uses, tensor_parallel_size="2", data_parallel_size="2")

    assert "2 engines on 4 of 8 devices" in page
    assert page.count('class="device e0"') == page.count('class="device e1"') == 2
    assert page.count('class="device idle"') == 4
    assert "<b>device 3</b><br>engine 1, rank 1<" in page


def test_equal_devices_share_one_labelled_bar() -> None:
    uses = tuple(Use(number, 0, 80 * GIB, 30 * GIB, 2 * GIB, 40 * GIB) for number in range(4))
    larger = Use(4, 0, 96 * GIB, 30 * GIB, 2 * GIB, 56 * GIB)

    page = Page(h100((*uses, larger))).text

    assert "devices 0-3, each 80 GiB" in page
    assert "30 GiB weights2.0 GiB runtime, graphs and activations40 GiB KV cache8.0 GiB left free" in page
    assert "device 4, 96 GiB" in page


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"tensor_parallel_size": "4", "data_parallel_size": "2"}, ("TP 4 x DP 2", "32,768 tokens", "82 requests")),
        ({"tensor_parallel_size": "8", "enable_expert_parallel": "true"}, ("TP 8 + EP", "41 requests")),
        ({"pipeline_parallel_size": "2", "max_num_seqs": "1"}, ("PP 2", "1 request")),
    ],
)
def test_the_answer_comes_first(settings: dict[str, str], answer: tuple[str, ...]) -> None:
    uses = tuple(Use(number, 0, 80 * GIB, 0, 0, 0, 32768, 41 * 32768 + 9) for number in range(8))

    head = h100(uses, **settings).partition("<section>")[0]

    assert not [text for text in (*answer, "No findings") if f"<b>{text}</b>" not in head]


def test_what_only_vllm_knows_is_said() -> None:
    assert "<b>Length unknown</b>" in h100((Use(0, 0, 80 * GIB, 0, 0, 0),))


def test_a_command_has_one_flag_a_line_with_its_reason_and_its_caches_are_folded_away() -> None:
    facts, plan = PLANS["cuda-h100-8x"]
    page = render_plan_page("cuda", facts, plan)
    reason = next(item for item in plan.reasons if item.setting == "--dtype")

    folded = page[page.index("variables for caches below /cache") : page.index("</details>\n</details>")]

    assert " ".join(split_command_lines(plan.argv)) == join(plan.argv)
    assert "-m vllm.entrypoints.openai.api_server" in split_command_lines(plan.argv)[0]
    assert f"<code>--dtype {reason.value} \\</code> <span>{escape(reason.because)}" in page
    assert [name for name in plan.env if f"<code>{name}=" in folded] == [
        name for name, value in plan.env.items() if value.startswith("/cache/")
    ]
    assert page.count("--trust-remote-code = false") == 1, "a reason without a flag is listed after the command"


def test_the_page_of_one_of_several_hosts_has_the_commands_of_the_others() -> None:
    ranks = tuple(RankPlan(rank, ("vllm", f"--node-rank={rank}"), {}, (("ray", "start"),)) for rank in range(3))
    plan = ServePlan(ranks[1].argv, {}, (), (), "m", "", 0, ranks=ranks, group=Group(1, 3, "10.0.0.1"))

    page = Page(render_plan_page("cpu", sample.facts(), plan)).text

    assert "host 1 of 3, from 0" in page
    assert "1 rank in one engine on 3 hosts" in page
    assert re.findall(r"--node-rank=\d", page) == ["--node-rank=1", "--node-rank=0", "--node-rank=2"]
    assert page.count("ray start") == 2


def test_the_page_of_a_model_that_does_not_fit_says_so_and_what_helps() -> None:
    profile = expect.profile_of("cuda-h100-8x")
    facts = expect.read("cuda-h100-8x", profile)
    error = EntrypointError(DOES_NOT_FIT, "<model>: weights take 82 GiB", "--nnodes 2 fits")

    page = render_refusal_page("cuda", facts, error, examine_facts(profile, facts))

    head, _, rest = page.partition("<section>")
    expected_texts = ("&lt;model&gt;</h1>", "Does not fit</b><span>weights take 82 GiB<", "--nnodes 2 fits")
    assert not [text for text in expected_texts if text not in head]
    assert "device 7" in rest
    assert "<article" in rest


def test_a_host_without_devices_shows_its_nodes_and_their_engines() -> None:
    facts, plan = PLANS["cpu-xeon8380-2s"]

    page = render_plan_page("cpu", facts, plan)

    assert page.count('<p class="device e') == len({use.number for use in plan.uses})
    assert "<svg" not in page


def test_the_page_of_a_check_counts_first_and_what_passes_can_be_opened() -> None:
    profile = expect.profile_of("habana-gaudi2e-untuned")
    facts = expect.read("habana-gaudi2e-untuned", profile)
    findings = examine_facts(profile, facts)

    head, _, rest = render_check_page("habana", facts, findings).partition("<section>")

    passed = [finding for finding in findings if finding.severity == "PASS"]
    severities = [severity for severity in ("FAIL", "WARN", "UNKNOWN", "INFO", "PASS") if f" {severity}</b>" in head]
    assert severities == list(dict.fromkeys(re.findall(r"<b>\d+ (\w+)</b>", head)))
    assert f"<b>{len(passed)} PASS</b>" in head
    places = [rest.index(f'class="{severity}"') for severity in ("fail", "warn", "pass")]
    assert places == sorted(places)
    opened = rest[rest.index(f"<details><summary>{len(passed)} checks passed</summary>") :]
    assert not [finding.id for finding in passed if finding.id not in opened]


def test_text_of_the_host_and_the_user_is_escaped_and_nothing_is_loaded() -> None:
    facts = expect.read("cuda-h100-8x", expect.profile_of("cuda-h100-8x"))
    devices = tuple(device._replace(name=HOSTILE, health=HOSTILE) for device in facts.devices)
    links = tuple(link._replace(kind=HOSTILE) for link in facts.links)
    reasons = (Reason(HOSTILE, HOSTILE, "default", HOSTILE, (HOSTILE,)),)
    findings = examine_facts(expect.profile_of("cuda-h100-8x"), facts)
    findings = tuple(finding._replace(text=HOSTILE, found=HOSTILE, remediation=HOSTILE) for finding in findings)
    plan = ServePlan((HOSTILE,), {"A": HOSTILE}, reasons, findings, HOSTILE, "", 0)

    page = Page(render_plan_page(HOSTILE, facts._replace(devices=devices, links=links), plan))

    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "href") or name.startswith("on")]
    assert HOSTILE in page.text


def test_a_secret_is_not_on_the_page() -> None:
    plan = ServePlan(("vllm", "--api-key", "hunter2hunter2"), {"HF_TOKEN": "hunter2hunter2"}, (), (), "m", "", 0)

    assert "hunter2" not in render_plan_page("cpu", sample.facts(), plan)
