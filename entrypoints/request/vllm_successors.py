"""What took the place of flags and variables that vLLM has removed. Data.

Which ones a version lacks is read from its own files; only what to write instead is known here. Sources: the
deprecation messages in vllm/engine/arg_utils.py and vllm/envs.py of the releases that still had them, vLLM's release
notes, and docs/usage/v1_guide.md for what went with its first engine (V0). Of those no successor exists.
"""

from __future__ import annotations

from collections.abc import Mapping

_V0 = "leave it out: it was a setting of vLLM's first engine (V0)"
_NOTHING = "leave it out"
_SPECULATIVE = "--speculative-config, with JSON"
_STRUCTURED = "--structured-outputs-config"
_EPLB = "--eplb-config"
_MOE, _LINEAR, _ATTENTION = "--moe-backend", "--linear-backend", "--attention-config"
_PROFILER = "--profiler-config"

SUCCESSORS: Mapping[str, str] = {
    "--task": "--runner generate or pooling, and --convert",
    "--swap-space": "--kv-offloading-size, for a KV cache in the host's memory",
    "--num-scheduler-steps": _V0,
    "--multi-step-stream-outputs": _V0,
    "--use-v2-block-manager": _V0,
    "--num-lookahead-slots": _V0,
    "--preemption-mode": _V0,
    "--scheduler-delay-factor": _V0,
    "--disable-async-output-proc": "--no-async-scheduling",
    "--disable-log-requests": "leave it out: requests are logged only with --enable-log-requests",
    "--enable-reasoning": "--reasoning-parser alone",
    "--expand-tools-even-if-tool-choice-none": "leave it out: tools are in the prompt, unless"
    " --exclude-tools-when-tool-choice-none is given",
    "--guided-decoding-backend": f"{_STRUCTURED}.backend",
    "--guided-decoding-disable-fallback": _NOTHING,
    "--guided-decoding-disable-any-whitespace": f"{_STRUCTURED}.disable_any_whitespace",
    "--guided-decoding-disable-additional-properties": f"{_STRUCTURED}.disable_additional_properties",
    "--speculative-model": _SPECULATIVE,
    "--speculative-model-quantization": _SPECULATIVE,
    "--speculative-draft-tensor-parallel-size": _SPECULATIVE,
    "--speculative-max-model-len": _SPECULATIVE,
    "--speculative-disable-by-batch-size": _SPECULATIVE,
    "--speculative-disable-mqa-scorer": _SPECULATIVE,
    "--num-speculative-tokens": _SPECULATIVE,
    "--ngram-prompt-lookup-max": _SPECULATIVE,
    "--ngram-prompt-lookup-min": _SPECULATIVE,
    "--spec-decoding-acceptance-method": _SPECULATIVE,
    "--worker-use-ray": "--distributed-executor-backend ray",
    "--rope-scaling": "--hf-overrides, with the key rope_parameters",
    "--rope-theta": "--hf-overrides, with the key rope_parameters",
    "--max-seq-len-to-capture": "--cudagraph-capture-sizes",
    "--max-context-len-to-capture": "--cudagraph-capture-sizes",
    "--cuda-graph-sizes": "--cudagraph-capture-sizes",
    "--device": "leave it out: the installed vLLM knows its device",
    "--override-pooler-config": "--pooler-config",
    "--override-neuron-config": "--additional-config",
    "--num-redundant-experts": f"{_EPLB}.num_redundant_experts",
    "--eplb-window-size": f"{_EPLB}.window_size",
    "--eplb-step-interval": f"{_EPLB}.step_interval",
    "--eplb-log-balancedness": f"{_EPLB}.log_balancedness",
    "--enable-multimodal-encoder-data-parallel": "--mm-encoder-tp-mode data",
    "--disable-mm-preprocessor-cache": "--mm-processor-cache-gb 0",
    "--calculate-kv-scales": "leave it out: scales are in the checkpoint",
    "--quantization-param-path": "leave it out: scales are in the checkpoint",
    "--disable-frontend-multiprocessing": _NOTHING,
    "--max-num-partial-prefills": _NOTHING,
    "--max-long-partial-prefills": _NOTHING,
    "--lora-extra-vocab-size": _NOTHING,
    "--enable-lora-bias": _NOTHING,
    "--long-lora-scaling-factors": _NOTHING,
    "--logits-processor-pattern": "--logits-processors",
    "VLLM_USE_V1": "leave it out: V0 is gone",
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
    "VLLM_FLASH_ATTN_VERSION": f"{_ATTENTION}.flash_attn_version",
    "VLLM_USE_TRTLLM_ATTENTION": f"{_ATTENTION}.use_trtllm_attention",
    "VLLM_USE_CUDNN_PREFILL": _ATTENTION,
    "VLLM_V1_USE_PREFILL_DECODE_ATTENTION": "--attention-backend",
    "VLLM_DISABLE_FLASHINFER_PREFILL": _ATTENTION,
    "VLLM_ALL2ALL_BACKEND": "--all2all-backend",
    "VLLM_MM_INPUT_CACHE_GIB": "--mm-processor-cache-gb",
    "VLLM_TORCH_PROFILER_DIR": f"{_PROFILER}.torch_profiler_dir",
    "VLLM_TORCH_PROFILER_RECORD_SHAPES": f"{_PROFILER}.torch_profiler_record_shapes",
    "VLLM_TORCH_PROFILER_WITH_STACK": f"{_PROFILER}.torch_profiler_with_stack",
    "VLLM_TORCH_PROFILER_WITH_FLOPS": f"{_PROFILER}.torch_profiler_with_flops",
    "VLLM_TORCH_PROFILER_WITH_PROFILE_MEMORY": f"{_PROFILER}.torch_profiler_with_memory",
    "VLLM_FLASHINFER_MOE_BACKEND": _MOE,
    "VLLM_USE_FLASHINFER_MOE_FP16": _MOE,
    "VLLM_USE_FLASHINFER_MOE_FP8": _MOE,
    "VLLM_USE_FLASHINFER_MOE_FP4": _MOE,
    "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16": _MOE,
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": _MOE,
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS": _MOE,
    "VLLM_MXFP4_USE_MARLIN": f"{_MOE} marlin",
    "VLLM_NVFP4_GEMM_BACKEND": _LINEAR,
    "VLLM_USE_FBGEMM": _LINEAR,
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "--prefix-cache-retention-interval",
    "VLLM_SLEEP_WHEN_IDLE": "leave it out: an idle server sleeps",
}
"""Flag or variable that no current vLLM has → what to write instead."""


def describe_successor(name: str) -> str:
    """Return what to do about a removed flag or variable."""
    successor = SUCCESSORS[name]
    return successor if successor.startswith(_NOTHING) else f"use {successor}"
