"""A command is understood as people paste it, and nothing of it is executed."""

from __future__ import annotations

import shlex

import pytest

from drydock.compare.pasted_command import TEXT_AT_MOST, parse_command_words, parse_text
from drydock.core.errors import InputError


@pytest.mark.parametrize(
    ("command", "words", "env"),
    [
        ("vllm serve m -tp 2", "m -tp 2", {}),
        ("/opt/venv/bin/vllm serve m", "m", {}),
        ("A=1 B='x y' vllm serve m", "m", {"A": "1", "B": "x y"}),
        ("sudo -E env A=1 nohup vllm serve m", "m", {"A": "1"}),
        ("python3 -u -m vllm.entrypoints.openai.api_server --model m", "--model m", {}),
        ("/usr/bin/python3.12 -m vllm.entrypoints.cli.main serve m", "m", {}),
        ("--model m --max-model-len 4k", "--model m --max-model-len 4k", {}),
        ("org/m --max-model-len 4k", "org/m --max-model-len 4k", {}),
        (
            "docker run --rm -it --gpus all -p 8000:8000 -e A=1 vllm/vllm-openai:v0.18.0 --model m",
            "--model m",
            {"A": "1"},
        ),
        ("docker run -itd --env=A=1 -eB=2 IMG vllm serve m -tp 2", "m -tp 2", {"A": "1", "B": "2"}),
        (
            "podman run -itp 8000:8000 -e HF_TOKEN IMG org/m --dtype half",
            "org/m --dtype half",
            {"HF_TOKEN": "$HF_TOKEN"},
        ),
        ("docker run --entrypoint python3 IMG -m vllm.entrypoints.openai.api_server --model m", "--model m", {}),
        ("docker run IMG serve --model m", "--model m", {}),
    ],
)
def test_the_words_for_vllm_and_the_variables_are_found(command: str, words: str, env: dict[str, str]) -> None:
    parsed = parse_command_words(shlex.split(command))

    assert parsed.words == tuple(shlex.split(words))
    assert parsed.env == env


def test_a_script_has_exports_comments_continuations_and_redirections() -> None:
    parsed = parse_text(
        "#!/bin/bash\n# don't stop\nexport VLLM_USE_V1=1  # the user's\ncd /srv && vllm serve m \\\n"
        """  --speculative-config '{"a": 1,\n "b": "x#y"}' --max-model-len "4k" 2>&1 | tee log &\n"""
    )

    assert parsed.words == ("m", "--speculative-config", '{"a": 1,\n "b": "x#y"}', "--max-model-len", "4k")
    assert parsed.env == {"VLLM_USE_V1": "1"}
    assert parsed.notes == ("not read: cd /srv", "not read: tee log")


def test_what_a_shell_would_expand_stays_as_it_is() -> None:
    assert parse_text("vllm serve $MODEL --port $(cat port)").words == ("$MODEL", "--port", "$(cat port)")


def test_drydocks_own_form_is_known_as_such() -> None:
    assert parse_command_words(("drydock", "serve", "m", "--optimize", "latency")).is_drydocks
    assert not parse_command_words(("vllm", "serve", "m")).is_drydocks


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "found nothing"),
        ("bash -c x", "found 'bash'"),
        ("vllm bench serve", "found `vllm bench`"),
        ("python3 server.py", "found python with 'a script'"),
        ("docker run --rm", "without an image"),
        ("docker run IMG", "without words for vLLM"),
        ("docker compose up", "docker compose"),
    ],
)
def test_another_command_is_refused_with_what_is_expected(command: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_command_words(shlex.split(command))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm serve 'm", "line 1: a quote is not closed"),
        ("vllm serve a\nvllm serve b", "found 2 commands"),
        ("echo hello", "found 0 commands"),
        ("x" * (TEXT_AT_MOST + 1), "more than 64 KiB"),
    ],
)
def test_a_script_that_cannot_be_compared_says_why(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_text(text)


def test_a_command_is_bounded() -> None:
    with pytest.raises(InputError, match="at most"):
        parse_command_words(("vllm", "serve", "m", *["--a"] * 3000))
