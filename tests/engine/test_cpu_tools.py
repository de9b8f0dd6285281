"""A server gets vLLM's parsers by its model's chat template: requests with tools work, and reasoning is a field."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import Container

from drydock.build import build
from drydock.prove import demo

pytestmark = pytest.mark.proves("cpu-vllm0.32", "hardware")

TEMPLATE = """{%- if tools %}<|im_start|>system
For each function call return <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content.split('</think>')[-1] }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}{#- <｜Assistant｜> as of DeepSeek's distilled models #}"""  # noqa: RUF001
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


def ask(container: Container, **more: Any) -> tuple[int, dict[str, Any]]:
    """Return the status and the answer to a chat request."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": demo.QUESTION}], "max_tokens": 16, **more}
    request = urllib.request.Request(
        demo.find_port_url(container, demo.API_PORT, "/v1/chat/completions"),
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture(scope="module")
def thinking(built: build.Built, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """SmolLM2 with the marks of two families; two tokens that it never uses begin and end its reasoning."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = (folder / "tokenizer.json").read_text()
    for unused, mark in (("<reponame>", "<think>"), ("<file_sep>", "</think>")):
        assert unused in tokenizer
        tokenizer = tokenizer.replace(unused, mark)
    (folder / "tokenizer.json").write_text(tokenizer)
    with demo.run_model_server(built.image, folder) as container:
        demo.wait_until_ready(container)
        yield container


def test_a_request_with_tools_is_answered_if_the_template_names_a_family(
    server: Container, thinking: Container
) -> None:
    refused, why = ask(server, tools=TOOLS, tool_choice="auto")
    status, answer = ask(thinking, tools=TOOLS, tool_choice="auto")

    assert (refused, status) == (400, 200)
    assert "--enable-auto-tool-choice" in why["error"]["message"]
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_reasoning_is_a_field_of_its_own(thinking: Container) -> None:
    status, answer = ask(thinking, temperature=0)

    message = answer["choices"][0]["message"]
    assert status == 200
    assert demo.EXPECTED in message["reasoning"]
    assert not message["content"]
