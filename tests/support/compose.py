"""The Compose Specification's schema, as check-jsonschema brings it."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any


@functools.cache
def compose_schema() -> Any:
    text = (resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text()
    return json.loads(text)
