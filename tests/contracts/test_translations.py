"""Every text that a check, a finding or a reason shows has its translation, and no translation is left over."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from drydock.build.render import make_profile
from drydock.config.failures import read_failures
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.config.topology_finding_file import read_topology_findings
from drydock.core.paths import ROOT
from drydock.model.record import dump_record
from drydock.topology.findings import format_topology_finding, read_words, translate_line
from entrypoints.checks.findings import COMPARISONS
from entrypoints.checks.symptoms import add_failures
from entrypoints.core.errors import DOES_NOT_FIT, EXIT_CODES, OK, USAGE, EntrypointError
from entrypoints.core.language import Translations, translate_error, translate_profile, translate_text
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
        said: set[str] = {*phrases()}
        for each in PROFILES:
            seen = Seen(each["translations"][language])
            translate_profile({**each, "translations": {language: seen}}, language, {})
            said |= seen.asked
        known = translations(language)
        assert sorted(text for text in said if text and text not in known and not COMMAND.fullmatch(text)) == []
        unused = sorted(text for text in known if text not in said and not is_of_code(text))
        assert unused == [], "left over in a file *.zh.yaml"


@cache
def strings_of_code() -> str:
    """Return every string of the entrypoint, with {} for each value in it, one a line."""
    strings: list[str] = []
    for path in sorted((ROOT / "entrypoints").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
                strings.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.append(node.value)
    strings += (json.dumps(profile | {"translations": {}}, ensure_ascii=False) for profile in PROFILES)
    return "\n".join(strings)


def is_of_code(text: str) -> bool:
    """Tell whether code or a profile makes such a text: each part between values, of one or two pieces, is there."""
    parts = [part.strip() for part in re.split(r"\{\}|[;:,()] ?|\d+", text)]
    return all(_is_made(part) for part in parts if " " in part)


def _is_made(part: str) -> bool:
    words = part.split()
    halves = ((" ".join(words[:end]), " ".join(words[end:])) for end in range(len(words)))
    return any(first in strings_of_code() and second in strings_of_code() for first, second in halves)


def test_a_translation_of_a_text_that_the_code_no_longer_makes_is_left_over() -> None:
    assert is_of_code("{}: {} devices would stay idle")
    assert not is_of_code("{}: {} devices would get bored")


CHINESE = re.compile("[\u4e00-\u9fff]")
ENGLISH = re.compile(r"(?<![\w/.-])[a-z]+(?: [a-z]+){3,}")
"""Four English words in a row: a text that is translated in part only."""


def recorded_texts() -> Iterator[tuple[str, str]]:
    """Yield accelerator and text of each reason, rejected value and error of the recorded hosts' plans."""
    for path in sorted((ROOT / "tests" / "hosts").glob("*/plan.json")):
        for plan in json.loads(path.read_text()).values():
            texts = [text for reason in plan.get("reasons", ()) for text in (reason["because"], *reason["instead"])]
            yield from (
                (path.parent.name.partition("-")[0], text) for text in (*texts, *map(str, plan.get("error", ())))
            )


def test_reasons_and_errors_of_recorded_hosts_are_chinese() -> None:
    words = {profile["accelerator"]: Translations(profile["translations"]["zh"]) for profile in PROFILES}
    texts = {(name, text) for name, text in recorded_texts() if re.search("[a-z]{3} ", text)}
    english = {
        (name, text): translation
        for name, text in texts
        if not CHINESE.search(translation := translate_text(words[name], text)) or ENGLISH.search(translation)
    }

    assert len(texts) > 500
    assert {name for name, _ in english}.isdisjoint(("ascend", "enflame", "habana"))
    assert english == {}


def test_each_text_of_a_finding_of_topologies_is_chinese() -> None:
    words = read_words({"LANG": "zh_CN.UTF-8"})
    texts = [
        text for known in read_topology_findings().values() for text in (known.text, known.passed, known.remediation)
    ]
    assert [
        text for text in texts if text.strip("{}") and text not in words and f"{text}; the first" not in words
    ] == []

    line = format_topology_finding("TOPO-007", "decode differ: replica 2 has 4 ranks")
    assert translate_line(words, line) == (
        "TOPO-007: decode 的各副本不同：副本 2 为 4 ranks；路由给每个副本相同的份额；为每种节点各写一个组"
    )
    assert translate_line({}, line) == line
    assert read_words({"LANG": "C.UTF-8"}) == read_words({"LANG": "../x"}) == {}


def test_a_fatal_error_is_chinese_even_if_its_message_has_no_translation() -> None:
    words = Translations(next(profile["translations"]["zh"] for profile in PROFILES))

    assert all(CHINESE.search(words[meaning]) for meaning in EXIT_CODES.values())
    refused = translate_error(words, EntrypointError(USAGE, "--frob 3: refused by frobnication", "leave the flag out"))
    assert refused == f"{words[EXIT_CODES[USAGE]]}：--frob 3: refused by frobnication\n\n提示：去掉该参数"
    memory = (
        "m: with -tp 2, of 43.2 GiB usable per device, weights take 219.0 GiB and runtime and activations take 3.5 GiB"
    )
    assert translate_error(words, EntrypointError(DOES_NOT_FIT, memory)) == (
        "m：-tp 2 时，每个设备可用 43.2 GiB，权重占 219.0 GiB，运行时和激活占 3.5 GiB"
    )
    assert translate_error({}, EntrypointError(OK, "as it is", "do it")) == "as it is\n\nhint: do it"


@for_each(PAIRS, lambda pair: str(pair[0]))
def test_a_translation_repeats_options_paths_variables_and_numbers(text: str, own: str) -> None:
    own = re.sub(r"\{\d\}", "{}", own)  # values in another order
    assert set(FIXED.findall(text)) == set(FIXED.findall(own))
