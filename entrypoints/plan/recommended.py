"""What whoever made the image set in its own stack or row, or recommends for a model on these devices. Pure.

Both are stronger than a decision and weaker than the user's own flag. Decisions see them as if the user had set them,
so the rest of the plan follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.core.records import Facts, Value
from entrypoints.core.settings_precedence import OWN
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import Flag, UserFlags


def apply_recommended(
    profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags
) -> tuple[UserFlags, dict[str, Value]]:
    """Return the flags with those that are recommended here, and the recommended values; a later entry wins."""
    values: dict[str, Value] = {}
    for entry in profile.get("recommended", ()):
        if _is_meant(entry["when"], facts, model):
            for name, setting in entry["serve"].items():
                value = setting["value"] if isinstance(setting["value"], bool) else str(setting["value"])
                values[name] = Value(value, setting["because"])
    values = {name: value for name, value in values.items() if name not in user_flags.flags}
    flags = {name: Flag(name, value.value, f"{name} {value.value}, recommended") for name, value in values.items()}
    return user_flags._replace(flags={**user_flags.flags, **flags}), values


def with_own_settings(profile: Mapping[str, Any], user_flags: UserFlags) -> UserFlags:
    """Return the flags and variables with those that the project wrote into its own stack or row."""
    settings = {item["setting"]: item["value"] for item in profile["settings"] if item["origin"] in OWN}
    flags, env = {}, {}
    for name, value in settings.items():
        text = value if isinstance(value, bool) else str(value)
        if name.startswith("-"):
            flags[name] = Flag(name, text, f"{name} {text}, of the project")
        else:
            env[name] = str(value)
    return user_flags._replace(flags={**flags, **user_flags.flags}, env={**env, **user_flags.env})


def _is_meant(when: Mapping[str, Any], facts: Facts, model: ModelFacts) -> bool:
    """Return whether every condition holds; one that is empty always does."""
    from fnmatch import fnmatchcase

    name = model.short
    conditions = (
        not when["model"] or fnmatchcase(name, when["model"]),
        not when["architecture"] or model.architecture == when["architecture"],
        not when["card"] or {device.architecture for device in facts.devices} == {when["card"]},
        not when["devices"] or len(facts.devices) == when["devices"],
    )
    return all(conditions)
