"""Options that vLLM's configuration refuses together are refused before it starts; what fits is taken."""

from __future__ import annotations

import pytest

from entrypoints.plan.config_limits import find_config_refusals
from entrypoints.request.vllm_flags import parse_user_flags
from entrypoints.request.vllm_lists import VllmLists
from tests.support.planned import models

TEXT, EXPERTS, PICTURES = "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen2.5-VL-7B-Instruct"
LISTS = VllmLists(
    {
        "deprecated_quantisations": ["fbgemm_fp8"],
        "platform_quantisations": {"rocm": ["fp8"]},
        "vision_backends": {"cuda": ["FLASH_ATTN", "TORCH_SDPA"]},
    }
)


def problems(text: str, model: str = TEXT, accelerator: str = "cuda", vllm: str = "0.32.0") -> list[str]:
    user_flags = parse_user_flags(tuple(text.split()), {})._replace(vllm=LISTS)
    settings = {name: flag.value for name, flag in user_flags.flags.items()}
    profile = {"vllm": vllm, "accelerator": accelerator}
    return [refusal.problem for refusal in find_config_refusals(profile, models()[model], user_flags, settings)]


@pytest.mark.parametrize(
    ("text", "model", "problem"),
    [
        ("--max-loras 4 --max-cpu-loras 2", TEXT, "--max-cpu-loras 2 with --max-loras 4"),
        ("--default-mm-loras {}", TEXT, "--default-mm-loras for a model of text alone"),
        (
            "--long-prefill-token-threshold 99999",
            TEXT,
            "--long-prefill-token-threshold 99999 for requests of 40960 tokens",
        ),
        ("--max-num-active-seqs 9 --max-num-seqs 8", TEXT, "--max-num-active-seqs 9 with --max-num-seqs 8"),
        (
            "-dp 2 --data-parallel-hybrid-lb --data-parallel-external-lb",
            EXPERTS,
            "--data-parallel-hybrid-lb with --data-parallel-external-lb",
        ),
        ("--data-parallel-external-lb", EXPERTS, "--data-parallel-external-lb with --data-parallel-size 1"),
        ("-dp 2 -dpl 4", TEXT, "--data-parallel-size-local 4 with --data-parallel-size 2"),
        ("-dp 2 --data-parallel-rank 2", EXPERTS, "--data-parallel-rank 2 with --data-parallel-size 2"),
        (
            "-dp 2 --data-parallel-rank 1",
            TEXT,
            "--data-parallel-size 2 with a rank for each server, for a model without experts",
        ),
        ("--ray-workers-use-nsight", TEXT, "--ray-workers-use-nsight without Ray"),
        ("--numa-bind-nodes 0", TEXT, "--numa-bind-nodes or --numa-bind-cpus without --numa-bind"),
        ("--enable-eplb", EXPERTS, "--enable-eplb with one rank"),
        (
            '--eplb-config {"num_redundant_experts":2}',
            EXPERTS,
            "--eplb-config: num_redundant_experts 2 without --enable-eplb",
        ),
        ("--enable-elastic-ep", EXPERTS, "--enable-elastic-ep without --enable-eplb"),
        ("--enable-return-routed-experts", TEXT, "--enable-return-routed-experts for a model without experts"),
        (
            "--enable-return-routed-experts -pp 2",
            EXPERTS,
            "--enable-return-routed-experts with --pipeline-parallel-size 2",
        ),
        ('--kv-transfer-config {"kv_connector":"X"}', TEXT, "--kv-transfer-config: X without kv_role"),
        (
            '--kv-transfer-config {"kv_connector":"X","kv_role":"both"}',
            TEXT,
            "--kv-transfer-config: kv_role both",
        ),
        ("--ec-transfer-config.ec_connector X", TEXT, "--ec-transfer-config: X without ec_role"),
        (
            "--cudagraph-capture-sizes 1 2 4 --max-cudagraph-capture-size 8",
            TEXT,
            "--max-cudagraph-capture-size 8 with --cudagraph-capture-sizes up to 4",
        ),
        (
            "--attention-backend X --attention-config.backend X",
            TEXT,
            "--attention-backend with --attention-config backend",
        ),
        (
            "--enable-mamba-cache-stochastic-rounding",
            TEXT,
            "--enable-mamba-cache-stochastic-rounding without --mamba-ssm-cache-dtype float16",
        ),
        ("--mamba-ssu-algorithm simple", TEXT, "--mamba-ssu-algorithm simple without --mamba-backend flashinfer"),
        ("--mm-tensor-ipc torch_shm -tp 2", PICTURES, "--mm-tensor-ipc torch_shm with 2 ranks"),
        (
            "--mm-shm-cache-max-object-size-mb 9",
            PICTURES,
            "--mm-shm-cache-max-object-size-mb without --mm-processor-cache-type shm",
        ),
        ("--mm-encoder-attn-backend xformers", PICTURES, "--mm-encoder-attn-backend XFORMERS on cuda"),
        ("--quantization fbgemm_fp8", TEXT, "quantisation method fbgemm_fp8, which vLLM will remove"),
        (
            '--async-scheduling --speculative-config {"method":"ngram"}',
            TEXT,
            "--async-scheduling with --speculative-config: method ngram",
        ),
        (
            "--per-request-spec-decode-metrics summary",
            TEXT,
            "--per-request-spec-decode-metrics without --speculative-config",
        ),
        (
            "--collect-detailed-traces model",
            TEXT,
            "--collect-detailed-traces without --otlp-traces-endpoint",
        ),
        (
            '--structured-outputs-config {"disable_any_whitespace":true,"backend":"outlines"}',
            TEXT,
            "--structured-outputs-config: disable_any_whitespace with backend outlines",
        ),
        ("--profiler-config.profiler torch", TEXT, "--profiler-config: profiler torch without torch_profiler_dir"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(text: str, model: str, problem: str) -> None:
    assert problems(text, model) == [problem]


@pytest.mark.parametrize(
    ("text", "accelerator", "problem"),
    [
        ("--enable-sleep-mode", "cpu", "--enable-sleep-mode on cpu"),
        ("--quantization awq_marlin", "rocm", "--quantization awq_marlin on rocm"),
        (
            "--enable-mamba-cache-stochastic-rounding",
            "rocm",
            "--enable-mamba-cache-stochastic-rounding on rocm",
        ),
    ],
)
def test_what_a_platform_lacks_is_refused(text: str, accelerator: str, problem: str) -> None:
    assert problems(text, TEXT, accelerator) == [problem]


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("", TEXT),
        ("--max-loras 4 --max-cpu-loras 4 --enable-sleep-mode", TEXT),
        ("-dp 8 -dpl 4 --numa-bind --numa-bind-nodes 0 1", TEXT),
        ("-dp 2 --enable-eplb --enable-expert-parallel --enable-elastic-ep", EXPERTS),
        ('--kv-transfer-config {"kv_connector":"X","kv_role":"kv_both"}', TEXT),
        ("--cudagraph-capture-sizes 1 2 4 --max-cudagraph-capture-size 4", TEXT),
        ("--quantization fbgemm_fp8 --allow-deprecated-quantization", TEXT),
        ("--mm-tensor-ipc torch_shm --mm-encoder-attn-backend TORCH_SDPA", PICTURES),
        ("--structured-outputs-config.disable_any_whitespace true --structured-outputs-config.backend xgrammar", TEXT),
    ],
)
def test_options_that_fit_are_taken(text: str, model: str) -> None:
    assert problems(text, model) == []


def test_a_version_whose_configuration_was_not_read_refuses_nothing() -> None:
    assert problems("--max-loras 4 --max-cpu-loras 2", vllm="0.11.0") == []
    assert problems('--async-scheduling --speculative-config {"method":"ngram"}', vllm="0.33.0") == []
