"""What a stack sets for servers of one role: settings, numbers of decisions, and files that vLLM reads. Pure.

All of it is data (`roles` of the profile). A role is what `--role` names: serve (whole requests), prefill (prompts) or
decode (answers).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from entrypoints.core.settings_precedence import merge_setting_layers
from entrypoints.request.roles import PLACEHOLDERS

_NAME = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")
_DIGEST = 12
"""Characters of a digest in a folder's name: enough that two plans on one cache volume never share a file."""


def apply_role(profile: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    """Return the profile as servers of a role have it; its settings win over others of the same origin.

    Each reason begins with the role and ends with the source.
    """
    role_part = (profile.get("roles") or {}).get(role)
    if not role_part:
        return profile
    settings = [{**item, "because": f"{role}: {item['because']} ({item['source']})"} for item in role_part["settings"]]
    stated = [(item["origin"], {item["setting"]: item}) for item in (*profile["settings"], *settings)]
    return {
        **profile,
        "settings": [chosen.value for _, chosen in sorted(merge_setting_layers(stated).items())],
        "thresholds": {**profile["thresholds"], **role_part["thresholds"]},
        "role_files": {name: item["content"] for name, item in role_part["files"].items()},
    }


def fill_role(
    profile: Mapping[str, Any], folder: str, parallel: Mapping[str, int]
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return the profile with {NAME} replaced in its settings, and path → text of the role's files below `folder`.

    `parallel` are tensor_parallel and data_parallel, in ranks.
    """
    contents = profile.get("role_files") or {}
    names: dict[str, Any] = {**parallel, "files": f"{folder}/{_digest(contents, parallel)}"}
    files = {
        f"{names['files']}/{name}": json.dumps(_filled(content, names), indent=1, sort_keys=True)
        for name, content in contents.items()
    }
    settings = [
        {**item, "value": _filled_text(item["value"], names), "because": _filled_text(item["because"], names)}
        for item in profile["settings"]
    ]
    return {**profile, "settings": settings}, files


def _digest(contents: Mapping[str, Any], parallel: Mapping[str, int]) -> str:
    """Return what names the folder of some files: the same files of the same server always have the same path."""
    from hashlib import sha256

    return sha256(json.dumps([contents, parallel], sort_keys=True).encode()).hexdigest()[:_DIGEST]


def _filled(value: Any, names: Mapping[str, Any]) -> Any:
    """Replace names in a JSON value; one that is a whole value becomes what it stands for, such as a number."""
    if isinstance(value, Mapping):
        return {key: _filled(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(item, names) for item in value]
    whole = _NAME.fullmatch(value) if isinstance(value, str) else None
    return names[whole[1]] if whole else _filled_text(value, names)


def _filled_text(value: Any, names: Mapping[str, Any]) -> Any:
    return _NAME.sub(lambda match: str(names[match[1]]), value) if isinstance(value, str) else value
