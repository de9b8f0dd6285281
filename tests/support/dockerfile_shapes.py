"""Which rows of the matrix show every kind of build step: what `./inv test` builds, where `--all` builds each row."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from drydock.build.standins import find_vllm_carrier
from drydock.core.paths import ROOT
from drydock.model.variant import Variant

_PROGRAM = re.compile(r"(?:^|;|\bdo\b|\bthen\b)\s*(?:\w+=\S*\s+)*([^\s;]+)")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_OPTIONS = re.compile(r"--(?:mount|network)=\S+")
_SHELL = {"set", "export", "done", "fi", "do", "then", "[", "for", "if"}


def representatives(variants: Iterable[Variant]) -> set[str]:
    """Return the ids of rows that have, together, every kind of step: each accelerator's default, then what they lack.

    Two steps are of one kind if they run the same programs: versions, names, paths and environment do not count.
    """
    rows = sorted(variants, key=lambda variant: not variant.default)
    seen_kinds: set[str] = set()
    variant_ids: set[str] = set()
    for variant in rows:
        kinds = step_kinds((ROOT / "images" / variant.id / "Dockerfile").read_text())
        kinds |= {f"vLLM comes by {find_vllm_carrier(variant)}", f"accelerator {variant.accelerator}"}
        if kinds - seen_kinds:
            variant_ids.add(variant.id)
        seen_kinds |= kinds
    return variant_ids


def step_kinds(dockerfile: str) -> set[str]:
    """Return a Dockerfile's kinds of step: a RUN's programs, or the name of another instruction."""
    lines = re.sub(r"(?m)^\s*#.*\n", "", dockerfile)
    instructions = [line for line in re.sub(r"\\\n\s*", " ", lines).splitlines() if line.strip()]
    return {_programs(line) if line.startswith("RUN ") else line.split()[0] for line in instructions}


def _programs(run: str) -> str:
    commands = _QUOTED.sub("Q", _OPTIONS.sub("", run.removeprefix("RUN ")))
    names = {PurePosixPath(name).name for name in _PROGRAM.findall(commands)}
    return " ".join(["RUN", *sorted(names - _SHELL)])
