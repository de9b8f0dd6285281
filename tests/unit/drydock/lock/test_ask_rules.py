"""What releases of vLLM say to the examples of the rules is recorded; what a new one says otherwise is listed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from drydock.lock import ask_rules
from entrypoints.plan import kernel_limits, option_rules
from entrypoints.plan.option_rules import RULES


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "refused_examples.json"
    path.write_text(json.dumps({"0.1.0": {"a": "no a", "b": "", "c": "no c"}}))
    for module in (ask_rules, option_rules):
        monkeypatch.setattr(module, "ANSWERS", str(path))
    return path


def test_what_a_release_says_is_written_next_to_what_others_said(answers: Path) -> None:
    ask_rules.record_answers("0.2.0", {"a": "", "b": "no b", "c": "no more c"})

    assert json.loads(answers.read_text())["0.1.0"]["a"] == "no a"
    assert ask_rules.list_changed_refusals("0.1.0", "0.2.0") == ["a: refused → taken", "b: taken → refused"]
    assert ask_rules.list_changed_refusals("0.2.0", "0.3.0")[0] == "a: taken → not asked"


def answer(outcome: str, *words: str) -> dict[str, Any]:
    return {"outcome": outcome, "vllm": "0.2.0+cpu", "words": words, "because": ""}


def test_an_example_whose_near_miss_is_refused_too_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer_rules(_image: str, _package: Path | None, _kind: str, rules: list[Any]) -> list[dict[str, Any]]:
        first = [answer("refused", "Short", "In full"), answer("constructed")]
        second = [answer("refused", "Other"), answer("refused", "Other")]
        return [*first, *second, *(answer("constructed") for _ in range(2 * len(rules) - 4))][: 2 * len(rules)]

    monkeypatch.setattr(ask_rules, "_ask_examples", answer_rules)
    version, words = ask_rules.ask_release("image")
    first, second = RULES[0].example, RULES[1].example

    assert (version, words[first]) == ("0.2.0", "In full")
    assert second not in words


def test_what_is_no_wheel_is_not_asked(tmp_path: Path) -> None:
    archive = tmp_path / "vllm-0.2.0.tar.gz"
    archive.write_bytes(b"")
    assert ask_rules.ask_wheel(["drydock/cpu"], archive) == "vllm-0.2.0.tar.gz is no wheel"


def test_what_devices_say_of_a_backend_stands_once() -> None:
    """Read back, each device gets its own answer, and a device that was not asked none."""
    usual, other = {"": [], "FLASH_ATTN": ["--dtype float32"]}, {"": [], "FLASH_ATTN": "compute capability"}
    said = {"7.0": {"plain 64": other, "plain 128": other}, "9.0": {"plain 64": usual, "plain 128": usual}}
    said["10.0"] = {"plain 64": usual, "plain 128": {"": []}}
    lines = [{"platform": "cuda", "device": device, "answers": layers} for device, layers in said.items()]
    release = ask_rules.join_devices(lines)

    def read(device: str, layer: str = "plain 128") -> Mapping[str, Any]:
        return kernel_limits.find_answers(release, "cuda", layer, device).of_backends

    assert all(read(device, layer) == said[device][layer] for device in said for layer in said[device])
    assert read("8.0") == read("9.0", "plain 96") == {}
    assert release["names"] == ["FLASH_ATTN"]
    assert len(release["refusals"]) == 3
