"""Which language a user reads, and what of the profile is in it."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import EntrypointError
from entrypoints.core.language import read_locale_language, translate_phrase, translate_profile

ZH = {"It is slow.": "较慢。", "because": "no key", "at least {}": "至少 {}", "on": "no value"}
CHECK = {"id": "CPU-001", "text": "It is slow.", "passed": "It is new.", "expected": "on"}
PROFILE = {"checks": [CHECK], "run": {"shm": {"because": "It is slow."}}, "variant": "x", "translations": {"zh": ZH}}


@pytest.mark.parametrize(
    ("env", "language"),
    [
        ({}, ""),
        ({"LANG": "C.UTF-8"}, "C"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh"}, "zh"),
        ({"LANG": "zh-Hans-CN"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US", "LC_MESSAGES": "de_DE", "LC_ALL": "zh_CN.GBK"}, "zh"),
        ({"LANG": "zh_CN", "LC_ALL": ""}, "zh"),
    ],
)
def test_the_first_variable_that_is_set_names_the_language(env: dict[str, str], language: str) -> None:
    assert read_locale_language(env) == language


def test_only_texts_for_people_are_translated_and_others_stay_english() -> None:
    chinese_profile = translate_profile(PROFILE, "", {"LANG": "zh_CN.UTF-8"})

    assert chinese_profile["checks"] == [{**CHECK, "text": "较慢。"}]
    assert chinese_profile["run"] == {"shm": {"because": "较慢。"}}
    assert translate_phrase(chinese_profile["words"], "at least {}", "{3}") == "至少 {3}"
    assert translate_phrase(chinese_profile["words"], "before {}", "3") == "before 3"


@pytest.mark.parametrize(("language", "env"), [("en", {"LANG": "zh_CN"}), ("", {"LANG": "fr_FR"}), ("", {})])
def test_english_is_the_profile_itself(language: str, env: dict[str, str]) -> None:
    assert translate_profile(PROFILE, language, env) is PROFILE


def test_a_language_that_the_image_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(EntrypointError, match=r"--lang fr: .*\n\nhint: write --lang en or zh"):
        translate_profile(PROFILE, "fr", {})
