"""A verb in a container that answers for a recorded host: it needs files of this machine, and none of its devices.

Pure, but for looking whether a file exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.model.running import Run
from drydock.run import access, user_options

CONFIGURATIONS = Path(__file__).with_name("configurations.json")
KNOWN_MODELS = "DRYDOCK_KNOWN_MODELS"
"""Variable with the path of the configurations that drydock knows by hub id, for models that no hub answers for."""
ROOT, MODEL_CONFIG = "--root", "--model-config"
"""Options of the entrypoint that name a file or folder."""
VERBS = ("plan", "check", "facts")
"""Verbs that read a recorded host and start nothing."""
FOLDER = "/recorded"
"""Where such files are in the container."""
OF_DEVICES = ("devices", "capabilities", "groups", "mounts", "ulimits", "more")
OF_RUNTIME = ("visible", "runtime", "gpus", "ipc", "network", "user", "privileged")
"""Fields of the run record that give a container this machine's devices."""


class CarriedFile(NamedTuple):
    """A file or folder of this machine, and its path in the container."""

    source: str
    target: str


def is_for_recorded_host(verb: str, words: Sequence[str]) -> bool:
    """Return whether a verb answers for a recorded host of this machine's files."""
    return verb in VERBS and _is_here(access.value_of(words, ROOT))


def without_devices(run: Run) -> Run:
    """Return the record for a container that needs no device of this machine."""
    return run.model_copy(update={**dict.fromkeys(OF_DEVICES, ()), **dict.fromkeys(OF_RUNTIME)})


def find_files(words: Sequence[str]) -> tuple[CarriedFile, ...]:
    """Return the files of this machine that the words name, and the configurations that drydock knows.

    Raises InputError.
    """
    paths_by_option = {option: access.value_of(words, option) for option in (ROOT, MODEL_CONFIG)}
    files = (
        CarriedFile(str(_expand_path(path)), _name_path_inside(option))
        for option, path in paths_by_option.items()
        if _is_here(path)
    )
    return (*files, CarriedFile(str(CONFIGURATIONS), f"{FOLDER}/{CONFIGURATIONS.name}"))


def name_in_container(words: Sequence[str]) -> Iterator[str]:
    """Yield the words, with the paths that these files have in the container."""
    option = ""
    for word in words:
        name, equals, value = word.partition("=")
        if option in (ROOT, MODEL_CONFIG) and _is_here(word):
            yield _name_path_inside(option)
        elif name in (ROOT, MODEL_CONFIG) and equals and _is_here(value):
            yield f"{name}={_name_path_inside(name)}"
        else:
            yield word
        option = word


def make_recorded_variables() -> dict[str, str]:
    """Return the variables that such a container has."""
    return {KNOWN_MODELS: f"{FOLDER}/{CONFIGURATIONS.name}"}


def _name_path_inside(option: str) -> str:
    return f"{FOLDER}/{option.lstrip('-')}"


def _is_here(path: str) -> bool:
    """Return whether a path is one of this machine; otherwise the user has mounted it."""
    return bool(path) and _expand_path(path).exists()


def _expand_path(path: str) -> Path:
    return user_options.expand_user(path).resolve()
