"""A model folder, or the small files of a hub id → what a plan needs to know: weights and geometry. IO.

A broken folder is an error before vLLM spends a minute to find it. A hub id is looked up in the local cache, then at
the hub. If neither answers, the model is unknown, and the plan says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.core.redact import redact_value
from entrypoints.model.bucket import SCHEMES, ReadBucket
from entrypoints.model.config import Config, Table, parse_config, read_size
from entrypoints.model.files import parse_model_json, read_json
from entrypoints.model.geometry import Geometry, parse_geometry
from entrypoints.model.hub import (
    SNAPSHOTS,
    Hub,
    NotAnswered,
    Refused,
    check_token,
    fetch_hub_file,
    find_snapshot,
    name_repository,
    not_found,
)
from entrypoints.model.multimodal_encoders import Tower, parse_towers
from entrypoints.model.parameters import Linear, compute_weight_shares, estimate_weights, list_linears
from entrypoints.model.parsers import ARCHITECTURES
from entrypoints.model.template import Read, in_folder, is_pooling_model, read_template
from entrypoints.model.weights import (
    INDEX,
    SINGLE,
    Incomplete,
    Weights,
    parse_beginning,
    parse_total_size,
    read_weights,
    weights_by_size,
)

MARK = "drydock-conversion.json"
"""In a folder that `convert` wrote: from what, by which script, of which image."""

VOCABULARY = "o200k_base.tiktoken"
"""The vocabulary of gpt-oss, as openai-harmony names the file; the model's own repository lacks it."""

_CONFIG = "config.json"
_MISTRAL = "params.json"
"""Mistral's own name and layout of config.json."""
_OF_MODELOPT = "hf_quant_config.json"
_METHODS = {_OF_MODELOPT: "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files that say how weights are quantised where config.json does not → their method. vLLM reads the first by itself,
and the others with --quantization. Source: vLLM 0.32, transformers_utils/config.py, get_config;
model_executor/model_loader/weight_utils.py, get_quant_config."""
_READ_AS_IT_IS = ("auto", "safetensors", "pt", "hf", "mistral")
"""Values of --load-format with which vLLM loads the weights from the folder as they are."""


_PREDICTORS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""vLLM 0.32's config/speculative.py, hf_config_override."""


class Instead(NamedTuple):
    """What `plan` may read instead of a model's own files. Servers read none of it: vLLM needs the files."""

    file: str = ""
    """Of --model-config: a config.json, or a folder with it and the index of the weights."""
    known: str = ""
    """File with the configurations that drydock knows by hub id; empty in a container."""
    no_weights: bool = False
    """Whether a folder may lack its weights."""


NOTHING_INSTEAD = Instead()


class ModelFacts(NamedTuple):
    """What is known about a model before vLLM loads it."""

    name: str
    """The folder or hub id, as the user wrote it."""
    local: bool
    architecture: str
    quantization: str
    weights: Weights | None
    geometry: Geometry | None
    unknown: str
    """Why weights or geometry are unknown, if that is no error."""
    problem: str = ""
    """What is missing or wrong in the configuration: an error as soon as the geometry is needed."""
    group: int = 0
    """Quantised weights that share one scale, which ranks must not divide; 0 if that does not matter."""
    bits: int = 0
    """Bits of a quantised weight; 0 if the configuration does not name them."""
    reordered: bool = False
    """Whether GPTQ ordered columns by activation, so that groups are not contiguous (g_idx)."""
    estimated: bool = False
    """Whether the weights are an estimate from the configuration."""
    modalities: tuple[str, ...] = ()
    """Input other than text: image, audio."""
    expert_share: float = 0.0
    """The routed experts' share of the weights' bytes, from 0 to 1; engines divide these among them."""
    elsewhere: bool = False
    """Whether vLLM still has to download the weights."""
    revision: str = ""
    """The hub's commit, or a digest of the folder's files; empty if neither is known."""
    converted: bool = False
    """Whether a vendor's script converted the weights for the device: `convert` recorded it, or the name says so."""
    unanswered: str = ""
    """Why the hub did not answer; empty if it did, or was not asked."""
    remedy: str = ""
    """What makes the hub answer; empty if it did, or was not asked."""
    known_from: str = ""
    """Where drydock's copy of the configuration is from; empty for the model's own files."""
    missing: str = ""
    """The folder that lacks its weights; empty if they are there, or are downloaded."""
    dtype: str = ""
    """The type of the stored weights, usually the one used in training; empty if the configuration does not name it."""
    linear_share: float = 0.0
    """Linear layers' and experts' share of the numbers of an unquantised model, from 0 to 1."""
    towers: tuple[Tower, ...] = ()
    """What turns images and audio into embeddings."""
    filled: tuple[str, ...] = ()
    """Sizes that the configuration leaves to its family's defaults, each as `key=value`."""
    conversion: str = ""
    """How the weights change while loading, for reasons; empty if they stay as they are."""
    linears: tuple[Linear, ...] = ()
    """The matrices that adapters can change."""
    predictors: int = 0
    """Layers of the model itself that can draft tokens (multi-token prediction)."""
    draft: ModelFacts | None = None
    """The model that drafts tokens for this one."""
    template: str | None = None
    """The chat templates; None if they were not read, empty if there is none."""
    pooling: bool = False
    """Whether vLLM answers with vectors or scores by itself."""
    model_type: str = ""
    """`model_type`, by which vLLM chooses the configuration class; empty if the configuration has none."""
    vocabulary: bool = False
    """Whether the folder has the vocabulary that openai-harmony would download."""
    remote_code: bool = False
    """Whether the model brings a configuration class of its own, which runs only with --trust-remote-code."""
    table: Table = MappingProxyType({})
    """Its whole config.json; empty if it is not known."""
    shortened: str = ""
    """What drydock's copy of the configuration leaves out; empty for a whole one."""
    unnamed_because: str = ""
    """Why it is served although no one named it; empty for a model that was named."""

    @property
    def short(self) -> str:
        """Return the last part of a folder's path or of an address, and of a snapshot in a hub's cache its hub id."""
        if not self.local and "://" not in self.name:
            return self.name
        *_, repository, folder, last = ("", "", *self.name.rstrip("/").split("/"))
        return (name_repository(repository) if folder == SNAPSHOTS else "") or last


def read_model(
    name: str,
    load_format: str = "auto",
    hub: Hub | None = None,
    converted_name: str = "",
    instead: Instead = NOTHING_INSTEAD,
    bucket: ReadBucket | None = None,
) -> ModelFacts:
    """Read a model folder. A name that is not a path is a hub id, which is looked up if a hub is given.

    `converted_name` is the word in a name that says that the weights are converted already; empty for none. `bucket`
    reads s3:// and gs://. Raises MODEL for a folder that is missing or broken, and for a model that the hub does not
    have; also what `bucket` raises.
    """
    if instead.file:
        model = _read_described(name, instead.file, load_format, hub)
    elif bucket and name.startswith(SCHEMES):
        model = _read_bucket(name, load_format, bucket)
    else:
        model = _read_model_facts(name, load_format, hub, instead)
    words = name.rstrip("/").rsplit("/", 1)[-1].lower().split("-")
    named_converted = bool(converted_name) and converted_name.lower() in words
    return model._replace(converted=model.converted or named_converted)


def _read_model_facts(name: str, load_format: str, hub: Hub | None, instead: Instead) -> ModelFacts:
    if os.path.isdir(name):
        path, config = _read_config(name)
        facts = parse_model(name, config, path)._replace(local=True)
        if os.path.exists(os.path.join(name, MARK)):
            facts = facts._replace(converted=True)
        facts = facts._replace(vocabulary=os.path.isfile(os.path.join(name, VOCABULARY)))
        facts = _with_template(facts, in_folder(name))
        return _with_weights(facts, name, config, load_format, no_weights=instead.no_weights)
    if "://" in name:
        return _make_unknown_facts(name, f"{name} is a storage address that only vLLM reads")
    _refuse_path(name)
    if hub is None:
        return _make_unknown_facts(name, f"{name} is a hub id, and not on this machine yet")
    try:
        model = _read_hub_id(name, hub, load_format)
    except Refused as error:
        recorded_facts = read_known_model(
            _make_unanswered_facts(name, error.message, error.message, error.hint), instead.known
        )
        if recorded_facts is None:
            raise
        return recorded_facts
    return (read_known_model(model, instead.known) if model.unanswered else None) or model


def _read_bucket(name: str, load_format: str, bucket: ReadBucket) -> ModelFacts:
    """Read a model that vLLM streams from a bucket. Raises MODEL, HOST."""
    try:
        bucket_facts = bucket(name, load_format)
    except NotAnswered as error:
        return _make_unanswered_facts(
            name, f"{name}: {error}", str(error), "run `plan` in the image (`./inv run … -- plan`)"
        )
    file = _CONFIG if _CONFIG in bucket_facts.texts else _MISTRAL
    where = f"{name.rstrip('/')}/{file}"
    config = _parse_config_table(parse_model_json(bucket_facts.texts[file].encode(), where), where)
    facts = _with_template(parse_model(name, config, where), bucket_facts.read)
    return facts._replace(weights=weights_by_size(bucket_facts.weights, config), revision=bucket_facts.digest)


def _read_described(name: str, path: str, load_format: str, hub: Hub | None) -> ModelFacts:
    """Read a model's configuration from elsewhere. Raises MODEL."""
    folder = os.path.isdir(path)
    where, config = _read_config(path) if folder else (path, _parse_config_table(read_json(path), path))
    facts = parse_model(name, config, where)
    if load_format not in _READ_AS_IT_IS:
        facts = facts._replace(unknown=_decided_by(load_format))
    elif folder:
        facts = _with_template(_take_index_size(facts, path, config), in_folder(path))
    else:
        facts = _estimate_facts(facts, config, 0, f"{path} describes the model")
    local = os.path.isdir(name) or _is_path(name)
    here = local or "://" in name or (hub is not None and find_snapshot(hub, name) != "")
    return facts._replace(local=local, elsewhere=not here)


def read_known_model(model: ModelFacts, path: str) -> ModelFacts | None:
    """Return a model with the configuration that drydock knows; None if it knows none. Raises MODEL."""
    entry = read_json(path).get(model.name) if path else None
    if entry is None:
        return None
    config = _parse_config_table(entry["config"], f"{path}: {model.name}")
    facts = parse_model(model.name, config, path)
    if entry["parameters"]:
        facts = facts._replace(weights=weights_by_size(2 * entry["parameters"], config))
    else:
        facts = _estimate_facts(facts, config, 0, "the hub does not answer")
    unanswered, remedy, template = model.unanswered, model.remedy, entry.get("template")
    return facts._replace(
        elsewhere=True, unanswered=unanswered, remedy=remedy, template=template, known_from=entry["source"],
        shortened=entry.get("shortened", ""),
    )  # fmt: skip


def _read_hub_id(name: str, hub: Hub, load_format: str) -> ModelFacts:
    """Read a model from the local cache, or else from the hub. Raises MODEL, and USAGE for a token without TLS."""
    if not hub.offline:  # vLLM asks the hub for a model of the cache too
        check_token(hub)
    if ":" in name:
        return _make_unknown_facts(name, f"{name} names a GGUF file of a hub id, which only vLLM reads")
    folder = find_snapshot(hub, name)
    if folder:
        return _read_cached(name, folder, load_format)
    if hub.offline:
        why = f"{hub.offline} forbids asking {hub.site}"
        return _make_unanswered_facts(
            name, f"{name} is not in {', '.join(hub.caches)}, and {why}", why, f"unset {hub.offline}"
        )
    try:
        model = _ask_hub(name, hub, load_format)._replace(elsewhere=True)
        return _with_template(model, lambda file: fetch_hub_file(hub, name, file))
    except NotAnswered as error:
        why = f"{name} is a hub id, and not on this machine yet: {error}"
        return _make_unanswered_facts(name, why, str(error), "set HTTPS_PROXY or HF_ENDPOINT")


def with_draft(model: ModelFacts, draft: ModelFacts | None) -> ModelFacts:
    """Return a model whose tokens another one drafts, or with None its own layers (multi-token prediction).

    Heads that keep no KV cache (Medusa, an MLP speculator) have no geometry.
    """
    geometry = model.geometry
    if geometry is None:
        return model._replace(draft=draft)
    if draft is None:
        plain = geometry._replace(sliding_layers=0, cacheless=0, states=0, index_bytes=0, compressed=0.0)
        drafting: Geometry | None = plain._replace(layers=model.predictors or 1)
    else:
        drafting = draft.geometry
    return model._replace(draft=draft, geometry=geometry._replace(draft=drafting))


def parse_model(name: str, config: Config, where: str) -> ModelFacts:
    """Return what the configuration tells."""
    method, bits, group, reordered = config.quantization
    facts = ModelFacts(
        name, False, config.architecture, method, None, None, "", "", group, bits, reordered,
        modalities=config.modalities, dtype=config.dtype, filled=config.filled,
        model_type=config.model_type, remote_code=_has_remote_code(config.outer), table=config.outer,
    )  # fmt: skip
    try:
        geometry, unknown = parse_geometry(config)
        facts = facts._replace(geometry=geometry, unknown=unknown, towers=parse_towers(config))
        experts, linear = compute_weight_shares(config, geometry) if geometry else (0.0, 0.0)
        matrices = list_linears(config, geometry) if geometry else ()
        predictors = read_size(config.text, *_PREDICTORS)
    except ValueError as error:
        return facts._replace(geometry=None, problem=f"{where}: {error}")
    return facts._replace(expert_share=experts, linear_share=linear, linears=matrices, predictors=predictors)


def _has_remote_code(outer: Table) -> bool:
    """Return whether `auto_map` names a configuration class in the model's folder. Source: transformers, AutoConfig."""
    names = outer.get("auto_map")
    return isinstance(names, Mapping) and "AutoConfig" in names


def _make_unknown_facts(name: str, why: str) -> ModelFacts:
    return ModelFacts(name, False, "", "", None, None, why)


def _make_unanswered_facts(name: str, why: str, unanswered: str, remedy: str) -> ModelFacts:
    return _make_unknown_facts(name, why)._replace(unanswered=unanswered, remedy=remedy)


def _with_template(facts: ModelFacts, read: Read) -> ModelFacts:
    """Add the chat templates of a model whose architecture has a rule. Raises MODEL."""
    if facts.architecture not in ARCHITECTURES:
        return facts
    return facts._replace(template=read_template(facts.name, read), pooling=is_pooling_model(read))


def _with_weights(
    facts: ModelFacts, folder: str, config: Config, load_format: str, *, no_weights: bool = False
) -> ModelFacts:
    """Add the weights of a folder; with `no_weights`, their size if they are not there. Raises MODEL."""
    if load_format not in _READ_AS_IT_IS:
        return facts._replace(unknown=_decided_by(load_format))
    try:
        return facts._replace(weights=read_weights(folder, config))
    except Incomplete:
        if not no_weights:
            raise
        return _take_index_size(facts, folder, config)._replace(missing=folder)


def _take_index_size(facts: ModelFacts, folder: str, config: Config) -> ModelFacts:
    """Take the size of weights that are not there from their index, else estimate it. Raises MODEL."""
    index = os.path.join(folder, INDEX)
    size = parse_total_size(read_json(index)) if os.path.exists(index) else 0
    return _estimate_facts(facts, config, size, f"{folder} has no weights yet")


def _decided_by(load_format: str) -> str:
    return f"--load-format {load_format} decides the size of the weights"


def _read_cached(name: str, folder: str, load_format: str) -> ModelFacts:
    """Read a model from the local cache, where weights may still be missing. Raises MODEL."""
    path, config = _read_config(folder)
    facts = _with_template(parse_model(name, config, path), in_folder(folder))
    facts = _with_weights(facts, folder, config, load_format, no_weights=True)
    return facts._replace(elsewhere=bool(facts.missing), missing="")


def _ask_hub(name: str, hub: Hub, load_format: str) -> ModelFacts:
    """Read a model from the hub's small files. Raises MODEL, NotAnswered."""
    text = fetch_hub_file(hub, name, _CONFIG) or fetch_hub_file(hub, name, _MISTRAL)
    if text is None:
        if load_format == "auto":
            raise not_found(hub, name)
        return _make_unknown_facts(
            name, f"{name} has no {_CONFIG}: --load-format {load_format} decides which files are read"
        )
    where = redact_value("", hub.url(name, _CONFIG))
    table = _add_quantisation(parse_model_json(text, where), partial(fetch_hub_file, hub, name), (_OF_MODELOPT,))
    config = _parse_config_table(table, where)
    facts = parse_model(name, config, where)
    if load_format not in _READ_AS_IT_IS:
        return facts._replace(unknown=_decided_by(load_format))
    index = fetch_hub_file(hub, name, INDEX)
    if index is not None:
        return _estimate_facts(facts, config, parse_total_size(parse_model_json(index, f"{name}/{INDEX}")), "")
    weights = parse_beginning(fetch_hub_file(hub, name, SINGLE, beginning=True) or b"")
    if weights is None:
        return _estimate_facts(facts, config, 0, f"{hub.place} has no index of its weights")
    return facts._replace(weights=weights)


def _estimate_facts(facts: ModelFacts, config: Config, size: int, why: str) -> ModelFacts:
    """Take the weights' bytes from the index if it names them (`size`), else estimate them from config.json."""
    if size:
        return facts._replace(weights=weights_by_size(size, config))
    if facts.geometry is None:
        return facts._replace(unknown=facts.unknown or why)
    weights = estimate_weights(config, facts.geometry)
    why_unknown = f"{why}: the size of the weights is an estimate from {_CONFIG}"
    return facts._replace(weights=weights, estimated=True, unknown=why_unknown)


def _read_config(folder: str) -> tuple[str, Config]:
    """Read config.json, or params.json if only that exists; return its path too. Raises MODEL."""
    path = os.path.join(folder, _CONFIG)
    mistral = os.path.join(folder, _MISTRAL)
    if os.path.exists(mistral) and not os.path.exists(path):
        path = mistral
    return path, _parse_config_table(_add_quantisation(read_json(path), in_folder(folder), _METHODS), path)


def _parse_config_table(table: Table, where: str) -> Config:
    try:
        return parse_config(table)
    except ValueError as error:
        raise EntrypointError(MODEL, f"{where}: {error}", "correct the file, or download it again") from error


def _add_quantisation(table: Table, read: Read, files: Iterable[str]) -> Table:
    """Return a configuration with how its weights are quantised, if only another file says it. Raises MODEL."""
    text_config = table.get("text_config")
    parts = (table, text_config if isinstance(text_config, dict) else {})
    if any(part.get(key) is not None for part in parts for key in ("quantization_config", "compression_config")):
        return table
    for file in files:
        text = read(file)
        if text is not None:
            return {**table, "quantization_config": {"quant_method": _METHODS[file], **parse_model_json(text, file)}}
    return table


def _is_path(name: str) -> bool:
    """Tell whether a name can only be a path."""
    return "://" not in name and (name.startswith((".", "/", "~")) or name.count("/") > 1)


def _refuse_path(name: str) -> None:
    """Raise MODEL for a name that can only be a path; a hub id is `owner/model`."""
    exists = os.path.exists(name)
    if not exists and not _is_path(name):
        return
    raise EntrypointError(
        MODEL,
        f"{name}: {'is a file' if exists else 'no such folder'}, expected a model folder with config.json",
        "mount the folder, such as -v /models:/models:ro, and use its path inside the container",
    )
