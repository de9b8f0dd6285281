"""Published recommendations and ours: docs/reference/decisions.md, and the differences for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from entrypoints.core.errors import EntrypointError
from entrypoints.request.flags import NODES
from tests.support.machines import accelerator, machine
from tests.support.planned import HERE, ROOT, Spread, intents_of, models, plan, spread, table

PAGE = ROOT / "docs" / "reference" / "decisions.md"
REFUSED = "refused"


class Record(NamedTuple):
    """What a vendor or a project recommends for one model on one host, or several equal ones."""

    model: str
    device: str
    """A kind of machines.KINDS."""
    devices: int
    """Handed to the server, on each host: logical cores on Neuron, NUMA nodes of a CPU."""
    tensor: int
    says: str
    source: str
    pipeline: int = 1
    data: int = 1
    experts: bool | None = None
    """Whether expert parallelism is on; None if the source says nothing of it."""
    hosts: int = 1
    joined: bool = False
    """Whether NVLink joins the hosts, as the source says (MNNVL, trays of one rack)."""
    words: tuple[str, ...] = ()
    """Further flags of vLLM that both commands have."""
    intents: Mapping[str, Any] = {}
    differs: str = ""
    """Why ours differs, where it does."""
    named: str = ""
    """The model that the source names, if it has the configuration of `model`; empty if it is `model`."""
    target: str = ""
    """The row of the matrix with the software that the source describes; empty for the kind's own."""

    @property
    def title(self) -> str:
        """Return the model's name as the source has it."""
        return self.named or self.model

    @property
    def short(self) -> str:
        return Spread(self.tensor, self.pipeline, self.data, bool(self.experts), "", "").short()

    @property
    def on(self) -> str:
        """Return the machine in short."""
        return f"{f'{self.hosts} x ' * (self.hosts > 1)}{self.devices} {self.device}"

    @property
    def question(self) -> tuple[str, str, str | None]:
        """Return the model, the machine and the aim."""
        return self.model, self.on, self.intents.get("optimize")

    @property
    def asked(self) -> str:
        """Return flags and goals as words."""
        return " ".join([*self.words, *(f"{name} {_words(value)}" for name, value in self.intents.items())])


class Comparison(NamedTuple):
    """A recommendation and what is decided for the same question."""

    record: Record
    ours: Spread | None
    """None if it is refused."""
    because: str
    other: Record | None = None
    """Another publication for the same model, machine and aim that recommends ours, if this one does not."""

    @property
    def accelerator(self) -> str:
        return accelerator(self.record.device)

    @property
    def agrees(self) -> bool:
        """Tell whether ours is what this publication recommends, or another one for the same model, machine and aim."""
        return self.is_of(self.record) or self.other is not None

    def is_of(self, record: Record) -> bool:
        """Tell whether ranks and engines are the same, and expert parallelism where the source names it.

        Where a server runs one engine, the further servers that the plan names count as engines.
        """
        ours = self.ours
        if ours is None:
            return False
        engines = ours.data + ours.idle // ours.tensor if record.data > 1 else ours.data
        same = (ours.tensor, ours.pipeline, engines) == (record.tensor, record.pipeline, record.data)
        return same and record.experts in (None, ours.experts)

    @property
    def same_tensor(self) -> bool:
        """Tell whether at least the tensor-parallel size is the same."""
        return self.ours is not None and self.ours.tensor == self.record.tensor


@cache
def records(folder: Path = HERE) -> list[Record]:
    """Return every published recommendation."""
    files = sorted((folder / "published").glob("*.json"))
    return [_record(item) for path in files for item in json.loads(path.read_text())]


def _record(item: dict[str, Any]) -> Record:
    return Record(**{**item, "words": tuple(item.get("words", ()))})


def comparisons(folder: Path = HERE) -> list[Comparison]:
    """Compare every recommendation with what is decided for exactly its devices."""
    compared = [compare(record, folder) for record in records(folder)]
    return [item._replace(other=_other(item, compared)) for item in compared]


def _other(item: Comparison, compared: list[Comparison]) -> Record | None:
    """Return another publication for the same model, machine and aim that recommends ours, if this one does not."""
    if item.is_of(item.record):
        return None
    alike = (comparison.record for comparison in compared if comparison.record.question == item.record.question)
    return next((record for record in alike if item.is_of(record)), None)


def compare(record: Record, folder: Path = HERE) -> Comparison:
    several = (NODES, str(record.hosts)) if record.hosts > 1 else ()
    there, model = machine(record.device, record.devices, record.target), models(folder)[record.model]
    if record.joined:
        there = there._replace(facts=there.facts._replace(kernel={**there.facts.kernel, "nvlink_cluster": "rack/1"}))
    try:
        ours = spread(plan(there, model, (*record.words, *several), intents_of(record.intents), _environment(record)))
    except EntrypointError as error:
        return Comparison(record, None, error.message)
    return Comparison(record, ours, ours.because)


def _environment(record: Record) -> dict[str, str]:
    """Return what a host of several has in its environment: one of a TPU slice names all of them."""
    if record.hosts == 1 or accelerator(record.device) != "tpu":
        return {}
    return {"TPU_WORKER_HOSTNAMES": ",".join(f"host{number}" for number in range(record.hosts))}


def share(compared: list[Comparison]) -> float:
    """Return the share that agrees, from 0 to 1."""
    return sum(item.agrees for item in compared) / len(compared)


def _words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


# --- figures --------------------------------------------------------------------------------------------------------


def _groups(compared: list[Comparison]) -> dict[str, list[Comparison]]:
    names = sorted({item.accelerator for item in compared})
    return {name: [item for item in compared if item.accelerator == name] for name in names}


def figures(compared: list[Comparison]) -> str:
    """Format how many agree, by accelerator: in all, with the very publication, on one host, on several, in ranks."""
    rows = [[name, *_figures(items)] for name, items in _groups(compared).items()]
    columns = ["accelerator", "agree", "with the same publication", "on one host", "on several hosts", "in the ranks"]
    return table(columns, [*rows, ["all", *_figures(compared)]])


def _figures(items: list[Comparison]) -> list[str]:
    one = [item for item in items if item.record.hosts == 1]
    several = [item for item in items if item.record.hosts > 1]
    in_all, on_one, on_several = (_of(part, [item.agrees for item in part]) for part in (items, one, several))
    very = _of(items, [item.is_of(item.record) for item in items])
    return [in_all, very, on_one, on_several, _of(items, [item.same_tensor for item in items])]


def _of(items: list[Comparison], verdicts: list[bool]) -> str:
    return f"{sum(verdicts)} of {len(items)} ({sum(verdicts) / len(items):.0%})" if items else ""


def disagreements(folder: Path = HERE, name: str = "") -> str:
    """Return the figures, and each recommendation that ours differs from, as lines for the terminal."""
    compared = [item for item in comparisons(folder) if name in ("", item.accelerator)]
    lines = "".join(f"{_line(item)}\n" for item in compared if not item.agrees)
    return f"{figures(compared)}\n{lines}"


def _line(item: Comparison) -> str:
    record, ours = item.record, item.ours.short() if item.ours else REFUSED
    suffix = f" [{record.asked}]" if record.asked else ""
    explained = f"\n    differs: {record.differs}" if record.differs else ""
    head = f"{record.title} on {record.on}{suffix}: published {record.short}, ours {ours}"
    return f"{head}\n    because: {item.because}\n    source: {record.source}{explained}"


# --- the page -------------------------------------------------------------------------------------------------------


def page() -> str:
    """Return docs/reference/decisions.md."""
    compared = comparisons()
    parts = "".join(f"\n## {name}\n\n{_section(items)}" for name, items in _groups(compared).items())
    return f"{_INTRODUCTION}\n{figures(compared)}{parts}"


_INTRODUCTION = """# Published recommendations compared with drydock

A recommendation is a command or a statement of a vendor's manual, a model's page or a project's recipe: a model, a
machine, and how many devices serve it. drydock plans the same model with exactly these devices, flags and goals,
without knowing the published parallelism.

- A plan agrees if the tensor-parallel size, the pipeline stages and the engines are the same, and expert parallelism
  too if the source says whether it is on.
- Publications can differ for the same model, machine and aim. A plan agrees with all of them if one of them recommends
  it. The second column counts only the same publication, the last one only the tensor-parallel size.
- `tp4`: tensor parallelism of 4, `pp2`: two pipeline stages, `dp2`: two data-parallel engines, `ep`: expert
  parallelism. Devices are logical cores on Neuron and NUMA nodes on a CPU.

The table counts all recommendations; below are those with which no plan of ours agrees, by the reason: published →
ours. Written by `./inv generate` from `tests/models/published/`, which has the words, the source and the flags of each
publication. [tests/models/decisions.md](../../tests/models/decisions.md) shows what is decided for each model on each
recorded host.
"""


def _section(items: list[Comparison]) -> str:
    """Format an accelerator's recommendations that ours differs from, by the reason."""
    reasons: dict[str, list[str]] = {}
    for item in items:
        if not item.agrees:
            reasons.setdefault(_why(item), []).append(_differing(item))
    return "\n".join(f"{reason}:\n\n{''.join(lines)}" for reason, lines in reasons.items()) or "All agree.\n"


def _differing(item: Comparison) -> str:
    """Return an item: model, machine and goals; what is published, and ours."""
    record, ours = item.record, f"`{item.ours.short()}`" if item.ours else REFUSED
    goals = "".join(f", {name} {_words(value)}" for name, value in record.intents.items())
    model = record.title.rpartition("/")[2]
    return f"- {model} on {record.on}{goals}: `{record.short}` → {ours}\n"


def _why(item: Comparison) -> str:
    """Return what is recorded about the difference; else the plan's own reason."""
    why = (item.record.differs or item.because).partition(";")[0].rstrip(".").replace("\n", " ")
    return f"{why[0].upper()}{why[1:]}"
