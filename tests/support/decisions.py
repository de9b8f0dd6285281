"""Writes decisions.md, what is decided for each model on each machine: `python tests/support/decisions.py`.

Models are the published configurations in configs/, their weights counted from them where no count is published.
Machines are the recorded hosts of tests/hosts, planned as their own accelerator plans them, and reference machines of
devices alone, planned by what all accelerators share, on which published recommendations are compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from entrypoints.core.errors import HOST, EntrypointError  # noqa: E402
from entrypoints.core.records import Device, Facts, Link  # noqa: E402
from entrypoints.decide.spread.fit import Fit, Rules, fit  # noqa: E402
from entrypoints.model.config import parse_config  # noqa: E402
from entrypoints.model.geometry import parse_geometry  # noqa: E402
from entrypoints.model.parameters import estimate, expert_share  # noqa: E402
from entrypoints.model.read import ModelFacts  # noqa: E402
from entrypoints.model.weights import Weights  # noqa: E402
from entrypoints.plan.plan import command  # noqa: E402 - after the path is set
from entrypoints.request.intents import NONE, Intents  # noqa: E402
from entrypoints.request.vllm_flags import UserFlags, parse_given  # noqa: E402
from tests.support import sample  # noqa: E402
from tests.support.hosts import expect  # noqa: E402

HERE = ROOT / "tests" / "models"
GIB, MIB = 1 << 30, 1 << 20
BFLOAT16 = 2
REFUSED, NOTHING = "no", "none"


class Machine(NamedTuple):
    """Equal devices, and the link that joins them."""

    devices: int
    memory: int
    """MiB of one, as its vendor's tool prints it."""
    link: str
    rules: Rules
    source: str


_RULES = Rules(usable=0.9, reserved=2 * GIB, activations=2 * GIB, expert="needed")
MACHINES = {
    "h100-8x": Machine(8, 81559, "NV18", _RULES, "nvidia-smi of an H100 80GB HBM3"),
    "h200-8x": Machine(8, 143771, "NV18", _RULES, "nvidia-smi of an H200"),
    "a100-8x": Machine(8, 81920, "NV12", _RULES, "nvidia-smi of an A100-SXM4-80GB"),
    "rtx4090-2x": Machine(2, 24564, "SYS", _RULES, "nvidia-smi of an RTX 4090"),
    "mi300x-8x": Machine(8, 196592, "XGMI", _RULES, "amd-smi of an MI300X"),
    "gaudi2e-8x": Machine(8, 98304, "", _RULES._replace(block=128, expert="tp"), "hl-smi of an HL-288E"),
    "910b-8x": Machine(8, 65536, "HCCS", _RULES._replace(block=128), "npu-smi of a 910B3"),
    "s60-8x": Machine(8, 43000, "PIX", _RULES._replace(block=64), "48 GB class, less what its driver takes"),
}
"""Reference machines; 0.9 of the memory, 2 GiB for the runtime and 2 GiB while running, as a round figure."""


def models() -> dict[str, ModelFacts]:
    """Return every model by its hub id."""
    return {path.stem.replace("--", "/"): _model(path) for path in sorted((HERE / "configs").glob("*.json"))}


def _model(path: Path) -> ModelFacts:
    """Read a published configuration."""
    body = json.loads(path.read_text())
    config, name = parse_config(body["config"]), path.stem.replace("--", "/")
    geometry, unknown = parse_geometry(config)
    weights, share = None, 0.0
    if geometry is not None:
        share = expert_share(config, geometry)
        weights = _published(body["parameters"]) if body["parameters"] else estimate(config, geometry)
    return ModelFacts(
        name, False, config.architecture, config.quantization.method, weights, geometry, unknown,
        group=config.quantization.group, estimated=not body["parameters"], modalities=config.modalities,
        expert_share=share, dtype=config.dtype,
    )  # fmt: skip


def _published(parameters: int) -> Weights:
    return Weights(BFLOAT16 * parameters, parameters, 0)


# --- reference machines ---------------------------------------------------------------------------------------------


def facts(machine: Machine) -> Facts:
    """Return what a probe would see of a machine."""
    numbers = range(machine.devices)
    devices = tuple(
        Device(number, "Card", machine.memory * MIB, 0, None, health="ok", busy=False) for number in numbers
    )
    links = tuple(Link(a, b, machine.link) for a in numbers for b in numbers if a < b) if machine.link else ()
    return sample.facts(accelerator="cuda", devices=devices, links=links)


def given(words: tuple[str, ...] = (), intents: Mapping[str, Any] | None = None) -> UserFlags:
    """Return what a user would say."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in (intents or {}).items()}
    return parse_given(words, {}, (), Intents(**fields) if fields else NONE)


def on_reference(machine: Machine, model: ModelFacts, said: UserFlags) -> Fit | EntrypointError:
    """Fit a model, or return the refusal."""
    try:
        return fit(facts(machine), model, said, machine.rules)
    except EntrypointError as error:
        return error


def _fitted(found: Fit | EntrypointError, full: int | None) -> str:
    if isinstance(found, EntrypointError):
        return REFUSED
    parts = [f"tp{found.tensor}", f"pp{found.pipeline}" * (found.pipeline > 1), f"dp{found.data}" * (found.data > 1)]
    parts += ["ep" * ("--enable-expert-parallel" in found.values)]
    short = f" {found.length}" if found.length != full else ""
    return " ".join(filter(None, parts)) + short


# --- recorded hosts -------------------------------------------------------------------------------------------------


def on_host(profile: Mapping[str, Any], there: Facts, model: ModelFacts) -> str:
    """Return what a host's own accelerator decides, in short."""
    try:
        argv = command(profile, there, model, parse_given((model.name,), {})).argv
    except EntrypointError as error:
        return NOTHING if error.code == HOST else REFUSED
    flags = dict(pairwise(argv))
    wanted = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
    sizes = {short: flags.get(f"--{name}-parallel-size") for short, name in wanted.items()}
    parts = [f"{short}{size}" for short, size in sizes.items() if size and (size != "1" or short == "tp")]
    parts += ["ep" * ("--enable-expert-parallel" in argv), flags.get("--max-model-len", "")]
    return " ".join(filter(None, parts)) or "ok"


# --- the page -------------------------------------------------------------------------------------------------------


def table(columns: list[str], rows: Iterator[list[str]]) -> str:
    """Format a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def reference_table() -> str:
    """Return every model on every reference machine."""
    known = models()
    rows = (
        [name, *(_fitted(on_reference(machine, model, given()), _full(model)) for machine in MACHINES.values())]
        for name, model in known.items()
    )
    return table(["model", *MACHINES], rows)


def _full(model: ModelFacts) -> int | None:
    return model.geometry.max_length if model.geometry else None


def host_tables() -> Iterator[str]:
    """Yield a table for each accelerator that has recorded hosts."""
    known, names = models(), expect.names()
    for accelerator in sorted({name.partition("-")[0] for name in names}):
        hosts = [name for name in names if name.startswith(f"{accelerator}-")]
        profiles = {host: expect.profile_of(host) for host in hosts}
        seen = {host: expect.read(host, profiles[host]) for host in hosts}
        rows = (
            [name, *(on_host(profiles[host], seen[host], model) for host in hosts)] for name, model in known.items()
        )
        yield f"## {accelerator}\n\n{table(['model', *hosts], rows)}"


class Comparison(NamedTuple):
    """A published recommendation and ours."""

    model: str
    machine: str
    asked: str
    says: str
    ours: str
    agrees: bool
    source: str
    differs: str
    """Why ours differs, where it does."""


def comparisons() -> list[Comparison]:
    """Compare every published recommendation with what is decided for the same question."""
    known = models()
    return [_compared(item, known[item["model"]]) for item in json.loads((HERE / "published.json").read_text())]


def _compared(item: Mapping[str, Any], model: ModelFacts) -> Comparison:
    intents = item.get("intents", {})
    found = on_reference(MACHINES[item["machine"]], model, given(tuple(item.get("words", ())), intents))
    agrees = not isinstance(found, EntrypointError) and _agrees(item, found)
    asked = " ".join([*item.get("words", ()), *(f"{name} {_words(value)}" for name, value in intents.items())])
    ours = _fitted(found, _full(model)) if intents == {} else _fitted(found, getattr(found, "length", None))
    return Comparison(
        item["model"], item["machine"], asked, item["says"], ours, agrees, item["source"], item.get("differs", "")
    )


def _agrees(item: Mapping[str, Any], found: Fit) -> bool:
    """Tell whether the ranks of one engine, and what else the recommendation names, are the same."""
    spread = "--enable-expert-parallel" in found.values
    same = found.tensor * found.pipeline == item["tensor"] and found.data == item.get("data", 1)
    return same and (spread or not item.get("experts"))


def _words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def comparison_table(compared: list[Comparison]) -> str:
    """Format the comparisons."""
    rows = (
        [item.model, item.machine, item.asked, item.says, item.ours, "yes" if item.agrees else "no", item.source]
        for item in compared
    )
    return table(["model", "machine", "asked", "published", "ours", "agrees", "source"], rows)


def page() -> str:
    """Return the whole page."""
    compared = comparisons()
    agreeing = sum(item.agrees for item in compared)
    return (
        f"{_INTRODUCTION}\n## Published recommendations: {agreeing} of {len(compared)} agree\n\n"
        f"{comparison_table(compared)}{differences(compared)}\n## Reference machines\n\n{reference_table()}\n"
        + "\n".join(host_tables())
    )


_INTRODUCTION = """# What is decided for which model where

Generated by `python tests/support/decisions.py`; a test compares. A cell names the ranks of one engine: `tp4` tensor,
`pp2` pipeline, `dp2` data parallel, `ep` experts whole on each rank, then `--max-model-len` where it is shorter than
the model's own. `no`: refused, since it does not fit; `none`: no device there is healthy and free. No intent was given:
the fewest devices that hold the model and one sequence of its full length.
"""


def differences(compared: list[Comparison]) -> str:
    """Say for each recommendation that ours differs from, why."""
    lines = (f"- {item.model} on {item.machine}: {item.differs}.\n" for item in compared if not item.agrees)
    return "\nWhere ours differs:\n\n" + "".join(lines)


def main() -> None:
    """Write the page."""
    (HERE / "decisions.md").write_text(page())


if __name__ == "__main__":
    main()
