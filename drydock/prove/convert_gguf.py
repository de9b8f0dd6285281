"""Turn a GGUF file into a folder of safetensors that vLLM serves. Runs inside an image that has torch."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

source, output = Path(sys.argv[1]), sys.argv[2]
model = AutoModelForCausalLM.from_pretrained(
    source.parent,
    gguf_file=source.name,
    dtype=torch.bfloat16,
    quantization_config=GgufConfig(dequantize=True),
)
model.save_pretrained(output)
AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(output)
