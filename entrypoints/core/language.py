"""The language that a user reads: its name, and the profile's texts in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.core.errors import USAGE, EntrypointError

ENGLISH = "en"
FLAG = "--lang"
LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
"""The first of these variables that is set names the language (POSIX, 8.2)."""
_PARTS = ("checks", "findings", "settings", "caches", "recommended", "run", "failures")
_SHOWN = ("text", "passed", "remediation", "because", "cause", "remedy")

Words = Mapping[str, str]
"""English text → the same in the user's language; empty for English."""


def locale_language(env: Mapping[str, str]) -> str:
    """Return the language of the user's locale: zh for zh_CN.UTF-8 and zh-Hans-CN; C for C.UTF-8, empty for none."""
    locale = next((env[name] for name in LOCALE if env.get(name)), "")
    return locale.replace("-", "_").replace(".", "_").partition("_")[0]


def in_language(profile: dict[str, Any], asked: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the profile with its texts in the language that --lang names, or else in that of the locale.

    A text without a translation, such as that of a company's own check, stays English. `words` are for `phrase`.
    Raises USAGE if --lang names a language that the image does not have.
    """
    known = profile.get("translations") or {}
    if asked not in ("", ENGLISH, *known):
        names = " or ".join((ENGLISH, *known))
        raise EntrypointError(USAGE, f"{FLAG} {asked}: this image does not speak it", f"write {FLAG} {names}")
    words = known.get(asked or locale_language(env)) or {}
    parts = {name: _translated(profile[name], words) for name in _PARTS if name in profile}
    if words and "roles" in profile:
        parts["roles"] = {
            role: {**own, "settings": _translated(own["settings"], words)} for role, own in profile["roles"].items()
        }
    return {**profile, **parts, "words": words} if words else profile


def phrase(words: Words, text: str, /, *values: str) -> str:
    """Return a phrase of the code in the user's language, with the values in place of its braces."""
    return words.get(text, text).format(*values)


def _translated(value: Any, words: Words) -> Any:
    if isinstance(value, dict):
        return {
            key: words.get(each, each) if key in _SHOWN and isinstance(each, str) else _translated(each, words)
            for key, each in value.items()
        }
    return [_translated(each, words) for each in value] if isinstance(value, list) else value
