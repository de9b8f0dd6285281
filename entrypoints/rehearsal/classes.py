"""vLLM's parser, its configuration, and the model's classes. IO.

The classes are built on PyTorch's meta device, which has shapes and no numbers, in a fake process group.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

INSTEAD: Mapping[str, Any] = {
    "hf_config_path": None,
    "revision": None,
    "code_revision": None,
    "tokenizer_revision": None,
    "skip_tokenizer_init": True,
    "trust_remote_code": False,
}
"""vLLM's options that a rehearsal changes: the folder has no tokenizer and no history, and its code is not run."""


def parse_command(words: Sequence[str]) -> Any:
    """Return what the parser of vLLM's server makes of a command line. Raises ValueError, and what vLLM raises."""
    arguments = import_first(*(f"vllm.entrypoints.{name}.cli_args" for name in ("common", "launchers", "openai")))
    parsers = import_first("vllm.utils.argparse_utils", "vllm.utils")

    class Parser(parsers.FlexibleArgumentParser):  # type: ignore[misc,name-defined] # vLLM's classes have no types here
        """Raises an error instead of ending the process."""

        def error(self, message: str) -> None:
            raise ValueError(message)

    parsed = arguments.make_arg_parser(Parser()).parse_args([*words])
    arguments.validate_parsed_serve_args(parsed)
    return parsed


def import_first(*names: str) -> Any:
    """Return the first of some modules that this vLLM has; the newest name is first. Raises ModuleNotFoundError."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return importlib.import_module(names[-1])


def make_configuration(parsed: Any, question: Mapping[str, Any]) -> Any:
    """Return the configuration of vLLM's engine, with the models' files in folders. Raises what vLLM raises."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    options = copy.copy(parsed)
    folder, draft = question["folder"], question.get("draft")
    for name, value in {**INSTEAD, "model": folder, "tokenizer": folder}.items():
        setattr(options, name, value)
    if draft and options.speculative_config:
        options.speculative_config = {**options.speculative_config, "model": draft}
    return AsyncEngineArgs.from_cli_args(options).create_engine_config()


def choose_ranks(config: Any) -> tuple[int, ...]:
    """Return the first rank of the first, of a middle and of the last stage."""
    parallel = config.parallel_config
    stages = parallel.pipeline_parallel_size
    width = parallel.world_size // stages
    return tuple(sorted({stage * width for stage in (0, stages // 2, stages - 1)}))


def build_classes(config: Any, rank: int) -> int:
    """Build the model's classes as one rank does; return the bytes of its parameters. Raises what vLLM raises."""
    import torch
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    parallel = config.parallel_config
    parallel.distributed_executor_backend = "external_launcher"  # with others, vLLM opens a store for several hosts
    parallel.rank = rank
    ranks = parallel.world_size * parallel.data_parallel_size
    distributed.init_process_group(backend="fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        with set_current_vllm_config(config):
            join_groups(parallel, rank, ranks)
            with torch.device("meta"), set_default_torch_dtype(config.model_config.dtype):
                model = initialize_model(config)
            return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    finally:
        leave_groups()


def join_groups(parallel: Any, rank: int, ranks: int) -> None:
    """Make vLLM's process groups."""
    from vllm.distributed import parallel_state

    parallel_state.init_distributed_environment(ranks, rank, "env://", 0, backend="fake")
    parallel_state.initialize_model_parallel(
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
        parallel.prefill_context_parallel_size,
        parallel.decode_context_parallel_size,
        backend="fake",
    )


def leave_groups() -> None:
    """Forget vLLM's process groups, so that another rank can be asked about."""
    from torch import distributed
    from vllm.distributed import parallel_state

    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()
    if distributed.is_initialized():
        distributed.destroy_process_group()
