"""What runs, kept in a folder: the plans, the rendered files, and by what they were started. IO."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from drydock.config.matrix import find, read_matrix
from drydock.config.validation import made
from drydock.core.errors import InputError, nearest
from drydock.core.files import (
    check_below,
    dumps,
    exclusive,
    make_folder,
    parse_json,
    read_bounded,
    unwritable,
    write_atomically,
)
from drydock.core.paths import ROOT
from drydock.model.names import OneLine
from drydock.model.record import IDENTIFIER_AT_MOST, Count, Identifier, Record, dump
from drydock.topology.planned import TopologyPlan
from drydock.topology.playbook.run import Ssh
from drydock.topology.render.chips import Commands
from drydock.topology.rollout.ansible import Ansible
from drydock.topology.rollout.compose import Compose
from drydock.topology.rollout.runner import Runner

FORMATS = ("compose", "ansible")
STATE, LOCK = "state.json", "lock"
STATE_AT_MOST = 64 << 20
"""Bytes; two plans of a thousand ranks have half of that."""
_KUBERNETES = ("kubernetes", "disaggregatedset", "k8s")


class TopologyState(Record):
    """What was started last."""

    file: OneLine
    """The topology.yaml, or its plan."""
    name: Identifier
    format: Literal["compose", "ansible"]
    holder: OneLine
    """The image of the containers that hold the nodes of one engine."""
    ssh: Ssh = Ssh()
    """How Ansible logs in; a key is a file's name, not its content."""
    number: Count = 1
    """Of the plan that clients use: each roll adds one."""
    plans: tuple[TopologyPlan, ...] = Field(min_length=1)
    """What runs; clients use the first."""


def checked_format(kind: str) -> Literal["compose", "ansible"]:
    """Return the format. Raises InputError; for Kubernetes it names what starts a topology there."""
    if kind in _KUBERNETES:
        hint = "`./inv topology render PLAN --format kubernetes --output FOLDER` writes it; kubectl apply -k FOLDER"
        raise InputError(f"--format {kind}: the cluster starts, watches and replaces it, not this program", hint=hint)
    if kind not in FORMATS:
        raise InputError(f"--format {kind}: unknown format", hint=nearest(kind, FORMATS))
    return "ansible" if kind == "ansible" else "compose"


def name_of(file: Path) -> str:
    """Return a topology's name: that of its file, or of the folder of a topology.yaml or plan.json."""
    stem = _whole(file).parent.name if file.stem in ("topology", "plan") else file.stem
    return re.sub(r"[^a-z0-9]+", "-", stem.lower())[:IDENTIFIER_AT_MOST].strip("-") or "topology"


def _whole(path: str | Path) -> Path:
    """Return a path from the root and without `..`; links stay, so that what `current` names can be replaced."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute keeps `..`, Path.resolve follows links


class TopologyPlace:
    """The folder of one topology: `.cache/topology/NAME` in the checkout, or one that the user names."""

    def __init__(self, file: Path, output: str = "", root: Path = ROOT) -> None:
        self.file, self.name = _whole(file), name_of(file)
        self.folder = _whole(output) if output else root / ".cache" / "topology" / self.name

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs away from this topology while the block runs."""
        check_below(self.folder, (LOCK, STATE))
        with unwritable(self.folder):
            make_folder(self.folder)
        with exclusive(self.folder / LOCK):
            yield

    def read(self) -> TopologyState | None:
        """Return what was started; None if nothing was. Raises InputError if the folder is another file's."""
        path = self.folder / STATE
        if not path.is_file():
            return None
        try:
            found = made(TopologyState, str(path), parse_json(read_bounded(path, STATE_AT_MOST), str(path)))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        if found.file != str(self.file):
            text = f"{self.folder}: it runs {found.file}, not {self.file}"
            raise InputError(text, hint="give each topology a folder of its own with --output")
        return found

    def running(self) -> TopologyState:
        """Return what was started. Raises InputError if nothing was."""
        found = self.read()
        if found is None:
            raise InputError(f"{self.file}: not started from here: found no {self.folder / STATE}", hint="topology up")
        return found

    def write(self, state: TopologyState) -> None:
        """Keep what runs."""
        write_atomically(self.folder / STATE, dumps(dump(state)))

    def forget(self) -> None:
        """Remove what is known; rendered files stay to be read."""
        (self.folder / STATE).unlink(missing_ok=True)

    def runner(self, state: TopologyState, hosts: dict[str, Commands]) -> Runner:
        """Return what starts and stops the containers."""
        variant = find(read_matrix(ROOT), state.plans[0].variant)
        if state.format == "ansible":
            return Ansible(self.folder, variant, state.plans, hosts, state.ssh)
        return Compose(f"drydock-{state.name}", self.folder, variant, state.holder, hosts)
