"""Every text that a check, a finding or a reason in the data shows has its translation, and none is left over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from drydock.build.render import make_profile
from drydock.config.failures import read_failures
from drydock.config.matrix import read_matrix
from drydock.config.project import DRYDOCK
from drydock.core.paths import ROOT
from drydock.model.record import dump_record
from entrypoints.checks.findings import COMPARISONS
from entrypoints.checks.symptoms import add_failures
from entrypoints.core.language import translate_profile
from tests.support.cases import for_each

PROFILES = [
    add_failures(dump_record(make_profile(variant)), dump_record(read_failures(DRYDOCK, variant.accelerator)))
    for variant in read_matrix(DRYDOCK)
]
COMMAND = re.compile(r"(docker run|sysctl|echo|cpupower|timedatectl|amd-smi|nvidia-smi) [^,;]*|\{use\}")
"""What needs no translation: a command without another word."""
FIXED = re.compile(r"`[^`]+`|--[a-z-]+|/[A-Za-z][\w/.*-]+\w|\b[A-Z]+_[A-Z_]+\b|(?<![A-Za-z])\d+(?:\.\d+)*")
"""What a translation repeats: options, paths, variables, numbers, and what is between backticks."""


def translations(language: str) -> dict[str, str]:
    return {
        text: translation
        for image_profile in PROFILES
        for text, translation in image_profile["translations"][language].items()
    }


LANGUAGES = {language for image_profile in PROFILES for language in image_profile["translations"]}
PAIRS = [(text, translation) for language in sorted(LANGUAGES) for text, translation in translations(language).items()]


class Seen(dict[str, str]):
    """Translations that note which texts are looked up."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__(texts)
        self.asked: set[str] = set()

    def get(self, text: str, _default: Any = None) -> str:  # type: ignore[override]
        self.asked.add(text)
        return super().get(text, text)


def phrases() -> Iterator[str]:
    """Yield what the code of checks says itself: the second argument of `phrase`."""
    yield from set(COMPARISONS.values()) - {"{}"}
    yield from (f"fix ({scope}): {{}}" for scope in ("host", "container"))
    for path in sorted((ROOT / "entrypoints").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            argument = node.args[1] if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "phrase" else None
            if isinstance(argument, ast.Constant):
                yield str(argument.value)


def test_every_text_has_its_translation_and_each_translation_a_text() -> None:
    assert "zh" in LANGUAGES
    for language in LANGUAGES:
        texts: set[str] = {*phrases()}
        for image_profile in PROFILES:
            lookup = Seen(image_profile["translations"][language])
            translate_profile({**image_profile, "translations": {language: lookup}}, language, {})
            texts |= lookup.asked
        known_texts = translations(language)
        assert sorted(text for text in texts if text and text not in known_texts and not COMMAND.fullmatch(text)) == []
        assert sorted(set(known_texts) - texts) == [], "left over in a file *.zh.yaml"


@for_each(PAIRS, lambda pair: str(pair[0]))
def test_a_translation_repeats_options_paths_variables_and_numbers(text: str, own: str) -> None:
    assert set(FIXED.findall(text)) == set(FIXED.findall(own))
