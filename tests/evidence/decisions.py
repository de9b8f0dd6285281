"""What is decided for each model on each machine: tests/models/decisions.md and docs/reference/sizes.md.

`./inv generate` writes them, and docs/reference/decisions.md, the vendors' recommendations of tests/models/published.
`python tests/evidence/decisions.py [ACCELERATOR]` prints where ours differs from these.

Models are the published configurations in drydock/run/configurations.json. Their weights are counted from these where
no count is published.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import HostError
from drydock.model.variant import Variant
from drydock.run.entrypoint import DoesNotFitError
from drydock.topology.size import Capacity, find_fewest_hosts, list_recorded_machines
from entrypoints.core.errors import DOES_NOT_FIT, HOST, EntrypointError
from entrypoints.core.records import to_json
from entrypoints.model.read import ModelFacts
from entrypoints.request.intents import NONE, Intents
from tests.evidence import published
from tests.support.hosts import expect
from tests.support.machines import Machine
from tests.support.planned import HERE, ROOT, host, models, plan_in_row, spread, table

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
    """Return the whole page."""
    return _INTRODUCTION + "\n" + "\n".join(_sections())


_INTRODUCTION = """# What is decided for which model where

Written by `./inv generate`. Columns are the recorded hosts of tests/hosts.

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
        columns = [name.partition("-")[2] for name in hosts]
        yield f"## {accelerator}\n\n{table(['model', *columns], rows)}"


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

Written by `./inv generate`. `./inv size MODEL` prints one model with more detail, also for your own machines and
lengths: [fit](../fit.md#which-machine).

A cell names the machines for one server, if more than one, the parallelism (`tp4` tensor, `pp2` pipeline, `dp2` data
parallel, `ep` whole experts on each rank), and how many requests of the longest length the KV cache holds. `?`: only
vLLM knows. `no`: the model does not fit 16 of them, or the image does not serve it. Machines are those of
`tests/hosts/` that `./inv size` names and that serve one of these models, with the row of `--target auto`.
"""


def sizes() -> str:
    """Return docs/reference/sizes.md."""
    known_models, parts = models(), [_SIZES]
    rows_of_hosts = {machine.name: machine.variant for machine in list_recorded_machines(DRYDOCK)}
    for accelerator in sorted({name.partition("-")[0] for name in rows_of_hosts}):
        hosts = [(name, row) for name, row in rows_of_hosts.items() if name.startswith(f"{accelerator}-")]
        columns = {
            name: [_size(host(name, row.id), row, known_models[model]) for model in WELL_KNOWN] for name, row in hosts
        }
        size_columns = {name.partition("-")[2]: cells for name, cells in columns.items() if {*cells} != {REFUSED}}
        rows = ([model, *cells] for model, *cells in zip(WELL_KNOWN, *size_columns.values(), strict=True))
        parts.append(f"## {accelerator}\n\n{table(['model', *size_columns], rows)}")
    return "\n".join(parts)


def _size(machine: Machine, variant: Variant, model: ModelFacts) -> str:
    def ask(words: Sequence[str]) -> Any:
        try:
            return to_json(plan_in_row(machine, model, (*words,)))
        except EntrypointError as error:
            raise (DoesNotFitError if error.code == DOES_NOT_FIT else HostError)(error.message) from error

    capacity = find_fewest_hosts(Capacity("", "", ""), ask, variant.findings)
    if not capacity.hosts:
        return REFUSED
    count = f"{capacity.hosts} x " if capacity.hosts > 1 else ""
    return f"{count}{capacity.split}, {capacity.requests or '?'}"


def main() -> None:
    """Print where ours differs from what is published."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("accelerator", nargs="?", default="", help="one accelerator only")
    parser.add_argument("--models", type=Path, default=HERE, help="a folder with configurations.json and published/")
    options = parser.parse_args()
    sys.stdout.write(published.disagreements(options.models, options.accelerator))


if __name__ == "__main__":
    main()
