"""A command that starts a vLLM server, as people paste it → vLLM's words and variables. Pure.

It is text: nothing of it is executed, expanded or looked up.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from drydock.core.errors import InputError, explain_os_error
from drydock.core.files import read_bounded

TEXT_AT_MOST = 64 << 10
"""Characters of a command."""
WORDS_AT_MOST = 2_000
FORMS = "`vllm serve MODEL …`, `python -m vllm.entrypoints.openai.api_server …`, `docker run … IMAGE …`, or flags"
API_SERVER, COMMANDS = "vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main"
"""Modules of vLLM that start a server, the second one as `serve`."""
WRAPPERS = ("command", "env", "exec", "nohup", "sudo", "time")
"""Programs that run the command after them."""
ENGINES = ("docker", "nerdctl", "podman")
SWITCHES = (
    *("--detach", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable", "--privileged"),
    *("--publish-all", "--quiet", "--read-only", "--replace", "--rm", "--sig-proxy", "--tls-verify", "--tty"),
)
"""Options of `docker run` and `podman run` without a value. Source: their manuals."""
SHORT_SWITCHES = frozenset("ditPq")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\\\r?\n)
    |(?P<comment>\#[^\n]*)
    |(?P<separator>[;&|()\n]+)
    |(?P<redirect>\d?>{1,2}&?|<+(?![A-Za-z][\w./:-]*(?:[ ][\w./:-]+)*>))
    |(?P<part>'[^']*'|"(?:\\.|[^"\\])*"|\\.|<[^<>]*>|\$\([^()]*(?:\([^()]*\)[^()]*)*\)|\$\{[^{}\n]*\}
        |(?:[^\s;&|()<>'"\\$]|\$(?![({]))+|\$)""",
    re.VERBOSE | re.DOTALL,
)
"""Of a shell's grammar as much as a pasted command has. <NAME> is a reader's to fill in, not a redirection."""
PYTHON = re.compile(r"python[\d.]*$")


class PlacedWord(str):
    """A word of a script, with the line on which it begins, from 1."""

    __slots__ = ("line",)
    line: int

    def __new__(cls, text: str, line: int) -> Self:
        """Return a text with its line."""
        word = super().__new__(cls, text)
        word.line = line
        return word


class ContainerWords(NamedTuple):
    """What a command starts a container with."""

    image: str
    env: Mapping[str, str]
    options: tuple[tuple[str, str], ...]
    """Each option with its value, which is empty for a switch."""
    words: tuple[str, ...]
    """What follows the image."""

    @property
    def program(self) -> tuple[str, ...]:
        """Return what replaces the image's ENTRYPOINT; empty if nothing does."""
        return tuple(value for option, value in self.options if option == "--entrypoint")[-1:]


class PastedCommand(NamedTuple):
    """A command that starts a server."""

    words: tuple[str, ...]
    """What vLLM's parser gets, after `serve`."""
    env: Mapping[str, str]
    is_drydocks: bool = False
    """Whether drydock's entrypoint parses the words first."""
    notes: tuple[str, ...] = ()
    """Parts of the command that say nothing about vLLM, or that were not read."""


def parse_text(text: str) -> PastedCommand:
    """Parse a script with assignments, exports and one command that starts a server. Raises InputError."""
    if len(text) > TEXT_AT_MOST:
        raise InputError(f"--command-file: more than {TEXT_AT_MOST >> 10} KiB, expected one command")
    env: dict[str, str] = {}
    servers: list[Sequence[str]] = []
    ignored: list[str] = []
    for words in split_commands(text):
        exported = words[1:] if words[0] == "export" else words
        assignments = [match for word in exported if (match := ASSIGNMENT.fullmatch(word))]
        if len(assignments) == len(exported):
            env.update((match[1], match[2]) for match in assignments)
        elif any(_starts_server(word) for word in words):
            servers.append(words)
        else:
            ignored.append(f"not read: {shlex.join(words)[:80]}")
    if len(servers) != 1:
        raise InputError(f"--command-file: found {len(servers)} commands that start vLLM, expected one: {FORMS}")
    command = parse_command_words(servers[0])
    return command._replace(env={**env, **command.env}, notes=(*ignored, *command.notes))


def _starts_server(word: str) -> bool:
    name = word.rpartition("/")[2]
    return name in ("vllm", "drydock", *ENGINES) or word in (API_SERVER, COMMANDS) or word.startswith("--model")


def split_commands(text: str, first_line: int = 1) -> Iterator[list[PlacedWord]]:
    """Yield the words of each simple command, without redirections and comments. Raises InputError."""
    words: list[PlacedWord] = []
    parts: list[str] = []
    place, line, word_line, is_redirected = 0, first_line, first_line, False
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise InputError(f"--command-file: line {line}: a quote is not closed", hint="close each quote")
        place = token.end()
        if token.lastgroup == "part":
            word_line = word_line if parts else line
            parts.append(_unquote_part(token[0]))
        else:
            words += [PlacedWord("".join(parts), word_line)] if parts and not is_redirected else []
            is_redirected = token.lastgroup == "redirect" or (is_redirected and not parts)
            parts = []
        line += token[0].count("\n")
        if token.lastgroup == "separator":
            yield from [words] if words else []
            words, is_redirected = [], False
    words += [PlacedWord("".join(parts), word_line)] if parts and not is_redirected else []
    yield from [words] if words else []


def _unquote_part(part: str) -> str:
    """Return a part of a word as a shell passes it on. Variables and commands in it stay as they are."""
    if part[0] == "'":
        return part[1:-1]
    if part[0] == '"':
        return re.sub(r"\\(\n|[\\\"$`])", lambda match: match[1].strip("\n"), part[1:-1])
    return part[1:] if part[0] == "\\" else part


def parse_command_words(words: Sequence[str]) -> PastedCommand:
    """Parse a command that a shell has split into words. Raises InputError."""
    if len(words) > WORDS_AT_MOST or sum(map(len, words)) > TEXT_AT_MOST:
        raise InputError(f"the command: expected at most {WORDS_AT_MOST} words and {TEXT_AT_MOST >> 10} KiB")
    env: dict[str, str] = {}
    remaining = [*words]
    while remaining:
        match = ASSIGNMENT.fullmatch(remaining[0])
        if match:
            env[match[1]] = match[2]
        elif remaining[0] not in WRAPPERS:
            break
        remaining.pop(0)
        while not match and remaining and remaining[0].startswith("-"):  # sudo -E
            remaining.pop(0)
    command = _parse_program(remaining)
    return command._replace(env={**env, **command.env})


def _parse_program(words: Sequence[str]) -> PastedCommand:
    """Parse a command without assignments before it. Raises InputError."""
    first = words[0] if words else ""
    name, rest = first.rpartition("/")[2], tuple(words[1:])
    if name in ENGINES:
        return _parse_container(rest)
    if name in {"vllm", "drydock"}:
        return _parse_serve(name, rest)
    if PYTHON.match(name):
        return _parse_python(rest)
    if first == "serve":
        return PastedCommand(rest, {})
    if first.startswith("-") or ("/" in first and all(word.startswith("-") for word in rest[:1])):
        return PastedCommand(tuple(words), {})
    actual = f"found {first!r:.60}" if words else "found nothing"
    raise InputError(
        f"the command after --: {actual}, expected {FORMS}", hint="write the command as you start it, after --"
    )


def _parse_serve(program: str, rest: tuple[str, ...]) -> PastedCommand:
    if rest[:1] == ("serve",):
        return PastedCommand(rest[1:], {}, is_drydocks=program == "drydock")
    actual = f"{program} {rest[0]}" if rest else program
    raise InputError(f"the command after --: found `{actual:.60}`, expected `{program} serve MODEL …`")


def _parse_python(rest: tuple[str, ...]) -> PastedCommand:
    """Parse `python3 [-u] -m MODULE …`."""
    place = rest.index("-m") if "-m" in rest else len(rest)
    module, words = "".join(rest[place + 1 : place + 2]), rest[place + 2 :]
    if module == COMMANDS and words[:1] == ("serve",):
        return PastedCommand(words[1:], {})
    if module == API_SERVER:
        return PastedCommand(words, {})
    raise InputError(
        f"the command after --: found python with {module or 'a script'!r:.60}, expected -m {API_SERVER}",
        hint=f"or {FORMS}",
    )


def split_container(rest: Sequence[str]) -> ContainerWords:
    """Split what follows `docker`: `run OPTIONS IMAGE WORDS`. Raises InputError."""
    words = [*rest]
    if words[:1] == ["container"]:
        words.pop(0)
    if words[:1] not in (["run"], ["create"]):
        raise InputError(f"the command after --: found `docker {' '.join(words[:1])}`, expected `docker run … IMAGE …`")
    words.pop(0)
    env: dict[str, str] = {}
    options: list[tuple[str, str]] = []
    while words and words[0].startswith("-"):
        option, value = _container_option(words)
        options.append((option, value))
        if option in ("-e", "--env"):
            variable, equals, text = value.partition("=")
            env[variable] = text if equals else f"${variable}"
    if not words:
        raise InputError("the command after --: `docker run` without an image", hint=f"expected {FORMS}")
    return ContainerWords(words[0], env, tuple(options), tuple(words[1:]))


def _parse_container(rest: tuple[str, ...]) -> PastedCommand:
    """Parse `docker run OPTIONS IMAGE WORDS`. Raises InputError."""
    container = split_container(rest)
    notes = tuple(f"not read: --env-file {value}" for option, value in container.options if option == "--env-file")
    program, inner = container.program, [*container.program, *container.words]
    if not inner:
        raise InputError("the command after --: `docker run` without words for vLLM after the image")
    is_plain = not program and not inner[0].startswith("-") and inner[0] not in ("serve", "vllm")
    is_model = is_plain and not PYTHON.match(inner[0].rpartition("/")[2])
    command = PastedCommand(tuple(inner), {}) if is_model else _parse_program(inner)
    return command._replace(env={**container.env, **command.env}, notes=(*notes, *command.notes))


def _container_option(words: list[str]) -> tuple[str, str]:
    """Take an option of `docker run` and its value from the words."""
    word = words.pop(0)
    if word.startswith("--"):
        option, equals, value = word.partition("=")
        if equals or option in SWITCHES:
            return option, value
        return option, words.pop(0) if words else ""
    if set(word[1:]) <= SHORT_SWITCHES:
        return word, ""
    letters = word[1:].lstrip("".join(SHORT_SWITCHES)) or word[1:]  # -itp 8000:8000
    value = letters[1:].removeprefix("=")
    return f"-{letters[:1]}", value or (words.pop(0) if words else "")


def read_command(words: Sequence[str], file: str) -> PastedCommand:
    """Return the command after --, or that of a file. Raises InputError."""
    if bool(words) == bool(file):
        actual = "both a command after -- and --command-file" if file else "no command"
        raise InputError(f"compare: found {actual}", hint="./inv compare --from ROW --to ROW -- vllm serve MODEL …")
    return parse_text(_read_text(file)) if file else parse_command_words(words)


def _read_text(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.buffer.read(TEXT_AT_MOST + 1).decode()
        return read_bounded(Path(file), TEXT_AT_MOST).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"--command-file {file}: not UTF-8") from error
    except OSError as error:
        raise explain_os_error(error, file) from error
