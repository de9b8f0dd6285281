"""The page of a plan and of a check: complete, escaped, self-contained."""

from __future__ import annotations

from html.parser import HTMLParser

from entrypoints.checks.grants import examine
from entrypoints.cli.page import check_page, plan_page
from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import Facts, Reason, ServePlan, Use
from entrypoints.core.units import GIB
from entrypoints.plan.plan import command
from entrypoints.request.vllm_flags import parse_given
from tests.support import sample
from tests.support.cases import for_each
from tests.support.hosts import expect
from tests.support.hosts.models import MODELS

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
            return facts, command(profile, facts, model, parse_given(("--model", model.name), {}, ()))
        except EntrypointError:
            continue
    return None


PLANS = {name: plan for name in expect.names() if (plan := planned(name))}


@for_each(PLANS)
def test_every_recorded_host_has_a_page_of_its_plan(name: str) -> None:
    facts, plan = PLANS[name]

    page = Page(plan_page("a-variant", facts, plan))

    assert f"Plan for {plan.model}" in page.text
    for device in facts.devices:
        assert ("title", device.name) in page.attributes
    for reason in plan.reasons:
        assert reason.because in page.text, reason.setting
    for finding in plan.findings:
        assert finding.severity == "PASS" or finding.text in page.text, finding.id


@for_each(PLANS)
def test_a_plan_gives_no_device_more_memory_than_it_has(name: str) -> None:
    facts, plan = PLANS[name]

    known = {device.number for device in facts.devices} or {node.id for node in facts.nodes}
    for use in plan.uses:
        assert use.number in known
        assert min(use.weights, use.other, use.cache) >= 0
        assert use.weights + use.other + use.cache <= use.total


def test_a_page_shows_which_devices_serve_and_which_are_idle() -> None:
    facts = expect.read("cuda-h100-8x", expect.profile_of("cuda-h100-8x"))
    uses = tuple(Use(number, number // 2, 80 * GIB, 30 * GIB, 2 * GIB, 40 * GIB) for number in range(4))
    plan = ServePlan(("vllm",), {}, (), (), "m", "", 0, uses=uses)

    page = plan_page("cuda", facts, plan)

    assert "2 engines on 4 of 8 devices" in page
    assert page.count('class="device e0"') == page.count('class="device e1"') == 2
    assert page.count('class="device idle"') == 4
    assert page.count('<div class="row">') == 4
    assert "30 GiB + 2.0 GiB + 40 GiB + 8.0 GiB" in page


def test_a_host_without_devices_shows_its_nodes_and_their_engines() -> None:
    facts, plan = PLANS["cpu-xeon8380-2s"]

    page = plan_page("cpu", facts, plan)

    assert page.count('class="node e') == len({use.number for use in plan.uses})
    assert "<svg" not in page


def test_the_page_of_a_check_lists_failures_first_and_counts_what_passes() -> None:
    profile = expect.profile_of("habana-gaudi2e-untuned")
    facts = expect.read("habana-gaudi2e-untuned", profile)
    findings = examine(profile, facts)

    page = check_page("habana", facts, findings)

    places = [page.index(f'class="{severity}"') for severity in ("fail", "warn")]
    assert places == sorted(places)
    assert f"{sum(finding.severity == 'PASS' for finding in findings)} checks pass" in page


def test_text_of_the_host_and_the_user_is_escaped_and_nothing_is_loaded() -> None:
    facts = expect.read("cuda-h100-8x", expect.profile_of("cuda-h100-8x"))
    devices = tuple(device._replace(name=HOSTILE, health=HOSTILE) for device in facts.devices)
    links = tuple(link._replace(kind=HOSTILE) for link in facts.links)
    reasons = (Reason(HOSTILE, HOSTILE, "default", HOSTILE, (HOSTILE,)),)
    findings = examine(expect.profile_of("cuda-h100-8x"), facts)
    findings = tuple(finding._replace(text=HOSTILE, found=HOSTILE, remediation=HOSTILE) for finding in findings)
    plan = ServePlan((HOSTILE,), {"A": HOSTILE}, reasons, findings, HOSTILE, "", 0)

    page = Page(plan_page(HOSTILE, facts._replace(devices=devices, links=links), plan))

    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "href") or name.startswith("on")]
    assert HOSTILE in page.text


def test_a_secret_is_not_on_the_page() -> None:
    plan = ServePlan(("vllm", "--api-key", "hunter2hunter2"), {"HF_TOKEN": "hunter2hunter2"}, (), (), "m", "", 0)

    assert "hunter2" not in plan_page("cpu", sample.facts(), plan)
