"""vLLM's OpenVINO plugin: device, weights, KV cache, batches. Pure.

What the plugin makes of these settings was read in its platform.py and envs.py (vllm-openvino dbabf373): one process,
one socket or one GPU, neither tensor nor pipeline parallelism; its KV cache is 4 GiB unless somebody says more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import notice
from entrypoints.core.errors import HOST, MODEL, USAGE, EntrypointError
from entrypoints.core.records import Facts, Notice
from entrypoints.decide.case import Case
from entrypoints.decide.records import GIB, Decision, Value, does_not_fit, gib
from entrypoints.decide.spread import memory as mem
from entrypoints.decide.spread.binding import domains
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags

DEVICE = "VLLM_OPENVINO_DEVICE"
KV_SPACE = "VLLM_OPENVINO_KVCACHE_SPACE"
KV_PRECISION = "VLLM_OPENVINO_KV_CACHE_PRECISION"
OLD_KV_PRECISION = "VLLM_OPENVINO_CPU_KV_CACHE_PRECISION"
QUANTIZED = "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS"
LENGTH = "--max-model-len"
PREFIXES = "--enable-prefix-caching"

README = "vllm-openvino's README"

_SIZES = {"u8": 1, "i8": 1, "f32": 4, "fp32": 4}
"""Bytes of a number in the KV cache, by the names that the plugin knows; two for all others."""
_SEQUENCES = 256
"""vLLM 0.8's own --max-num-seqs."""


class OpenvinoCase(Case):
    """What this accelerator's rules ask of the question."""

    __slots__ = ()

    @property
    def kv_size(self) -> int:
        """Bytes of a number in the KV cache."""
        return _SIZES.get((self.given.variable(KV_PRECISION) or "u8").lower(), 2)

    @property
    def length(self) -> int | None:
        """Tokens of the longest sequence: the user's, those of the intents, or the model's own."""
        intents, geometry = self.given.intents, self.model.geometry
        if self.given.flag(LENGTH):
            return self.given.number(LENGTH)
        if intents.input and intents.output:
            return intents.input[1] + intents.output[1]
        return geometry.max_length if geometry else None


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Decide all that the user did not.

    Raises HOST without the host's memory, MODEL for a broken configuration, USAGE for parallelism, DOES_NOT_FIT.
    """
    case = OpenvinoCase(profile, facts, model, given)
    _require(case)
    device = given.variable(DEVICE) or "CPU"
    values = _gpu() if "GPU" in device.upper() else _cpu(case)
    libraries = {name: paths.get(facts.processor.architecture) for name, paths in profile["libraries"].items()}
    there = [path for name, path in libraries.items() if path and facts.files.get(name)]
    if there:
        values["LD_PRELOAD"] = Value(":".join(there), "vLLM's CPU manual: TCMalloc for memory allocation")
    return Decision(values, tuple(_advice(case)))


def _require(case: OpenvinoCase) -> None:
    """Refuse what the plugin refuses after a minute of loading."""
    if not case.facts.memory.total:
        missing = "; ".join(f"{failure.where}: {failure.found}" for failure in case.facts.failures)
        raise EntrypointError(HOST, f"no plan without the host's memory: {missing}", "run `check` for the details")
    if case.model.problem and not case.given.variable(KV_SPACE):
        raise EntrypointError(MODEL, case.model.problem, f"complete the file, or set {KV_SPACE} yourself")
    for name in ("--tensor-parallel-size", "--pipeline-parallel-size"):
        if (case.given.number(name) or 1) > 1:
            hint = "leave it out; for more throughput start one server for each socket behind a router"
            raise EntrypointError(USAGE, f"{case.given.flags[name].given}: the plugin has one process", hint)


# --- GPU ------------------------------------------------------------------------------------------------------------


def _gpu() -> dict[str, Value]:
    """Leave the KV cache to the plugin, which asks the GPU what is free."""
    best = f"{README}: the best known configuration for GPUs"
    space = "0, the plugin's own: as much of the GPU's memory as --gpu-memory-utilization allows"
    return {
        DEVICE: Value("GPU", "set in the container's environment"),
        KV_PRECISION: Value("i8", best, ("fp16: twice the memory for the same tokens",)),
        QUANTIZED: Value("ON", best),
        KV_SPACE: Value("0", space),
    }


# --- CPU ------------------------------------------------------------------------------------------------------------


def _cpu(case: OpenvinoCase) -> dict[str, Value]:
    because = (
        "no other device was asked for; an Intel GPU takes docker run --device /dev/dri -e VLLM_OPENVINO_DEVICE=GPU"
    )
    smaller = ("f16, bf16: twice the memory for the same tokens",)
    return {
        DEVICE: Value("CPU", because),
        KV_PRECISION: Value("u8", f"{README}: the best known configuration for CPUs, and its default", smaller),
        **_memory(case),
        **_batches(case),
        **_sequences(case),
    }


def _memory(case: OpenvinoCase) -> dict[str, Value]:
    """Give the KV cache what weights and conversion leave; weights in u8 only where they would not fit otherwise."""
    room, values = _room(case, 2), {}
    weights = _loaded(case, 2)
    asked = case.given.variable(QUANTIZED)
    compressed = (asked or "").lower() in ("on", "true", "1")
    if compressed or (asked is None and _whole(case, room) < 1 <= _whole(case, _room(case, 1))):
        because = f"{gib(weights)} of weights in 16 bits would leave no room; in u8 they take {gib(_loaded(case, 1))}"
        values[QUANTIZED] = Value("ON", because, ("OFF: would not fit",))
        room = _room(case, 1)
    most = _whole(case, room)
    if most < 1:
        smaller = "a smaller model, or one exported in 4 bits with optimum-cli"
        raise does_not_fit(f"{case.model.name}: {room.words()}, and the smallest KV cache 1 GiB", smaller)
    return values | _space(case, room, most)


def _loaded(case: OpenvinoCase, size: int) -> int:
    return case.model.weights.loaded(size) if case.model.weights else 0


def _room(case: OpenvinoCase, size: int) -> mem.RankRoom:
    """Return what the weights leave: PyTorch's and OpenVINO's are in memory at once while they are converted."""
    copies, weights = case.thresholds.whole("weights_copies"), case.model.weights
    both = _loaded(case, 2) * (copies - 1) + _loaded(case, size)
    taken = mem.Load(both, weights.on_disk if weights else 0, 1)
    return mem.smallest_room(case.facts, (), taken, case.thresholds)


def _whole(case: OpenvinoCase, room: mem.RankRoom) -> int:
    share = "kv_memory_share" if case.model.weights else "kv_share_of_unknown_model"
    return mem.whole_gib(room, case.thresholds.number(share))


def _space(case: OpenvinoCase, room: mem.RankRoom, most: int) -> dict[str, Value]:
    geometry, length = case.model.geometry, case.length
    if geometry is None or length is None:
        return {KV_SPACE: Value(str(most), f"{room.words()}; {case.model.unknown or 'its length is not known'}")}
    cores = max(len(domain.cores) for domain in domains(case.facts))  # one socket's: the plugin uses no more
    tokens = cores * case.thresholds.whole("kv_tokens_per_core")
    sequences = case.given.number("--max-num-seqs") or case.given.intents.concurrency or _SEQUENCES
    use = mem.useful(geometry, mem.CacheDemand(length, sequences, tokens), case.kv_size, 1)
    four = "4, the plugin's own: whatever the machine and the model"
    if use.space < most:
        instead = (four, f"{most}: would fit, but nothing would use it")
        return {KV_SPACE: Value(str(use.space), f"{use.because}; {room.words()}", instead)} | _length(case, most)
    return {KV_SPACE: Value(str(most), room.words(), (four,))} | _shorter(case, geometry, length, most)


def _length(case: OpenvinoCase, space: int) -> dict[str, Value]:
    """State the length that the intents ask for. Raises as `_shorter` does."""
    geometry, length = case.model.geometry, case.length
    return {} if geometry is None or length is None else _shorter(case, geometry, length, space)


def _shorter(case: OpenvinoCase, geometry: Geometry, length: int, space: int) -> dict[str, Value]:
    """Return a shorter --max-model-len where one sequence does not fit `space` GiB. Raises DOES_NOT_FIT."""
    wished = case.given.intents.input and case.given.intents.output
    need = geometry.kv_bytes(length, case.kv_size, 1)
    if need <= space * GIB:
        because = "--input-range and --output-range together"
        return {LENGTH: Value(str(length), because)} if wished and not case.given.flag(LENGTH) else {}
    longest = mem.longest(geometry, space * GIB, case.kv_size, 1)
    if case.given.flag(LENGTH) or wished or longest < case.thresholds.whole("shortest_context"):
        message = f"{case.model.name}: {length} tokens need {gib(need)} of KV cache, {space} GiB are there"
        raise does_not_fit(message, f"{LENGTH} {longest} fits; or more memory")
    because = f"one sequence of the model's {length} tokens needs {gib(need)} of KV cache, {space} GiB are there"
    return {LENGTH: Value(str(longest), because, (f"{length}: vLLM would refuse to start",))}


def _batches(case: OpenvinoCase) -> dict[str, Value]:
    """Compute prompts in pieces, unless the user wants prefix caching, which excludes it here."""
    prefixes = case.given.flags.get(PREFIXES)
    if prefixes is not None and prefixes.value is not False:
        return {}
    tokens = case.thresholds.whole("batched_tokens")
    because = f"{README}: answers start and continue sooner; with prefix caching it does not go together here"
    batch = max(tokens, case.given.number("--max-num-seqs") or case.given.intents.concurrency or _SEQUENCES)
    return {
        "--enable-chunked-prefill": Value(value=True, because=because),
        "--max-num-batched-tokens": Value(str(batch), f"{README}: {tokens}, and no less than sequences at a time"),
    }


def _sequences(case: OpenvinoCase) -> dict[str, Value]:
    """State --max-num-seqs where --concurrency asks for it."""
    wished = case.given.intents.concurrency
    return {"--max-num-seqs": Value(str(wished), f"--concurrency {wished}")} if wished else {}


# --- what the user chose --------------------------------------------------------------------------------------------


def _advice(case: OpenvinoCase) -> Iterator[Notice]:
    """Say what speaks against choices of the user's, which are kept."""
    old = case.given.variable(OLD_KV_PRECISION)
    if old:
        yield notice("PLAN-081", f"{OLD_KV_PRECISION}={old}", f"{KV_PRECISION}={old}", precision=old)
    if case.given.flag(PREFIXES) == "True" and case.given.flag("--enable-chunked-prefill") == "True":
        yield notice("PLAN-082", "both", "one of them")
    method, methods = case.model.quantization, case.thresholds.words("quantization_methods")
    if method and method not in methods:
        yield notice("PLAN-084", method, f"one of {', '.join(methods)}")
    if case.given.flag("--enable-lora") == "True":
        yield notice("PLAN-083", "--enable-lora", "none")
