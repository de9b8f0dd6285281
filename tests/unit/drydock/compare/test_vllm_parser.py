"""Words are understood as vLLM's own parser does: spellings, abbreviations, negations, numbers of values."""

from __future__ import annotations

import pytest

from drydock.compare.vllm_parser import Understood, VllmParser, split_words
from tests.support.compared_commands import version_of

PARSERS = {name: VllmParser(version_of(name)) for name in ("0.11", "0.18", "0.33")}


def understood(*words: str, version: str = "0.33") -> Understood:
    before, groups = split_words(words)
    assert before == ()
    assert len(groups) == 1
    return PARSERS[version].understand(groups[0])


@pytest.mark.parametrize(
    ("words", "name", "values"),
    [
        (("--tensor-parallel-size", "2"), "--tensor-parallel-size", ("2",)),
        (("--tensor_parallel_size=2",), "--tensor-parallel-size", ("2",)),
        (("-tp", "2"), "--tensor-parallel-size", ("2",)),
        (("-tp=2",), "--tensor-parallel-size", ("2",)),
        (("-n2",), "--nnodes", ("2",)),
        (("--tensor-par", "2"), "--tensor-parallel-size", ("2",)),
        (("-O3",), "--optimization-level", ("3",)),
        (("-O", "3"), "--optimization-level", ("3",)),
        (("--served-model-name", "a", "b"), "--served-model-name", ("a", "b")),
        (("--seed", "-1"), "--seed", ("-1",)),
        (("--hf-token",), "--hf-token", ()),
    ],
)
def test_a_flag_is_known_by_each_of_its_spellings(words: tuple[str, ...], name: str, values: tuple[str, ...]) -> None:
    parsed_flag = understood(*words)

    assert (parsed_flag.name, parsed_flag.values, parsed_flag.rest, parsed_flag.problem) == (name, values, (), "")


def test_a_boolean_has_the_off_forms_of_its_version() -> None:
    assert understood("--no-enable-prefix-caching").is_negated
    assert understood("--disable-prefix-caching").name == "--enable-prefix-caching"
    assert understood("--disable-prefix-caching", version="0.18").flag is None
    assert understood("--no-headless").flag is None


def test_keys_after_a_dot_belong_to_a_json_flag() -> None:
    parsed_flag = understood("--compilation-config.pass_config.fuse_norm_quant", "true")

    assert (parsed_flag.name, parsed_flag.keys) == ("--compilation-config", ("pass_config", "fuse_norm_quant"))
    assert understood("-cc.mode", "3").name == "--compilation-config"
    assert understood("-O.level", "3", version="0.11").name == "--compilation-config"
    assert understood("-O3", version="0.11").name == "--compilation-config"


def test_an_abbreviation_of_several_flags_is_none() -> None:
    parsed_flag = understood("--max-num", "4")

    assert parsed_flag.flag is None
    assert {"--max-num-batched-tokens", "--max-num-seqs"} <= set(parsed_flag.candidates)


def test_words_that_a_flag_does_not_take_are_left() -> None:
    assert understood("--port", "8000", "m").rest == ("m",)
    assert understood("--enforce-eager", "m").rest == ("m",)
    assert understood("--enforce-eager=m").problem == "takes no value"
    assert understood("--port").problem == "expected a value"
