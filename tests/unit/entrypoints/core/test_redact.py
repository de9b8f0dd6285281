"""Secrets out of what is printed; nothing else."""

from __future__ import annotations

import pytest

from entrypoints.core.redact import _WORDS, HIDDEN, is_secret, redact_argv, redact_env, redact_text


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "--api-key",
        "VLLM_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "clientSecret",
        "--hf_token",
        "hf.token",
    ],
)
def test_names_of_secrets_are_recognised(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "--tokenizer",
        "--max-num-batched-tokens",
        "TOKENIZERS_PARALLELISM",
        "NEURON_TOKEN_GEN_BUCKETS",
        "--model",
        "KEYBOARD",
        "VLLM_CACHE_ROOT",
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_secret(name)


def test_all_words_of_a_secret_flag_are_hidden_in_either_form() -> None:
    argv = ("--api-key", "one", "two", "--port", "8000", "--hf-token=three")

    assert redact_argv(argv) == ("--api-key", HIDDEN, HIDDEN, "--port", "8000", f"--hf-token={HIDDEN}")


def test_secrets_inside_json_and_urls_are_hidden_and_their_surroundings_stay() -> None:
    text = redact_text('{"host": "a", "api_key": "sk-1\\"2", "tokens": "9"} https://me:pw@host/x')

    assert text == f'{{"host": "a", "api_key": "{HIDDEN}", "tokens": "9"}} https://{HIDDEN}@host/x'


def test_variables_are_hidden_by_name() -> None:
    assert redact_env({"HF_TOKEN": "x", "HF_HOME": "/c"}) == {"HF_TOKEN": HIDDEN, "HF_HOME": "/c"}


@pytest.mark.parametrize("word", sorted(_WORDS))
def test_every_word_of_a_secret_is_noticed_in_a_name_and_in_json(word: str) -> None:
    assert is_secret(f"MY_{word.upper()}")
    assert redact_text(f'{{"{word}": "x"}}') == f'{{"{word}": "{HIDDEN}"}}'
