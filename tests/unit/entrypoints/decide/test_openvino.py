"""What is decided for OpenVINO beyond the recorded plans: device, weights, KV cache, batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from entrypoints.core.errors import DOES_NOT_FIT, HOST, MODEL, USAGE
from entrypoints.core.records import Facts, Failure
from entrypoints.model.read import ModelFacts
from tests.support.decision_rows import Row, check
from tests.support.hosts.host_models import LLAMA, SMOLLM2

XEON = "openvino-xeon8380-2s"
SPACE, PRECISION, QUANTISED = (
    "VLLM_OPENVINO_KVCACHE_SPACE",
    "VLLM_OPENVINO_KV_CACHE_PRECISION",
    "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS",
)
LENGTH, CHUNKED = "--max-model-len", "--enable-chunked-prefill"
HUB = ModelFacts("owner/model", False, "", "", None, None, "it is not here yet")


def with_memory(gib: float) -> Callable[[Facts], Facts]:
    return lambda facts: facts._replace(memory=facts.memory._replace(available=int(gib * (1 << 30))))


def without_figures(facts: Facts) -> Facts:
    failure = Failure("/proc/meminfo", "no such file", "its size")
    return facts._replace(memory=facts.memory._replace(total=0), failures=(failure,))


ROWS = {
    "the manual's configuration for GPUs": Row(
        XEON,
        env={"VLLM_OPENVINO_DEVICE": "GPU.1"},
        values={PRECISION: "i8", QUANTISED: "ON", SPACE: "0", CHUNKED: None},
    ),
    "a KV cache of 16 bits takes twice the memory": Row(
        XEON, env={PRECISION: "f16"}, model=SMOLLM2, values={SPACE: "45"}
    ),
    "the KV cache takes what is left where that is less": Row(XEON, changed=with_memory(64), values={SPACE: "27"}),
    "a KV cache of the user's has its length": Row(XEON, env={SPACE: "2"}, values={LENGTH: "32640"}),
    "more than the memory is refused": Row(XEON, env={SPACE: "4000"}, code=DOES_NOT_FIT),
    "as many blocks are too": Row(XEON, "--num-gpu-blocks-override 10000000", code=DOES_NOT_FIT),
    "of a GPU, the plugin knows the memory": Row(
        XEON, env={SPACE: "4000", "VLLM_OPENVINO_DEVICE": "GPU"}, values={PRECISION: "i8"}
    ),
    "weights that fit are not compressed": Row(XEON, values={QUANTISED: None}),
    "those that would not fit otherwise are": Row(
        XEON, "--max-model-len 8192", changed=with_memory(33), values={QUANTISED: "ON"}
    ),
    "unless the user forbids it": Row(
        XEON, "--max-model-len 8192", env={QUANTISED: "OFF"}, changed=with_memory(33), code=DOES_NOT_FIT
    ),
    "a length that does not fit is shortened": Row(XEON, changed=with_memory(40), values={LENGTH: "98176"}),
    "or refused when it was asked for": Row(XEON, "--max-model-len 131072", changed=with_memory(40), code=DOES_NOT_FIT),
    "wishes set length and sequences": Row(
        XEON,
        goals={"input": (1, 3000), "output": (1, 1000), "concurrency": 512},
        values={LENGTH: "4000", "--max-num-seqs": "512", "--max-num-batched-tokens": "512"},
    ),
    "prefix caching excludes chunked prefill": Row(XEON, "--enable-prefix-caching", values={CHUNKED: None}),
    "both, and adapters, are warned of": Row(
        XEON, f"--enable-prefix-caching {CHUNKED} --enable-lora", finds={"PLAN-082": "", "PLAN-083": ""}
    ),
    "the old name of the precision is told apart": Row(
        XEON, env={"VLLM_OPENVINO_CPU_KV_CACHE_PRECISION": "u8"}, finds={"PLAN-081": ""}
    ),
    "a model that is not here leaves room for its weights": Row(XEON, model=HUB, values={SPACE: "91"}),
    "the plugin refuses ranks": Row(XEON, "-tp 2", code=USAGE),
    "and stages": Row(XEON, "--pipeline-parallel-size 2", code=USAGE),
    "a configuration without sizes is refused": Row(
        XEON, model=LLAMA._replace(problem="config.json: no hidden_size"), code=MODEL
    ),
    "too little memory is refused": Row(XEON, changed=with_memory(10), code=DOES_NOT_FIT),
    "without figures of memory there is no plan": Row(XEON, changed=without_figures, code=HOST),
    **{
        f"nobody converts {method}": Row(XEON, model=LLAMA._replace(quantization=method), finds={"PLAN-084": method})
        for method in ("fp8", "compressed-tensors")
    },
    **{
        f"the plugin converts {method or 'nothing'}": Row(
            XEON, model=LLAMA._replace(quantization=method), quiet=("PLAN-084",)
        )
        for method in ("gptq", "awq", "")
    },
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_decisions(row: Row) -> None:
    check(row)
