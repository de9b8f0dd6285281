"""Endings of the files of a model that hold weights. Pure; both sides use it.

Source of the first five: vLLM, model_executor/model_loader (default_loader.py and gguf_loader.py).
"""

from __future__ import annotations

SAFETENSORS, GGUF = ".safetensors", ".gguf"
PICKLED = (".bin", ".pt", ".pth")
"""PyTorch's own format."""
WEIGHTS = (SAFETENSORS, GGUF, *PICKLED)
"""What vLLM loads."""
OTHER_FRAMEWORKS = (".ckpt", ".h5", ".msgpack", ".onnx", ".onnx_data", ".tflite")
"""What hubs have of the same weights for TensorFlow, JAX and ONNX."""
