"""What is decided on TPUs beyond the recorded plans."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from entrypoints.core.records import Device, Facts
from entrypoints.decide.tpu import token_paddings
from tests.support.decision_rows import Row, check
from tests.support.hosts.host_models import LLAMA, SMOLLM2

V6E, TENSOR, VISIBLE, BOUNDS = (
    "tpu-v6e-8x",
    "--tensor-parallel-size",
    "TPU_VISIBLE_CHIPS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
)
NARROW = {"words": "--max-num-seqs 1", "goals": {"optimize": "throughput"}}
EXPERTS = LLAMA._replace(geometry=LLAMA.geometry and LLAMA.geometry._replace(experts=128, expert_width=768))
LATENT = SMOLLM2._replace(geometry=SMOLLM2.geometry and SMOLLM2.geometry._replace(latent=576))


def chips(generation: str, count: int, memory: int | None = None) -> Callable[[Facts], Facts]:
    """Return a change to other chips; a chip of v7x is two devices."""
    ranks = 2 if generation == "v7x" else 1
    devices = tuple(
        Device(number, f"TPU {generation}", memory, None, 0, architecture=generation, card=number // ranks)
        for number in range(count)
    )
    return lambda facts: facts._replace(devices=devices)


ROWS = {
    "v5e has 16 GiB": Row(V6E, changed=chips("v5e", 8), values={TENSOR: "4"}, **NARROW),
    "v4 has 32 GiB": Row(V6E, changed=chips("v4", 4), values={TENSOR: "2"}, **NARROW),
    "v6e has 32 GiB": Row(V6E, changed=chips("v6e", 8), values={TENSOR: "2"}, **NARROW),
    "v5p has 95 GiB": Row(V6E, changed=chips("v5p", 4), values={TENSOR: "1"}, **NARROW),
    "the memory that a framework reports counts": Row(
        V6E, changed=chips("v6e", 8, 95 << 30), values={TENSOR: "1"}, **NARROW
    ),
    "an engine of v7x takes whole chips": Row(
        V6E, goals={"optimize": "throughput"}, changed=chips("v7x", 4),
        values={TENSOR: "2", "--data-parallel-size": "2"}, because={TENSOR: "1: one process uses all 2 devices"},
    ),
    "unless the user splits one": Row(V6E, "-tp 1", changed=chips("v7x", 4), values={VISIBLE: "0"}),
    "both dies are one visible chip": Row(V6E, "-tp 2", changed=chips("v7x", 4), values={VISIBLE: "0"}),
    "a chip of v7x has 2 x 95 GiB": Row(
        V6E, changed=chips("v7x", 2), because={"--gpu-memory-utilization": "of 94.8 GiB"}
    ),
    "a slice is used whole": Row(
        V6E, changed=chips("v6e", 8), values={TENSOR: "8", VISIBLE: None}, because={TENSOR: "serve one model"}
    ),
    "a model too large for one chip": Row(V6E, changed=chips("v5e", 1), refused="usable per device"),
    "no chip": Row(V6E, changed=chips("v6e", 0), refused="no tpu device"),
    "an unknown generation": Row(V6E, changed=chips("v99", 1), refused="TPU generation v99: expected one of"),
    "chips that are not needed stay free": Row(
        V6E, "-tp 1", model=SMOLLM2, changed=chips("v6e", 8), values={VISIBLE: "0", BOUNDS: "1,1,1"}
    ),
    "the user's chips count": Row(
        V6E, env={VISIBLE: "3"}, model=SMOLLM2, changed=chips("v6e", 8), values={TENSOR: "1", VISIBLE: None}
    ),
    "a visible chip is a number": Row(V6E, env={VISIBLE: "all"}, refused=f"{VISIBLE}=all"),
    "experts stay whole over ranks": Row(
        V6E, "-tp 8", model=EXPERTS, changed=chips("v6e", 8), values={"--enable-expert-parallel": True}
    ),
    "one rank spreads none": Row(
        V6E, "-tp 1", model=EXPERTS, changed=chips("v6e", 8), values={"--enable-expert-parallel": None}
    ),
    "compiled shapes are counted": Row(
        V6E, model=SMOLLM2, changed=chips("v6e", 1), values={"NEW_MODEL_DESIGN": None},
        finds={"TPU-041": "8 token counts (16, 32, "},
    ),
    "smaller steps compile fewer": Row(
        V6E, "--max-num-batched-tokens 512 --max-num-seqs 16", model=SMOLLM2, changed=chips("v6e", 1),
        finds={"TPU-041": "6 token counts (16, 32, 64, 128, 256, 512) and 2 request counts"},
    ),
    "nothing is compiled ahead": Row(V6E, env={"SKIP_JAX_PRECOMPILE": "1"}, quiet=("TPU-041",)),
    "latent attention needs the new design": Row(
        V6E, model=LATENT, changed=chips("v6e", 1), values={"NEW_MODEL_DESIGN": "1"},
    ),
    "a quantisation that the platform refuses": Row(
        V6E, model=SMOLLM2._replace(quantization="bitsandbytes"), refused="does not support quantisation bitsandbytes"
    ),
    "the platform chooses its executor": Row(V6E, values={"--distributed-executor-backend": None}),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_decisions(row: Row) -> None:
    check(row)


@pytest.mark.parametrize(
    ("least", "most", "gap", "sizes"),
    [
        (16, 2048, 0, (16, 32, 64, 128, 256, 512, 1024, 2048)),
        (16, 300, 0, (16, 32, 64, 128, 256, 512)),
        (16, 512, 128, (16, 32, 64, 128, 256, 384, 512)),
        (8, 8, 0, (8,)),
    ],
)
def test_token_paddings_are_those_of_the_runner(least: int, most: int, gap: int, sizes: tuple[int, ...]) -> None:
    assert token_paddings(least, most, gap) == sizes
