"""Hides secrets in printed text: values of flags, variables and JSON keys by their name, and passwords in URLs. Pure.

The command that is executed is not changed.
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
"""Each of _WORDS contains one of these."""
_COUNTS = frozenset(("bucket", "buckets", "padding", "paddings"))
"""Words of names in which TOKEN means a token of text: NEURON_TOKEN_GEN_BUCKETS."""
_JSON_KEY = r"""(["']?)([\w.-]+)\1(\s*[:=]\s*)(["'])((?:\\.|(?!\4).)*)\4"""
_URL = r"(\w+://)[^/@\s]+@"


def is_secret(name: str) -> bool:
    """Tell whether a flag, variable or key names a secret: HF_TOKEN, --api-key, clientSecret, but not --tokenizer."""
    if not _has_stem(name):
        return False
    words = set(_words(name))
    return not words.isdisjoint(_WORDS) and words.isdisjoint(_COUNTS)


def _has_stem(text: str) -> bool:
    """Tell whether a text contains any of _STEMS. Most texts do not, so this check saves the slower ones."""
    lower = text.lower()
    return any(stem in lower for stem in _STEMS)


def _words(name: str) -> list[str]:
    """Split a name into words, in lower case: at non-alphanumeric characters, and before a capital after a-z."""
    spaced = ""
    previous = ""
    for character in name:
        if not (character.isascii() and character.isalnum()):
            spaced += " "
        elif "A" <= character <= "Z" and "a" <= previous <= "z":
            spaced += f" {character}"
        else:
            spaced += character
        previous = character
    return spaced.lower().split()


def redact_argv(argv: Iterable[str]) -> tuple[str, ...]:
    """Hide the values of secret flags (`--api-key A B`, `--hf-token=A`) and secrets in other values."""
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
    """Hide a value if its name is that of a secret."""
    return HIDDEN if is_secret(name) else redact_text(value)


def redact_text(text: str) -> str:
    """Hide credentials in URLs and the values of secret keys in JSON."""
    has_url = "://" in text and "@" in text
    has_quotes = '"' in text or "'" in text
    if not has_url and not (has_quotes and _has_stem(text)):
        return text
    import re  # only here, because a usual start does not need it

    def hide_value(match: re.Match[str]) -> str:
        if not is_secret(match[2]):
            return match[0]
        return f"{match[1]}{match[2]}{match[1]}{match[3]}{match[4]}{HIDDEN}{match[4]}"

    return re.sub(_JSON_KEY, hide_value, re.sub(_URL, rf"\1{HIDDEN}@", text))
