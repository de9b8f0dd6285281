from __future__ import annotations

from html.parser import HTMLParser

from drydock.topology.plan_model import Because
from drydock.topology.topology_page import render_topology_page
from tests.support.topology_files import plan_example


class Reader(HTMLParser):
    """Collects texts and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def test_the_page_has_every_node_command_and_reason() -> None:
    trio_plan = plan_example("cpu-trio")
    parsed_page = read(render_topology_page(trio_plan))
    words = " ".join(parsed_page.texts)
    assert "script" not in parsed_page.tags
    for replica in trio_plan.replicas:
        for rank in replica.ranks:
            assert rank.node in words
            assert all(f"{purpose} {port}" in words for purpose, port in rank.ports.items())
            assert all(name in words for name in rank.env)
        assert all(reason.because in words for reason in replica.reasons)
    assert "vllm-router \\" in words


def test_the_answer_comes_first() -> None:
    head = render_topology_page(plan_example("2p1d-omni")).partition("<section>")[0]
    answer = ("DeepSeek-R1", "2P1D", "TP 16 + EP", "DP 32 + EP", "port 7000", "4 WARN")
    assert not [text for text in answer if f"{text}</" not in head]
    assert "prefill: 1 node a server, up to 32,000 tokens" in head


def test_findings_are_marked_by_severity() -> None:
    trio_plan = plan_example("cpu-trio")
    findings = ("TOPO-001: node n runs nothing; add it", "HOST-001: FAIL: The governor is powersave. Found: x, on n")
    text = render_topology_page(trio_plan.model_copy(update={"findings": findings}))
    assert "<b>1 FAIL</b><span>HOST-001: The governor is powersave; 1 WARN</span>" in text
    assert '<article class="warn"><h3><span>WARN</span> TOPO-001</h3>' in text
    assert "<b>No findings</b>" in render_topology_page(trio_plan.model_copy(update={"findings": ()}))


def test_a_text_of_a_plan_stays_a_text() -> None:
    trio_plan = plan_example("cpu-trio")
    hostile = Because(setting="<script>alert(1)</script>", value="{{ 7 * 7 }}", because="<img src=x onerror=y>")
    parsed_page = read(
        render_topology_page(trio_plan.model_copy(update={"reasons": (hostile,), "findings": ("<em>TOPO</em>",)}))
    )
    assert not {"script", "img", "em"} & {*parsed_page.tags}
    assert "{{ 7 * 7 }}" in " ".join(parsed_page.texts)
