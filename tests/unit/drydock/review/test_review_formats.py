"""What `review` prints for programs: whatever others wrote is quoted, and is nothing that a reader obeys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.review.review_output import ANNOTATIONS_AT_MOST, FORMATS, Review
from drydock.review.review_tree import review_folder

HOSTILE = "\x1b]0;x\x07##[error]::error::%0A[a](http://x.example)<b>@all`x`![i]"
SECRET = "hf_" + "a1B2c3D4e5" * 4
NAME = "::error file=x,y::a,b%\n.yaml"


@pytest.fixture
def review(tmp_path: Path) -> Review:
    """A review of a file whose name, image and arguments are hostile."""
    words = ["--model", "a/b", f"--{HOSTILE}", "1", f"--hf-token={SECRET}x", "--swap-space", "4"]
    pod = {"name": "v", "image": "vllm/vllm-openai:v0.18.0", "args": words}
    (tmp_path / NAME).write_text(json.dumps(pod))
    (tmp_path / "image.yaml").write_text(json.dumps({**pod, "image": f"vllm/vllm-openai:{HOSTILE}"}))
    return review_folder(DRYDOCK, str(tmp_path), "", offline=True)


@pytest.mark.parametrize("form", FORMATS)
def test_no_format_has_an_escape_a_secret_or_a_command(review: Review, form: str) -> None:
    text = FORMATS[form](review)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert SECRET not in text
    assert "##[" not in text
    starts = [line for line in text.splitlines() if line.lstrip().startswith("::")]
    assert bool(starts) is (form == "github")
    assert all(line.startswith(("::error file=", "::warning file=", "::notice title=")) for line in starts)


def test_an_annotation_is_one_line_and_its_properties_are_closed(review: Review) -> None:
    lines = FORMATS["github"](review).splitlines()
    assert "file=%3A%3Aerror file=x%2Cy%3A%3Aa%2Cb%25%0A.yaml,line=1,title=vLLM::would not start" in "\n".join(lines)
    assert lines[-1] == "::notice title=vLLM::2 commands: 1 would not start, 0 warning, 1 not known"
    many = review._replace(places=review.places * 100)
    assert len(FORMATS["github"](many).splitlines()) == ANNOTATIONS_AT_MOST + 1


def test_sarif_has_a_rule_a_place_and_no_link(review: Review) -> None:
    document: dict[str, Any] = json.loads(FORMATS["sarif"](review))
    assert document["version"] == "2.1.0"
    run = document["runs"][0]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} <= rules
    assert {result["level"] for result in run["results"]} == {"error", "note"}
    for result in run["results"]:
        place = result["locations"][0]["physicalLocation"]
        assert place["region"]["startLine"] >= 1
        assert set(place["artifactLocation"]["uri"]) <= set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%._/-~"
        )
        assert "[a](" not in result["message"]["text"]


def test_gitlabs_report_has_what_it_requires(review: Review) -> None:
    issues = json.loads(FORMATS["gitlab"](review))
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)
    for issue in issues:
        assert issue.keys() == {"description", "check_name", "fingerprint", "severity", "location"}
        assert issue["severity"] in ("info", "minor", "critical")
        assert issue["location"]["lines"]["begin"] >= 1
        assert "<b>" not in issue["description"].replace("\\<b\\>", "")


def test_json_has_each_command_with_its_image_and_how_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("docker run vllm/vllm-openai:v0.18.0 --model a/b\nvllm serve a/b\n")
    document = json.loads(FORMATS["json"](review_folder(DRYDOCK, str(tmp_path), "", offline=True)))
    assert document["skipped"] == []
    assert [(item["line"], item["versions"], item["known"], item["level"]) for item in document["commands"]] == [
        (1, ["vllm-0.18.0"], "by its tag", None),
        (2, [], "no image stands next to the command", "not known"),
    ]
