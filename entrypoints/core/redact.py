"""Hides secrets in printed text: passwords in URLs, and values by the name of their flag, variable or key. Pure.

Also Bearer and Basic credentials, and signatures of URLs. The command that is executed is not changed. The build side
uses this module too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

HIDDEN = "<redacted>"

_WORDS = frozenset(
    (
        *("key", "keys", "apikey", "token", "bearer", "secret", "secrets", "auth", "authorization"),
        *("password", "passwords", "passwd", "pwd", "pgpassword", "passphrase", "credential", "credentials"),
    )
)
_STEMS = ("key", "token", "bearer", "secret", "auth", "pass", "pwd", "credential")
"""Each of _WORDS contains one of these."""
_FOLDERS = ("PWD", "OLDPWD")
"""Variables of a shell, for which `pwd` is the working folder."""
_LAST = "pass"
"""Names a secret only at the end: DB_PASS, but not pass_config."""
_COUNTS = frozenset(("bucket", "buckets", "padding", "paddings", "threshold", "thresholds"))
"""Words of names that say how much, not a secret: NEURON_TOKEN_GEN_BUCKETS, PROFILER_TOKEN_THRESHOLD."""
_TOKENS = frozenset(("token",))
_OF_TEXT = frozenset(
    (
        *("num", "min", "max", "per", "count", "counts", "len", "length", "lengths", "limit", "limits", "ratio"),
        *("budget", "size", "sizes", "bos", "eos", "pad", "unk"),
    )
)
"""Words that make TOKEN a token of text: MAX_TOKEN_LEN, PER_TOKEN_QUANT, eos_token_id. With another word of _WORDS
they mean nothing: MAX_KEY_SIZE stays hidden, and so does SECRET_TOKEN_LIMIT."""
_PLACES = frozenset(("file", "path", "dir", "folder"))
"""Last words of names whose value says where a secret is: --api-key-file."""
_ERRORS = frozenset(("error", "exception"))
"""Last words of Python's errors: what KeyError names is no secret, and is needed to find its cause."""
_SIGNED = frozenset(("sig", "signature"))
_SIGNED_TERMS = frozenset(("se", "sp"))
"""Parameters of presigned URLs that no other rule finds. Source: AWS Signature Version 4 and 2, Google Cloud Storage
signed URLs, Azure shared access signatures."""
_BEGINNINGS = ("--api-k", "--hf-t")
"""vLLM takes any unambiguous beginning of a flag: --api-ke is --api-key, --hf-tok is --hf-token."""
_TOO_COMMON = frozenset(("key", "keys", "auth"))
"""Names that mean a secret as a flag or in JSON, but not before an equals sign in a sentence."""
_JSON_KEY = r"""(["']?)((?<=["'])[\w. -]+|(?<![\w.-])[\w.-]+)\1(\s*[:=]\s*)(["'])((?:\\.|(?!\4).)*)\4"""
_JSON_NUMBER = r"""(["'])([\w. -]+)\1(\s*:\s*)()(-?[\d][^\s,}\]]*)"""
_URL = r"""(\w://)(?:[^/\s:@"'<>]*:(?!\d+/)(?:(?!://)[^\s"'<>])*|[^/\s"'<>]*)@"""
"""A URL's user and password, which may contain @ and /. HOST:PORT/ is not a user: docker-image://host:5000/a@sha256:…"""
_PROXY = r"""(?<![\w.%+@/-])[\w.%+-]+:[^\s:/@"'<>]+@(?!sha\d+:)(?=[\w.-]+:\d)"""
"""User and password of an address without a scheme, as a proxy may have it: not NAME:TAG@sha256:…"""
_PARAMETER = r"""([?&;#])([\w.%-]+)=([^&;#\s"'<>]+)"""
_ASSIGNMENT = r"""(?<![\w.?&;#-])(-{0,2}[A-Za-z_][\w.-]*)=([^\s"'&;#<>]+)"""
_SCHEME = r"""(?i)(authorization\s*[:=]\s*)?\b(bearer|basic)(\s+)([\w.~+/=-]+)"""
_ISSUERS = ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-")
_ISSUED = r"""(?<![A-Za-z0-9])(hf_|gh[pousr]_|github_pat_|glpat-)[A-Za-z0-9_-]{20,}"""
"""A token by its issuer's prefix: secret under any name. Source: GitHub's, GitLab's and Hugging Face's documentation of
their tokens, of which the shortest has 20 characters after the prefix."""
_HEADER = (
    r"(?i)\b((?:x-api-key|x-auth-token|private-token|job-token|x-amz-security-token)\s*:\s*"
    r"|authorization\s*:\s*(?:token|digest|negotiate|apikey|aws4-hmac-sha256)\s+)[^\r\n]+"
)
"""Headers of HTTP with a secret that has no name of its own, up to the end of the line."""


def is_secret(name: str) -> bool:
    """Tell whether a flag, variable or key names a secret: HF_TOKEN, --api-key, clientSecret, but not --tokenizer."""
    if not _has_stem(name) or name in _FOLDERS:
        return False
    words = _split_name(name)
    if not words or words[-1] in _PLACES | _ERRORS or not _COUNTS.isdisjoint(words):
        return False
    secret_words = _WORDS.intersection(words)
    if secret_words == _TOKENS and not _OF_TEXT.isdisjoint(words):
        return False
    return words[-1] == _LAST or bool(secret_words)


def _has_stem(text: str) -> bool:
    """Tell whether a text contains any of _STEMS. Most texts do not, so this check saves the slower ones."""
    lower = text.lower()
    return any(stem in lower for stem in _STEMS)


def _split_name(name: str) -> list[str]:
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
    safe_words: list[str] = []
    hiding = False
    for token in argv:
        name, equals, _ = token.partition("=")
        if token.startswith("-"):
            secret = is_secret(name) or name.replace("_", "-").startswith(_BEGINNINGS)
            hiding = secret and not equals
            safe_words.append(f"{name}={HIDDEN}" if equals and secret else redact_text(token))
        else:
            safe_words.append(HIDDEN if hiding else redact_text(token))
    return tuple(safe_words)


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Hide the values of secret variables."""
    return {name: redact_value(name, value) for name, value in env.items()}


def redact_value(name: str, value: str) -> str:
    """Hide a value if its name is that of a secret."""
    return HIDDEN if is_secret(name) else redact_text(value)


def _hide_issued(text: str) -> str:
    """Hide tokens that their issuer's prefix tells."""
    if not any(issuer in text for issuer in _ISSUERS):
        return text
    import re

    return re.sub(_ISSUED, HIDDEN, text)


def _redact_nested_json(text: str, value: str) -> str:
    """Hide secrets in JSON that is the value of a key, with its quotes escaped."""
    if '\\"' not in value:
        return text
    import json

    try:
        inner = json.loads(f'"{value}"')
    except ValueError:
        return text
    safe_text = redact_text(inner)
    return text if safe_text == inner else text.replace(value, json.dumps(safe_text)[1:-1])


def redact_text(text: str) -> str:
    """Hide passwords and signatures in URLs, values of secret names (A=B, and in JSON), credentials, known tokens."""
    has_url = ("://" in text and "=" in text) or (":" in text and "@" in text)
    text = _hide_issued(text)
    if not has_url and not ("=" in text or '"' in text or "'" in text or " " in text):
        return text
    lower = text.lower()
    if not has_url and not any(stem in lower for stem in (*_STEMS, "basic")):
        return text
    import re  # only here, because a usual start does not need it

    signed = "sig=" in lower

    def hide_value(match: re.Match[str]) -> str:
        if not is_secret(match[2]):
            return _redact_nested_json(match[0], match[5]) if match[4] == '"' else match[0]
        return f"{match[1]}{match[2]}{match[1]}{match[3]}{match[4]}{HIDDEN}{match[4]}"

    def hide_parameter(match: re.Match[str]) -> str:
        name = match[2].lower().rpartition("-")[2]
        hidden = is_secret(match[2]) or name in _SIGNED or (signed and name in _SIGNED_TERMS)
        return f"{match[1]}{match[2]}={HIDDEN}" if hidden else match[0]

    def hide_assigned(match: re.Match[str]) -> str:
        return f"{match[1]}={HIDDEN}" if is_secret(match[1]) and match[1] not in _TOO_COMMON else match[0]

    def hide_scheme(match: re.Match[str]) -> str:
        word = match[4].rstrip(".")
        if not match[1] and (word.islower() or word.istitle()) and word.isalpha():
            return match[0]  # a word of a sentence: Basic authentication
        return f"{match[1] or ''}{match[2]}{match[3]}{HIDDEN}"

    for pattern, hide in (
        (_URL, lambda match: f"{match[1]}{HIDDEN}@"),
        (_PROXY, lambda _: f"{HIDDEN}@"),
        (_SCHEME, hide_scheme),
        (_HEADER, lambda match: f"{match[1]}{HIDDEN}"),
        (_PARAMETER, hide_parameter),
        (_JSON_KEY, hide_value),
        (_JSON_NUMBER, hide_value),
        (_ASSIGNMENT, hide_assigned),
    ):
        text = re.sub(pattern, hide, text)
    return text
