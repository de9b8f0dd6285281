"""docs/reference/memory.md: what plans claim of a GPU's memory against what vLLM measured. `./inv generate` writes it.

The runs are those of tests/models/memory: lines of public start-up logs, with the
models' sizes. Models are sorted by name; every second one is for fitting, the others are held out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from entrypoints.core.records import Use
from entrypoints.core.units import GIB
from entrypoints.model.config import parse_config
from entrypoints.model.read import ModelFacts, parse_model
from entrypoints.model.weights import weights_by_size
from tests.support import machines, planned

CORPUS = planned.HERE / "memory" / "h100-vllm-0.19.json"
PAGE = planned.ROOT / "docs" / "reference" / "memory.md"
FITTED, HELD_OUT = "fitted", "held out"


class Run(NamedTuple):
    """One start-up, and the lines that vLLM wrote."""

    model: str
    flags: tuple[str, ...]
    half: str
    """FITTED, HELD_OUT"""
    weights: float
    """GiB, as are the next four, of the rank that takes the most."""
    activations: float
    other: float
    graphs: float
    cache: float
    tokens: int
    """Of the KV cache, in sequences of the longest length."""
    length: int
    log: str


class Comparison(NamedTuple):
    """A run and what is planned for it."""

    run: Run
    use: Use
    family: str

    @property
    def error(self) -> float:
        """The planned tokens of the KV cache against the measured ones; above zero is an over-claim."""
        return self.use.tokens / self.run.tokens - 1


@cache
def corpus() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(CORPUS.read_text())
    return table


@cache
def runs() -> tuple[Run, ...]:
    """Return the measured runs, by model and flags."""
    table = corpus()
    order = sorted(table["models"], key=str.lower)
    return tuple(sorted((_read_run(body, order) for body in table["runs"]), key=lambda run: (run.model.lower(), run)))


def _read_run(body: Mapping[str, Any], order: list[str]) -> Run:
    return Run(
        body["model"],
        tuple(body["flags"].split()),
        HELD_OUT if order.index(body["model"]) % 2 else FITTED,
        body["weights_gib"],
        body["activations_gib"],
        body["other_gib"],
        body["graphs_gib"],
        body["cache_gib"],
        int(body["concurrency"] * body["length"]),
        body["length"],
        body["log"],
    )


@cache
def read_measured_model(name: str) -> ModelFacts:
    """Return a model of the corpus with the weights that its files have."""
    body = corpus()["models"][name]
    config = parse_config(body.get("config") or planned.configurations()[body["like"]]["config"])
    size = int(body["weights_gib"] * GIB)
    return parse_model(name, config, name)._replace(weights=weights_by_size(size, config))


@cache
def compare(run: Run) -> Comparison:
    """Plan a run on the card that it ran on, for its vLLM."""
    ranks = 1
    for name, value in zip(run.flags[::2], run.flags[1::2], strict=True):
        ranks *= int(value) if name in ("--tensor-parallel-size", "--pipeline-parallel-size") else 1
    machine = machines.machine("h100", ranks)
    machine = machine._replace(profile={**machine.profile, "vllm": corpus()["vllm"]})
    model = read_measured_model(run.model)
    return Comparison(run, planned.plan(machine, model, run.flags).uses[0], model.architecture)


@cache
def comparisons() -> tuple[Comparison, ...]:
    """Return all runs with their plans."""
    return tuple(compare(run) for run in runs())


def mean_error(chosen: Iterable[Comparison]) -> float:
    """Return the mean of the errors without their signs."""
    errors = [abs(item.error) for item in chosen]
    return sum(errors) / len(errors)


# --- the page -------------------------------------------------------------------------------------------------------


def render_page() -> str:
    table = corpus()
    parts = [_INTRODUCTION.format(source=table["source"], vllm=table["vllm"], count=len(runs())), _summary()]
    return "\n".join([*parts, "## Families\n", planned.table(_FAMILY, _family_rows()), _AFTER, _run_table()])


_INTRODUCTION = """# Memory: measured and planned

Written by `./inv generate`.

vLLM measures at each start what weights and a step take, and gives the rest of its share to the KV cache. A plan says
this before the start. The table compares both for {count} starts of vLLM {vllm} on NVIDIA H100 80GB, whose logs are
public: {source}. An error above zero is an over-claim: the plan promises more tokens than vLLM has.

Models are sorted by name. The constants in `templates/cuda/accelerator.yaml` are fitted to every second model, and the
others are held out; the form of the formula was chosen with all of them in view. No other version and no other card
was measured. From vLLM 0.21 on, captured graphs count too; the same logs report vLLM's estimate of them, which vLLM
0.19 did not yet subtract.
"""

_FAMILY = ["architecture", "models", "starts", "half", "measured tokens", "planned tokens", "mean error", "worst"]
_AFTER = """
Tokens are those of the first start of a family.

## Starts
"""


def _summary() -> str:
    """Return the errors of both halves."""
    rows = []
    for half in (FITTED, HELD_OUT):
        chosen = [item for item in comparisons() if item.run.half == half]
        models = len({item.run.model for item in chosen})
        most = max(item.error for item in chosen)
        rows.append([half, str(models), str(len(chosen)), f"{mean_error(chosen):.1%}", f"{most:+.1%}"])
    return planned.table(["half", "models", "starts", "mean error", "largest over-claim"], rows)


def _family_rows() -> Iterator[list[str]]:
    """Yield a row for each architecture and half."""
    names = sorted({(item.family, item.run.half) for item in comparisons()})
    for family, half in names:
        chosen = [item for item in comparisons() if (item.family, item.run.half) == (family, half)]
        worst, first = max((item.error for item in chosen), key=abs), chosen[0]
        models = str(len({item.run.model for item in chosen}))
        tokens = (f"{first.run.tokens:,}", f"{first.use.tokens:,}")
        mean = sum(item.error for item in chosen) / len(chosen)
        yield [f"`{family}`", models, str(len(chosen)), half, *tokens, f"{mean:+.1%}", f"{worst:+.1%}"]


def _run_table() -> str:
    columns = ["model", "flags", "half", "weights GiB", "rest GiB", "KV cache tokens", "error"]
    return planned.table(columns, (_run_row(item) for item in comparisons()))


def _run_row(item: Comparison) -> list[str]:
    run, use = item.run, item.use
    flags = " ".join(word.replace("-parallel-size", "") for word in run.flags)
    rest = f"{run.activations + run.other:.2f}, {use.other / GIB:.2f}"
    weights, tokens = f"{run.weights:.2f}, {use.weights / GIB:.2f}", f"{run.tokens:,}, {use.tokens:,}"
    return [run.model, f"`{flags}`", run.half, weights, rest, tokens, f"{item.error:+.1%}"]
