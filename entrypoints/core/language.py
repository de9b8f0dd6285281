"""The language that a user reads: its name, and the profile's texts in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.core.errors import EXIT_CODES, USAGE, EntrypointError

ENGLISH = "en"
LANG = "--lang"
LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
"""The first of these variables that is set names the language (POSIX, 8.2)."""
_PARTS = ("checks", "findings", "settings", "caches", "recommended", "run", "failures", "foreign")
_SHOWN = ("text", "passed", "remediation", "because", "cause", "remedy")

HOLE = re.compile(r"\{\d?\}")
_PARTS_AT_MOST = 100
"""Parts of a text that are translated: each takes five of the thousand nested calls that Python allows."""
_SEPARATORS = {"; ": "；", ": ": "：", ", ": "，"}
"""What joins the parts of a text that code makes, and the same between translated parts, the widest first."""

_VALUE = r"((?:(?!; ).)+?)"
"""What braces stand for: a value has no semicolon."""
_PARENTHESES = re.compile(r"(.+?) \(([^()]*(?:\([^()]*\))?)\)", re.DOTALL)
"""A text that ends with a remark, in which there may be one more."""
_ENGLISH = re.compile("(?<![a-z])[a-z]{2,}(?= [a-z])")
"""A word before another one: what a translation has of it is left over from English."""
_LEAST_LITERAL = 5
"""Letters that a form has outside its braces: a shorter one, such as `not {}`, fits too many texts."""

Words = Mapping[str, str]
"""English text → the same in the user's language; empty for English."""


class Translations(dict[str, str]):
    """Words, of which those with {} also stand for each text of their form."""

    def __init__(self, words: Words) -> None:
        super().__init__(words)
        forms = [(text, HOLE.split(text)) for text in words if HOLE.search(text)]
        sizes = {text: sum(map(len, literals)) for text, literals in forms}
        forms = [form for form in forms if sizes[form[0]] >= _LEAST_LITERAL]
        forms.sort(key=lambda form: -sizes[form[0]])  # what has most letters of its own fits best
        self.forms = [(text, literals[0], literals[-1], literals) for text, literals in forms]
        self.made: dict[str, str] = {}
        """What `translate_text` has returned: parts of a text without a translation are asked for many times."""


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
        raise EntrypointError(USAGE, f"{LANG} {language}: this image does not speak it", f"write {LANG} {names}")
    words = translations.get(language or read_locale_language(env)) or {}
    parts = {name: _translate_value(profile[name], words) for name in _PARTS if name in profile}
    if words and "roles" in profile:
        parts["roles"] = {
            role: {**role_part, "settings": _translate_value(role_part["settings"], words)}
            for role, role_part in profile["roles"].items()
        }
    return {**profile, **parts, "words": Translations(words)} if words else profile


def translate_phrase(words: Words, text: str, /, *values: str) -> str:
    """Return a phrase of the code in the user's language, with the values in place of its braces."""
    return words.get(text, text).format(*values)


def translate_text(words: Words, text: str) -> str:
    """Return a text that code has made, in the user's language: a reason, an error, a value in a finding.

    The whole text, else its form (`{} devices would stay idle`), else each part between semicolons, colons and commas.
    A part without a translation, such as a name or a message of the system, stays as it is.
    """
    if text in words:
        return words[text]
    if not isinstance(words, Translations) or not re.search("[A-Za-z]{2}", text):
        return text
    if text not in words.made:
        words.made[text] = _choose_translation(words, text)
    return words.made[text]


def _choose_translation(words: Translations, text: str) -> str:
    """Return the first translation of a text that leaves no English over, else the one that leaves least."""
    best, least = text, len(text)
    for translation in _list_translations(words, text):
        left = len(_ENGLISH.findall(translation))
        if not left:
            return translation
        if left < least:
            best, least = translation, left
    return best


def _list_translations(words: Translations, text: str) -> Iterator[str]:
    yield from _translate_forms(words, text)
    yield _translate_parts(words, text)


def _translate_forms(words: Translations, text: str) -> Iterator[str]:
    """Yield the translation of each form that fits a text, with its values translated too, the longest form first."""
    for form, first, last, literals in words.forms:
        if text.startswith(first) and text.endswith(last) and all(literal in text for literal in literals):
            values = re.fullmatch(_VALUE.join(map(re.escape, literals)), text, re.DOTALL)
            if values:
                yield words[form].format(*(translate_text(words, value) for value in values.groups()))


def _translate_parts(words: Translations, text: str) -> str:
    """Return a text of which the parts are translated, or the text itself if no part has a translation."""
    if sum(map(text.count, _SEPARATORS)) > _PARTS_AT_MOST:
        return text
    remark = _PARENTHESES.fullmatch(text)
    if remark:
        head, inside = (translate_text(words, part) for part in remark.groups())
        return f"{head}（{inside}）" if (head, inside) != remark.groups() else text
    for separator, translated_separator in _SEPARATORS.items():
        head, separated, rest = text.partition(separator)  # the first only: a form may have separators of its own
        parts = (head, rest) if separated else (text,)
        translations = tuple(translate_text(words, part) for part in parts) if separated else parts
        if translations != parts:
            return translated_separator.join(translations)
    return text


def translate_error(words: Words, error: EntrypointError) -> str:
    """Return an error in the user's language; a message without a translation follows what its exit code means."""
    message = translate_text(words, error.message)
    if words and message == error.message:
        message = f"{words.get(EXIT_CODES[error.code], EXIT_CODES[error.code])}：{message}"
    hint = translate_phrase(words, "hint: {}", translate_text(words, error.hint)) if error.hint else ""
    return f"{message}\n\n{hint}" if hint else message


def _translate_value(value: Any, words: Words) -> Any:
    if isinstance(value, dict):
        return {
            key: words.get(item, item) if key in _SHOWN and isinstance(item, str) else _translate_value(item, words)
            for key, item in value.items()
        }
    return [_translate_value(item, words) for item in value] if isinstance(value, list) else value
