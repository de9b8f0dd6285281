"""Values → YAML whose texts every reader takes for texts. Pure."""

from __future__ import annotations

import re
from typing import Any

import yaml

_OTHER_IN_1_2 = re.compile(
    r"[yYnN]|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|0o[0-7]+|0x[0-9A-Fa-f]+", re.ASCII
)
"""Plain words that PyYAML takes for texts and others, such as Compose and kubectl, for numbers or booleans
(YAML 1.2.2, 10.3.2; https://yaml.org/type/bool.html)."""


class _TextDumper(yaml.SafeDumper):
    pass


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, '"' if _OTHER_IN_1_2.fullmatch(value) else None)


_TextDumper.add_representer(str, _represent_text)


def write_yaml(*documents: Any) -> str:
    """Return documents in the order of their keys, without line breaks in texts."""
    return yaml.dump_all(documents, Dumper=_TextDumper, sort_keys=False, width=1000, allow_unicode=True)
