"""Plans of recorded hosts, as the entrypoints of rows make them: several at once. IO: a process for each plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from drydock.core.errors import DrydockError
from drydock.core.project import Project
from drydock.model.variant import Variant
from drydock.run import entrypoint


class PlanQuestion(NamedTuple):
    """A row, a recorded host, and what `plan` gets there."""

    variant: Variant
    host: Path
    words: Sequence[str]
    container_env: Mapping[str, str] = MappingProxyType({})
    """Variables of the container."""
    shell: Mapping[str, str] | None = None
    """Variables of this machine that the entrypoint may see; None for the shell's own."""
    folder: Path | None = None
    """What paths among the words are relative to; None for the current folder."""


class RecordedPlan(NamedTuple):
    """The answer to a question."""

    document: Mapping[str, Any]
    """What `plan --json` prints; empty if there is no plan."""
    error: DrydockError | None = None

    @property
    def problem(self) -> str:
        """Return why there is no plan; empty if there is one."""
        return self.error.problems[0] if self.error else ""

    def list_variables(self) -> dict[str, str]:
        """Return the variables of the command, without those that name folders of the cache, whose names are hashes."""
        folders = self.document["cache"]["folders"]
        return {name: value for name, value in self.document["env"].items() if name not in folders}


def make_recorded_plans(project: Project, questions: Sequence[PlanQuestion]) -> list[RecordedPlan]:
    """Return an answer for each question, in their order."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [*pool.map(lambda question: _make_recorded_plan(project, question), questions)]


def _make_recorded_plan(project: Project, question: PlanQuestion) -> RecordedPlan:
    shell = os.environ if question.shell is None else question.shell
    words = ("plan", "--json", "--root", str(question.host), *question.words)
    try:
        return RecordedPlan(
            entrypoint.answer_for_container(
                project, question.variant, words, question.container_env, shell, question.folder
            )
        )
    except DrydockError as error:
        return RecordedPlan({}, error)
