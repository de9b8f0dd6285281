"""vLLM's flags that the entrypoint reads or sets: each name once, with its short form and its unit."""

from __future__ import annotations

from collections.abc import Mapping

# the model
MODEL_NAME = "--model"
REVISION = "--revision"
DOWNLOAD_DIR = "--download-dir"
LOAD_FORMAT = "--load-format"
QUANTIZATION = "--quantization"
DTYPE = "--dtype"
OVERRIDES = "--hf-overrides"
REMOTE_CODE = "--trust-remote-code"

# devices and hosts
TENSOR = "--tensor-parallel-size"
PIPELINE = "--pipeline-parallel-size"
DATA = "--data-parallel-size"
LOCAL = "--data-parallel-size-local"
EXPERT = "--enable-expert-parallel"
NODES = "--nnodes"
NODE_RANK = "--node-rank"
MASTER = "--master-addr"
MASTER_PORT = "--master-port"
HEADLESS = "--headless"
START_RANK = "--data-parallel-start-rank"
DATA_ADDRESS = "--data-parallel-address"
RPC_PORT = "--data-parallel-rpc-port"
EXECUTOR = "--distributed-executor-backend"
NUMA = "--numa-bind"
ALL_REDUCE = "--disable-custom-all-reduce"

HOSTS = (NODES, NODE_RANK, MASTER, MASTER_PORT)
"""Flags that every image takes, also where vLLM has none of them or Ray starts the ranks: plan/ranks.py."""

# memory and batches
LENGTH = "--max-model-len"
SEQUENCES = "--max-num-seqs"
BATCHED = "--max-num-batched-tokens"
UTILISATION = "--gpu-memory-utilization"
CACHE_BYTES = "--kv-cache-memory-bytes"
CACHE_TYPE = "--kv-cache-dtype"
BLOCK = "--block-size"
BLOCKS = "--num-gpu-blocks-override"
OFFLOAD = "--cpu-offload-gb"
PREFIXES = "--enable-prefix-caching"
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
SHUTDOWN = "--shutdown-timeout"
MIDDLEWARE = "--middleware"

SHORT: Mapping[str, str] = {
    "-tp": TENSOR,
    "-pp": PIPELINE,
    "-dp": DATA,
    "-dpl": LOCAL,
    "-n": NODES,
    "-r": NODE_RANK,
    "-dpr": START_RANK,
    "-dpa": DATA_ADDRESS,
    "-dpp": RPC_PORT,
    "-q": QUANTIZATION,
    "-O": OPTIMIZATION,
}
"""vLLM's short forms."""

UNITS: Mapping[str, str] = {
    TENSOR: "devices",
    PIPELINE: "devices",
    DATA: "engines",
    LOCAL: "engines",
    NODES: "hosts",
    LENGTH: "tokens",
    BATCHED: "tokens",
    BLOCK: "tokens",
    SEQUENCES: "requests",
    CACHE_BYTES: "bytes",
}
"""Units of the flags that take a whole number."""
