"""tests/models/ranks.md: what each of several hosts runs for models that one cannot hold. `./inv generate` writes it.

Every host is as the recorded one. Of the environment only what serving on several hosts adds is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import join, quote
from typing import NamedTuple

from drydock.core.paths import ROOT
from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import RankPlan, ServePlan
from entrypoints.model.config import parse_config
from entrypoints.model.geometry import parse_geometry
from entrypoints.model.parameters import estimate_weights
from entrypoints.model.read import ModelFacts
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.intents import Intents
from entrypoints.request.vllm_flags import parse_user_flags
from tests.evidence import decisions
from tests.support.hosts import expect
from tests.support.planned import configurations

PAGE = ROOT / "tests" / "models" / "ranks.md"
ADDRESS = "10.0.0.1"
BFLOAT16 = " in bfloat16"
"""Ends the name of a model whose published weights are quantised, and are converted."""

LLAMA, MIXTRAL = "meta-llama/Meta-Llama-3.1-405B", "mistralai/Mixtral-8x22B-v0.1"
DEEPSEEK, QWEN = "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-235B-A22B"
KIMI, R1_AWQ = "moonshotai/Kimi-K2-Instruct", "cognitivecomputations/DeepSeek-R1-awq"
PARALLELISM = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel")


FITTING = ("--max-model-len", "1024", "--cpu-offload-gb", "1000")
"""Flags with which every model fits one host, whose environment is then not written again."""


class Cluster(NamedTuple):
    """Equal hosts, and a model."""

    host: str
    hosts: int
    model: str
    aim: str | None = None


CLUSTERS = (
    Cluster("cuda-h100-8x", 2, LLAMA),
    Cluster("cuda-h100-8x", 4, LLAMA),
    Cluster("cuda-h100-8x", 2, DEEPSEEK),
    Cluster("cuda-h100-8x", 2, DEEPSEEK, "throughput"),
    Cluster("cuda-h100-8x", 4, DEEPSEEK + BFLOAT16),
    Cluster("rocm-mi300x-8x", 2, KIMI + BFLOAT16),
    Cluster("rocm-mi300x-8x", 4, KIMI + BFLOAT16),
    Cluster("habana-gaudi3-8x", 2, DEEPSEEK + BFLOAT16),
    Cluster("habana-gaudi3-8x", 4, DEEPSEEK + BFLOAT16),
    Cluster("ascend-910b3-8x", 2, LLAMA),
    Cluster("ascend-910b3-8x", 4, DEEPSEEK),
    Cluster("ascend-a3-8x2", 2, DEEPSEEK + BFLOAT16),
    Cluster("ascend-a3-8x2", 4, DEEPSEEK + BFLOAT16),
    Cluster("tpu-v6e-8x", 2, MIXTRAL),
    Cluster("tpu-v6e-8x", 4, LLAMA),
    Cluster("tpu-v5p-4x", 2, QWEN),
    Cluster("tpu-v5p-4x", 4, LLAMA),
    Cluster("enflame-s60-8x", 4, R1_AWQ),
)
"""A model that one such host cannot hold, on two or four of them."""


def models() -> dict[str, ModelFacts]:
    """Return the published models, and the converted ones."""
    known_models = decisions.models()
    return known_models | {name + BFLOAT16: _converted(known_models[name]) for name in (DEEPSEEK, KIMI)}


def _converted(model: ModelFacts) -> ModelFacts:
    """Return a published model with weights that are not quantised."""
    body = configurations()[model.name]
    config = parse_config({name: value for name, value in body["config"].items() if name != "quantization_config"})
    geometry, _ = parse_geometry(config)
    assert geometry, "the configuration is a published one"
    return model._replace(quantization="", group=0, weights=estimate_weights(config, geometry))


def plan(cluster: Cluster, model: ModelFacts, *flags: str) -> ServePlan:
    """Plan a model on hosts as the recorded one. Raises EntrypointError."""
    profile = expect.profile_of(cluster.host)
    words = (model.name, *(("--nnodes", str(cluster.hosts)) if cluster.hosts > 1 else ()), *flags)
    user_flags = parse_user_flags(words, {}, (), Intents(optimize=cluster.aim))
    return make_serve_plan(profile, expect.read(cluster.host, profile), model, user_flags)


def page() -> str:
    known_models = models()
    return "\n".join(_lines(known_models)) + "\n"


def _lines(known_models: dict[str, ModelFacts]) -> Iterator[str]:
    yield "# What each of several hosts runs"
    yield ""
    yield "Written by `./inv generate`; all hosts are as the recorded one, which cannot hold it."
    for cluster in CLUSTERS:
        yield from _section(cluster, known_models[cluster.model])


def _section(cluster: Cluster, model: ModelFacts) -> Iterator[str]:
    aim = f", --optimize {cluster.aim}" if cluster.aim else ""
    serve_plan = plan(cluster, model, "--master-addr", ADDRESS)
    usual = plan(cluster._replace(hosts=1), model, *FITTING).env
    yield from (
        "",
        f"## {cluster.hosts} of {cluster.host}: {cluster.model}{aim}",
        "",
        f"One host: {refusal(cluster)}",
        "",
    )
    for reason in serve_plan.reasons:
        if reason.setting.removeprefix("--") in PARALLELISM:
            yield f"- {reason.setting} {reason.value}: {reason.because}"
            yield from (f"  - not {text}" for text in reason.instead)
    yield from ("", "```sh")
    for rank in serve_plan.ranks:
        yield from _commands(rank, usual)
    yield "```"


def refusal(cluster: Cluster) -> str:
    """Return why one host does not hold the model, and the hint; empty if it does."""
    try:
        plan(cluster._replace(hosts=1, aim=None), models()[cluster.model])
    except EntrypointError as error:
        return f"{error.message}. Hint: {error.hint}"
    return ""


def _commands(rank: RankPlan, usual: object) -> Iterator[str]:
    yield f"# rank {rank.rank}"
    yield from (join(words) for words in rank.before)
    added = {name: value for name, value in rank.env.items() if isinstance(usual, dict) and name not in usual}
    env = "".join(f"{name}={quote(value)} " for name, value in added.items())
    yield f"{env}{join(rank.argv)}"
