"""Secrets out of whatever is printed: by the name of a flag, variable or JSON key, and out of URLs. Pure.

What is executed is never touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

HIDDEN = "<redacted>"

_WORDS = frozenset(
    (
        *("key", "keys", "apikey", "token", "bearer", "secret", "secrets", "auth", "authorization"),
        *("password", "passwd", "passphrase", "credential", "credentials"),
    )
)
_STEMS = ("key", "token", "bearer", "secret", "auth", "passw", "passphrase", "credential")
"""Each of those words has one of these in it."""
_COUNTS = frozenset(("bucket", "buckets", "padding", "paddings"))
"""Words of names in which a token is what a model reads: NEURON_TOKEN_GEN_BUCKETS."""
_JSON_KEY = r"""(["']?)([\w.-]+)\1(\s*[:=]\s*)(["'])((?:\\.|(?!\4).)*)\4"""
_URL = r"(\w+://)[^/@\s]+@"


def is_secret(name: str) -> bool:
    """Tell whether a flag, variable or key names a secret: HF_TOKEN, --api-key, clientSecret, but not --tokenizer."""
    if not _mentions(name):
        return False
    words = set(_spaced(name).lower().split())
    return not words.isdisjoint(_WORDS) and words.isdisjoint(_COUNTS)


def _mentions(text: str) -> bool:
    """Tell whether a text holds any word of a secret at all, in whatever connection: most do not."""
    return any(map(text.lower().__contains__, _STEMS))


def _spaced(name: str) -> str:
    """Return a name with its words apart: at what is no letter or digit, and where a capital follows a small letter."""
    pairs = zip(f" {name}", name, strict=False)
    cut = "".join(f" {each}" if "a" <= before <= "z" and "A" <= each <= "Z" else each for before, each in pairs)
    return "".join(each if each.isascii() and each.isalnum() else " " for each in cut)


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
    address = "://" in text and "@" in text
    if not address and not (_mentions(text) and ('"' in text or "'" in text)):
        return text
    import re  # no setting of a usual start comes as far as this

    text = re.sub(_URL, rf"\1{HIDDEN}@", text)
    return re.sub(
        _JSON_KEY,
        lambda match: (
            f"{match[1]}{match[2]}{match[1]}{match[3]}{match[4]}{HIDDEN}{match[4]}" if is_secret(match[2]) else match[0]
        ),
        text,
    )
