"""What is decided for each model on each machine: tests/models/decisions.md and docs/reference/sizes.md.

`./inv generate` writes them, and docs/reference/decisions.md, the vendors' recommendations of tests/models/published.
`python tests/evidence/decisions.py [ACCELERATOR]` prints where ours differs from these.

Models are the published configurations in drydock/run/configurations.json. Their weights are counted from these where
no count is published.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import HostError
from drydock.model.variant import Variant
from drydock.run.entrypoint import DoesNotFitError
from drydock.topology.size import Capacity, find_devices_in_use, find_fewest_hosts, list_recorded_machines
from entrypoints.core.errors import DOES_NOT_FIT, HOST, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import ServePlan, to_json
from entrypoints.facts.derived import make_idle
from entrypoints.model.read import ModelFacts
from entrypoints.plan.recipe_cards import find_card
from entrypoints.plan.recipe_file import read_facts
from entrypoints.plan.recipes import read_tensor_size
from entrypoints.request.intents import NONE, Intents
from tests.evidence import published
from tests.support.hosts import expect
from tests.support.machines import KINDS, Machine
from tests.support.planned import HERE, ROOT, Spread, host, models, plan_in_row, spread, table

REFUSED, NOTHING = "no", "none"
AIMS = (None, "latency", "throughput")

SHOWN = (
    "ai21labs/Jamba-v0.1",
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
    "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Pro",
    "google/gemma-3-27b-it",
    "google/gemma-4-26B-A4B",
    "google/gemma-4-31B-it",
    "meta-llama/Llama-3.2-3B",
    "meta-llama/Llama-3.3-70B-Instruct",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "meta-llama/Meta-Llama-3.1-405B",
    "meta-llama/Meta-Llama-3.1-8B",
    "MiniMaxAI/MiniMax-M2.5",
    "MiniMaxAI/MiniMax-M3",
    "mistralai/Mixtral-8x7B-v0.1",
    "moonshotai/Kimi-K2-Instruct",
    "moonshotai/Kimi-K2.5",
    "moonshotai/Kimi-K3",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "openai/gpt-oss-120b",
    "openai/gpt-oss-20b",
    "Qwen/Qwen2.5-32B-Instruct-GPTQ-Int8",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen2.5-VL-72B-Instruct",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-235B-A22B",
    "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-32B-FP8",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3-VL-235B-A22B-Instruct",
    "Qwen/Qwen3-VL-8B-Instruct",
    "Qwen/Qwen3.5-27B",
    "Qwen/Qwen3.5-397B-A17B-FP8",
    "Qwen/Qwen3.6-27B-FP8",
    "Qwen/Qwen3.6-35B-A3B",
    "XiaomiMiMo/MiMo-V2-Flash",
    "zai-org/GLM-4.5-Air",
    "zai-org/GLM-5-FP8",
    "zai-org/GLM-5.1-FP8",
)
"""The models that people serve this year: the rows of decisions.md."""


def on_host(machine: Machine, model: ModelFacts) -> str:
    """Return what is decided without an aim, for latency and for throughput; once where all are alike."""
    cells = [_cell(machine, model, NONE._replace(optimize=aim)) for aim in AIMS]
    return cells[0] if len(set(cells)) == 1 else " / ".join(cells)


def _cell(machine: Machine, model: ModelFacts, intents: Intents) -> str:
    try:
        parallelism = spread(plan_in_row(machine, model, (), intents))
    except EntrypointError as error:
        return NOTHING if error.code == HOST else REFUSED
    return f"{parallelism.short()} {parallelism.length}".rstrip()


def page() -> str:
    return _INTRODUCTION + "\n" + "\n".join(_sections())


_INTRODUCTION = """# What is decided for which model where

Written by `./inv generate`. Columns are the recorded hosts of tests/hosts; `(6 in use)`: device 6 was held, or was not
healthy, and does not serve there.

A cell names the ranks of one engine and the engines: `tp4` tensor, `pp2` pipeline, `dp2` data parallel, `ep` experts
whole on each rank, then `--max-model-len` where the plan sets it. Three parts are the plans without an aim, with
`--optimize latency` and with `--optimize throughput`; one part is all three. `no`: refused, since it does not fit or
the vLLM of the stack does not serve it; `none`: no device there is healthy and free.

[docs/reference/decisions.md](../../docs/reference/decisions.md) compares decisions with the vendors' recommendations.
"""


def _sections() -> Iterator[str]:
    """Yield a table for each accelerator that has recorded hosts."""
    known_models, names = models(), expect.names()
    for accelerator in sorted({name.partition("-")[0] for name in names}):
        hosts = [name for name in names if name.startswith(f"{accelerator}-")]
        rows = ([name, *(on_host(host(host_name), known_models[name]) for host_name in hosts)] for name in SHOWN)
        columns = [_name_column(name) for name in hosts]
        yield f"## {accelerator}\n\n{table(['model', *columns], rows)}"


def _name_column(name: str) -> str:
    """Return a recorded host's name without its accelerator, with the devices that are not free or healthy there."""
    in_use = find_devices_in_use(to_json(host(name).facts.devices))
    return name.partition("-")[2] + (f" ({format_id_list(in_use)} in use)" if in_use else "")


WELL_KNOWN = (
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3.2",
    "google/gemma-3-27b-it",
    "meta-llama/Llama-3.3-70B-Instruct",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "moonshotai/Kimi-K2-Instruct",
    "openai/gpt-oss-120b",
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-8B",
    "zai-org/GLM-4.5-Air",
)
"""The rows of docs/reference/sizes.md."""
PAGE, SIZES = HERE / "decisions.md", ROOT / "docs" / "reference" / "sizes.md"
_SIZES = """# Which machine serves which model

Written by `./inv generate`. `./inv size MODEL` prints one model with lengths, tokens, what limits each and the next
larger choice, also for your own machines and lengths: [fit](../fit.md#which-machine).

A cell names the machines for one server, if more than one, the parallelism (`tp4` tensor, `pp2` pipeline, `dp2` data
parallel, `ep` whole experts on each rank), and how many requests of the longest length it serves at a time, with what
limits them: `m` memory, `s` the split, which leaves devices free, `r` a rule such as `--max-num-seqs`. `?`: only vLLM
knows. `no`: the model does not fit 16 of them, or the image does not serve it. The raised number is the
[reason](#reasons).

`=`: a vendor, a project or vLLM's recipe publishes the same for this machine. `≠`: all that is published for it
[differs](#published-otherwise). Without a mark nothing that is published contradicts the cell.

Machines are those of `tests/hosts/` that `./inv size` names and that serve one of these models, with the row of
`--target auto`. Each is planned idle and whole, whatever ran on it when it was recorded.
"""


class SizeCell(NamedTuple):
    """How a machine serves a model, and what is published for it."""

    text: str
    why: str
    mark: str = ""
    differing: tuple[str, ...] = ()
    """What is published otherwise, as lines."""


def sizes() -> str:
    """Return docs/reference/sizes.md."""
    known_models, parts, reasons, differing = models(), [_SIZES], dict[str, int](), list[str]()
    rows_of_hosts = {machine.name: machine.variant for machine in list_recorded_machines(DRYDOCK)}
    for accelerator in sorted({name.partition("-")[0] for name in rows_of_hosts}):
        hosts = [(name, row) for name, row in rows_of_hosts.items() if name.startswith(f"{accelerator}-")]
        columns = {name: [_size(name, row, known_models[model]) for model in WELL_KNOWN] for name, row in hosts}
        served = {name: cells for name, cells in columns.items() if {cell.text for cell in cells} != {REFUSED}}
        rows = [
            [model, *(_format_size_cell(cell, reasons) for cell in cells)]
            for model, *cells in zip(WELL_KNOWN, *served.values(), strict=True)
        ]
        parts.append(f"## {accelerator}\n\n{table(['model', *(name.partition('-')[2] for name in served)], rows)}")
        differing += [line for cells in served.values() for cell in cells for line in cell.differing]
    listed = "".join(f"{number}. {why}\n" for why, number in reasons.items())
    return "\n".join([*parts, f"## Published otherwise\n\n{''.join(differing)}", f"## Reasons\n\n{listed}"])


def _format_size_cell(cell: SizeCell, reasons: dict[str, int]) -> str:
    number = str(reasons.setdefault(cell.why, len(reasons) + 1)).translate(_RAISED)
    return f"{cell.text} {number}{f' {cell.mark}' if cell.mark else ''}"


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_NUMBER = re.compile(r"(?<![\w.-])[0-9][0-9.,]*(?![\w%-])")
"""A number of a reason, as of bytes or devices, which differs from cell to cell."""


def _size(name: str, variant: Variant, model: ModelFacts) -> SizeCell:
    """Plan a model on an idle machine. Raises EntrypointError."""
    recorded = host(name, variant.id)
    machine, plans = recorded._replace(facts=make_idle(recorded.facts)), dict[int, ServePlan]()

    def ask(words: Sequence[str]) -> Any:
        count = int(words[1]) if words else 1
        try:
            plans[count] = plan_in_row(machine, model, (*words,))
        except EntrypointError as error:
            raise (DoesNotFitError if error.code == DOES_NOT_FIT else HostError)(error.message) from error
        return to_json(plans[count])

    devices = machine.facts.devices
    capacity = find_fewest_hosts(Capacity(name, "", "", device_count=len(devices)), ask, variant.findings)
    why = capacity.why or _TOO_SMALL
    if not capacity.hosts and not capacity.is_too_small:
        why = re.split(r"\. |: found|; expected", capacity.because.removeprefix(f"{model.name}: "))[0]
        why = re.sub(r"architecture \w+", "the architecture", why)
    text = REFUSED
    if capacity.hosts:
        count = f"{capacity.hosts} x " if capacity.hosts > 1 else ""
        text = f"{count}{capacity.split}, {capacity.requests or '?'} {capacity.requests_limit[:1]}".rstrip()
    cell = SizeCell(text, _NUMBER.sub("N", why))
    return _compare_size(
        cell, machine, model, capacity.hosts, spread(plans[capacity.hosts]) if capacity.hosts else None
    )


_TOO_SMALL = "16 of these machines hold too little memory, or one does, and the image serves on one host only"


def _compare_size(cell: SizeCell, machine: Machine, model: ModelFacts, hosts: int, ours: Spread | None) -> SizeCell:
    """Return the cell with what is published for these very machines, or for fewer of them.

    A publication for a part of a machine, or with an aim, answers another question.
    """
    alike = [record for record in published.records() if record.model == model.name and _is_of(record, machine)]
    same = [record for record in alike if record.hosts == hosts]
    recipe = _read_recipe_size(machine, model)
    of_recipe = hosts == 1 and ours is not None and recipe == ours.tensor == len(machine.facts.devices)
    if of_recipe or any(published.Comparison(record, ours, "").is_of(record) for record in same):
        return cell._replace(mark="=")
    fewer = [record for record in alike if not hosts or record.hosts < hosts]
    differing = [record for record in (*same, *fewer) if "optimize" not in record.intents]
    lines = [_format_differing(record.on, record.title, record.short, cell, record.source) for record in differing]
    if hosts != 1 and 0 < recipe <= len(machine.facts.devices):
        on = f"{recipe} {machine.facts.devices[0].name}"
        lines.append(_format_differing(on, model.name, f"tp{recipe}", cell, "vLLM's recipe"))
    return cell._replace(mark="≠" if lines else "", differing=(*dict.fromkeys(lines),))


def _read_recipe_size(machine: Machine, model: ModelFacts) -> int:
    """Return the tensor-parallel size that vLLM's recipe of a model names for a machine's card; 0 for none."""
    recipe = read_facts(str(ROOT / "templates/recipes.json"), model)
    return read_tensor_size(recipe.facts, find_card(machine.facts.accelerator, machine.facts))


def _format_differing(on: str, model: str, short: str, cell: SizeCell, source: str) -> str:
    ours = cell.text if cell.text == REFUSED else f"`{cell.text.partition(',')[0]}`"
    named = f"[source]({source})" if source.startswith("https://") else source
    return f"- {model.rpartition('/')[2]} on {on}: `{short}` → {ours} ({named})\n"


def _is_of(record: published.Record, machine: Machine) -> bool:
    """Tell whether a publication is for machines of this kind, with all of their devices."""
    kind, devices = KINDS[record.device], machine.facts.devices
    if not devices or kind.host.partition("-")[0] != machine.facts.accelerator:
        return False
    name = kind.name or host(kind.host).facts.devices[0].name
    return name == devices[0].name and record.devices == sum(device.cores for device in devices)


def main() -> None:
    """Print where ours differs from what is published."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("accelerator", nargs="?", default="", help="one accelerator only")
    parser.add_argument("--models", type=Path, default=HERE, help="a folder with configurations.json and published/")
    options = parser.parse_args()
    sys.stdout.write(published.disagreements(options.models, options.accelerator))


if __name__ == "__main__":
    main()
