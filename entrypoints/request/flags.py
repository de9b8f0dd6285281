"""vLLM's flags that the entrypoint reads or sets: each name once, with its short form and its unit."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

# the model
MODEL_NAME = "--model"
REVISION = "--revision"
DOWNLOAD_DIR = "--download-dir"
LOAD_FORMAT = "--load-format"
QUANTIZATION = "--quantization"
DTYPE = "--dtype"
OVERRIDES = "--hf-overrides"
ROPE = "--rope-scaling"
NO_WINDOW = "--disable-sliding-window"
REMOTE_CODE = "--trust-remote-code"
IMPLEMENTATION = "--model-impl"

# devices and hosts
TENSOR = "--tensor-parallel-size"
PIPELINE = "--pipeline-parallel-size"
DATA = "--data-parallel-size"
DATA_BACKEND = "--data-parallel-backend"
LOCAL = "--data-parallel-size-local"
EXPERT = "--enable-expert-parallel"
EPLB = "--enable-eplb"
CONTEXT = "--decode-context-parallel-size"
PREFILL_CONTEXT = "--prefill-context-parallel-size"
NODES = "--nnodes"
NODE_RANK = "--node-rank"
MASTER = "--master-addr"
MASTER_PORT = "--master-port"
HEADLESS = "--headless"
COMMANDS = "vllm.entrypoints.cli.main"
"""The module of vLLM's own commands: `vllm serve`, `vllm bench`."""
START_RANK = "--data-parallel-start-rank"
DATA_ADDRESS = "--data-parallel-address"
RPC_PORT = "--data-parallel-rpc-port"
EXECUTOR = "--distributed-executor-backend"
KV_TRANSFER = "--kv-transfer-config"
NUMA = "--numa-bind"
ALL_REDUCE = "--disable-custom-all-reduce"

HOSTS = (NODES, NODE_RANK, MASTER, MASTER_PORT)
"""Flags that every image takes, also where vLLM has none of them or Ray starts the ranks: plan/ranks.py."""
SECRET_FILE = "--group-secret-file"  # noqa: S105 -- a flag's name
GROUP_SECRET = "DRYDOCK_GROUP_SECRET"  # noqa: S105 -- a variable's name
"""Drydock's own: the secret that hosts sign their reports with, serve/rank_protocol.py."""

# memory and batches
LENGTH = "--max-model-len"
SEQUENCES = "--max-num-seqs"
BATCHED = "--max-num-batched-tokens"
UTILISATION = "--gpu-memory-utilization"
CACHE_BYTES = "--kv-cache-memory-bytes"
CACHE_TYPE = "--kv-cache-dtype"
ATTENTION_BACKEND = "--attention-backend"
ATTENTION_CONFIG = "--attention-config"
BLOCK_SIZE = "--block-size"
BLOCKS = "--num-gpu-blocks-override"
OFFLOAD = "--cpu-offload-gb"
KV_OFFLOAD = "--kv-offloading-size"
KV_BACKEND = "--kv-offloading-backend"
SWAP = "--swap-space"
PREFIXES = "--enable-prefix-caching"
SPECULATION = "--speculative-config"
ADAPTERS, SHARDED_ADAPTERS = "--enable-lora", "--fully-sharded-loras"
ADAPTERS_AT_ONCE = "--max-loras"
OF_ADAPTERS = (ADAPTERS_AT_ONCE, "--max-lora-cls-labels")
"""Numbers that vLLM reads with --enable-lora only. Source: engine/arg_utils.py, create_engine_config."""
ADAPTER_RANK = "--max-lora-rank"
ADAPTER_TARGETS = "--lora-target-modules"
EAGER = "--enforce-eager"
GRAPHS = "--compilation-config"
OPTIMIZATION = "--optimization-level"
MODE = "--performance-mode"
CONFIG = "--additional-config"

# the server
CONFIG_FILE = "--config"
SERVED_NAME = "--served-model-name"
ADDRESS = "--host"
PORT = "--port"
SOCKET = "--uds"
CERTIFICATE = "--ssl-certfile"
API_KEY = "--api-key"
API_KEY_VARIABLE = "VLLM_API_KEY"
"""vLLM reads it where `--api-key` is absent; older versions also where it is present. It holds one key.
Source: vllm/entrypoints/openai/api_server.py, `envs.VLLM_API_KEY or args.api_key`; of later versions,
`args.api_key or [envs.VLLM_API_KEY]`."""
USE_MODELSCOPE = "VLLM_USE_MODELSCOPE"
"""With it vLLM takes models from ModelScope. It reads the word true, in any case, and no number.
Source: vllm/envs.py."""
NO_LATENT = "VLLM_MLA_DISABLE"
"""With 1 vLLM computes latent attention as plain attention, with a KV cache of every head. Source: vllm/envs.py."""
SHUTDOWN = "--shutdown-timeout"
MIDDLEWARE = "--middleware"
CHAT_TEMPLATE = "--chat-template"
TOOL_PARSER = "--tool-call-parser"
AUTO_TOOLS = "--enable-auto-tool-choice"
REASONING_PARSER = "--reasoning-parser"

SHORT: Mapping[str, str] = {
    "-tp": TENSOR,
    "-pp": PIPELINE,
    "-dp": DATA,
    "-dpl": LOCAL,
    "-dcp": CONTEXT,
    "-pcp": PREFILL_CONTEXT,
    "-n": NODES,
    "-r": NODE_RANK,
    "-dpr": START_RANK,
    "-dpa": DATA_ADDRESS,
    "-dpp": RPC_PORT,
    "-q": QUANTIZATION,
    "-O": OPTIMIZATION,
    "-sc": SPECULATION,
    "-ep": EXPERT,
    "-ac": ATTENTION_CONFIG,
    "-cc": "--compilation-config",
    "-dc": "--diffusion-config",
    "-dpn": "--data-parallel-rank",
    "-dpb": DATA_BACKEND,
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-asc": "--api-server-count",
}
"""vLLM's short forms. Source: vLLM 0.33, engine/arg_utils.py, add_cli_args; entrypoints/common/cli_args.py."""


class Range(NamedTuple):
    """The numbers that a flag takes, as vLLM checks them after seconds of imports."""

    least: float = 1
    unit: str = ""
    most: float = inf
    whole: bool = True
    least_too: bool = True
    """Whether `least` itself is in the range."""
    most_too: bool = True
    words: tuple[str, ...] = ()
    """What the flag takes other than these numbers."""


HIGHEST_PORT = 65535
MOST_HOSTS = 1024
"""More hosts than serve any model; vLLM has no limit, but a plan lists the command of each."""

RANGES: Mapping[str, Range] = {
    TENSOR: Range(unit="devices"),
    PIPELINE: Range(unit="devices"),
    DATA: Range(unit="engines"),
    LOCAL: Range(0, "engines"),
    NODES: Range(unit="hosts", most=MOST_HOSTS),
    LENGTH: Range(unit="tokens", words=("auto", "-1")),
    BATCHED: Range(unit="tokens"),
    BLOCK_SIZE: Range(unit="tokens"),
    SEQUENCES: Range(unit="requests"),
    CACHE_BYTES: Range(unit="bytes"),
    UTILISATION: Range(0, most=1, whole=False, least_too=False),
    OFFLOAD: Range(0, "GiB", whole=False),
    KV_OFFLOAD: Range(0, "GiB", whole=False),
    SWAP: Range(0, "GiB", whole=False),
    "--node-rank": Range(0),
    "--data-parallel-rank": Range(0),
    "--data-parallel-rpc-port": Range(most=HIGHEST_PORT),
    PREFILL_CONTEXT: Range(unit="devices"),
    CONTEXT: Range(unit="devices"),
    "--max-parallel-loading-workers": Range(unit="workers"),
    ADAPTERS_AT_ONCE: Range(unit="adapters"),
    ADAPTER_RANK: Range(most=512),
    "--max-logprobs": Range(0, words=("-1",)),
    "--stream-interval": Range(unit="tokens"),
    "--long-prefill-token-threshold": Range(0, "tokens"),
    "--mm-processor-cache-gb": Range(0, "GiB", whole=False),
    "--video-pruning-rate": Range(0, most=1, whole=False, most_too=False),
    "--kv-cache-metrics-sample": Range(0, most=1, whole=False, least_too=False),
    "--watermark": Range(0, most=1, whole=False, most_too=False),
    SHUTDOWN: Range(0, "seconds"),
}
"""The flags whose range vLLM checks. Source: the Field(ge=…, gt=…, le=…, lt=…) of vllm/config/*.py in vLLM 0.32, and
for --swap-space in 0.9; earlier releases check the same numbers in __post_init__, or fail later."""
