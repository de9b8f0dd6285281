"""The image's entrypoint, asked for facts and plans of recorded hosts: a process for each question. IO."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
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

    def __init__(self, variant: Variant) -> None:
        self._variant = variant

    def facts(self, host: Path) -> Any:
        """Return the facts of a recorded host. Raises InputError and HostError."""
        return self._json(("facts", "--root", str(host)), {}, str(host))

    def plan(self, asked: Asked) -> Any:
        """Return the plan of one rank, by the same decisions as in the container. Raises InputError and HostError."""
        words = ("plan", "--root", str(asked.host), "--json", asked.model, *asked.words)
        return self._json(words, asked.env, str(asked.host))

    def _json(self, words: Sequence[str], env: Mapping[str, str], host: str) -> Any:
        argv, own = entrypoint.argv_of(self._variant, words)
        done = subprocess.run(argv, env={**own, **env}, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode == 0:
            return json.loads(done.stdout)
        error = entrypoint.failure(done.returncode, done.stderr)
        kind = InputError if isinstance(error, InputError) else HostError
        raise kind(f"{host}: {error.problems[0]}", *error.problems[1:], hint=error.hint)
