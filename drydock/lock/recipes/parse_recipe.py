"""A recipe's YAML → facts: flags and variables by hardware and feature, the versions and cards they are for. Pure.

The schema is that of vllm-project/recipes, CONTRIBUTING.md; the order in which its parts win is that of its
src/lib/command-synthesis.js. Prose is not read. What the list in entrypoints/request/recipe_limits.py does not allow is
left out, and recorded with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from drydock.config.strict_yaml import parse_texts
from drydock.core.errors import InputError
from entrypoints.request.recipe_limits import MODEL_ID, draft_model, refuse_flag, refuse_variable

MOST_ENTRIES = 64
"""Of variants, features and kinds of hardware in one recipe; the largest of 2026-08-21 has 12."""
MOST_WORDS = 256
"""Words of one list of arguments."""
LARGEST = 1 << 20
"""Bytes of one recipe; the largest of 2026-08-21 has 58,448."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_FULL_NAMES = {"-cc": "--compilation-config", "-ac": "--attention-config", "-tp": "--tensor-parallel-size"}
"""vLLM's short forms that recipes use."""
NVIDIA = "nvidia"
GENERATIONS_OF_NVIDIA = ("ampere", "ada", "hopper", "blackwell")
"""A block for one of these stands for the block of the brand. Source: taxonomy.yaml, command-synthesis.js."""
ALWAYS_ON = ("tool_calling", "reasoning")
"""Features that need not be named, unless the recipe says that they must be."""

Flags = dict[str, str | bool]
Table = Mapping[str, Any]


class RecipePart(NamedTuple):
    """What one block of a recipe sets."""

    flags: Flags
    env: dict[str, str]

    def over(self, base: RecipePart) -> RecipePart:
        """Return both, of which this one wins."""
        return RecipePart({**base.flags, **self.flags}, {**base.env, **self.env})

    def facts(self) -> dict[str, Any]:
        """Return it as JSON, without what is empty."""
        return {name: value for name, value in self._asdict().items() if value}


NOTHING = RecipePart({}, {})


def parse_recipe(text: str, name: str) -> dict[str, dict[str, Any]]:
    """Return model id → facts of a recipe; none for one of vLLM-Omni, which this vLLM does not serve.

    Raises InputError for a file that is no recipe.
    """
    if len(text) > LARGEST:
        raise InputError(f"{name}: larger than {LARGEST} bytes, expected a recipe")
    document = parse_texts(text, name).data
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise InputError(f"{name}: expected a recipe: a mapping with the key `model`")
    if "omni" in document or "omni" in _read_text_list(_get_table(document, "meta"), "tasks"):
        return {}
    return dict(_Recipe(document, name).entries())


class _Recipe:
    """Reads one recipe."""

    def __init__(self, document: Table, name: str) -> None:
        self.document, self.name = document, name
        self.model, self.meta = _get_table(document, "model"), _get_table(document, "meta")
        self.id = self._model_id(self.model)
        if not self.id:
            raise InputError(f"{name}: model.model_id: expected ORG/NAME")
        self.left_out: dict[str, str] = {}

    def entries(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the facts of each checkpoint; of several variants of one, `default` or else the first counts."""
        variants = _limit_entries(_get_table(self.document, "variants")) or {"default": {}}
        identifiers = set()
        for name in sorted(variants, key=lambda variant: variant != "default"):
            variant = _get_table(variants, name)
            identifier = self._model_id(variant) or ("" if variant.get("model_id") else self.id)
            if identifier and identifier not in identifiers:
                identifiers.add(identifier)
                yield identifier, self._entry(name, variant)

    def _entry(self, name: str, variant: Table) -> dict[str, Any]:
        self.left_out = {}
        base, extra = self._part(self.model, "base_"), self._part(variant, "extra_")
        facts: dict[str, Any] = {
            "recipe": self.id,
            "date": _match_text(_DATE, self.meta.get("date_updated")),
            "least_vllm": max(self._versions(self.model, variant), default="", key=_as_numbers),
            "nightly": self.model.get("nightly_required") == "true",
            "precision": _match_text(_NAME, variant.get("precision")),
            "vram_gb": _parse_whole_number(variant.get("vram_minimum_gb")),
            "tp": _parse_tensor_sizes(variant.get("tp")) or _parse_tensor_sizes(self._one_node().get("tp")),
            "verified": self._hardware("verified"),
            "unsupported": self._hardware("unsupported"),
            "only_on": [word for word in _read_text_list(variant, "supported_hardware") if _NAME.fullmatch(word)],
            **extra.over(base).facts(),
            "on": dict(self._on_hardware(variant)),
            "features": dict(self._features(name, variant)),
        }
        facts["needs_code"] = self.left_out.pop("--trust-remote-code", None) is not None
        facts["left_out"] = dict(sorted(self.left_out.items()))
        return {key: value for key, value in facts.items() if value}

    def _one_node(self) -> dict[str, Any]:
        """Return what the recipe says of tensor parallelism on one machine, the only strategy that names its size."""
        return _get_table(_get_table(self.document, "strategy_overrides"), "single_node_tp")

    def _model_id(self, table: Table) -> str:
        return _match_text(MODEL_ID, table.get("model_id"))

    def _versions(self, *tables: Table) -> list[str]:
        return [version for table in tables if (version := _match_text(_VERSION, table.get("min_vllm_version")))]

    def _hardware(self, level: str) -> list[str]:
        hardware = _limit_entries(_get_table(self.meta, "hardware"))
        return sorted(name for name, status in hardware.items() if status == level and _NAME.fullmatch(name))

    # --- parts ------------------------------------------------------------------------------------------------------

    def _part(self, table: Table, prefix: str, *, on_hardware: bool = False, opt_in: bool = False) -> RecipePart:
        """Return what a block sets, without what a recipe may not set."""
        flags: Flags = {}
        for name, value in parse_recipe_words(_read_text_list(table, f"{prefix}args")):
            problem = refuse_flag(name, value, on_hardware=on_hardware, opt_in=opt_in)
            if problem:
                self._leave_out(name, problem)
            else:
                flags[name] = value
        env: dict[str, str] = {}
        for name, value in _limit_entries(_get_table(table, f"{prefix}env")).items():
            problem = refuse_variable(name, value, on_hardware=on_hardware) if isinstance(value, str) else "no text"
            if problem:
                self._leave_out(name, problem)
            else:
                env[name] = value
        return RecipePart(flags, env)

    def _leave_out(self, name: str, problem: str) -> None:
        if len(self.left_out) < MOST_ENTRIES:
            self.left_out[name[:64] if name[:64].isprintable() else "…"] = problem

    def _on_hardware(self, variant: Table) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what each kind of hardware adds; that of the variant wins over that of the recipe."""
        levels = [self._blocks(table, "extra_") for table in (self.document, variant)]
        for name in sorted({name for level in levels for name in level}):
            recipes, variants = (level.get(name, self._of_brand(level, name)) for level in levels)
            if facts := variants.over(recipes).facts():
                yield name, facts

    def _of_brand(self, level: Mapping[str, RecipePart], name: str) -> RecipePart:
        """Return the block of the brand, which counts for a generation that has none."""
        return level.get(NVIDIA, NOTHING) if name in GENERATIONS_OF_NVIDIA else NOTHING

    def _blocks(self, table: Table, prefix: str, *, opt_in: bool = False) -> dict[str, RecipePart]:
        blocks = _limit_entries(_get_table(table, "hardware_overrides"))
        return {
            name: self._part(block, prefix, on_hardware=True, opt_in=opt_in)
            for name, block in blocks.items()
            if _NAME.fullmatch(name) and isinstance(block, dict)
        }

    # --- features ---------------------------------------------------------------------------------------------------

    def _features(self, variant_name: str, variant: Table) -> Iterator[tuple[str, dict[str, Any]]]:
        opt_in = _read_text_list(self.document, "opt_in_features")
        for name, feature in _limit_entries(_get_table(self.document, "features")).items():
            if not (_NAME.fullmatch(name) and isinstance(feature, dict)):
                continue
            is_named = name not in ALWAYS_ON or name in opt_in
            modes = _limit_entries(_get_table(feature, "modes"))
            if not modes:
                yield from self._feature(name, feature, is_named=is_named)
                continue
            usable = [
                mode
                for mode, settings in modes.items()
                if _is_mode_allowed(settings, variant_name) and _NAME.fullmatch(mode)
            ]
            preferred = (_get_table(variant, "default_modes").get(name), feature.get("default_mode"), *usable)
            default = next((mode for mode in preferred if mode in usable), None)
            for mode in usable:
                names = (name, f"{name}.{mode}") if mode == default else (f"{name}.{mode}",)
                for full_name in names:
                    yield from self._feature(full_name, modes[mode], is_named=True)

    def _feature(self, name: str, feature: Table, *, is_named: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        part = self._part(feature, "", opt_in=is_named)
        on = {hardware: block.facts() for hardware, block in self._blocks(feature, "", opt_in=is_named).items()}
        on |= {
            hardware: {}
            for hardware, status in _limit_entries(_get_table(feature, "hardware")).items()
            if status == "unsupported"
        }
        facts = {**part.facts(), "on": on, "named": is_named, "draft": draft_model(part.flags) if is_named else ""}
        facts = {key: value for key, value in facts.items() if value}
        if facts.keys() & {"flags", "env", "on"}:
            yield name, facts


def _is_mode_allowed(mode: Any, variant: str) -> bool:
    """Tell whether a mode may be used with a variant; one that names none may with every variant."""
    return isinstance(mode, dict) and (not mode.get("variants") or variant in _read_text_list(mode, "variants"))


def parse_recipe_words(words: Iterable[str]) -> Iterator[tuple[str, str | bool]]:
    """Yield flags with their values, as vLLM's parser reads them. Several values of one flag are joined by spaces."""
    flag, values = "", list[str]()
    for word in _split_words(words):
        if re.match(r"--?[A-Za-z]", word):
            if flag:
                yield _as_flag(flag, values)
            flag, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    if flag:
        yield _as_flag(flag, values)


def _split_words(words: Iterable[str]) -> Iterator[str]:
    """Split `--flag value` that was written as one word."""
    for word in words:
        flag, space, value = word.partition(" ")
        yield from (flag, value.strip()) if space and flag.startswith("--") and "=" not in flag else (word,)


def _as_flag(flag_text: str, values: list[str]) -> tuple[str, str | bool]:
    head, dot, key = flag_text.partition(".")
    name = _FULL_NAMES.get(head, head.replace("_", "-"))
    if not values and name.startswith("--no-"):
        return f"--{name[len('--no-') :]}", False
    return f"{name}{dot}{key}", " ".join(values) if values else True


# --- reading of what anyone may have written ------------------------------------------------------------------------


def _get_table(table: Table, key: str) -> dict[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def _limit_entries(table: dict[str, Any]) -> dict[str, Any]:
    return table if len(table) <= MOST_ENTRIES else {}


def _read_text_list(table: Table, key: str) -> list[str]:
    value = table.get(key)
    if not isinstance(value, list) or len(value) > MOST_WORDS:
        return []
    return [item for item in value if isinstance(item, str)]


def _match_text(pattern: re.Pattern[str], value: Any) -> str:
    return value if isinstance(value, str) and pattern.fullmatch(value) else ""


def _parse_whole_number(value: Any) -> int:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,7}", value) else 0


def _parse_tensor_sizes(value: Any) -> int | dict[str, int]:
    """Return a tensor-parallel size, or one for each kind of hardware."""
    if not isinstance(value, dict):
        return _parse_whole_number(value)
    sizes = {name: _parse_whole_number(size) for name, size in _limit_entries(value).items() if _NAME.fullmatch(name)}
    return {name: size for name, size in sizes.items() if size}


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
