"""A model's chat template, whose marks say how it writes tool calls and reasoning, and whether it writes at all. IO."""

from __future__ import annotations

import os
from collections.abc import Callable

from entrypoints.core.folders import read_bounded
from entrypoints.model.files import FILE_AT_MOST, make_read_error, parse_model_json

_ALONE = "chat_template.jinja"
_WITHIN = ("chat_template.json", "tokenizer_config.json")
_SENTENCES = "modules.json"
"""Of sentence-transformers: vLLM pools with such a model (transformers_utils/config.py, get_pooling_config)."""
_AT_MOST = 1 << 20
"""Bytes of a template; the largest published one has 20 kB."""

Read = Callable[[str], "bytes | None"]
"""Returns a file of the model by its name; None if there is none."""


def is_pooling_model(read: Read) -> bool:
    """Return whether vLLM pools with the model by itself: it then answers with vectors or scores, not with text."""
    return read(_SENTENCES) is not None


def read_template(name: str, read: Read) -> str:
    """Return a model's chat templates, from where transformers looks for them; empty without one. Raises MODEL."""
    text = read(_ALONE)
    if text is not None:
        return text[:_AT_MOST].decode(errors="replace")
    return next((template for file in _WITHIN if (template := _read_json_templates(f"{name}/{file}", read(file)))), "")


def _read_json_templates(where: str, text: bytes | None) -> str:
    """Return the templates of a JSON file: one, or several by name."""
    template = parse_model_json(text, where).get("chat_template") if text else None
    several = template if isinstance(template, list) else [{"template": template}]
    texts = (item.get("template") for item in several if isinstance(item, dict))
    return "\n".join(item[:_AT_MOST] for item in texts if isinstance(item, str))


def in_folder(folder: str) -> Read:
    """Return a function that reads files of a folder. It raises MODEL."""

    def read(file: str) -> bytes | None:
        path = os.path.join(folder, file)
        try:
            return read_bounded(path, FILE_AT_MOST) if os.path.exists(path) else None
        except OSError as error:
            raise make_read_error(path, error) from error

    return read


def own_template(flag_value: str) -> str:
    """Return the template that the user gives as --chat-template: a file, or the text itself; empty for others.

    Others are the name of one of the model's own, and a file of another machine. Source: vLLM's load_chat_template.
    """
    try:
        return read_bounded(flag_value, _AT_MOST).decode(errors="replace")
    except (OSError, ValueError):  # ValueError: a null byte
        return flag_value if "{" in flag_value else ""
