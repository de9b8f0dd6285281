"""What a user tells vLLM: flags, config file, variables. Nothing is edited, only read along.

Pure but for `read_config`.

vLLM takes `--flag value`, `--flag=value`, `-tp 2`, `--no-flag`, underscores for dashes, any unambiguous beginning of a
flag, and with `--config FILE` a YAML file of the same names, which its command line overrides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.request.intents import NONE, Intents

SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpl": "--data-parallel-size-local",
    "-n": "--nnodes",
    "-q": "--quantization",
    "-O": "--optimization-level",
}
"""Short names of the flags that a decision looks at; others pass under their own."""

_POWERS = " kmgt"


class Flag(NamedTuple):
    """One flag as it was given; `value` is true for a bare flag, false for `--no-…`."""

    name: str
    value: str | bool
    given: str
    """Where: as written on the command line, or `FILE: key`."""


class UserFlags(NamedTuple):
    """All that the user decided."""

    flags: Mapping[str, Flag]
    env: Mapping[str, str]
    tokens: tuple[str, ...]
    """The flags as they were written, for vLLM."""
    known: frozenset[str] = frozenset()
    """All of this vLLM's own option strings; empty where they were not recorded."""
    intents: Intents = NONE
    """What was wished for instead of flags."""

    def flag(self, name: str) -> str | None:
        """Return a flag's value as text, None when it was not given."""
        flag = self.flags.get(name)
        return None if flag is None else str(flag.value)

    def number(self, name: str, least: int = 1) -> int | None:
        """Return a flag's whole number, which may be written as vLLM allows (4k, 4K). Raises USAGE."""
        text = self.flag(name)
        return None if text is None else parse_count(text, self.flags[name].given, least)

    def variable(self, name: str) -> str | None:
        """Return an environment variable; vLLM too takes an empty one as not set."""
        return self.env.get(name) or None


def parse_given(
    tokens: tuple[str, ...], env: Mapping[str, str], known: Iterable[str] = (), intents: Intents = NONE
) -> UserFlags:
    """Understand vLLM's part of a command line; a first word that is no flag is the model.

    With `known`, vLLM's own option strings, a flag that is not among them is refused, naming the nearest. Raises USAGE.
    """
    if tokens and _is_value(tokens[0]):
        tokens = ("--model", *tokens)
    names = frozenset(known)
    flags: dict[str, Flag] = {}
    for words in _groups(tokens):
        flag = _flag(words, names)
        flags[flag.name] = flag
    config = flags.get("--config")
    if config and "=" in config.given.split()[0]:
        raise EntrypointError(USAGE, f"{config.given}: vLLM reads a config file only as two words", "--config FILE")
    if config:
        flags = {**read_config(str(config.value)), **flags}
    return UserFlags(flags, env, tokens, names, intents)


def _is_value(word: str) -> bool:
    """Tell a value from a flag; a negative number and a dash alone are values, an empty word is neither."""
    return bool(word) and (not word.startswith("-") or word == "-" or word[1] in "0123456789.")


def _groups(tokens: tuple[str, ...]) -> Iterable[list[str]]:
    """Group each flag with the words that follow it."""
    group: list[str] = []
    for token in tokens:
        if _is_value(token) or not token:
            group.append(token)
            continue
        if group:
            yield group
        group = [token]
    if group:
        yield group


def _flag(words: list[str], known: frozenset[str]) -> Flag:
    head, equals, value = words[0].partition("=")
    if head.startswith("-O") and len(head) > 2:  # noqa: PLR2004 - -O3 is -O 3
        head, equals, value = "-O", "=", head[2:]
    name = _full_name(head, known)
    values = ([value] if equals else []) + words[1:]
    if not values and name.startswith("--no-"):
        return Flag("--" + name[len("--no-") :], value=False, given=words[0])
    return Flag(name, value=" ".join(values) if values else True, given=" ".join(words))


def _full_name(head: str, known: frozenset[str]) -> str:
    """Return a flag's own name: dashes, not underscores; the long form; all of it."""
    if not head.startswith("--"):
        name = SHORT.get(head, head)
        base = head.partition(".")[0]
        if known and not {head, base, name} & known:
            raise _unknown(head, known)
        return name
    name, dot, field = head.partition(".")
    name = name.replace("_", "-")
    if known and name not in known:
        name = _completed(name, known)
    return name + dot + field


def _completed(name: str, known: frozenset[str]) -> str:
    longer = sorted(flag for flag in known if flag.startswith(name))
    if len(longer) == 1:
        return longer[0]
    if longer:
        raise EntrypointError(USAGE, f"{name}: could mean {', '.join(longer)}", "write the whole name")
    raise _unknown(name, known)


def _unknown(name: str, known: frozenset[str]) -> EntrypointError:
    from difflib import get_close_matches

    close = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "--help lists drydock's own flags, vLLM's --help=all its flags"
    return EntrypointError(USAGE, f"{name}: neither drydock nor this image's vLLM has such a flag", hint)


def read_config(path: str) -> dict[str, Flag]:
    """Read the keys at the top of vLLM's config file, a YAML mapping. IO. Raises USAGE.

    Only which keys there are, and single values, matter here: vLLM itself reads the file.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(1 << 20)
    except (OSError, UnicodeDecodeError) as error:
        raise EntrypointError(USAGE, f"--config {path}: {error}, expected a readable YAML file") from error
    return parse_config(text, path)


def parse_config(text: str, path: str) -> dict[str, Flag]:
    """Parse the top-level keys of a YAML mapping."""
    import re

    flags: dict[str, Flag] = {}
    for line in text.splitlines():
        entry = re.match(r"([A-Za-z][\w.-]*)\s*:(?:\s+(.*))?$", line)
        if entry:
            key, value = entry[1].replace("_", "-"), (entry[2] or "").split(" #")[0].strip().strip("\"'")
            switch = {"true": True, "false": False}.get(value.lower(), value)
            flags[f"--{key}"] = Flag(f"--{key}", switch, f"{path}: {key}")
    return flags


def parse_count(text: str, given: str, least: int = 1) -> int:
    """Parse a whole number as vLLM does: 4096, 4K (4096), 4k (4000), 2.5k (2500). Raises USAGE."""
    word = text.strip()
    suffix = word[-1:] if word[-1:].lower() in _POWERS else ""
    factor = int((1000 if suffix.islower() else 1024) ** _POWERS.index(suffix.lower() or " "))
    digits = word.removesuffix(suffix)
    whole, _, part = digits.partition(".")
    if digits.isdecimal():
        number = int(digits) * factor
    elif whole.isdecimal() and part.isdecimal() and suffix.islower():
        number = int(float(digits) * factor)
    else:
        number = least - 1
    if number < least:
        raise EntrypointError(USAGE, f"{given}: {text!r} is not a whole number of at least {least}")
    return number
