"""Dollar signs in files that Compose or Kubernetes read. Pure.

Compose interpolates ${NAME}, and Kubernetes expands $(NAME) in args and env, also for secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def double_dollars(text: str) -> str:
    """Double every dollar sign."""
    return text.replace("$", "$$")


def double_dollars_of_texts(value: Any) -> Any:
    """Double every dollar sign of the texts in a document, but not of its keys, which are checked names."""
    if isinstance(value, str):
        return double_dollars(value)
    if isinstance(value, Mapping):
        return {key: double_dollars_of_texts(item) for key, item in value.items()}
    return [double_dollars_of_texts(item) for item in value] if isinstance(value, (list, tuple)) else value
