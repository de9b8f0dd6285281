"""The user's settings for vLLM: flags, config file, variables. They are parsed, never changed.

Pure, except `read_config`.

vLLM accepts `--flag value`, `--flag=value`, `-tp 2`, `--no-flag`, underscores for dashes and any unambiguous beginning
of a flag. `--config FILE` is a YAML file of the same names; the command line overrides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, isfinite, nan
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.folders import read_bounded
from entrypoints.request.access import Access
from entrypoints.request.flags import (
    ADAPTERS,
    API_KEY,
    CONFIG_FILE,
    HOSTS,
    MODEL_NAME,
    OF_ADAPTERS,
    RANGES,
    SHORT,
    UTILISATION,
    Range,
)
from entrypoints.request.intents import NONE, Intents
from entrypoints.request.recipes import NOTHING_PUBLISHED, Recipe
from entrypoints.request.roles import Role
from entrypoints.request.vllm_lists import NOT_KNOWN, VllmLists

_POWERS = " kmgt"
"""Suffixes of numbers: none, kilo, mega, giga, tera; as upper-case letters, powers of 1024."""

_DIGITS_AT_MOST = 30
"""Characters of a number: Python refuses to convert 4,301 digits, and no size or count needs more than 20."""

_CONFIG_AT_MOST = 1 << 20
"""Bytes of a config file."""

_ENTRY = r"""(["']?)([A-Za-z][\w.-]*)\1\s*:(?:\s+(.*))?$"""
"""A key of a config file and its value: a line that is not indented."""

_WORD = r"""("[^"'\\\s]+"|'[^"'\s]+'|(?!(?i:true|false|yes|no|on|off|null)(?:\s|$))[A-Za-z][\w.~+/=-]*)(\s+(?:#.*)?)?"""
"""A YAML string that is one word, for which nothing of YAML has to be known. A digit could begin a number."""

MODELSCOPE = "modelscope:"
"""Before the id of a model that vLLM downloads from ModelScope."""


class Flag(NamedTuple):
    """One flag; `value` is true for a flag without a value, false for `--no-…`."""

    name: str
    value: str | bool
    given: str
    """As written on the command line, or `FILE: key`."""


class UserFlags(NamedTuple):
    """All settings of the user."""

    flags: Mapping[str, Flag]
    env: Mapping[str, str]
    tokens: tuple[str, ...]
    """The command line for vLLM, unchanged."""
    known: frozenset[str] = frozenset()
    """All option strings of this image's vLLM; empty if the image did not record them."""
    intents: Intents = NONE
    """Goals that the user set instead of vLLM's flags."""
    access: Access = Access()
    signs: bool = False
    """Whether --group-secret-file is given."""
    role: Role = Role()
    """Which part of a request this server computes."""
    modelscope: bool = False
    """Whether the model's name begins with `modelscope:`; the flags and the command line have the name without it."""
    vllm: VllmLists = NOT_KNOWN
    """What this image's vLLM says of itself."""
    recipe: Recipe = NOTHING_PUBLISHED
    """What a published recipe sets for the model on this host."""
    accepted: tuple[str, ...] = ()
    """What vLLM takes by the user's word, whatever its lists say."""

    def flag(self, name: str) -> str | None:
        """Return a flag's value as text; None if the user did not set it."""
        flag = self.flags.get(name)
        return None if flag is None else str(flag.value)

    def number(self, name: str) -> int | None:
        """Return a flag's whole number, in the flag's unit and range; vLLM accepts 4k and 4K. Raises USAGE."""
        flag = self.flags.get(name)
        if flag is None:
            return None
        if isinstance(flag.value, bool):
            raise EntrypointError(USAGE, f"{flag.given}: expected a value", f"write {name} NUMBER")
        limits = RANGES.get(name, Range())
        return parse_count(flag.value, flag.given, int(limits.least), limits.unit, limits.most)

    def variable(self, name: str) -> str | None:
        """Return an environment variable; an empty one counts as unset, as in vLLM."""
        return self.env.get(name) or None


def parse_user_flags(
    tokens: tuple[str, ...], env: Mapping[str, str], option_strings: Iterable[str] = (), intents: Intents = NONE
) -> UserFlags:
    """Parse vLLM's part of a command line. A first word that is not a flag is the model.

    `option_strings` are vLLM's own: if any, a flag that is neither among them nor in HOSTS is an error. Raises
    USAGE.
    """
    if tokens and _is_value(tokens[0]):
        tokens = (MODEL_NAME, *tokens)
    names = frozenset(option_strings)
    accepted = names | {*HOSTS} if names else names
    flags: dict[str, Flag] = {}
    for words in _group_words(tokens):
        flag = _parse_flag(words, accepted)
        flags[flag.name] = flag
    config = flags.get(CONFIG_FILE)
    if config and "=" in config.given.split()[0]:
        raise EntrypointError(
            USAGE, f"{config.given}: vLLM accepts a config file only as two words", "write --config FILE"
        )
    if config:
        stated = read_config(str(config.value))
        if API_KEY in stated and API_KEY in flags:
            message = f"{stated[API_KEY].given} and {API_KEY}: both give the API key"
            raise EntrypointError(USAGE, message, "give one of them")
        flags = {**stated, **flags}
    user_flags = _from_modelscope(UserFlags(flags, env, tokens, names, intents))
    _check_numbers(user_flags)
    return user_flags


def _from_modelscope(user_flags: UserFlags) -> UserFlags:
    """Take `modelscope:` from the model's name, which vLLM does not know. Raises USAGE for a name that is no id."""
    flag = user_flags.flags.get(MODEL_NAME)
    if flag is None or not str(flag.value).startswith(MODELSCOPE):
        return user_flags
    name = str(flag.value)[len(MODELSCOPE) :]
    owner, slash, model = name.partition("/")
    if not (owner and slash and model) or "/" in model or name.startswith((".", "-")):
        raise EntrypointError(USAGE, f"{flag.given}: expected {MODELSCOPE}ORG/NAME", "a folder needs no prefix")
    _, rest = remove_flag(MODEL_NAME, user_flags)
    flags = {**user_flags.flags, MODEL_NAME: flag._replace(value=name)}
    return user_flags._replace(flags=flags, tokens=(MODEL_NAME, name, *rest), modelscope=True)


def _check_numbers(user_flags: UserFlags) -> None:
    """Raise USAGE for a number that vLLM refuses only after seconds of imports."""
    for name, limits in RANGES.items():
        text = user_flags.flag(name)
        is_read = name not in OF_ADAPTERS or user_flags.flag(ADAPTERS) == "True"
        if text is None or text in limits.words or not is_read:
            continue
        if limits.whole:
            user_flags.number(name)
        elif not _is_within_limits(_parse_decimal(text), limits):
            hint = "vLLM's default is 0.9" if name == UTILISATION else ""
            raise EntrypointError(USAGE, f"{user_flags.flags[name].given}: expected {_words_of(limits)}", hint)


def _is_within_limits(number: float, limits: Range) -> bool:
    above = number >= limits.least if limits.least_too else number > limits.least
    return above and (number <= limits.most if limits.most_too else number < limits.most)


def _words_of(limits: Range) -> str:
    """Return what a decimal number must be."""
    what = "a share" if limits.most == 1 else f"a number of {limits.unit}"
    least = f"at least {limits.least:g}" if limits.least_too else f"above {limits.least:g}"
    if limits.most == inf:
        return f"{what}, {least}"
    return f"{what} {least}, {'at most' if limits.most_too else 'below'} {limits.most:g}"


def _parse_decimal(text: str) -> float:
    """Return a decimal number; NaN, which is in no range, for anything else, also for a number without end."""
    try:
        number = float(text)
    except ValueError:
        return nan
    return number if isfinite(number) else nan


def remove_flag(name: str, user_flags: UserFlags) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a flag's values, as its last occurrence gives them, and the command line for vLLM without the flag."""
    values: tuple[str, ...] = ()
    rest: list[str] = []
    accepted = user_flags.known | {*HOSTS} if user_flags.known else user_flags.known
    for words in _group_words(user_flags.tokens):
        if _parse_flag(words, accepted).name == name:
            _, equals, value = words[0].partition("=")
            values = (*((value,) if equals else ()), *words[1:])
        else:
            rest += words
    return values, tuple(rest)


def _is_value(word: str) -> bool:
    """Return whether a word is a value, such as a negative number or a single dash. An empty word is not."""
    return bool(word) and (not word.startswith("-") or word == "-" or word[1] in "0123456789.")


def _group_words(tokens: tuple[str, ...]) -> Iterable[list[str]]:
    """Split the words into groups: a flag and its values."""
    group: list[str] = []
    for token in tokens:
        if token and not _is_value(token):
            if group:
                yield group
            group = []
        group.append(token)
    if group:
        yield group


def _parse_flag(words: list[str], option_strings: frozenset[str]) -> Flag:
    head, equals, value = words[0].partition("=")
    if head.startswith("-O") and len(head) > 2:  # noqa: PLR2004 - -O3 means -O 3
        head, equals, value = "-O", "=", head[2:]
    name = _full_name(head, option_strings)
    values = ([value] if equals else []) + words[1:]
    if not values and name.startswith("--no-"):
        return Flag("--" + name[len("--no-") :], value=False, given=words[0])
    return Flag(name, value=" ".join(values) if values else True, given=" ".join(words))


def _full_name(head: str, option_strings: frozenset[str]) -> str:
    """Return a flag's long and complete name, with dashes."""
    if not head.startswith("--"):
        base, dot, field = head.partition(".")
        name = SHORT.get(base, base)
        if option_strings and not {head, base, name} & option_strings:
            raise _make_unknown_error(head, option_strings)
        return name + dot + field
    name, dot, field = head.partition(".")
    name = name.replace("_", "-")
    if option_strings and name not in option_strings:
        name = _complete_name(name, option_strings)
    return name + dot + field


def _complete_name(name: str, option_strings: frozenset[str]) -> str:
    """Return the only known flag that begins with `name`. Raises USAGE."""
    longer = sorted(flag for flag in option_strings if flag.startswith(name))
    if len(longer) == 1:
        return longer[0]
    if longer:
        raise EntrypointError(USAGE, f"ambiguous flag {name}: could be {', '.join(longer)}", "write the full name")
    raise _make_unknown_error(name, option_strings)


def _make_unknown_error(name: str, option_strings: frozenset[str]) -> EntrypointError:
    from difflib import get_close_matches

    from entrypoints.request.arguments import FLAGS
    from entrypoints.request.vllm_successors import SUCCESSORS, describe_successor

    if name in SUCCESSORS:
        return EntrypointError(USAGE, f"{name}: this image's vLLM has removed it", describe_successor(name))
    close = get_close_matches(name, sorted({*option_strings, *FLAGS}), n=1, cutoff=0.5 if name.startswith("--") else 1)
    hint = f"did you mean {close[0]}?" if close else "--help lists drydock's flags, --help=all vLLM's"
    return EntrypointError(USAGE, f"unknown flag {name}: not a flag of drydock or of this image's vLLM", hint)


def read_config(path: str) -> dict[str, Flag]:
    """Read the top-level keys of vLLM's config file, a YAML mapping. IO. Raises USAGE.

    Only keys and single values are needed: vLLM parses the file itself.
    """
    try:
        text = read_bounded(path, _CONFIG_AT_MOST).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise EntrypointError(USAGE, f"--config {path}: cannot read the file: {error}") from error
    return parse_config(text, path)


def parse_config(text: str, path: str) -> dict[str, Flag]:
    """Parse the top-level keys of a YAML mapping."""
    import re

    flags: dict[str, Flag] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        entry = re.match(_ENTRY, line)
        if entry:
            key, stated = entry[2].replace("_", "-"), entry[3] or ""
            if key.startswith("api-k"):
                _check_key(key, stated, lines[number:], f"{path}: {entry[2]}")
            value = stated.split(" #")[0].strip().strip("\"'")
            switch = {"true": True, "false": False}.get(value.lower(), value)
            flags[f"--{key}"] = Flag(f"--{key}", switch, f"{path}: {entry[2]}")
        elif line.strip() and (not flags or line[0] not in " \t-.]}") and not re.match(r"\s*#|---", line):
            message = f"{path}: line {number}: expected KEY: VALUE that is not indented"
            raise EntrypointError(
                USAGE, message, "write one setting a line, without YAML's merges, `?` and outer braces"
            )
    return flags


def _check_key(key: str, stated: str, following: Iterable[str], place: str) -> None:
    """Raise USAGE for an API key that vLLM might read otherwise: with that other key, a part of the routes is open."""
    import re

    after = next((line for line in following if line.strip()), "")
    continues = after[:1].isspace() and not after.lstrip().startswith("#")
    if f"--{key}" != API_KEY or not re.fullmatch(_WORD, stated) or continues:
        message = f"{place}: expected {API_KEY[2:]}: and one key in double quotes, all on one line"
        raise EntrypointError(USAGE, message, "or write the keys to a --api-key-file, one a line")


def parse_count(text: str, source: str, least: int = 1, unit: str = "", most: float = inf) -> int:
    """Parse a whole number as vLLM does: 4096, 4K (4096), 4k (4000), 2.5k (2500).

    `source` is where the number was written, `unit` what it counts. Raises USAGE.
    """
    word = text.strip()
    suffix = word[-1:] if word[-1:].lower() in _POWERS else ""
    factor = int((1000 if suffix.islower() else 1024) ** _POWERS.index(suffix.lower() or " "))
    digits = word.removesuffix(suffix)
    whole, _, part = digits.partition(".")
    if len(digits) > _DIGITS_AT_MOST:
        number = least - 1
    elif digits.isdecimal():
        number = int(digits) * factor
    elif whole.isdecimal() and part.isdecimal() and suffix.islower():
        number = int(float(digits) * factor)
    else:
        number = least - 1
    if not least <= number <= most:
        expected = f"a whole number of {unit}" if unit else "a whole number"
        expected += f", at least {least}" if most == inf else f" from {least} to {most:g}"
        raise EntrypointError(USAGE, f"{source}: invalid value {text!r}, expected {expected}")
    return number
