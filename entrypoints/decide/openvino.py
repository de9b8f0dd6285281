"""vLLM's OpenVINO plugin: device, weights, KV cache, batches. Pure.

The plugin runs one process on one socket or one GPU, without tensor or pipeline parallelism; its default KV cache is
4 GiB. Source: its platform.py and envs.py (vllm-openvino dbabf373).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import HOST, MODEL, USAGE, EntrypointError
from entrypoints.core.records import Facts, Notice, Value
from entrypoints.core.units import GIB
from entrypoints.decide.cpu.binding import list_rank_domains
from entrypoints.decide.cpu.rank_memory import (
    CacheDemand,
    Load,
    RankRoom,
    check_user_cache,
    compute_useful_cache,
    count_block_bytes,
    find_longest_sequence,
    smallest_room,
    whole_gib,
)
from entrypoints.decide.decision_input import Case
from entrypoints.decide.records import Decision, does_not_fit, gib
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import BATCHED, BLOCKS, LENGTH, PREFIXES
from entrypoints.request.vllm_flags import UserFlags, parse_count

DEVICE = "VLLM_OPENVINO_DEVICE"
KV_SPACE = "VLLM_OPENVINO_KVCACHE_SPACE"
KV_PRECISION = "VLLM_OPENVINO_KV_CACHE_PRECISION"
OLD_KV_PRECISION = "VLLM_OPENVINO_CPU_KV_CACHE_PRECISION"
QUANTIZED = "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS"

README = "vllm-openvino's README"

_SIZES = {"u8": 1, "i8": 1, "f32": 4, "fp32": 4}
"""Bytes of a number in the KV cache, by the plugin's names of types; two for all others."""
_DEFAULT_SPACE = 4
"""GiB. Source: vllm-openvino, platform.py."""
_BLOCK = 32
"""Tokens of a KV cache block on CPUs. Source: vllm-openvino, platform.py."""
_SEQUENCES = 256
"""vLLM 0.8's default --max-num-seqs."""


class OpenvinoCase(Case):
    """The input, with properties that OpenVINO's rules use."""

    __slots__ = ()

    @property
    def kv_size(self) -> int:
        """Bytes of a number in the KV cache."""
        return _SIZES.get((self.user_flags.variable(KV_PRECISION) or "u8").lower(), 2)

    @property
    def length(self) -> int | None:
        """Tokens of the longest sequence, by the user's flag, the intents or the model."""
        intents, geometry = self.user_flags.intents, self.model.geometry
        if self.user_flags.flag(LENGTH):
            return self.user_flags.number(LENGTH)
        if intents.input and intents.output:
            return intents.input[1] + intents.output[1]
        return geometry.max_length if geometry else None


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Choose every setting that the user did not set.

    Raises HOST if the host's memory is unknown, MODEL for an invalid configuration, USAGE for parallelism, and
    DOES_NOT_FIT.
    """
    case = OpenvinoCase(profile, facts, model, user_flags)
    _refuse_bad_settings(case)
    device = user_flags.variable(DEVICE) or "CPU"
    values = _choose_gpu_settings() if "GPU" in device.upper() else _choose_cpu_settings(case)
    libraries = {name: paths.get(facts.processor.architecture) for name, paths in profile["libraries"].items()}
    present = [path for name, path in libraries.items() if path and facts.files.get(name)]
    if present:
        values["LD_PRELOAD"] = Value(":".join(present), "vLLM's CPU manual: preload TCMalloc for memory allocation")
    return Decision(values, tuple(_find_openvino_notices(case)))


def _refuse_bad_settings(case: OpenvinoCase) -> None:
    """Raise for settings that the plugin would refuse only after a minute of loading."""
    if not case.facts.memory.total:
        missing = "; ".join(f"{failure.where}: {failure.found}" for failure in case.facts.failures)
        raise EntrypointError(HOST, f"the host's memory is unknown: {missing}", "run `check` for the details")
    if case.model.problem and not case.user_flags.variable(KV_SPACE):
        raise EntrypointError(MODEL, case.model.problem, f"complete the file, or set {KV_SPACE} yourself")
    for name in ("--tensor-parallel-size", "--pipeline-parallel-size"):
        if (case.user_flags.number(name) or 1) > 1:
            hint = "remove the flag; for more throughput, start one server per socket behind a router"
            raise EntrypointError(USAGE, f"{case.user_flags.flags[name].given}: the plugin runs only one process", hint)


# --- GPU ------------------------------------------------------------------------------------------------------------


def _choose_gpu_settings() -> dict[str, Value]:
    """Leave the KV cache's size to the plugin, which reads the GPU's free memory."""
    best = f"{README}: the best known configuration for GPUs"
    space = "the plugin's default: 0 means as much GPU memory as --gpu-memory-utilization allows"
    return {
        DEVICE: Value("GPU", "the container's environment selects it"),
        KV_PRECISION: Value("i8", best, ("fp16: twice the memory for the same tokens",)),
        QUANTIZED: Value("ON", best),
        KV_SPACE: Value("0", space),
    }


# --- CPU ------------------------------------------------------------------------------------------------------------


def _choose_cpu_settings(case: OpenvinoCase) -> dict[str, Value]:
    because = "the default; to use an Intel GPU: docker run --device /dev/dri -e VLLM_OPENVINO_DEVICE=GPU"
    smaller = ("f16, bf16: twice the memory for the same tokens",)
    return {
        DEVICE: Value("CPU", because),
        KV_PRECISION: Value("u8", f"{README}: the best known configuration for CPUs, and its default", smaller),
        **_choose_weights_and_cache(case),
        **_choose_chunked_prefill(case),
        **_choose_sequence_limit(case),
    }


def _choose_weights_and_cache(case: OpenvinoCase) -> dict[str, Value]:
    """Give the KV cache the memory left by weights and conversion; use u8 weights only if 16-bit ones do not fit."""
    room, room_in_u8, values = _find_room_beside_weights(case, 2), _find_room_beside_weights(case, 1), {}
    user = case.user_flags.variable(QUANTIZED)
    only_u8_fits = _count_whole_gib(case, room) < 1 <= _count_whole_gib(case, room_in_u8)
    if only_u8_fits if user is None else user.lower() in ("on", "true", "1"):
        before, after = gib(_count_weight_bytes(case, 2)), gib(_count_weight_bytes(case, 1))
        because = f"{before} of 16-bit weights would leave no room for the KV cache; in u8 they take {after}"
        values[QUANTIZED] = Value("ON", because, ("OFF: the weights would not fit",))
        room = room_in_u8
    most = _count_user_space(case, room, values) or _count_whole_gib(case, room)
    if most < 1:
        smaller = "a smaller model, or one exported in 4 bits with optimum-cli"
        raise does_not_fit(f"{case.model.name}: {room.describe()}; the smallest KV cache takes 1 GiB", smaller)
    return values | _choose_cache_size(case, room, most)


def _count_user_space(case: OpenvinoCase, room: RankRoom, values: Mapping[str, Value]) -> int:
    """Return the GiB of the user's KV cache; 0 without one. Raises DOES_NOT_FIT. In the plugin, 0 means its default."""
    stated = case.user_flags.variable(KV_SPACE)
    space = 0 if stated is None else parse_count(stated, KV_SPACE, least=0) or _DEFAULT_SPACE
    weights, geometry = _count_weight_bytes(case, 1 if QUANTIZED in values else 2), case.model.geometry
    if space:
        check_user_cache(case.model.name, KV_SPACE, f"{KV_SPACE}={stated}", space * GIB, weights, room)
    if BLOCKS in case.user_flags.flags and geometry:
        blocks = count_block_bytes(case.user_flags, geometry, case.kv_size, 1, _BLOCK)
        check_user_cache(case.model.name, BLOCKS, case.user_flags.flags[BLOCKS].given, blocks, weights, room)
    return space


def _count_weight_bytes(case: OpenvinoCase, size: int) -> int:
    return case.model.weights.loaded(size) if case.model.weights else 0


def _find_room_beside_weights(case: OpenvinoCase, size: int) -> RankRoom:
    """Return the memory left by the weights: during conversion, PyTorch's and OpenVINO's copies coexist."""
    copies, weights = case.thresholds.whole("weights_copies"), case.model.weights
    weight_copies = _count_weight_bytes(case, 2) * (copies - 1) + _count_weight_bytes(case, size)
    load = Load(weight_copies, weights.on_disk if weights else 0, 1)
    return smallest_room(case.facts, (), load, case.thresholds)


def _count_whole_gib(case: OpenvinoCase, room: RankRoom) -> int:
    share = "kv_memory_share" if case.model.weights else "kv_share_of_unknown_model"
    return whole_gib(room, case.thresholds.number(share))


def _choose_cache_size(case: OpenvinoCase, room: RankRoom, most: int) -> dict[str, Value]:
    geometry, length = case.model.geometry, case.length
    if geometry is None or length is None:
        return {KV_SPACE: Value(str(most), f"{room.describe()}; {case.model.unknown or 'its length is unknown'}")}
    cores = max(len(domain.cores) for domain in list_rank_domains(case.facts))  # the plugin uses one socket
    tokens = cores * case.thresholds.whole("kv_tokens_per_core")
    sequences = case.user_flags.number("--max-num-seqs") or case.user_flags.intents.concurrency or _SEQUENCES
    use = compute_useful_cache(geometry, CacheDemand(length, sequences, tokens), case.kv_size, 1)
    four = "4, the plugin's default: independent of machine and model"
    if use.space < most:
        instead = (four, f"{most}: would fit, but requests could not use it")
        return {KV_SPACE: Value(str(use.space), f"{use.because}; {room.describe()}", instead)} | _choose_intent_length(
            case, most
        )
    return {KV_SPACE: Value(str(most), room.describe(), (four,))} | _choose_fitting_length(case, geometry, length, most)


def _choose_intent_length(case: OpenvinoCase, space: int) -> dict[str, Value]:
    """Return the length of the intents. Raises the errors of `_choose_fitting_length`."""
    geometry, length = case.model.geometry, case.length
    return {} if geometry is None or length is None else _choose_fitting_length(case, geometry, length, space)


def _choose_fitting_length(case: OpenvinoCase, geometry: Geometry, length: int, space: int) -> dict[str, Value]:
    """Return a shorter --max-model-len if one sequence does not fit in `space` GiB. Raises DOES_NOT_FIT."""
    from_intents = case.user_flags.intents.input and case.user_flags.intents.output
    need = geometry.kv_bytes(length, case.kv_size, 1)
    if need <= space * GIB:
        because = "the sum of the upper ends of --input-range and --output-range"
        return {LENGTH: Value(str(length), because)} if from_intents and not case.user_flags.flag(LENGTH) else {}
    longest = find_longest_sequence(geometry, space * GIB, case.kv_size, 1)
    if case.user_flags.flag(LENGTH) or from_intents or longest < case.thresholds.whole("shortest_context"):
        message = f"{case.model.name}: {length} tokens need {gib(need)} of KV cache, {space} GiB are available"
        raise does_not_fit(message, f"{LENGTH} {longest} fits; or use more memory")
    because = f"one sequence of the model's {length} tokens needs {gib(need)} of KV cache, {space} GiB are available"
    return {LENGTH: Value(str(longest), because, (f"{length}: vLLM would refuse to start",))}


def _choose_chunked_prefill(case: OpenvinoCase) -> dict[str, Value]:
    """Compute prompts in chunks, unless the user sets prefix caching: the plugin does not support both."""
    prefixes = case.user_flags.flags.get(PREFIXES)
    if prefixes is not None and prefixes.value is not False:
        return {}
    tokens = case.thresholds.whole("batched_tokens")
    because = (
        f"{README}: answers start and continue sooner; the plugin does not support it together with prefix caching"
    )
    batch = max(tokens, case.user_flags.number("--max-num-seqs") or case.user_flags.intents.concurrency or _SEQUENCES)
    return {
        "--enable-chunked-prefill": Value(value=True, because=because),
        BATCHED: Value(str(batch), f"{README}: {tokens} tokens, but at least the number of concurrent sequences"),
    }


def _choose_sequence_limit(case: OpenvinoCase) -> dict[str, Value]:
    """Return --max-num-seqs for --concurrency."""
    concurrency = case.user_flags.intents.concurrency
    return {"--max-num-seqs": Value(str(concurrency), f"--concurrency {concurrency}")} if concurrency else {}


# --- notices --------------------------------------------------------------------------------------------------------


def _find_openvino_notices(case: OpenvinoCase) -> Iterator[Notice]:
    """Yield notices about settings of the user that are kept but have a cost."""
    old = case.user_flags.variable(OLD_KV_PRECISION)
    if old:
        yield make_notice("PLAN-081", f"{OLD_KV_PRECISION}={old}", f"{KV_PRECISION}={old}", precision=old)
    if case.user_flags.flag(PREFIXES) == "True" and case.user_flags.flag("--enable-chunked-prefill") == "True":
        yield make_notice("PLAN-082", "both", "one of them")
    method, methods = case.model.quantization, case.thresholds.words("quantization_methods")
    if method and method not in methods:
        yield make_notice("PLAN-084", method, f"one of {', '.join(methods)}")
    if case.user_flags.flag("--enable-lora") == "True":
        yield make_notice("PLAN-083", "--enable-lora", "none")
