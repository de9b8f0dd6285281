"""The vendor's conversion scripts: which one a model needs, and its command line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.folders import MODELS
from entrypoints.model.read import ModelFacts

ANY = "any"
VARIANTS = "conversion_variants"
"""The threshold that lists the images with conversion scripts."""
PAGE = "conversion_page"
"""The threshold that names the page about a conversion outside of the images, and says why it is outside."""


class Conversion(NamedTuple):
    """One of the vendor's scripts, as in profile.json."""

    kind: str
    text: str
    context: str
    argv: tuple[str, ...]
    takes: str
    gives: str
    keep: tuple[str, ...]
    programs: tuple[str, ...]
    modules: tuple[str, ...]
    env: Mapping[str, str]
    room: float
    serve: Mapping[str, str]
    source: str

    def command(self, **paths: str) -> tuple[str, ...]:
        """Return the command with the paths filled in: python, scripts, model, output."""
        return tuple(word.format(**paths) for word in self.argv)


"""The folder for models in the printed commands."""


def list_model_conversions(profile: Mapping[str, Any]) -> tuple[Conversion, ...]:
    """Return the image's conversion scripts."""
    return tuple(_make_conversion(entry) for entry in profile.get("conversions", ()))


def _make_conversion(entry: Mapping[str, Any]) -> Conversion:
    fields: dict[str, Any] = {name: entry[name] for name in Conversion._fields}
    fields |= {name: tuple(entry[name]) for name in _LISTS}
    return Conversion(**fields)


_LISTS = ("argv", "keep", "programs", "modules")


def choose_conversion(profile: Mapping[str, Any], model: ModelFacts, kind: str) -> Conversion:
    """Return the script of that kind, or without a kind the script for this model. Raises HOST, USAGE."""
    scripts = list_model_conversions(profile)
    if not scripts:
        raise EntrypointError(HOST, f"image {profile['variant']} has no conversion script", other_images(profile))
    if kind:
        for conversion in scripts:
            if conversion.kind == kind:
                return conversion
        raise EntrypointError(
            USAGE, f"convert: image {profile['variant']} has no kind {kind!r}", _format_conversion_kinds(scripts)
        )
    default_conversion = find_default_conversion(profile, model)
    if default_conversion is None:
        state = "converted already" if model.converted else model.quantization or "not quantised"
        raise EntrypointError(
            USAGE, f"{model.name} is {state}: no script is chosen by default", _format_conversion_kinds(scripts)
        )
    return default_conversion


def find_default_conversion(profile: Mapping[str, Any], model: ModelFacts) -> Conversion | None:
    """Return the default script for a model; None if it has none."""
    if model.converted:
        return None
    takes = ""
    if model.quantization == "fp8":
        takes = "fp8"
    elif not model.quantization and "image" in model.modalities:
        takes = "images"
    return next((conversion for conversion in list_model_conversions(profile) if conversion.takes == takes), None)


def convert_command(profile: Mapping[str, Any], model: str, conversion: Conversion | None = None) -> str:
    """Return the command that converts a model, for a hint; a script needs the folder of a model of a hub."""
    kind = f" --kind {conversion.kind}" if conversion and conversion.takes == ANY else ""
    folder = folder_of(model)
    options = f"--model {folder} --output {output_name(profile, folder, conversion)}{kind}"
    if folder == model:
        return f"docker run … IMG convert {options}"
    pulled = folder.removeprefix(f"{MODELS}/")
    return f"drydock's `model pull {model} --output {pulled}`; docker run -v .:{MODELS} … IMG convert {options}"


def folder_of(model: str) -> str:
    """Return the model's folder in a container: its path, or for a model of a hub or bucket where it is mounted."""
    is_path = model.startswith(("/", "./", "../"))
    return model if is_path else f"{MODELS}/{model.rstrip('/').rpartition('/')[2]}"


def output_name(profile: Mapping[str, Any], model: str, conversion: Conversion | None = None) -> str:
    """Return the name of a conversion's output folder, as in the vendor's manuals."""
    measured = conversion is not None and conversion.gives == "measurements"
    return f"{model.rstrip('/')}-{'measurements' if measured else profile['converted_name']}"


def other_images(profile: Mapping[str, Any]) -> str:
    """Return a hint with the images that have conversion scripts, or the page about one, for an image without one."""
    thresholds = profile.get("thresholds", {})
    threshold, page = thresholds.get(VARIANTS), thresholds.get(PAGE)
    if page is not None:
        return f"vLLM serves published weights without conversion; {page['because'].rstrip('.')}: see {page['value']}"
    if threshold is None:
        return f"vLLM serves published weights on {profile['accelerator']} without conversion"
    return f"these images have one: {', '.join(threshold['value'])}"


def _format_conversion_kinds(scripts: Iterable[Conversion]) -> str:
    return "; ".join(f"--kind {conversion.kind}: {conversion.text}" for conversion in scripts)
