"""Ids of findings: each has one meaning and one accelerator's prefix, and is never used again once retired. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from drydock.config.stack_files import StackFile
from drydock.config.strict_yaml import KeyPath, YamlDocument
from drydock.config.validation import Problem
from drydock.model.checks import AnyHost
from drydock.model.variant import Accelerator, Stack


class Use(NamedTuple):
    """One place in the data that gives an id a meaning."""

    id: str
    meaning: str
    """The fact that a check judges, or the text of a finding that code makes."""
    accelerator: str
    """Whose file it is; empty for templates/host.yaml."""
    document: YamlDocument
    path: KeyPath

    @property
    def prefix(self) -> str:
        """Return the id's part before the number."""
        return self.id.partition("-")[0]

    def problem(self, message: str) -> str:
        """Return a message after the place that it is about."""
        return self.document.problem(self.path, message)


def find_id_problems(
    common: AnyHost | None,
    host: YamlDocument | None,
    accelerators: Mapping[str, tuple[Accelerator, YamlDocument]],
    stacks: Mapping[str, StackFile],
) -> Iterator[Problem]:
    """Yield each id with two meanings, each use of a retired id, and each prefix that two accelerators use."""
    uses = list(_list_uses("", common, host, ())) if common and host else []
    shared = {use.prefix for use in uses}
    for name, (accelerator, its) in accelerators.items():
        uses += _list_uses(name, accelerator, its, ())
    for file in stacks.values():
        uses += _list_uses(file.accelerator, file.stack, file.document, ())
    yield from _find_retired(uses, common)
    yield from _find_ambiguous(uses)
    yield from _find_foreign([use for use in uses if use.prefix not in shared])


def _list_uses(
    accelerator: str, holder: AnyHost | Accelerator | Stack, document: YamlDocument, path: KeyPath
) -> Iterator[Use]:
    for index, check in enumerate(holder.checks or ()):
        yield Use(check.id, f"the check of {check.fact}", accelerator, document, (*path, "checks", index))
    for number, finding in ({} if isinstance(holder, Stack) else holder.findings).items():
        yield Use(number, repr(finding.text), accelerator, document, (*path, "findings", number))


def _find_retired(uses: list[Use], common: AnyHost | None) -> Iterator[Problem]:
    retired: dict[str, list[str]] = {}
    for item in common.retired if common else ():
        retired.setdefault(item.id, []).append(item.meaning)
    for use in uses:
        if use.id in retired:
            text = f"{use.id} is retired in templates/host.yaml: it meant {'; or '.join(retired[use.id])}"
            yield use.problem(text), "choose an id that was never used"


def _find_ambiguous(uses: list[Use]) -> Iterator[Problem]:
    first: dict[str, Use] = {}
    for use in uses:
        first_use = first.setdefault(use.id, use)
        if first_use.meaning != use.meaning:
            text = (
                f"{use.id} is {use.meaning} here, and {first_use.meaning} elsewhere: {first_use.problem('first used')}"
            )
            yield use.problem(text), "an id has one meaning: choose another id"


def _find_foreign(uses: list[Use]) -> Iterator[Problem]:
    owners: dict[str, Use] = {}
    for use in uses:
        owner = owners.setdefault(use.prefix, use)
        if owner.accelerator != use.accelerator:
            text = f"{use.id} of {use.accelerator} has the prefix of {owner.accelerator}: {owner.problem('first used')}"
            yield use.problem(text), "give each accelerator's ids a prefix of their own"
