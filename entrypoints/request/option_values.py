"""Values of vLLM's options that need reading: switches, and options that take JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.core.parse import parse_untrusted_json

TRUE = (True, "true", "True", "1")


def is_switched_on(settings: Mapping[str, str | bool], option: str) -> bool:
    """Return whether a switch is set."""
    return settings.get(option) in TRUE


def read_json_option(settings: Mapping[str, str | bool], option: str) -> Mapping[str, Any]:
    """Return the object of an option that takes JSON; empty without the option, and for another value."""
    try:
        table = parse_untrusted_json(str(settings.get(option, "{}")))
    except ValueError:
        return {}
    return table if isinstance(table, dict) else {}


def read_json_key(settings: Mapping[str, str | bool], option: str, key: str) -> Any:
    """Return a key of an option that takes JSON, or the part `--option.key`, which vLLM lays over it; None without."""
    for part in (f"{option}.{key}", f"{option}.{key.replace('_', '-')}"):
        if part in settings:
            return settings[part]
    return read_json_option(settings, option).get(key)
