"""What drydock's own verbs say, in the language of the user's locale. IO: reads translations, and for English nothing.

user_language.zh.yaml has the texts of the verbs that operators use. What images say too (reasons, findings) is in
templates/*.zh.yaml. A text without a translation stays English.
"""

from __future__ import annotations

import functools
import os
import re
import textwrap
import unicodedata
from pathlib import Path
from typing import NamedTuple

from drydock.core.paths import ROOT
from entrypoints.core.language import Translations, Words, read_locale_language, translate_text

UNWRAPPED = 10_000
"""Columns in which no line is wrapped."""
_SHARED = ("host.{}.yaml", "topology.{}.yaml", "*/accelerator.{}.yaml")
"""Translations in templates/, of what images say too."""
_PIECE = re.compile(r"[\x21-\x7e]+[^\x00-\x7f\w\s]*|[^\x00-\x7f][^\x00-\x7f\w\s]*|\s+")
"""What is not divided between lines: a word, or a Chinese character, with the punctuation after it; and spaces."""
_HINT = " hint: "
_KIND = re.compile(r"(\s*)((?:error|warning|hint|auto|note):)? ?(.*)", re.DOTALL)
"""What stands before a text: spaces, and the kind of the message."""
_OPTION = re.compile(r"(--?[a-z][\w-]*(?: [^:\s]\S*)?): (.*)", re.DOTALL)
"""An option, and a text about it."""
_KNOWN = "known: "
"""Before the names that could be written, at the end of a text."""
_ENGLISH = re.compile("(?<![A-Za-z-])[a-z]{2,} [a-z]{2,}")
"""Two words that no translation has."""


class _Spoken(NamedTuple):
    """The texts of one language."""

    own: Words
    """Those of the verbs, which come first: what images say has shorter forms that fit them too."""
    all: Words
    """Those of images too."""


@functools.cache
def _read_words(language: str) -> _Spoken | None:
    own_file = Path(__file__).with_suffix(f".{language}.yaml")
    if not own_file.is_file():
        return None
    import yaml  # noqa: PLC0415 - English needs none

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time, where PyYAML has libyaml
    shared: dict[str, str] = {}
    for pattern in _SHARED:
        for path in sorted((ROOT / "templates").glob(pattern.format(language))):
            data = yaml.load(path.read_bytes(), loader)  # noqa: S506 - one of the two safe loaders
            shared |= data["translations"][language]
    verb_words = yaml.load(own_file.read_bytes(), loader)  # noqa: S506 - as above
    return _Spoken(Translations(verb_words), Translations(shared | verb_words))


def _find_spoken() -> _Spoken | None:
    language = read_locale_language(os.environ)
    return _read_words(language) if re.fullmatch("[a-z]{2}", language) else None


def is_translated() -> bool:
    """Tell whether the user's locale names a language that the verbs speak other than English."""
    return _find_spoken() is not None


def translate_lines(text: str) -> str:
    """Return a text of whole lines in the user's language: each on its own, with what stands before it."""
    spoken = _find_spoken()
    return "\n".join(_translate_line(spoken, line) for line in text.split("\n")) if spoken else text


def split_hint(text: str) -> tuple[str, str]:
    """Return an error that the entrypoint printed, in English or in the user's language, and its hint or ""."""
    spoken = _find_spoken()
    for head in ("hint: ", *((spoken.own["hint:"],) if spoken else ())):
        error, separator, hint = text.partition(f"\n\n{head}")
        if separator:
            return error, hint
    return text, ""


def _translate_line(spoken: _Spoken, line: str) -> str:
    match = _KIND.fullmatch(line.rstrip())
    if not match or not match[3]:
        return spoken.own.get(line.strip(), line) if line.strip() else line
    space, kind, rest = match[1], match[2] or "", match[3]
    start = f"{space}{spoken.own.get(kind, kind)}"
    if _HINT not in rest:
        return f"{start}{_translate_text(spoken, rest)}"
    error, _, hint = rest.partition(_HINT)  # an error that is quoted in a line
    return f"{start}{_translate_text(spoken, error)} {spoken.own['hint:']}{_translate_text(spoken, hint)}"


def _translate_text(spoken: _Spoken, text: str) -> str:
    start, separator, names = text.rpartition(_KNOWN)
    if separator and start[-2:] in ("", "; "):  # names of keys and options, some of which are words too
        translated_start = f"{_translate_phrase(spoken, start[:-2])}；" if start else ""
        return f"{translated_start}{spoken.own['known:']}{names}"
    return _translate_phrase(spoken, text)


def _translate_phrase(spoken: _Spoken, text: str) -> str:
    """Return a text translated, or what follows the options before it. A loop: others choose how many there are."""
    options = ""
    while True:
        translations = [translate_text(words, text) for words in spoken]
        whole = next((item for item in translations if item != text and not _ENGLISH.search(item)), "")
        option = _OPTION.fullmatch(text)
        if whole or not option:
            return f"{options}{whole or translations[1]}"
        options, text = f"{options}{option[1]}：", option[2]


def wrap_lines(text: str, columns: int, first: str = "", rest: str = "") -> str:
    """Return a text in the user's language in lines of this width, in which a Chinese character takes two columns."""
    translated = translate_lines(text)
    if translated.isascii() or not is_translated():
        return textwrap.fill(translated, columns, initial_indent=first, subsequent_indent=rest)
    lines, width = [first], measure_columns(first)
    for piece in _PIECE.findall(translated):
        added = piece
        if width + measure_columns(piece) > columns and lines[-1].strip() and lines[-1] != rest:
            lines.append(rest)
            width, added = len(rest), piece.lstrip()
        lines[-1] += added
        width += measure_columns(added)
    return "\n".join(line.rstrip() for line in lines)


def wrap_notes(text: str, columns: int) -> str:
    """Return a text of unwrapped lines in the user's language, wrapped; the rows of tables stay. English stays."""
    if not is_translated():
        return text
    lines = (
        translate_lines(line) if "  " in line.strip() else wrap_lines(line, columns, rest="  ")
        for line in text.splitlines()
    )
    return "".join(f"{line}\n" for line in lines)


def measure_columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
