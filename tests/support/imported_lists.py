"""A program that runs in an image: imports vLLM and prints what its registries and its parser say, as JSON.

The image's own lists were read from files (templates/tools/read_vllm.py); this asks the running vLLM instead.
"""

from __future__ import annotations

import json
import sys
import typing
from importlib import import_module


def import_first(*names: str) -> typing.Any:
    """Return the first of these modules that this version has."""
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"none of {names}")


def read_registries() -> dict[str, typing.Any]:
    registry = import_module("vllm.model_executor.models.registry")
    loaders = import_module("vllm.model_executor.model_loader")
    tools = import_first("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers").ToolParserManager
    thoughts = import_module("vllm.reasoning").ReasoningParserManager
    factory = import_module("vllm.distributed.kv_transfer.kv_connector.factory").KVConnectorFactory
    return {
        "architectures": sorted(registry._VLLM_MODELS),
        "quantisations": sorted(import_module("vllm.model_executor.layers.quantization").QUANTIZATION_METHODS),
        "tool_parsers": sorted(tools.list_registered()),
        "reasoning_parsers": sorted(thoughts.list_registered()),
        "connectors": sorted(factory._registry),
        "load_formats": sorted(loaders._LOAD_FORMAT_TO_MODEL_LOADER),
        "executors": sorted(typing.get_args(import_module("vllm.config.parallel").DistributedExecutorBackend)),
        "variables": sorted(import_module("vllm.envs").environment_variables),
        "float16_refused": dict(import_module("vllm.config.model")._FLOAT16_NOT_SUPPORTED_MODELS),
        "config_types": sorted(import_module("vllm.transformers_utils.config")._CONFIG_REGISTRY),
        "transformers_types": sorted(import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES),
        "platforms": sorted(import_module("vllm.platforms").builtin_platform_plugins),
    }


def read_parser() -> dict[str, list[typing.Any]]:
    """Return option string → name of its action, and its choices if it has any."""
    arguments = import_first(
        "vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"
    )
    parsers = import_first("vllm.utils.argparse_utils", "vllm.utils")
    options = arguments.make_arg_parser(parsers.FlexibleArgumentParser())._option_string_actions
    return {
        name: [type(action).__name__, sorted(str(item) for item in action.choices or () if item is not None)]
        for name, action in options.items()
    }


def find_not_imported() -> dict[str, str]:
    """Return architecture → why the module of its class cannot be imported here, in Python's words."""
    registry = import_module("vllm.model_executor.models.registry")
    words: dict[str, str] = {}
    for architecture, (module, _) in registry._VLLM_MODELS.items():
        try:
            import_module(module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}")
        except Exception as error:  # noqa: BLE001 - a module may raise anything
            words[architecture] = f"{type(error).__name__}: {error}"
    return words


def find_class(module: typing.Any, name: str) -> typing.Any:
    """Return an attribute of a module; None if it needs a package that the image lacks."""
    try:
        return getattr(module, name, None)
    except ModuleNotFoundError:
        return None


def find_fallback() -> dict[str, bool]:
    """Return each class of transformers that vLLM has none of its own for, and whether vLLM runs it."""
    transformers = import_module("transformers")
    base = transformers.PreTrainedModel
    served = import_module("vllm.model_executor.models.registry")._VLLM_MODELS
    classes = {name: find_class(transformers, name) for name in dir(transformers) if name not in served}
    return {
        name: item.is_backend_compatible() or can_set_attention(item)
        for name, item in sorted(classes.items())
        if isinstance(item, type) and issubclass(item, base) and item is not base
    }


def can_set_attention(item: typing.Any) -> bool:
    """Ask a class of transformers, and remove the answer that it keeps, which its subclasses would give too."""
    answer = bool(item._can_set_attn_implementation())
    if "_can_set_attn_implementation_cached_value" in vars(item):
        del item._can_set_attn_implementation_cached_value
    return answer


if __name__ == "__main__":
    known = {"lists": read_registries(), "options": read_parser(), "not_imported": find_not_imported()}
    known["fallback"] = find_fallback()
    json.dump(known, sys.stdout)
