"""Secrets out of what is printed; nothing else."""

from __future__ import annotations

import base64
import json
import re
import string
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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
        "DB_PASS",
        "X-Amz-Security-Token",
        "AWSAccessKeyId",
        "MAX_KEY_SIZE",
        "SECRET_TOKEN_LIMIT",
        "TOKEN_ID",
        "REGISTRY_TOKEN",
        "pwd",
        "dbPwd",
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
        "PROFILER_TOKEN_THRESHOLD",
        "KeyError",
        "MAX_TOKEN_LEN",
        "PROFILER_MIN_TOKEN",
        "VLLM_MOE_TOKEN_BUDGET",
        "PER_TOKEN_QUANT",
        "eos_token_id",
        "--api-key-file",
        "--compilation-config.pass_config.fuse_norm_quant",
        "COMPASS",
        "PWD",
        "OLDPWD",
        "cpwd_size",
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


@pytest.mark.parametrize("word", ["pwd", "password", "passwd", "token", "secret", "api_key", "api key", "apiKey"])
def test_a_secret_inside_a_flags_json_is_hidden_at_any_depth(word: str) -> None:
    inner = json.dumps({"user": "a", word: 'x"y', "size": 1})
    texts = (inner, json.dumps({"extra": {word: 123456, "port": 1}}), json.dumps({"extra": inner}))
    redacted_words = redact_argv(("--kv-transfer-config", *texts))

    assert redacted_words[1] == json.dumps({"user": "a", word: HIDDEN, "size": 1})
    assert redacted_words[2] == f'{{"extra": {{"{word}": {HIDDEN}, "port": 1}}}}'
    assert json.loads(json.loads(redacted_words[3])["extra"]) == {"user": "a", word: HIDDEN, "size": 1}


ISSUED = (
    "hf_" + "aB3d" * 8 + "xY",
    "ghp_" + "aB3d" * 9,
    "github_pat_" + "A1" * 11 + "_" + "b2" * 20,
    "glpat-" + "x9" * 10,
)
"""Made up, in the form of Hugging Face's, GitHub's and GitLab's tokens."""


@pytest.mark.parametrize("token", ISSUED)
def test_an_issuers_token_is_hidden_under_any_name(token: str) -> None:
    assert redact_env({"PROFILER_TOKEN_THRESHOLD": token}) == {"PROFILER_TOKEN_THRESHOLD": HIDDEN}
    assert redact_argv(("--served-model-name", token)) == ("--served-model-name", HIDDEN)
    assert redact_text(f"401: {token} is not valid") == f"401: {HIDDEN} is not valid"


def test_a_count_of_tokens_is_shown() -> None:
    assert redact_env({"PROFILER_TOKEN_THRESHOLD": "1", "MAX_TOKEN_LEN": "9"}) == {
        "PROFILER_TOKEN_THRESHOLD": "1",
        "MAX_TOKEN_LEN": "9",
    }
    assert (
        redact_text("--hf-overrides=hf_config_of_a_model hf_quantized")
        == "--hf-overrides=hf_config_of_a_model hf_quantized"
    )


def test_variables_are_hidden_by_name() -> None:
    assert redact_env({"HF_TOKEN": "x", "HF_HOME": "/c"}) == {"HF_TOKEN": HIDDEN, "HF_HOME": "/c"}


@pytest.mark.parametrize("word", sorted(_WORDS))
def test_every_word_of_a_secret_is_noticed_in_a_name_and_in_json(word: str) -> None:
    assert is_secret(f"MY_{word.upper()}")
    assert redact_text(f'{{"{word}": "x"}}') == f'{{"{word}": "{HIDDEN}"}}'


# --- URLs, headers, assignments -------------------------------------------------------------------------------------

SECRETS = st.text(string.ascii_letters + string.digits + "@/:?#!$*+-._~%=", min_size=6)
"""Passwords as people write them into a URL, with what should have been encoded."""


@given(SECRETS, st.sampled_from(("", " and more", '", "b": "c@d"}', ",https://other.example/x")))
def test_a_password_in_a_url_is_hidden(password: str, after: str) -> None:
    assume(not re.match(r"\d+/", password))  # reads as HOST:PORT/
    assume("://" not in password)
    redacted_text = redact_text(f"cannot read https://me:{password}@host.example/simple{after}")
    assert redacted_text == f"cannot read https://{HIDDEN}@host.example/simple{after}"


@pytest.mark.parametrize("flag", ["--hf-t", "--hf_tok", "--api-k", "--api_ke", "--api-kye"])
def test_the_beginning_of_a_secret_flag_hides_its_value(flag: str) -> None:
    assert redact_argv((flag, "s3cret", "--port", "1")) == (flag, "<redacted>", "--port", "1")
    assert redact_argv((f"{flag}=s3cret",)) == (f"{flag}=<redacted>",)


@pytest.mark.parametrize(
    "name",
    [
        *("token", "access_token", "sig", "Signature", "AWSAccessKeyId", "X-Amz-Signature", "X-Amz-Credential"),
        *("X-Amz-Security-Token", "X-Goog-Signature", "X-Goog-Credential", "api_key"),
    ],
)
@given(value=st.text(string.ascii_letters + string.digits + "%-._~/+=", min_size=1))
def test_secret_parameters_of_a_url_are_hidden(name: str, value: str) -> None:
    url = "https://bucket.example/a.whl"
    assert redact_text(f"{url}?x=1&{name}={value}&page=2") == f"{url}?x=1&{name}={HIDDEN}&page=2"
    assert redact_text(f"{url}?{name}={value}") == f"{url}?{name}={HIDDEN}"


def test_the_terms_of_a_shared_access_signature_are_hidden_with_it() -> None:
    url = "https://account.example/a?sv=2024&se=2026-01-01&sp=rw&sig=abc"
    assert redact_text(url) == f"https://account.example/a?sv=2024&se={HIDDEN}&sp={HIDDEN}&sig={HIDDEN}"
    assert redact_text("https://account.example/a?se=1&sp=2") == "https://account.example/a?se=1&sp=2"


@given(SECRETS)
def test_basic_and_bearer_credentials_are_hidden(secret: str) -> None:
    encoded = base64.b64encode(f"me:{secret}".encode()).decode()
    assert redact_text(f"sent Authorization: Basic {encoded} to it") == f"sent Authorization: Basic {HIDDEN} to it"
    assert redact_text(f"curl -H 'Bearer {encoded}1'") == f"curl -H 'Bearer {HIDDEN}'"


@given(st.sampled_from(("DB_PASS", "DB_PASSWORD", "HF_TOKEN", "VLLM_API_KEY", "CLIENT_SECRET", "--hf-token")), SECRETS)
def test_assignments_to_secret_names_are_hidden(name: str, value: str) -> None:
    value = value.replace("#", "").replace("?", "")
    assume(value)
    assert redact_text(f"docker run -e {name}={value} image") == f"docker run -e {name}={HIDDEN} image"


@pytest.mark.parametrize(
    "text",
    [
        "docker-image://mirror.example:5000/installer@sha256:0123",
        "git+https://host.example/repository@v1.0",
        "https://host.example/@scope/package",
        "https://host.example/a.whl#sha256=0123",
        "--max-num-batched-tokens=8192 PROFILER_TOKEN_THRESHOLD=9",
        "Basic authentication is required; the bearer of this",
        "sorted by key=name",
        "serve --api-key-file /run/secrets/key",
        "give the key in VLLM_API_KEY or --api-key, not in a file",
        "/cache/a=b/c",
    ],
)
def test_harmless_texts_stay(text: str) -> None:
    assert redact_text(text) == text


@given(st.text())
def test_any_text_can_be_redacted_and_only_once(text: str) -> None:
    redacted_text = redact_text(text)
    assert redact_text(redacted_text) == redacted_text


@pytest.mark.parametrize(
    "header",
    [
        "X-Api-Key: k9x",
        "private-token: k9x",
        "Authorization: Token k9x",
        'Authorization: Digest user="a", response="k9x"',
    ],
)
def test_headers_with_a_secret_are_hidden(header: str) -> None:
    assert "k9x" not in redact_text(f"curl -H {header}\nnext line")
    assert redact_text(f"{header}\nnext line").endswith("\nnext line")


@pytest.mark.parametrize("text", ["all_proxy={}127.0.0.1:3128", '{{"proxy": "{}proxy.example.com:3128"}}'])
def test_a_password_before_a_host_without_a_scheme_is_hidden(text: str) -> None:
    assert redact_text(text.format("someone:hunter2@")) == text.format(f"{HIDDEN}@")


@pytest.mark.parametrize("part", ["a", "a:", "a:(", "a.", '"a ', "a@", "a:b@c", "key=", "x://a:", "a:b@c."])
def test_a_long_run_takes_linear_time(part: str) -> None:
    seconds = []
    for count in (1 << 12, 1 << 15):
        start = time.process_time()
        redact_text(f"token {part * count}@ :")
        seconds.append(time.process_time() - start)
    assert seconds[1] < 24 * seconds[0] + 0.2  # 8 times the text; a quadratic pattern takes 64 times as long
