"""Turn a Whisper of CTranslate2 into a folder of safetensors that vLLM serves. Runs inside an image that has torch.

The format: CTranslate2, python/ctranslate2/specs/model_spec.py; the names: converters/transformers.py, WhisperLoader.
"""

import io
import struct
import sys
from pathlib import Path

import torch
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizerFast,
)

TYPES = {1: torch.int8, 2: torch.int16, 4: torch.float16}

packages, output = Path(sys.argv[1]), sys.argv[2]
file = io.BytesIO(b"".join(part.read_bytes() for part in sorted(packages.glob("*/data/model.bin.part*"))))


def take(form: str) -> tuple[int, ...]:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))


def name() -> str:
    return file.read(take("H")[0])[:-1].decode()  # without the zero at the end


take("I"), name(), take("I")  # format, architecture, revision
source_tensors: dict[str, torch.Tensor] = {}
for _ in range(take("I")[0]):
    key = name()
    shape = take(f"{take('B')[0]}I")
    kind, size = take("BI")
    source_tensors[key] = torch.frombuffer(bytearray(file.read(size)), dtype=TYPES[kind]).reshape(shape)

PARTS = {
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
    "ffn/layer_norm": ("final_layer_norm",),
}
WHOLE = {"position_encodings/encodings": "embed_positions.weight", "embeddings/weight": "embed_tokens.weight"}
target_tensors: dict[str, torch.Tensor] = {}
for key, array in source_tensors.items():
    side, _, rest = key.partition("/")
    before, _, last = rest.rpartition("/")
    last = {"gamma": "weight", "beta": "bias"}.get(last, last)
    layer, _, part = before.partition("/")
    if part in PARTS:
        names = [f"layers.{layer.removeprefix('layer_')}.{piece_name}.{last}" for piece_name in PARTS[part]]
        target_tensors |= {
            f"model.{side}.{piece_name}": piece
            for piece_name, piece in zip(names, array.chunk(len(names)), strict=True)
        }
    elif rest in WHOLE or last in ("weight", "bias"):
        target_tensors[f"model.{side}.{WHOLE.get(rest, f'{before}.{last}')}"] = array

tokenizer = WhisperTokenizerFast(tokenizer_file=str(next(packages.glob("*/data/tokenizer.json"))))
end, (vocabulary, width) = tokenizer.eos_token_id, source_tensors["decoder/embeddings/weight"].shape
layers, heads = sum(key.endswith("fc1.bias") for key in target_tensors) // 2, int(source_tensors["encoder/num_heads"])
config = WhisperConfig(
    vocab_size=vocabulary, d_model=width, encoder_layers=layers, decoder_layers=layers,
    encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
    bos_token_id=end, eos_token_id=end, pad_token_id=end, decoder_start_token_id=end + 1,
    suppress_tokens=None, begin_suppress_tokens=None,
)  # fmt: skip
model = WhisperForConditionalGeneration(config)
missing, unexpected = model.load_state_dict(target_tensors, strict=False)
extra = [key for key in unexpected if not key.endswith("k_proj.bias")]  # Whisper has none; CTranslate2 writes zeros
if extra or missing != ["proj_out.weight"]:  # which is the embeddings again
    sys.exit(f"{packages}: missing {missing}, unexpected {extra}")
model.to(torch.bfloat16).save_pretrained(output)
WhisperFeatureExtractor().save_pretrained(output)
tokenizer.save_pretrained(output)
