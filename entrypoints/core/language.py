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


def read_locale_language(env: Mapping[str, str]) -> str:
    """Return the language of the user's locale: zh for zh_CN.UTF-8 and zh-Hans-CN; C for C.UTF-8, empty for none."""
    locale = next((env[name] for name in LOCALE if env.get(name)), "")
    return locale.replace("-", "_").replace(".", "_").partition("_")[0]


def translate_profile(profile: dict[str, Any], language: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the profile with its texts in the language that --lang names, or else in that of the locale.

    A text without a translation, such as that of a company's own check, stays English. `words` are for
    `translate_phrase`. Raises USAGE if --lang names a language that the image does not have.
    """
    translations = profile.get("translations") or {}
    if language not in ("", ENGLISH, *translations):
        names = " or ".join((ENGLISH, *translations))
        raise EntrypointError(USAGE, f"{FLAG} {language}: this image does not speak it", f"write {FLAG} {names}")
    words = translations.get(language or read_locale_language(env)) or {}
    parts = {name: _translate_value(profile[name], words) for name in _PARTS if name in profile}
    if words and "roles" in profile:
        parts["roles"] = {
            role: {**own, "settings": _translate_value(own["settings"], words)}
            for role, own in profile["roles"].items()
        }
    return {**profile, **parts, "words": words} if words else profile


def translate_phrase(words: Words, text: str, /, *values: str) -> str:
    """Return a phrase of the code in the user's language, with the values in place of its braces."""
    return words.get(text, text).format(*values)


def _translate_value(value: Any, words: Words) -> Any:
    if isinstance(value, dict):
        return {
            key: words.get(item, item) if key in _SHOWN and isinstance(item, str) else _translate_value(item, words)
            for key, item in value.items()
        }
    return [_translate_value(item, words) for item in value] if isinstance(value, list) else value
