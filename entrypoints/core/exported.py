"""The variables that a base image's scripts export (set_env.sh, setvars.sh), recorded when the image was built. Pure.

`templates/tools/environment.py` writes them: variable → [value before the scripts, value after them].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.core.text import VARIABLE_NAME


def choose_exported_variables(saved: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the values that the scripts give them, except those that the user changed.

    A variable with another value than before the scripts was set by the user. A function that bash exports, such as
    BASH_FUNC_f%%, is left out.
    """
    variables: Mapping[str, tuple[str, str]] = saved.get("variables", {})
    return {
        name: after
        for name, (before, after) in variables.items()
        if env.get(name, "") == before and VARIABLE_NAME.fullmatch(name)
    }
