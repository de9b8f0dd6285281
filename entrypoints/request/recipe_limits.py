"""What a published recipe may set: an allow-list of vLLM's flags and variables, with a form for each value. Pure.

Recipes come from outside. Whatever is not listed here is left out, with a word that says why: what runs code, names
another model, a file, an address or a key, and what drydock decides itself. Both sides use this list: `./inv recipes`
when it reads a repository, and `plan` when it reads recipes.json, which anyone may have mounted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from entrypoints.core.parse import is_number
from entrypoints.core.text import VARIABLE_NAME
from entrypoints.request.flags import (
    AUTO_TOOLS,
    BATCHED,
    BLOCK_SIZE,
    CACHE_TYPE,
    DTYPE,
    EAGER,
    GRAPHS,
    LENGTH,
    LOAD_FORMAT,
    OFFLOAD,
    PREFIXES,
    QUANTIZATION,
    REASONING_PARSER,
    REMOTE_CODE,
    SEQUENCES,
    SPECULATION,
    TOOL_PARSER,
    UTILISATION,
)

Flags = Mapping[str, str | bool]
MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
WORD = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,12})?|[A-Za-z0-9_+][A-Za-z0-9_+-]{0,63}")
"""A number, or a word without dot, slash, colon, space and shell characters: it can be no flag, path, address, command
or class of Python."""
VARIABLE_VALUE = re.compile(rf"{WORD.pattern}|[a-z_]{{1,32}}:[A-Za-z0-9]{{1,16}}")
"""As a word; or as `expandable_segments:True`."""
LARGEST = 10**12
"""Number in JSON."""
DEEPEST = 4
MOST_VALUES = 64

CODE, FILE, ADDRESS, MODEL = "runs code", "names a file", "names an address or a name", "names another model"
PARALLEL, SIZE = "drydock decides the parallelism", "drydock decides lengths and memory"
UNLISTED, VALUE = "a recipe may not set it", "the value has another form than a recipe may use"
WORTH_SAYING = (CODE, FILE, ADDRESS, MODEL, UNLISTED, VALUE)
"""Reasons that an operator reads in a finding: it may be missed. drydock decides the others itself."""

SIZES = frozenset({LENGTH, SEQUENCES, BATCHED, UTILISATION, OFFLOAD, "VLLM_CPU_KVCACHE_SPACE"})
"""Lengths and memory: only what names hardware may set them, as only there the size of a device is known."""
KEYS: Mapping[str, tuple[str, ...]] = {
    GRAPHS: (
        *(
            "cudagraph_mode",
            "custom_ops",
            "mode",
            "pass_config",
            "level",
            "use_inductor",
            "use_inductor_graph_partition",
        ),
        *("fuse_allreduce_rms", "fuse_attn_quant", "eliminate_noops", "fuse_norm_quant", "fuse_act_quant"),
        *("fuse_rope_kvcache", "fuse_gemm_comms", "enable_sp", "enable_qk_norm_rope_fusion"),
        *("cudagraph_capture_sizes", "max_cudagraph_capture_size", "compile_sizes"),
    ),
    "--attention-config": (
        *("backend", "use_trtllm_attention", "indexer_kv_dtype", "use_fp4_indexer_cache"),
        *("minimax_m3_msa_decode_backend", "flash_attn_version", "use_prefill_query_quantization"),
        *("use_cudnn_prefill", "use_trtllm_ragged_deepseek_prefill", "mla_prefill_backend"),
    ),
    "--kernel-config": ("enable_flashinfer_autotune", "moe_backend", "linear_backend"),
    SPECULATION: (
        *("method", "num_speculative_tokens", "attention_backend", "moe_backend", "draft_sample_method"),
        *("rejection_sample_method", "prompt_lookup_max", "prompt_lookup_min", "parallel_drafting", "quantization"),
        *("disable_padded_drafter_batch", "enforce_eager", "max_model_len", "draft_tensor_parallel_size"),
    ),
    "--reasoning-config": ("reasoning_parser", "reasoning_start_str", "reasoning_end_str"),
    "--media-io-kwargs": ("video", "image", "audio", "num_frames", "fps"),
    "--limit-mm-per-prompt": ("video", "image", "audio"),
    "--default-chat-template-kwargs": (
        *("thinking", "thinking_mode", "enable_thinking", "reasoning_effort", "preserve_thinking"),
        *("clear_thinking", "add_generation_prompt"),
    ),
    "--override-generation-config": (
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
        *("frequency_penalty", "max_new_tokens"),
    ),
}
"""Flag with JSON → keys of any level. Others name code (`backend`, `inductor_passes`) or folders (`cache_dir`)."""
VALUES: Mapping[str, tuple[str, ...]] = {
    "--generation-config": ("auto", "vllm"),
    LOAD_FORMAT: (
        "auto",
        "safetensors",
        "fastsafetensors",
        "instanttensor",
        "mistral",
        "runai_streamer",
        "bitsandbytes",
    ),
}
"""Flag → the words that it may have: another one is a folder, or a format of weights that unpickles or has none."""
NUMBERS: Mapping[str, tuple[int, int]] = {
    "VLLM_ENGINE_READY_TIMEOUT_S": (60, 86_400),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": (60, 86_400),
    "VLLM_RPC_TIMEOUT": (10_000, 86_400_000),
    "VLLM_CPU_KVCACHE_SPACE": (1, 65_536),
    "HCCL_BUFFSIZE": (1, 65_536),
    "NCCL_MIN_NCHANNELS": (1, 1_024),
    "GPU_MAX_HW_QUEUES": (1, 1_024),
}
"""Variable → the least and most that it may be: no server starts in 0 s, and one that waits for years hangs."""
FLAGS = frozenset(
    {
        *(TOOL_PARSER, AUTO_TOOLS, REASONING_PARSER, CACHE_TYPE, BLOCK_SIZE, PREFIXES, EAGER, DTYPE, QUANTIZATION),
        *(LOAD_FORMAT, LENGTH, SEQUENCES, BATCHED, UTILISATION, OFFLOAD, *KEYS, *VALUES),
        *("--attention-backend", "--moe-backend", "--linear-backend", "--mamba-backend", "--mamba-cache-mode"),
        *("--mamba-ssm-cache-dtype", "--mamba-cache-philox-rounds", "--mamba-ssu-algorithm"),
        *("--enable-mamba-cache-stochastic-rounding", "--async-scheduling", "--enable-chunked-prefill"),
        *("--language-model-only", "--mm-encoder-tp-mode", "--mm-encoder-attn-backend", "--mm-processor-cache-gb"),
        *("--mm-processor-cache-type", "--tokenizer-mode", "--config-format", "--runner", "--convert"),
        *("--max-cudagraph-capture-size", "--enable-flashinfer-autotune", "--chat-template-content-format"),
        *("--disable-custom-all-reduce", "--disable-cascade-attn", "--video-pruning-rate"),
    }
)
VARIABLES = frozenset(
    {
        *("VLLM_USE_V2_MODEL_RUNNER", "VLLM_USE_DEEP_GEMM", "VLLM_USE_OINK_OPS", "VLLM_USE_BREAKABLE_CUDAGRAPH"),
        *("VLLM_USE_NCCL_SYMM_MEM", "VLLM_USE_AOT_COMPILE", "VLLM_USE_MEGA_AOT_ARTIFACT", "VLLM_USE_FASTOKENS"),
        *("VLLM_USE_TRTLLM_ATTENTION", "VLLM_USE_RUST_FRONTEND", "VLLM_ATTENTION_BACKEND"),
        *("VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_FLOAT32_MATMUL_PRECISION", "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER"),
        *("VLLM_FLASHINFER_MOE_BACKEND", "VLLM_FLASHINFER_ALLREDUCE_BACKEND", "VLLM_ALLREDUCE_USE_FLASHINFER"),
        *("VLLM_MEMORY_PROFILE_INCLUDE_ATTN", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "VLLM_DEEP_GEMM_WARMUP"),
        *("VLLM_VIDEO_LOADER_BACKEND", "VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT", "VLLM_MLA_DISABLE"),
        *("VLLM_CPU_ATTN_SPLIT_KV", "SAFETENSORS_FAST_GPU", "INKLING_GFX950_GLUON"),
        *("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "CUTE_DSL_ARCH", "NCCL_CUMEM_ENABLE", "NCCL_MNNVL_ENABLE"),
        *("NCCL_NVLS_ENABLE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"),
        *("HSA_NO_SCRATCH_RECLAIM", "AMDGCN_USE_BUFFER_OPS", "HIP_FORCE_DEV_KERNARG"),
        *("TORCH_BLAS_PREFER_HIPBLASLT", "AITER_BF16_FP8_MOE_BOUND", "AITER_MXFP4_INTERMEDIATE"),
        *("B12X_MLA_SM120_UNIFIED", "B12X_MOE_FORCE_A8", *NUMBERS),
    }
)
FAMILIES = ("VLLM_ROCM_", "VLLM_USE_FLASHINFER_", "VLLM_USE_B12X_")
"""Beginnings of vLLM's variables that switch kernels. Not `VLLM_USE_`: VLLM_USE_MODELSCOPE names another hub. Not those
of kernels' own libraries: AITER_JIT_DIR names the folder from which code is loaded."""
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--all2all-backend"),
            *("--data-parallel-size-local", "--enable-expert-parallel", "--decode-context-parallel-size"),
            *("--prefill-context-parallel-size", "--dcp-comm-backend", "--data-parallel-hybrid-lb", "--nnodes"),
            *("--distributed-executor-backend", "--enable-eplb", "--eplb-config", "VLLM_WORKER_MULTIPROC_METHOD"),
        ),
        PARALLEL,
    ),
    **dict.fromkeys(
        ("--kv-cache-memory-bytes", "--num-gpu-blocks-override", "--swap-space", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"), SIZE
    ),
    **dict.fromkeys(
        (
            *(REMOTE_CODE, "--tool-parser-plugin", "--tool-call-parser-plugin", "--reasoning-parser-plugin"),
            *("--logits-processors", "--logits-processor-pattern", "--middleware", "--worker-cls"),
            *("--worker-extension-cls", "--scheduler-cls", "--io-processor-plugin", "VLLM_PLUGINS", "LD_PRELOAD"),
            *("--additional-config", "PYTHONPATH", "PATH"),
        ),
        CODE,
    ),
    **dict.fromkeys(
        (
            *("--chat-template", "--config", "--download-dir", "--hf-config-path", "--allowed-local-media-path"),
            *("--ssl-keyfile", "--ssl-certfile", "--deploy-config", "VLLM_CACHE_ROOT", "LD_LIBRARY_PATH"),
        ),
        FILE,
    ),
    **dict.fromkeys(
        (
            *("--host", "--port", "--uds", "--root-path", "--served-model-name", "--api-key", "--otlp-traces-endpoint"),
            *("--kv-transfer-config", "--master-addr", "--data-parallel-address", "VLLM_HOST_IP", "VLLM_PORT"),
            *("VLLM_API_KEY", "HF_TOKEN", "HF_ENDPOINT", "VLLM_USE_MODELSCOPE", "GLOO_SOCKET_IFNAME"),
            *("NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "MN_IF_NAME", "NCCL_IB_HCA", "UCX_NET_DEVICES", "UCX_TLS"),
            *("OMPI_MCA_btl_tcp_if_include", "NCCL_IB_DISABLE"),
        ),
        ADDRESS,
    ),
    **dict.fromkeys(("--model", "--tokenizer", "--hf-overrides", "--lora-modules", "--revision"), MODEL),
}
"""Names of which it is said what is wrong with them; any other unlisted one is just not listed."""


def refuse_flag(name: str, value: str | bool, *, on_hardware: bool = False, opt_in: bool = False) -> str:
    """Return why a recipe may not set a flag to a value; empty if it may.

    `on_hardware`: it is set for a kind of hardware. `opt_in`: an operator named the feature, which may then name a
    draft model. `--flag.key` sets one key of a flag with JSON.
    """
    base, dot, key = name.partition(".")
    if base not in FLAGS:
        return _REFUSED.get(base, UNLISTED)
    if base in SIZES and not on_hardware:
        return SIZE
    if base in KEYS and not isinstance(value, bool):
        table = nest_value(key, value) if dot else parse_recipe_json(value)
        return VALUE if table is None else _refuse_json(base, table, opt_in=opt_in)
    if dot and not set(key.split(".")) <= {*KEYS.get(base, ())}:
        return VALUE
    if base in VALUES:
        return "" if value in VALUES[base] else CODE if base == LOAD_FORMAT else FILE
    return "" if isinstance(value, bool) or WORD.fullmatch(value) else VALUE


def refuse_variable(name: str, value: str, *, on_hardware: bool = False) -> str:
    """Return why a recipe may not set a variable to a value; empty if it may."""
    if not (name in VARIABLES or (name.startswith(FAMILIES) and VARIABLE_NAME.fullmatch(name))):
        return _REFUSED.get(name, UNLISTED)
    if name in SIZES and not on_hardware:
        return SIZE
    if name in NUMBERS:
        least, most = NUMBERS[name]
        return "" if is_number(value) and least <= int(value) <= most else VALUE
    return "" if VARIABLE_VALUE.fullmatch(value) else VALUE


def draft_model(flags: Flags) -> str:
    """Return the model that drafts tokens, if flags name one."""
    table = parse_recipe_json(str(flags.get(SPECULATION, "")))
    return str(flags.get(f"{SPECULATION}.model") or (table or {}).get("model") or "")


def parse_recipe_json(text: str) -> dict[str, Any] | None:
    """Return a JSON object; None for anything else."""
    if len(text) > 1 << 12:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def nest_value(key: str, value: str) -> dict[str, Any]:
    """Return `a.b` and its value as vLLM reads `--flag.a.b VALUE`: as JSON, or else as text. True is a truth value."""
    text = value.lower() if value in ("True", "False") else value
    try:
        inner: Any = json.loads(text) if len(text) <= 1 << 12 else value
    except (ValueError, RecursionError):
        inner = value
    for name in reversed(key.split(".")):
        inner = {name: inner}
    table: dict[str, Any] = inner
    return table


def _refuse_json(flag: str, table: Mapping[str, Any], *, opt_in: bool, depth: int = 0) -> str:
    """Return what is wrong with a flag's JSON: a key that is not listed, or a value that is no plain word."""
    if depth > DEEPEST or len(table) > MOST_VALUES:
        return VALUE
    for key, value in table.items():
        if flag == SPECULATION and key == "model" and not depth:
            if not (opt_in and isinstance(value, str) and MODEL_ID.fullmatch(value)):
                return MODEL
            continue
        if key not in KEYS[flag]:
            return VALUE
        problem = (
            _refuse_json(flag, value, opt_in=opt_in, depth=depth + 1)
            if isinstance(value, dict)
            else _refuse_values(flag, value)
        )
        if problem:
            return problem
    return ""


def _refuse_values(flag: str, value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    if len(values) > MOST_VALUES or any(isinstance(item, list | dict) for item in values):
        return VALUE
    tokens = flag == "--reasoning-config"  # the model's own marks, such as <think>
    form = re.compile(r"[A-Za-z0-9_.+<>|/ -]{0,64}") if tokens else WORD
    return "" if all(form.fullmatch(item) if isinstance(item, str) else _is_plain(item) for item in values) else VALUE


def _is_plain(value: Any) -> bool:
    """Tell whether a value is null, true, false or a number, which NaN, Infinity and 1e999 are not in JSON."""
    return value is None or abs(value) <= LARGEST
