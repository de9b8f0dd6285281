"""What of the vendor's scripts a model needs before these devices can serve it, and how they are called. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.model.read import ModelFacts

ANY = "any"
ELSEWHERE = "conversion_variants"
"""The threshold that names the images with scripts."""


class Conversion(NamedTuple):
    """One of the vendor's scripts, as profile.json has it."""

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

    def command(self, **places: str) -> tuple[str, ...]:
        """Return the command with the places filled in: python, scripts, model, output."""
        return tuple(word.format(**places) for word in self.argv)


def conversions(profile: Mapping[str, Any]) -> tuple[Conversion, ...]:
    """Return the scripts that an image has."""
    return tuple(_conversion(each) for each in profile.get("conversions", ()))


def _conversion(each: Mapping[str, Any]) -> Conversion:
    fields: dict[str, Any] = {name: each[name] for name in Conversion._fields}
    return Conversion(**fields | {name: tuple(each[name]) for name in _LISTS})


_LISTS = ("argv", "keep", "programs", "modules")


def choose(profile: Mapping[str, Any], model: ModelFacts, kind: str) -> Conversion:
    """Return the script that was named, else the one for such a model. Raises HOST, USAGE."""
    known = conversions(profile)
    if not known:
        raise EntrypointError(
            HOST, f"the image {profile['variant']} has no script that converts models", others(profile)
        )
    if kind:
        named = [each for each in known if each.kind == kind]
        if not named:
            raise EntrypointError(USAGE, f"convert: no kind {kind!r} in the image {profile['variant']}", _kinds(known))
        return named[0]
    chosen = suitable(profile, model)
    if chosen is None:
        what = "converted already" if model.converted else model.quantization or "not quantised"
        raise EntrypointError(USAGE, f"{model.name} is {what}: no script is chosen for it by itself", _kinds(known))
    return chosen


def suitable(profile: Mapping[str, Any], model: ModelFacts) -> Conversion | None:
    """Return the script that is chosen for such a model by itself."""
    if model.converted:
        return None
    takes = "fp8" if model.quantization == "fp8" else "images" if _takes_images(model) else ""
    return next((each for each in conversions(profile) if each.takes == takes), None)


def _takes_images(model: ModelFacts) -> bool:
    return not model.quantization and "image" in model.modalities


def typed(profile: Mapping[str, Any], model: str, conversion: Conversion | None = None) -> str:
    """Return what a person types to convert a model."""
    kind = f" --kind {conversion.kind}" if conversion and conversion.takes == ANY else ""
    return f"docker run … IMG convert --model {model} --output {result(profile, model, conversion)}{kind}"


def result(profile: Mapping[str, Any], model: str, conversion: Conversion | None = None) -> str:
    """Return a name for what comes out of a model's folder, as the vendor's manuals write it."""
    measured = conversion is not None and conversion.gives == "measurements"
    return f"{model.rstrip('/')}-{'measurements' if measured else profile['converted_name']}"


def others(profile: Mapping[str, Any]) -> str:
    """Say which images have scripts, for one that has none."""
    threshold = profile.get("thresholds", {}).get(ELSEWHERE)
    if threshold is None:
        return f"vLLM serves weights on {profile['accelerator']} as they are published; nothing is to be converted"
    return f"the images {', '.join(threshold['value'])} have one"


def _kinds(known: Iterable[Conversion]) -> str:
    return "; ".join(f"--kind {each.kind}: {each.text}" for each in known)
