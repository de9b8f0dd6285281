"""Secrets out of whatever is printed: by the name of a flag, variable or JSON key, and out of URLs. Pure.

What is executed is never touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "<redacted>"

_WORDS = frozenset(
    (
        *("key", "keys", "apikey", "token", "bearer", "secret", "secrets", "auth", "authorization"),
        *("password", "passwd", "passphrase", "credential", "credentials"),
    )
)
_COUNTS = frozenset(("bucket", "buckets", "padding", "paddings"))
"""Words of names in which a token is what a model reads: NEURON_TOKEN_GEN_BUCKETS."""
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])")
_JSON_KEY = re.compile(r"""(["']?)([\w.-]+)\1(\s*[:=]\s*)(["'])((?:\\.|(?!\4).)*)\4""")
_URL = re.compile(r"(\w+://)[^/@\s]+@")


def is_secret(name: str) -> bool:
    """Tell whether a flag, variable or key names a secret: HF_TOKEN, --api-key, clientSecret, but not --tokenizer."""
    words = {word.lower() for word in _SPLIT.split(name)}
    return not words.isdisjoint(_WORDS) and words.isdisjoint(_COUNTS)


def redact_argv(argv: Iterable[str]) -> tuple[str, ...]:
    """Hide the values of secret flags (`--api-key A B`, `--hf-token=A`) and secrets inside other values."""
    shown: list[str] = []
    hiding = False
    for token in argv:
        name, equals, _ = token.partition("=")
        if token.startswith("-"):
            hiding = is_secret(name) and not equals
            shown.append(f"{name}={HIDDEN}" if equals and is_secret(name) else redact_text(token))
        else:
            shown.append(HIDDEN if hiding else redact_text(token))
    return tuple(shown)


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Hide the values of secret variables."""
    return {name: redact_value(name, value) for name, value in env.items()}


def redact_value(name: str, value: str) -> str:
    """Hide a value if its name says that it is secret."""
    return HIDDEN if is_secret(name) else redact_text(value)


def redact_text(text: str) -> str:
    """Hide credentials in URLs and under secret keys of JSON."""
    text = _URL.sub(rf"\1{HIDDEN}@", text)
    return _JSON_KEY.sub(
        lambda match: (
            f"{match[1]}{match[2]}{match[1]}{match[3]}{match[4]}{HIDDEN}{match[4]}" if is_secret(match[2]) else match[0]
        ),
        text,
    )
