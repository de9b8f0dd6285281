"""The pages for contributors are tried in a copy of the checkout: their files are written, and their commands run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from tests.support.checkout_copy import copy_checkout, run_in_copy

pytestmark = pytest.mark.checkout

PAGE = ROOT / "docs" / "develop" / "add-a-check.md"
ACCELERATOR, CHINESE = "templates/rocm/accelerator.yaml", "templates/rocm/accelerator.zh.yaml"
FACT = "  versions.compute_partition: /sys/bus/pci/devices/*/current_compute_partition\n"


def read_blocks(language: str) -> list[str]:
    """Return the page's blocks of code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def insert_text(path: Path, before: str, text: str) -> None:
    """Write a text before another one, which the file has once."""
    content = path.read_text()
    assert content.count(before) == 1, f"{path}: expected {before!r} once"
    path.write_text(content.replace(before, f"{text}{before}"))


def test_a_check_is_added_as_its_page_says(tmp_path: Path) -> None:
    copy = copy_checkout(tmp_path)
    check, facts, chinese = read_blocks("yaml")
    insert_text(copy / ACCELERATOR, "\n# Texts of the findings", check)
    with (copy / CHINESE).open("a") as file:
        file.write(chinese)
    accelerator = (copy / ACCELERATOR).read_text()
    assert facts == f"facts:\n{FACT}"

    (copy / ACCELERATOR).write_text(accelerator.replace(FACT, ""))
    refused = run_in_copy(copy, "./inv", "check", "--target", "rocm", code=2)
    assert "checks[9].fact: found 'versions.compute_partition', which has no line in `facts`" in refused.stderr
    (copy / ACCELERATOR).write_text(accelerator)

    commands = [line.partition("#")[0].split() for line in read_blocks("sh")[0].splitlines()]
    assert [command[:2] for command in commands[1:]] == [["./inv", "generate"], ["git", "diff"], ["./inv", "test"]]
    assert "ROCM-010" in run_in_copy(copy, *commands[0]).stdout
    written = [run_in_copy(copy, "./inv", "generate", "--only", part).stdout.split() for part in ("hosts", "docs")]
    assert {Path(name).name for name in written[0]} == {"findings.json"}
    assert "docs/reference/rocm.md" in written[1]
    assert "ROCM-010" in (copy / "docs" / "reference" / "rocm.md").read_text()
    findings = json.loads((copy / "tests" / "hosts" / "rocm-mi300x-cpx" / "findings.json").read_text())
    assert "ROCM-010" in {finding["id"] for finding in findings}
    run_in_copy(
        copy, sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
        "tests/contracts/test_every_check.py", "tests/contracts/test_translations.py",
    )  # fmt: skip


@pytest.mark.parametrize("page", ["add-a-check.md", "add-an-accelerator.md", "bump-vllm.md"])
def test_a_page_says_what_is_committed_and_asks_for_no_record(page: str) -> None:
    text = (PAGE.parent / page).read_text()
    assert "no record and no proof" in " ".join(text.split())
    assert "./inv generate" in text
    assert re.findall(r"--record\b|proof\.json", text) == [], f"{page}: a release records, not a contributor"
