"""What of vLLM is replaced so that its classes are built without a device, by vLLM's minor version. IO.

vLLM's internals change between minor versions. Of a version that is not in `KINDS` only the configuration is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Platform = Mapping[str, Any]
"""`kind`, and under `recorded` what that kind reads of its devices, or null if they are this machine's."""

_COMMUNICATOR = "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
"""It only keeps its groups. A platform's own opens shared memory or a device."""


# --- before vLLM's engine is imported --------------------------------------------------------------------------------


def give_cuda_devices(recorded: Mapping[str, Any]) -> None:
    """Make CUDA the current platform, with recorded devices."""
    from vllm import platforms
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    answers = {
        "get_device_capability": DeviceCapability(*recorded["capability"]),
        "get_device_name": recorded["name"],
        "get_device_total_memory": recorded["memory"],
        "is_fully_connected": True,
        "device_count": recorded["devices"],
    }
    methods = {name: _make_constant_method(answer) for name, answer in answers.items()}
    platforms.current_platform = type("RecordedCudaPlatform", (cuda.CudaPlatformBase,), methods)()


def _make_constant_method(answer: Any) -> Any:
    """Return a class method that always returns the same."""
    return classmethod(lambda _, *__, **___: answer)


# --- after ----------------------------------------------------------------------------------------------------------


def give_processor(recorded: Mapping[str, Any]) -> None:
    """Let the CPU platform see a recorded processor, on which its kernels depend, and its memory."""
    import torch
    from vllm import _custom_ops
    from vllm.platforms import CpuArchEnum, current_platform

    torch.cpu._is_amx_tile_supported = lambda: bool(recorded["amx"])  # noqa: SLF001 - vLLM asks by this name
    # A processor without AVX-512 loads a library without this kernel, whatever was recorded.
    _custom_ops._supports_cpu_fp8_w8a16 = bool(recorded["amx"])  # noqa: SLF001 - as above
    platform = type(current_platform)
    platform.get_cpu_architecture = _make_constant_method(CpuArchEnum[recorded["architecture"]])
    platform.get_device_total_memory = _make_constant_method(recorded["memory"])


def make_groups_fake() -> None:
    """Let vLLM's process groups be fake. Others would wait for ranks that do not exist."""
    from torch import distributed
    from torch.testing._internal.distributed import fake_pg
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm.platforms import current_platform

    new_group = distributed.new_group

    def make_group(ranks: Any = None, *_: Any, **__: Any) -> Any:
        return new_group(ranks, backend="fake")

    assert fake_pg  # noqa: S101 - its import registers the backend
    distributed.new_group = make_group
    distributed.barrier = lambda *_, **__: None
    parallel_state.in_the_same_node_as = lambda group, *_, **__: [True] * group.size()
    MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
    type(current_platform).get_device_communicator_cls = _make_constant_method(_COMMUNICATOR)


def inspect_here() -> None:
    """Let vLLM inspect a model's class in this process.

    vLLM uses another process, which would have this machine's platform, and cost a second import. An error there is
    only logged (_try_inspect_model_cls); here it is what vLLM's own words follow from.
    """
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()  # noqa: SLF001 - vLLM has no setting for it
    registry._try_inspect_model_cls = lambda _, model: model.inspect_model_cls()  # noqa: SLF001 - as above


def choose_cpu(*, like_cuda: bool) -> None:
    """Make the CPU the current platform, for a vLLM that was not built for it, or for options that ask for a GPU."""
    from vllm import platforms
    from vllm.platforms import cpu

    methods = {"is_cuda_alike": _make_constant_method(True)} if like_cuda else {}
    platforms.current_platform = type("ChosenCpuPlatform", (cpu.CpuPlatform,), methods)()


def describe_no_experts() -> None:
    """Leave out a line of the log that lists a rank's experts: it needs the numbers of a tensor."""
    from vllm.model_executor.layers.fused_moe.expert_map_manager import ExpertMapManager

    ExpertMapManager.get_compressed_map_string = lambda _: ""


def read_no_reasoning_tokens() -> None:
    """Leave out the token ids that begin and end reasoning: they need the tokenizer."""
    from vllm.config.reasoning import ReasoningConfig

    ReasoningConfig.initialize_token_ids = lambda *_: None


# --- by version -----------------------------------------------------------------------------------------------------

KINDS: Mapping[str, tuple[str, ...]] = {"0.32": ("cpu", "cuda"), "0.33": ("cuda",)}
"""vLLM's minor version → the platforms on which classes are built."""
_ALWAYS: tuple[Callable[[], None], ...] = (
    make_groups_fake,
    inspect_here,
    describe_no_experts,
    read_no_reasoning_tokens,
)
"""What is replaced on every platform where classes are built."""


def can_build(minor: str, platform: Platform) -> bool:
    """Return whether the classes of models can be built, and not only the configuration made."""
    return platform["kind"] in KINDS.get(minor, ())


def replace_before(platform: Platform) -> None:
    """Replace what must not be imported with this machine's platform."""
    if "like_cuda" in platform:
        choose_cpu(like_cuda=platform["like_cuda"])
    if platform["kind"] == "cuda" and platform["recorded"]:
        give_cuda_devices(platform["recorded"])


def replace_after(minor: str, platform: Platform) -> None:
    """Replace the rest."""
    if platform["kind"] == "cpu" and platform["recorded"]:
        give_processor(platform["recorded"])
    for replace in _ALWAYS if can_build(minor, platform) else (inspect_here,):
        replace()
