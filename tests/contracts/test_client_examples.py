"""Requests that the pages tell a reader to send."""

from __future__ import annotations

import json
import re

import pytest

from drydock.core.paths import ROOT

PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md") if "chat/completions" in path.read_text())
BODY = re.compile(r"-d '(\{.*?\})'$|<<END\n(.*?)\n    END$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_a_request_is_json_with_a_model_and_parts_that_name_their_type(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    bodies = [json.loads(quoted or here) for quoted, here in BODY.findall(text)]

    assert len(bodies) == len(re.findall(r"curl [^\n]*chat/completions", text))
    for body in bodies:
        assert body["model"]
        contents = [message["content"] for message in body["messages"]]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        assert all(part["type"] in part for part in parts)
