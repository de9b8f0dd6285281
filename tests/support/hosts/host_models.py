"""Two models that plans are expected for, as `read_model` would return them from the folders that hubs serve."""

from __future__ import annotations

from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights

SMOLLM2 = ModelFacts(
    name="/models/smollm2",
    local=True,
    architecture="LlamaForCausalLM",
    quantization="",
    weights=Weights(on_disk=269_060_552, elements=134_515_008, other=0),
    geometry=Geometry(
        layers=30,
        sliding_layers=0,
        window=0,
        heads=9,
        kv_heads=3,
        head_size=64,
        latent=0,
        max_length=8192,
        hidden=576,
        vocabulary=49152,
        intermediate=1536,
    ),
    unknown="",
)
LLAMA = ModelFacts(
    name="/models/llama-3.1-8b",
    local=True,
    architecture="LlamaForCausalLM",
    quantization="",
    weights=Weights(on_disk=16_060_556_376, elements=8_030_261_248, other=0),
    geometry=Geometry(
        layers=32,
        sliding_layers=0,
        window=0,
        heads=32,
        kv_heads=8,
        head_size=128,
        latent=0,
        max_length=131_072,
        hidden=4096,
        vocabulary=128256,
        intermediate=14336,
    ),
    unknown="",
)
MODELS = {"smollm2": SMOLLM2, "llama-3.1-8b": LLAMA}
