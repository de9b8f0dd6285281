"""Failures by symptom lie over those of drydock, name by name; what could slow a search down or mislead is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drydock.config.failures import failures_text, read_failures
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project

OWN = """failures:
  our-proxy:
    symptom: "403 from the proxy"
    patterns: ["403 from the *proxy"]
    cause: The proxy refuses.
    remedy: Ask for access.
    source: https://wiki.example/proxy
translations: {zh: {The proxy refuses.: 代理拒绝。}}
"""


def project(folder: Path, text: str) -> Project:
    (folder / "templates").mkdir(parents=True)
    (folder / "templates" / "failures.yaml").write_text(text, encoding="utf-8")
    return Project(folder, (ROOT,))


def test_a_project_adds_its_own_and_changes_one_by_its_name(tmp_path: Path) -> None:
    failure_file = read_failures(project(tmp_path, OWN + "  # more\n"), "cpu")

    assert failure_file.failures["our-proxy"].patterns == ("403 from the *proxy",)
    assert {"vllm-error", "cpu-pipeline"} <= failure_file.failures.keys()
    assert failure_file.translations["zh"]["The proxy refuses."] == "代理拒绝。"
    assert "cuda-no-gpu" not in failure_file.failures


ENTRY = """  {}:
    symptom: fan failed with 7
    codes: {{fan: [7]}}
    cause: It is hot.
    remedy: Open the window.
    source: https://wiki.example/fan
"""
CODES = f"code_forms: {{fan: [fan failed with]}}\nfailures:\n{ENTRY.format('hot')}"


def test_a_code_has_a_form_and_one_owner(tmp_path: Path) -> None:
    good = read_failures(project(tmp_path / "good", CODES), "cpu")
    assert (good.failures["hot"].codes, good.code_forms["fan"]) == ({"fan": (7,)}, ("fan failed with",))
    with pytest.raises(InputError, match="code_forms does not say"):
        read_failures(project(tmp_path / "formless", CODES.replace("{fan: [7]}", "{pump: [7]}")), "cpu")
    with pytest.raises(InputError, match="hot has 7 too"):
        read_failures(project(tmp_path / "double", CODES + ENTRY.format("warm")), "cpu")


def test_an_image_gets_what_the_file_says_now(tmp_path: Path) -> None:
    own_project = project(tmp_path, OWN)
    assert "Ask for access." in failures_text(own_project, "cpu")
    (tmp_path / "templates" / "failures.yaml").write_text(OWN.replace("Ask for access.", "Use the other."))
    assert "Use the other." in failures_text(own_project, "cpu")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"403 from the *proxy"', '"a"', "patterns[0]"),
        ('"403 from the *proxy"', '"** proxy"', "patterns[0]"),
        ('"403 from the *proxy"', '"two\\nlines"', "patterns[0]"),
        ("https://wiki.example/proxy", "javascript:alert(1)", "source"),
        ("https://wiki.example/proxy", "https://a b", "source"),
        ("our-proxy:", "Our Proxy:", "Our Proxy"),
        ("remedy:", "fix:", "remedy"),
    ],
)
def test_an_entry_that_is_wrong_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    with pytest.raises(InputError, match=re.escape("templates/failures.yaml: ")) as caught:
        read_failures(project(tmp_path, OWN.replace(old, new)))

    assert named in str(caught.value)
