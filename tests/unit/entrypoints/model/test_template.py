"""Chat templates, from where transformers looks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drydock.run.standin_run import CONFIG
from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.model.read import read_model
from entrypoints.model.template import own_template
from tests.support.sample import write_model

LLAMA = {**CONFIG, "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, ""),
        ({"tokenizer_config.json": {"chat_template": "{{ a }}"}}, "{{ a }}"),
        (
            {"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "a"}, {"template": "b"}, 3]}},
            "a\nb",
        ),
        ({"tokenizer_config.json": {"chat_template": 7}}, ""),
        ({"chat_template.json": {"chat_template": "b"}, "tokenizer_config.json": {"chat_template": "a"}}, "b"),
        ({"chat_template.jinja": "c", "chat_template.json": {"chat_template": "b"}}, "c"),
        ({"chat_template.jinja": "", "tokenizer_config.json": {"chat_template": "a"}}, ""),
    ],
)
def test_the_template_is_the_one_that_transformers_takes(tmp_path: Path, files: dict[str, Any], template: str) -> None:
    write_model(tmp_path, LLAMA)
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))

    assert read_model(str(tmp_path)).template == template


def test_what_no_rule_needs_is_not_read(tmp_path: Path) -> None:
    write_model(tmp_path, {**CONFIG, "architectures": ["FalconForCausalLM"]})
    (tmp_path / "tokenizer_config.json").write_text("{")

    assert read_model(str(tmp_path)).template is None


def test_a_model_of_sentence_transformers_pools(tmp_path: Path) -> None:
    write_model(tmp_path, LLAMA)
    assert not read_model(str(tmp_path)).pooling
    (tmp_path / "modules.json").write_text("[]")
    assert read_model(str(tmp_path)).pooling


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe{}", b'{"chat_template": ' + b"[" * 5000])
def test_a_broken_file_is_an_error_before_vllm_starts(tmp_path: Path, content: bytes) -> None:
    write_model(tmp_path, LLAMA)
    (tmp_path / "tokenizer_config.json").write_bytes(content)

    with pytest.raises(EntrypointError, match=f"{tmp_path}/tokenizer_config.json: ") as raised:
        read_model(str(tmp_path))
    assert raised.value.code == MODEL


def test_a_template_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    write_model(tmp_path, LLAMA)
    (tmp_path / "chat_template.jinja").mkdir()
    with pytest.raises(EntrypointError) as raised:
        read_model(str(tmp_path))
    assert raised.value.code == MODEL


def test_the_users_own_template_is_a_file_or_the_text_itself(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("[TOOL_CALLS]")

    assert own_template(str(tmp_path / "own.jinja")) == "[TOOL_CALLS]"
    assert own_template("{{ '[TOOL_CALLS]' }}") == "{{ '[TOOL_CALLS]' }}"
    assert own_template("{{\0") == "{{\0"
    assert (
        own_template("tool_use") == own_template("/none.jinja") == own_template(str(tmp_path)) == own_template("") == ""
    )
