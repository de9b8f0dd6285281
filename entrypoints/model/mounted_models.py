"""The models below /models, where users mount them: what is served if no model is named. IO.

Names of the folder may be anyone's: they are counted, cut and made printable before they are shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from shlex import quote
from typing import NamedTuple

from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.core.folders import MODELS, read_regular
from entrypoints.core.text import format_one_line
from entrypoints.core.weight_files import GGUF, WEIGHTS
from entrypoints.model.files import read_json
from entrypoints.model.hub import SNAPSHOTS, name_repository
from entrypoints.model.weights import list_weight_files

FOLDER = "DRYDOCK_MODELS"
"""The variable with another folder than MODELS, such as /mnt/models of KServe."""

_DEEPEST = 4
"""Levels below the folder: ORG/NAME in a hub's cache in the cache folder of a home."""
_FOLDERS_AT_MOST = 2_000
_NAMES_AT_MOST = 20_000
"""Names of one folder. A snapshot of the largest model has 400 files."""
_SHOWN_AT_MOST = 12
_PIPELINE, _ADAPTER = "model_index.json", "adapter_config.json"
_CONFIGS = ("config.json", "params.json")
_OF_ADAPTERS = re.compile(r"adapter_model\b|training_args\.bin|optimizer\.|scheduler\.|rng_state")
"""Files that hold no weights of a whole model. Source: peft and transformers' Trainer."""
_DRAFT = re.compile(
    r"E[Aa][Gg][Ll][Ee](?!2_5_VL)|MTP|Medusa|Speculator|D(?:Flash|Spark)|LiLiCorr|Draft|Assistant|ExtractHiddenStates"
)
"""Classes that only draft tokens. Source: vLLM 0.32, models/registry.py, _SPECULATIVE_DECODING_MODELS."""
_DRAFT_KEYS, _DRAFT_TYPES = ("speculators_config",), ("eagle", "medusa", "mlp_speculator", "speculators")
_SKIPPED = re.compile(r"\..*|lost\+found|(?:datasets|spaces)--.*|@eaDir|__MACOSX")
"""Folders in which no one keeps a model: hidden ones (downloads that are under way), and those of file systems."""


class MountedModel(NamedTuple):
    """A model that can be served, or what else a folder holds."""

    path: str
    hub_id: str
    """Of a model in a hub's cache; empty for a plain folder."""
    problem: str = ""
    """Why it is no model to serve; empty for one."""

    @property
    def shown(self) -> str:
        """Return how it is named in a message."""
        return format_one_line(f"{self.path} ({self.hub_id})" if self.hub_id else self.path)


class MountedModels(NamedTuple):
    """What lies below a folder."""

    folder: str
    models: tuple[MountedModel, ...]
    others: tuple[MountedModel, ...]
    """Adapters, drafts, models without their weights."""
    is_cut: bool
    """Whether there are more folders than were looked at."""
    exists: bool

    @property
    def because(self) -> str:
        """Return why the only model is served."""
        return f"the only model below {self.folder}"

    @property
    def has_one(self) -> bool:
        """Return whether there is exactly one model."""
        return len(self.models) == 1 and not self.is_cut

    @property
    def example(self) -> str:
        """Return a name for a command: that of a model that is there, else a hub id."""
        typed = (model.path for model in self.models if model.path.isprintable())
        return quote(next(typed, "Qwen/Qwen3-8B"))

    @property
    def lack(self) -> str:
        """Return why no model is chosen: there is none, or there are several."""
        if not self.exists:
            where = f"there is no folder {self.folder}"
        elif self.is_cut:
            where = f"below {self.folder} are more folders than the {_FOLDERS_AT_MOST} that are looked at"
        else:
            where = f"below {self.folder} are {len(self.models)} models" if self.models else f"none below {self.folder}"
        items = self.models or self.others
        return f"no model given; {where}" + (f": {_join_shown(items)}" if items else "")

    def require_one(self, command: str, *, can_mount: bool = True) -> MountedModel:
        """Return the only model. Raises MODEL for none, and for several; a name is added to the command."""
        if self.has_one:
            return self.models[0]
        if self.models:
            raise EntrypointError(MODEL, self.lack, f"name one of them: {command} {self.example}")
        if not can_mount:
            raise EntrypointError(MODEL, self.lack, f"name one: {command} {self.example}")
        mount = f"mount the folder of a model, such as -v /data/Qwen3-8B:{self.folder}/Qwen3-8B:ro"
        raise EntrypointError(MODEL, self.lack, f"{mount}; or name one: {command} {self.example}")

    def describe_choice(self) -> str:
        """Return which model is taken, and what was passed over."""
        passed_over = f"; passed over: {_join_shown(self.others)}" if self.others else ""
        return f"model {self.models[0].shown}: {self.because}{passed_over}"


def _join_shown(items: Collection[MountedModel]) -> str:
    texts = [f"{item.shown}: {item.problem}" if item.problem else item.shown for item in islice(items, _SHOWN_AT_MOST)]
    more = [f"and {len(items) - _SHOWN_AT_MOST} more"] if len(items) > _SHOWN_AT_MOST else []
    return "; ".join((*texts, *more))


def locate_models(env: Mapping[str, str]) -> str:
    """Return the folder that users mount models in."""
    return env.get(FOLDER) or MODELS


def find_mounted_models(folder: str, excluded_paths: Collection[str] = ()) -> MountedModels:
    """Look for models in a folder and below it; `excluded_paths` are what the command line names for something else."""
    walk = _Walk(excluded_paths)
    items = tuple(walk.look(folder))
    return MountedModels(
        folder,
        models=tuple(item for item in items if not item.problem),
        others=tuple(item for item in items if item.problem),
        is_cut=walk.is_cut,
        exists=os.path.isdir(folder),
    )


class _Listing(NamedTuple):
    """The names in a folder."""

    files: list[str]
    folders: list[str]
    """Those that are no links first: of two names of one folder, the first is shown."""
    dangling: list[str]
    """Links whose target is not there, as those of a snapshot that is mounted alone."""


class _Walk:
    """A walk through folders, each once, level by level, that ends after a number of them."""

    def __init__(self, excluded_paths: Collection[str]) -> None:
        self.excluded_paths = {os.path.realpath(path) for path in excluded_paths}
        self.seen: set[tuple[int, int]] = set()
        self.is_cut = False

    def look(self, root: str) -> Iterator[MountedModel]:
        """Yield what the folders hold."""
        level = [root]
        for depth in range(_DEEPEST + 1):
            following: list[str] = []
            for folder in level:
                if not self._enter(folder):
                    continue
                try:
                    listing = _list_names(folder)
                except OSError as error:
                    yield MountedModel(folder, "", f"cannot be read by uid {os.getuid()}: {error.strerror}")
                    continue
                if _is_repository(listing):
                    yield _judge_repository(folder)
                    continue
                item = _judge_folder(folder, listing)
                if item:
                    yield item
                if item is None or (depth == 0 and item.problem):
                    following += [os.path.join(folder, name) for name in listing.folders]
            level = following

    def _enter(self, folder: str) -> bool:
        """Tell whether a folder is to be looked at: it is new, and not one too many."""
        try:
            status = os.stat(folder)
        except OSError:
            return False
        identity = (status.st_dev, status.st_ino)
        if identity in self.seen or os.path.realpath(folder) in self.excluded_paths:
            return False
        if len(self.seen) >= _FOLDERS_AT_MOST:
            self.is_cut = True
            return False
        self.seen.add(identity)
        return True


def _list_names(folder: str) -> _Listing:
    """Return the names in a folder, sorted. Raises OSError."""
    files: list[str] = []
    folders: list[str] = []
    links: list[str] = []
    dangling: list[str] = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, _NAMES_AT_MOST):
            if entry.is_dir():
                if not _SKIPPED.fullmatch(entry.name):
                    (links if entry.is_symlink() else folders).append(entry.name)
            elif entry.is_file():
                files.append(entry.name)
            elif entry.is_symlink():
                dangling.append(entry.name)
    return _Listing(sorted(files), [*sorted(folders), *sorted(links)], sorted(dangling))


def _judge_folder(folder: str, listing: _Listing) -> MountedModel | None:
    """Return what a folder is; None if it holds nothing of a model itself."""
    problem = _find_problem(folder, listing)
    return None if problem is None else MountedModel(folder, "", problem)


def _find_problem(folder: str, listing: _Listing) -> str | None:
    """Return why a folder is no model to serve; empty for one, None if it holds nothing of a model."""
    names = {*listing.files, *listing.dangling}
    model_files = [name for name in listing.files if not _OF_ADAPTERS.match(name)]
    weights = [name for name in model_files if name.endswith(WEIGHTS)]
    if _PIPELINE in names:
        return "a pipeline of diffusers"
    if _ADAPTER in names and not weights:
        return "an adapter (LoRA) of a model"
    config = next((name for name in _CONFIGS if name in names), "")
    if not config:
        return _describe_leftovers(names, weights)
    if config in listing.dangling or (listing.dangling and not weights):
        return f"{(config, *listing.dangling)[-1]} is a link to a file that is not there: mount the whole cache"
    return _judge_config(folder, config, model_files)


def _describe_leftovers(names: Collection[str], weights: Collection[str]) -> str | None:
    """Return what a folder without a configuration has of a model; None for nothing."""
    gguf = next((name for name in weights if name.endswith(GGUF)), "")
    if gguf:
        return f"{format_one_line(gguf)} is GGUF, to be converted to safetensors"
    if weights:
        return f"weights without {_CONFIGS[0]}"
    return f"a tokenizer without {_CONFIGS[0]}" if "tokenizer_config.json" in names else None


def _judge_config(folder: str, config: str, files: list[str]) -> str | None:
    """Return why a folder with a configuration is no model to serve; empty for one."""
    try:
        table = read_json(os.path.join(folder, config))
        architectures = table.get("architectures")
        classes = [str(name) for name in architectures] if isinstance(architectures, list) else []
        is_draft = any(map(_DRAFT.search, classes)) or table.get("model_type") in _DRAFT_TYPES
        if is_draft or any(key in table for key in _DRAFT_KEYS):
            return "it drafts tokens for another model"
        if config == _CONFIGS[0] and not (classes or table.get("model_type")):
            return f"{config} names no architecture" if any(name.endswith(WEIGHTS) for name in files) else None
        list_weight_files(folder, files)
    except EntrypointError as error:
        return format_one_line(error.message.removeprefix(f"{folder}: ").removeprefix(f"{folder}/"))
    return ""


# --- the cache of huggingface_hub -----------------------------------------------------------------------------------


def _is_repository(listing: _Listing) -> bool:
    return SNAPSHOTS in listing.folders and bool({"refs", "blobs"} & {*listing.folders})


def _judge_repository(folder: str) -> MountedModel:
    """Return a model of the cache: of the revision that refs/main names, else of the one that was downloaded last."""
    hub_id, snapshots = name_repository(os.path.basename(folder.rstrip("/"))), os.path.join(folder, SNAPSHOTS)
    try:
        revisions = sorted(
            _list_names(snapshots).folders, key=lambda name: os.stat(os.path.join(snapshots, name)).st_mtime
        )
    except OSError as error:
        return MountedModel(folder, hub_id, f"cannot be read by uid {os.getuid()}: {error.strerror}")
    try:
        main = read_regular(os.path.join(folder, "refs", "main"), 100).decode("ascii").strip()
    except (OSError, ValueError):  # another branch, or a commit, was downloaded
        main = ""
    if not revisions:
        return MountedModel(folder, hub_id, "no snapshot: finish the download")
    path = os.path.join(snapshots, main if main in revisions else revisions[-1])
    try:
        problem = _find_problem(path, _list_names(path))
    except OSError as error:
        problem = f"cannot be read by uid {os.getuid()}: {error.strerror}"
    return MountedModel(path, hub_id, f"no {_CONFIGS[0]}" if problem is None else problem)
