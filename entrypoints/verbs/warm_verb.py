"""`warm MODEL [VLLM FLAGS]`: as `serve`, but ends when vLLM is ready; the filled caches stay. IO."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.request.arguments import Arguments
from entrypoints.serve.launch import warm_caches
from entrypoints.verbs.serve_verb import start_vllm


def run_warm(arguments: Arguments, env: Mapping[str, str]) -> int:
    """Start vLLM, wait until it is ready, and stop it; return the exit code. Raises what `serve` raises."""
    return start_vllm(arguments, env, warm_caches)
