"""The image's entrypoint, asked for facts and plans of recorded hosts: a process for each question. IO."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from drydock.core.errors import HostError, InputError
from drydock.model.variant import Variant
from drydock.run import entrypoint


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

    def plan(self, asked: Asked) -> Any:
        """Return what `plan --json` prints."""


class Entrypoint:
    """The entrypoint of this checkout, with a variant's committed profile."""

    def __init__(self, variant: Variant, hub: Path | None = None) -> None:
        self._variant = variant
        self._hub = {"HF_HUB_CACHE": str(hub)} if hub else {}

    def facts(self, host: Path) -> Any:
        """Return the facts of a recorded host. Raises InputError and HostError."""
        return self._json(("facts", "--root", str(host)), {}, str(host))

    def plan(self, asked: Asked) -> Any:
        """Return the plan of one rank, by the same decisions as in the container. Raises InputError and HostError."""
        words = ("plan", "--root", str(asked.host), "--json", asked.model, *asked.words)
        return self._json(words, asked.env, str(asked.host))

    def _json(self, words: Sequence[str], env: Mapping[str, str], host: str) -> Any:
        argv, own = entrypoint.argv_of(self._variant, words)
        env = {**own, **self._hub, **env}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode == 0:
            return json.loads(done.stdout)
        error = entrypoint.failure(done.returncode, done.stderr)
        kind = InputError if isinstance(error, InputError) else HostError
        raise kind(f"{host}: {error.problems[0]}", *error.problems[1:], hint=error.hint)


@contextlib.contextmanager
def model_folder(model: str, folder: str) -> Iterator[tuple[str, Path | None]]:
    """Yield where a model is read here, and a hub cache for a hub id whose files are in `folder`; empty for none.

    Of a hub id config.json is enough: the weights are estimated, or read from their index. Raises InputError.
    """
    if not folder:
        yield model, None
        return
    if not (Path(folder) / "config.json").is_file():
        raise InputError(f"--model {folder}: found no config.json", hint="name the folder with the model's files")
    if model.startswith(("/", ".")):
        yield str(Path(folder).absolute()), None
        return
    with tempfile.TemporaryDirectory(prefix="drydock-hub-") as cache:
        link = Path(cache) / f"models--{model.replace('/', '--')}" / "snapshots" / "main"
        link.parent.mkdir(parents=True)
        link.symlink_to(Path(folder).absolute())
        yield model, Path(cache)
