"""What a user adds to a container: variables, volumes, a network, and words to run instead of serving. Pure."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from drydock.core.errors import InputError
from entrypoints.core.redact import is_secret, redact_value
from entrypoints.core.text import VARIABLE_NAME

SERVE = "serve"
HOST = "host"
"""Docker's name of the machine's own network."""
MODES = (HOST, "bridge", "none")
"""Docker's networks that exist everywhere. Compose takes them as network_mode, and any other as an external network."""

_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_ALIKE = 0.85
"""How alike two names are of which one may be a misspelling of the other (difflib's ratio)."""
_PROGRAM = "/opt/drydock"
"""The entrypoint's folder in the image."""
_OF_THE_KERNEL = ("/dev", "/proc", "/sys")
_FIELDS = (2, 3)
"""Numbers of fields of --volume."""


class GivenVariables(NamedTuple):
    """The variables of --env."""

    user_env: Mapping[str, str]
    """Those with a value."""
    passed_names: tuple[str, ...]
    """Those without: their values are taken from the shell, or from a secret."""


class KnownVariables(NamedTuple):
    """The variables that drydock, vLLM or the row's data know. Any other may hold a secret, whatever its name is."""

    names: tuple[str, ...]
    prefixes: tuple[str, ...]

    def shows(self, name: str, value: str) -> bool:
        """Tell whether a variable's value may be written: it is known, and is not and has no secret."""
        return (name in self.names or name.startswith(self.prefixes)) and not is_secret_value(name, value)


class Volume(NamedTuple):
    """A folder or file of --volume."""

    source: str
    """Absolute path on the host."""
    target: str
    read_only: bool


def parse_variables(texts: Iterable[str]) -> GivenVariables:
    """Parse NAME or NAME=VALUE. Raises InputError, also for a secret's value: a command line is no place for it."""
    values: dict[str, str] = {}
    names: list[str] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not VARIABLE_NAME.fullmatch(name):
            raise InputError(
                f"--env {name!r}: expected the name of a variable, of letters, digits and _",
                hint="--env NAME=VALUE, or --env NAME for the value in your shell",
            )
        if name in values or name in names:
            raise InputError(f"--env {name}: given twice", hint="leave one of them out")
        if not equals:
            names.append(name)
            continue
        _check_value(name, value)
        values[name] = value
    return GivenVariables(values, tuple(names))


def _check_value(name: str, value: str) -> None:
    if redact_value(name, value) != value:
        raise InputError(
            f"--env {name}: a secret on the command line, which other users and your shell's history can see",
            hint=f"export {name} in your shell, and pass --env {name} without a value",
        )
    if "\0" in value:
        raise InputError(f"--env {name}: found a NUL character, which no variable can hold")


def warn_misspelt_names(names: Iterable[str], known_names: Iterable[str]) -> tuple[str, ...]:
    """Return a warning for each name that is unknown but nearly a known one."""
    listed = tuple(dict.fromkeys(known_names))
    suggestions = ((name, difflib.get_close_matches(name, listed, 1, _ALIKE)) for name in names if name not in listed)
    return tuple(
        f"--env {name}: nothing documents this name; did you mean {like[0]}?" for name, like in suggestions if like
    )


# --- volumes --------------------------------------------------------------------------------------------------------


def expand_user(text: str) -> Path:
    """Return a path with ~ replaced; unlike Path.expanduser, do not fail for an unknown user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - see above


def parse_volume(text: str) -> Volume:
    """Parse SOURCE:TARGET[:ro]. Raises InputError."""
    fields = text.split(":")
    if len(fields) not in _FIELDS or not all(fields) or "\0" in text or fields[2:] not in ([], ["ro"]):
        raise InputError(f"--volume {text!r}: expected SOURCE:TARGET or SOURCE:TARGET:ro, without other colons")
    source, target = fields[:2]
    if not source.startswith(("/", ".", "~")):
        raise InputError(
            f"--volume {text}: {source} is no path", hint=f"./{source} is one; --cache takes the name of a volume"
        )
    if not target.startswith("/"):
        raise InputError(f"--volume {text}: found the target {target}, expected an absolute path in the container")
    if ".." in (*PurePosixPath(source).parts, *PurePosixPath(target).parts):
        raise InputError(f"--volume {text}: found .., expected paths without it")
    return Volume(str(expand_user(source).absolute()), _normalise_path(target), len(fields) > min(_FIELDS))


def _normalise_path(path: str) -> str:
    """Return an absolute path without doubled or final slashes."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def check_volumes(targets: Sequence[str], mounted_paths: Mapping[str, str]) -> None:
    """Check that no target covers, or lies in, what the container has there. Raises InputError with all that do.

    `mounted_paths`: path in the container → what it is.
    """
    reserved_paths = {**mounted_paths, _PROGRAM: "the image's entrypoint"}
    problems = [
        f"--volume …:{target}: {path} is {what}"
        for target in targets
        for path, what in reserved_paths.items()
        if _is_within(target, path) or _is_within(path, target)
    ]
    problems += [f"--volume …:{target}: docker makes it" for target in targets if target in _OF_THE_KERNEL]
    problems += [f"--volume …:{target}: given twice" for target in dict.fromkeys(targets) if targets.count(target) > 1]
    if problems:
        raise InputError(*problems, hint="choose another path in the container")


def _is_within(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


# --- network, words -------------------------------------------------------------------------------------------------


def parse_network(text: str) -> str:
    """Return the name of a network of the engine. Raises InputError."""
    if text and not _NETWORK.fullmatch(text):
        raise InputError(f"--network {text!r}: expected host, or the name of a network", hint="`docker network ls`")
    return text


def split_verb(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the entrypoint's verb or a command, and its words. Words that begin with a flag are those of serve."""
    if not words or words[0].startswith("-"):
        return SERVE, tuple(words)
    return words[0], tuple(words[1:])


def suffix_of(verb: str) -> str:
    """Return what follows a container's name for something else than serving: its verb, or its program's name."""
    word = re.sub(r"[^a-z0-9]+", "-", verb.rpartition("/")[2].lower()).strip("-")
    return word or "command"


def is_secret_value(name: str, value: str) -> bool:
    """Tell whether a variable's value must not be written into a file."""
    return is_secret(name) or redact_value(name, value) != value
