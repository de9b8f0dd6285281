"""A model's chat template, whose marks say how it writes tool calls and reasoning, and whether it writes at all. IO."""

from __future__ import annotations

import os
from collections.abc import Callable

from entrypoints.core.folders import read_bounded
from entrypoints.model.files import FILE_AT_MOST, parse_json, unreadable

_ALONE = "chat_template.jinja"
_WITHIN = ("chat_template.json", "tokenizer_config.json")
_SENTENCES = "modules.json"
"""Of sentence-transformers: vLLM pools with such a model (transformers_utils/config.py, get_pooling_config)."""
_AT_MOST = 1 << 20
"""Bytes of a template; the largest published one has 20 kB."""

Read = Callable[[str], "bytes | None"]
"""Returns a file of the model by its name; None if there is none."""


def pools(read: Read) -> bool:
    """Return whether vLLM pools with the model by itself: it then answers with vectors or scores, not with text."""
    return read(_SENTENCES) is not None


def read_template(name: str, read: Read) -> str:
    """Return a model's chat templates, from where transformers looks for them; empty without one. Raises MODEL."""
    text = read(_ALONE)
    if text is not None:
        return text[:_AT_MOST].decode(errors="replace")
    return next((found for file in _WITHIN if (found := _within(f"{name}/{file}", read(file)))), "")


def _within(where: str, text: bytes | None) -> str:
    """Return the templates of a JSON file: one, or several by name."""
    template = parse_json(text, where).get("chat_template") if text else None
    several = template if isinstance(template, list) else [{"template": template}]
    texts = (each.get("template") for each in several if isinstance(each, dict))
    return "\n".join(each[:_AT_MOST] for each in texts if isinstance(each, str))


def in_folder(folder: str) -> Read:
    """Return a function that reads files of a folder. It raises MODEL."""

    def read(file: str) -> bytes | None:
        path = os.path.join(folder, file)
        try:
            return read_bounded(path, FILE_AT_MOST) if os.path.exists(path) else None
        except OSError as error:
            raise unreadable(path, error) from error

    return read


def own_template(given: str) -> str:
    """Return the template that the user gives as --chat-template: a file, or the text itself; empty for others.

    Others are the name of one of the model's own, and a file of another machine. Source: vLLM's load_chat_template.
    """
    try:
        return read_bounded(given, _AT_MOST).decode(errors="replace")
    except (OSError, ValueError):  # ValueError: a null byte
        return given if "{" in given else ""
