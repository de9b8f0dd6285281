"""The image's entrypoint, asked for facts and plans of recorded hosts: a process for each question. IO."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from drydock.core.errors import HostError, InputError
from drydock.core.project import Project
from drydock.inputs import model_images
from drydock.model.variant import Variant
from drydock.oci.reference import OCI
from drydock.run import entrypoint, recorded_host
from drydock.run.container import BUCKETS

_HUB = ("HF_", "HUGGING", "MODELSCOPE_")
"""How variables begin that say where models are downloaded from, where they are kept, and with which token."""
_OF_THIS_MACHINE = frozenset(
    {entrypoint.PROFILE, recorded_host.KNOWN_MODELS, entrypoint.HUB_CACHES, "HOME", "XDG_CACHE_HOME"}
    | {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "TRANSFORMERS_OFFLINE"}
)
"""Other variables by which the entrypoint finds the image's profile and the hub: entrypoints/model/hub.py."""


class Asked(NamedTuple):
    """What one rank is planned for."""

    host: Path
    """Its recorded host."""
    model: str
    """Folder or hub id where the model is read."""
    words: tuple[str, ...]
    env: Mapping[str, str]


class Ask(Protocol):
    """Answers of an image's entrypoint, as JSON."""

    def facts(self, host: Path) -> Any:
        """Return what `facts` prints of a recorded host."""

    def plan(self, question: Asked) -> Any:
        """Return what `plan --json` prints."""


class Entrypoint:
    """The entrypoint of this checkout, with a variant's committed profile."""

    def __init__(self, project: Project, variant: Variant, hub: Path | None = None) -> None:
        self._project, self._variant = project, variant
        self._hub = {"HF_HUB_CACHE": str(hub)} if hub else {}

    def facts(self, host: Path) -> Any:
        """Return the facts of a recorded host. Raises InputError and HostError."""
        return self._json(("facts", "--root", str(host)), {}, str(host))

    def plan(self, question: Asked) -> Any:
        """Return the plan of one rank, by the same decisions as in the container. Raises InputError and HostError."""
        words = model_images.replace_model_address(
            ("plan", "--root", str(question.host), "--json", question.model, *question.words)
        )
        return self._json(words, {**_of_the_container(question.env), **self._hub}, str(question.host))

    def _json(self, words: Sequence[str], env: Mapping[str, str], host: str) -> Any:
        try:
            return entrypoint.answer_for_container(self._project, self._variant, words, env)
        except (InputError, HostError) as error:
            raise type(error)(f"{host}: {error.problems[0]}", *error.problems[1:], hint=error.hint) from error


def _of_the_container(env: Mapping[str, str]) -> dict[str, str]:
    """Leave out what says where this machine reads the model: only the shell sends its token to an address."""
    return {name: value for name, value in env.items() if not name.startswith(_HUB) and name not in _OF_THIS_MACHINE}


@contextlib.contextmanager
def model_folder(model: str, folder: str) -> Iterator[tuple[str, Path | None]]:
    """Yield where a model is read here, and a hub cache for a hub id whose files are in `folder`; empty for none.

    Of a hub id config.json is enough: the weights are estimated, or read from their index. Raises InputError.
    """
    if not folder:
        if model.startswith("/") and not os.path.exists(model):  # noqa: PTH110 - Path.exists raises for a too long name
            hint = "--model FOLDER says where this machine has the model's files"
            raise InputError(f"model {model}: no such folder on this machine, which reads the model to plan", hint=hint)
        yield model, None
        return
    if not os.path.isfile(f"{folder}/config.json"):  # noqa: PTH113 - Path.is_file raises for a too long name
        raise InputError(f"--model {folder}: found no config.json", hint="name the folder with the model's files")
    if model.startswith(("/", OCI, *BUCKETS)):
        yield str(Path(folder).absolute()), None
        return
    with tempfile.TemporaryDirectory(prefix="drydock-hub-") as cache:
        link = Path(cache) / f"models--{model.replace('/', '--')}" / "snapshots" / "main"
        try:
            link.parent.mkdir(parents=True)
            link.symlink_to(Path(folder).absolute())
        except OSError as error:
            text = f"model: found {model!r}, expected a hub id such as Qwen/Qwen3-8B: {error.strerror}"
            raise InputError(text) from error
        yield model, Path(cache)
