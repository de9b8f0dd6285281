"""Asks the vLLM of the CPU image whether it constructs each known configuration in each split, and compares.

As a script it asks about all, and writes the lists in tests/models/oracle.json with the reasons that they have:
`python -m tests.evidence.oracle`. A line without a reason fails the test: write one of `reasons`.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from drydock.lock.ask_rules import AskedContainer, ask_questions, make_question
from entrypoints.core.errors import DOES_NOT_FIT, EntrypointError
from entrypoints.decide.cpu.layout import RULES
from entrypoints.decide.parallelism.constraints import find_tensor_obstacle
from entrypoints.model.config import parse_config
from entrypoints.model.parameters import estimate_weights
from entrypoints.plan.kernel_limits import read_answers
from entrypoints.plan.rehearse import list_server_words
from entrypoints.plan.vllm_limits import PACKAGES
from entrypoints.request.flags import (
    ATTENTION_BACKEND,
    BATCHED,
    CONTEXT,
    DATA,
    EPLB,
    EXECUTOR,
    EXPERT,
    LENGTH,
    LOAD_FORMAT,
    LOCAL,
    PIPELINE,
    PREFILL_CONTEXT,
    QUANTIZATION,
    SEQUENCES,
    SPECULATION,
    TENSOR,
)
from tests.support.machines import Machine
from tests.support.planned import configurations, lists_of_row, models, plan_with_recipe

ROOT = Path(__file__).resolve().parent.parent.parent
LISTS = ROOT / "tests" / "models" / "oracle.json"
WITHOUT_TOWERS = Path(__file__).with_name("without_towers")
TENSOR_SIZES, STAGES = (1, 2, 3, 4, 8, 16, 32), (1, 2, 4)
WITH_EXPERTS = (8, 32)
"""Tensor-parallel sizes at which models with experts are asked with expert parallelism too."""
SHORT = (2, 3, 8, 32)
"""Tensor-parallel sizes of the short form."""
LENGTHS = ("max_position_embeddings", "model_max_length")
PLATFORM = {"kind": "cpu", "recorded": {"amx": True, "architecture": "X86", "memory": 1 << 40}}
"""A processor whose kernels take FP8 blocks."""
WITHIN = 0.01
"""By how much drydock's estimate of the bytes of a rank may differ from those of vLLM's classes."""
FIRST = "0"
"""The rank whose bytes are compared."""


class Split(NamedTuple):
    """A split that vLLM is asked about."""

    tensor: int
    pipeline: int = 1
    experts: bool = False

    def short(self) -> str:
        """Return the split in short, such as `tp8 pp2 ep`."""
        parts = [f"tp{self.tensor}", f"pp{self.pipeline}" * (self.pipeline > 1), "ep" * self.experts]
        return " ".join(filter(None, parts))

    def words(self) -> list[str]:
        """Return the split as vLLM's words."""
        sizes = ["--tensor-parallel-size", str(self.tensor), "--pipeline-parallel-size", str(self.pipeline)]
        return [*sizes, *([EXPERT] if self.experts else [])]


class Line(NamedTuple):
    """A split about which drydock and vLLM disagree."""

    model: str
    split: str
    words: str
    """Of the side that refuses."""


class Compared(NamedTuple):
    """What drydock and vLLM say of the same splits."""

    planned_and_refused: tuple[Line, ...]
    refused_and_constructed: tuple[Line, ...]
    not_asked: Mapping[str, str]
    """Model → vLLM's words for why it cannot be built on the CPU at all."""
    sizes: Mapping[str, tuple[int, int]]
    """Model → bytes that drydock estimates and bytes of vLLM's classes, of one rank with all of it."""
    agreed: int


Case = tuple[str, Split]
Answers = Mapping[Case, Mapping[str, Any]]


# --- what is asked --------------------------------------------------------------------------------------------------


@cache
def distinct_models() -> Mapping[str, str]:
    """Return each model that is asked about, with the first whose configuration differs from its own by lengths only.

    A shortened configuration is not asked about.
    """
    first: dict[str, str] = {}
    whole = {name: body["config"] for name, body in configurations().items() if not body.get("shortened")}
    return {name: first.setdefault(json.dumps(_without_lengths(config)), name) for name, config in whole.items()}


def _without_lengths(config: Mapping[str, Any]) -> Any:
    inner = {key: _without_lengths(value) for key, value in config.items() if isinstance(value, dict)}
    return {key: value for key, value in {**config, **inner}.items() if key not in LENGTHS}


def whole_cases() -> Iterator[Case]:
    """Yield every split of every model; of those that the CPU platform cannot build, only the whole model."""
    not_asked = read_lists()["not_asked"] if LISTS.exists() else {}
    for name in dict.fromkeys(distinct_models().values()):
        if name in not_asked:
            yield name, Split(1)
            continue
        yield from ((name, Split(tensor, pipeline)) for tensor in TENSOR_SIZES for pipeline in STAGES)
        geometry = models()[name].geometry
        if geometry and geometry.experts:
            yield from ((name, Split(tensor, experts=True)) for tensor in WITH_EXPERTS)


def short_cases() -> Iterator[Case]:
    """Yield a few splits of one model of each class and quantisation that the CPU platform builds."""
    of_class = {(model.architecture, model.quantization): name for name, model in models().items()}
    model_names = [
        name
        for name in of_class.values()
        if distinct_models().get(name) == name and name not in read_lists()["not_asked"]
    ]
    yield from ((name, Split(tensor)) for name in sorted(model_names) for tensor in (1, *SHORT))


def ask(image: str, cases: Sequence[Case], folder: Path) -> Answers:
    """Ask the vLLM of an image about cases. `folder` is an empty one that the container may read."""
    questions = [make_question(name, ["--model", name, *split.words()]) for name, split in cases]
    return dict(zip(cases, ask_image(image, {name for name, _ in cases}, questions, folder), strict=True))


def ask_image(
    image: str, names: Iterable[str], questions: Iterable[Mapping[str, Any]], folder: Path
) -> list[dict[str, Any]]:
    """Ask the vLLM of an image about known models; return an answer to each question."""
    models = {name: configurations()[name]["config"] for name in names}
    container = AskedContainer(image, {str(WITHOUT_TOWERS): "/without"}, {"PYTHONPATH": "/without"}, "6g")
    return ask_questions(container, (PLATFORM, *questions), models, folder)


# --- what is compared -----------------------------------------------------------------------------------------------


def compare(answers: Answers) -> Compared:
    """Compare vLLM's answers with drydock's limits."""
    not_asked = {
        name: _words(answer) for (name, split), answer in answers.items() if _is_whole(split) and _refused(answer)
    }
    planned, refused, sizes, agreed = [], [], {}, 0
    for (name, split), answer in answers.items():
        if name in not_asked:
            continue
        why = drydock_obstacle(name, split)
        if _is_whole(split):
            sizes[name] = (estimated_bytes(name), int(answer["sizes"][FIRST]))
        if answer["outcome"] == "refused" and not why:
            planned.append(Line(name, split.short(), _words(answer)))
        elif answer["outcome"] == "constructed" and why:
            refused.append(Line(name, split.short(), why))
        else:
            agreed += 1
    return Compared(tuple(planned), tuple(refused), not_asked, sizes, agreed)


def _is_whole(split: Split) -> bool:
    return split == Split(1)


def _refused(answer: Mapping[str, Any]) -> bool:
    return bool(answer["outcome"] != "constructed")


def _words(answer: Mapping[str, Any]) -> str:
    return str((answer["words"] or [answer["because"]])[0])[:160]


def drydock_obstacle(name: str, split: Split) -> str:
    """Return why drydock does not plan a split, with the limits that every platform of vLLM has; empty if it does."""
    model = models()[name]
    if model.geometry and split.pipeline > model.geometry.layers:
        return f"{model.geometry.layers} layers are fewer than {split.pipeline} stages"
    return find_tensor_obstacle(model, RULES, split.tensor, split.experts)


def estimated_bytes(name: str) -> int:
    """Return the bytes of the weights that drydock estimates from a configuration."""
    geometry = models()[name].geometry
    return estimate_weights(parse_config(configurations()[name]["config"]), geometry).loaded(2) if geometry else 0


# --- random options -------------------------------------------------------------------------------------------------


OF_LISTS = {
    QUANTIZATION: "quantisations",
    LOAD_FORMAT: "load_formats",
    EXECUTOR: "executors",
}
"""Options whose words are a list of vLLM's, as its configuration checks them. Parsers are checked later."""
FIELDS = {
    "method": ("ngram", "mtp", "eagle3", "suffix", "medusa", "banana"),
    "num_speculative_tokens": (0, 1, 2),
    "draft_tensor_parallel_size": (1, 2, 3),
}
"""Of speculative decoding."""
TYPED = (
    *(TENSOR, PIPELINE, DATA, LOCAL, CONTEXT, PREFILL_CONTEXT, EXPERT, EPLB, LENGTH, SEQUENCES, BATCHED),
    *(
        *OF_LISTS,
        ATTENTION_BACKEND,
        SPECULATION,
        "--dtype",
        "--kv-cache-dtype",
        "--enforce-eager",
        "--async-scheduling",
        "--seed",
    ),
    *("--enable-lora", "--max-loras", "--max-cpu-loras", "--max-lora-rank", "--enable-sleep-mode", "--runner"),
    *("--optimization-level", "--compilation-config", "--kv-transfer-config", "--structured-outputs-config"),
    *("--eplb-config", "--scheduling-policy", "--cpu-offload-gb", "--language-model-only"),
    *("--data-parallel-rank", "--long-prefill-token-threshold", "--stream-interval", "--max-logprobs", "--numa-bind"),
    *("--enable-prefix-caching", "--enable-chunked-prefill", "--disable-log-stats", "--performance-mode"),
)
"""What users type: sizes, batches, types, adapters, speculation, and JSON."""
SERVED = ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-R1")
SIZES = (TENSOR, PIPELINE, DATA)
"""Options that multiply to ranks. drydock refuses more of them than any machine has, which vLLM finds out later."""
LATER = {
    "--load-format": ("x",),
    "--kv-cache-dtype": ("fp8_e5m2",),
    "--distributed-executor-backend": ("external_launcher",),
}
"""Values that are not asked: vLLM looks for a format and a package, and refuses the type with weights of FP8, when it
loads the model; the launcher sets variables."""
NUMBERS = {"int": ("0", "1", "2", "3", "4", "8", "64", "1024", "4096", "-1"), "float": ("0", "0.5", "1", "-1")}


def choose_commands(row: str, count: int, seed: int) -> list[tuple[str, tuple[str, ...]]]:
    """Return random commands: a model, and one to three options with values that fit, or nearly."""
    chance, lists = random.Random(seed), lists_of_row(row).lists  # noqa: S311 - chooses examples
    packages = {*lists["packages"]}

    def choose_value(name: str) -> str:
        takes = lists["flags"].get(name)
        if name == SPECULATION:
            keys = chance.sample(sorted(FIELDS), chance.choice((1, 2, 2, 3)))
            return json.dumps({key: chance.choice(FIELDS[key]) for key in keys}, separators=(",", ":"))
        if name in lists["keys"]:
            limited = {key: words for key, words in lists["keys"][name].items() if words}
            key = chance.choice([*limited, "level"])
            return json.dumps({key: chance.choice([*limited.get(key, ()), "banana"])}, separators=(",", ":"))
        if name == ATTENTION_BACKEND:
            return chance.choice([*read_answers()["0.32.0"]["names"], "x"])
        if name in SIZES:
            return chance.choice(NUMBERS["int"][:6])
        words = [*(lists[OF_LISTS[name]] if name in OF_LISTS else takes), "x"]
        lacking = {value for option, value in PACKAGES if option == name and not {*PACKAGES[name, value]} & packages}
        left_out = {*lacking, *LATER.get(name, ())}
        return str(chance.choice(NUMBERS.get(str(takes)) or [word for word in words if word not in left_out]))

    def choose_words(name: str) -> tuple[str, ...]:
        if lists["flags"].get(name) in ("boolean", "switch"):
            return (name if chance.random() < 0.8 or lists["flags"][name] == "switch" else f"--no-{name[2:]}",)
        return name, choose_value(name)

    names = [chance.sample(TYPED, chance.choice((1, 2, 2, 3))) for _ in range(count)]
    return [(chance.choice(SERVED), tuple(word for name in some for word in choose_words(name))) for some in names]


def compare_commands(image: str, machine: Machine, count: int, seed: int, folder: Path) -> tuple[list[str], list[str]]:
    """Return random commands that drydock plans and vLLM refuses, and those that drydock refuses and vLLM takes."""
    planned: dict[int, tuple[str, ...]] = {}
    refused: dict[int, str] = {}
    commands = choose_commands(machine.profile["variant"], count, seed)
    for number, (name, words) in enumerate(commands):
        try:
            planned[number] = list_server_words(plan_with_recipe(machine, models()[name], words, recipes=False).argv)
        except EntrypointError as error:
            if error.code != DOES_NOT_FIT:
                refused[number] = error.message
    numbers = [*planned, *refused]
    questions = [
        make_question(name, planned.get(number, ("--model", name, *words)), ranks=[])
        for number in numbers
        for name, words in (commands[number],)
    ]
    answers = dict(zip(numbers, ask_image(image, {name for name, _ in commands}, questions, folder), strict=True))

    def describe(number: int) -> str:
        name, words = commands[number]
        return f"{name} {' '.join(words)}: {refused.get(number, '')} {_words(answers[number])}"

    wrongly_planned = [describe(number) for number in planned if answers[number]["outcome"] != "constructed"]
    return wrongly_planned, [describe(number) for number in refused if answers[number]["outcome"] == "constructed"]


# --- the lists ------------------------------------------------------------------------------------------------------


@cache
def read_lists() -> dict[str, Any]:
    lists: dict[str, Any] = json.loads(LISTS.read_text())
    return lists


def listed(kind: str) -> dict[tuple[str, str], str]:
    """Return the lines of a list: model and split → the id of its reason."""
    return {(line["model"], split): line["because"] for line in read_lists()[kind] for split in line["splits"]}


def as_lines(lines: Iterable[Line], kind: str) -> list[dict[str, Any]]:
    """Return the lines of a list by model and words, with the reasons that they have."""
    reasons = listed(kind) if LISTS.exists() else {}
    groups: dict[tuple[str, str, str], list[str]] = {}
    for line in lines:
        because = reasons.get((line.model, line.split), "")
        groups.setdefault((line.model, _without_numbers(line.words), because), []).append(line.split)
    return [{"because": because, "model": model, "splits": splits} for (model, _, because), splits in groups.items()]


def _without_numbers(words: str) -> str:
    return "".join(letter for letter in words if not letter.isdigit())


def far_sizes(compared: Compared) -> dict[str, float]:
    """Return the models whose estimate differs by more than it should, with the ratio to vLLM's bytes."""
    ratios = {name: ours / theirs for name, (ours, theirs) in compared.sizes.items() if ours}
    return {name: round(ratio, 3) for name, ratio in sorted(ratios.items()) if abs(ratio - 1) > WITHIN}


def write_lists(compared: Compared) -> None:
    """Write the lists, with the reasons of lines that are known."""
    old = json.loads(LISTS.read_text()) if LISTS.exists() else {}
    kinds = ("planned_and_refused", "refused_and_constructed")
    lists = {kind: as_lines(getattr(compared, kind), kind) for kind in kinds}
    because = {name: old.get("not_asked", {}).get(name, words) for name, words in sorted(compared.not_asked.items())}
    far = {name: {"because": old.get("sizes", {}).get(name, {}).get("because", ""), "ratio": ratio}
           for name, ratio in far_sizes(compared).items()}  # fmt: skip
    whole = {**lists, "not_asked": because, "reasons": old.get("reasons", {}), "sizes": far}
    LISTS.write_text(json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    read_lists.cache_clear()


def main() -> None:
    """Ask about everything, and write the lists."""
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - of the script only

    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        compared = compare(ask(sys.argv[1], tuple(whole_cases()), Path(folder)))
    write_lists(compared)
    counts = {name: len(getattr(compared, name)) for name in Compared._fields if name != "agreed"}
    sys.stdout.write(f"{compared.agreed} agree; {counts}\n")


if __name__ == "__main__":
    main()
