"""Licences: what each package in an image says of itself, and what licences.yaml makes of it. Reads one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from license_expression import ExpressionError, LicenseWithExceptionSymbol, get_spdx_licensing
from pydantic import Field

from drydock.attest.contents import ImageContents, Package
from drydock.config.strict_yaml import read_yaml
from drydock.config.validation import validate
from drydock.core.console import log
from drydock.core.errors import LicenceError
from drydock.model.record import Because, Record

FILE = "drydock/attest/licences.yaml"
SPDX = get_spdx_licensing()
LONGEST = 120
"""Characters of a licence field that may be a name; what is longer is the licence's text."""
Verdict = Literal["allowed", "denied", "unknown"]


class Denied(Record):
    """A licence that is refused."""

    licence: str = Field(description="Required: its SPDX identifier.")
    because: Because


class Told(Record):
    """The licence of a package whose metadata says too little."""

    licence: str = Field(description="Required: an SPDX expression, or LicenseRef-… for what SPDX does not list.")
    because: Because


class OriginRule(Record):
    """All packages of one origin, judged as one."""

    verdict: Literal["allow", "refuse"]
    """What happens to them."""
    because: Because


class LicencePolicy(Record):
    """licences.yaml as written."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's layout."""
    allow: tuple[str, ...]
    """SPDX identifiers."""
    deny: tuple[Denied, ...]
    """What is refused."""
    unknown: Literal["warn", "refuse"]
    """What happens where no usable licence is known, or one that is neither allowed nor denied."""
    names: Mapping[str, str]
    """What metadata says → SPDX identifier."""
    packages: Mapping[str, Told] = {}
    """Python distributions whose metadata says too little."""
    origins: Mapping[Literal["deb"], OriginRule] = {}
    """Origins that are judged as one."""


class Licensed(Record):
    """One package's licence."""

    kind: str
    name: str
    version: str
    licence: str
    """An SPDX expression; empty where nothing usable is known."""
    said: tuple[str, ...]
    """What the package's own metadata says."""
    verdict: Verdict
    because: str


class Inventory(Record):
    """The licences of everything in an image."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    image: str
    packages: tuple[Licensed, ...]


def read_policy(root: Path) -> LicencePolicy:
    """Return the policy; raises InputError with the place of what is wrong."""
    return validate(LicencePolicy, read_yaml(root / FILE, FILE))


def inventory(image: str, contents: ImageContents, policy: LicencePolicy) -> Inventory:
    """Return what is known of every package's licence, and the policy's verdict."""
    return Inventory(image=image, packages=tuple(_licensed(package, policy) for package in contents.packages))


def settle(found: Inventory, policy: LicencePolicy) -> None:
    """Raise LicenceError for what the policy refuses; say what it does not judge."""
    denied = [_line(item) for item in found.packages if item.verdict == "denied"]
    unknown = [_line(item) for item in found.packages if item.verdict == "unknown"]
    if denied or (unknown and policy.unknown == "refuse"):
        refused = [*denied, *(unknown if policy.unknown == "refuse" else ())]
        raise LicenceError(*refused, hint=f"{FILE} decides: allow, packages, unknown")
    if unknown:
        log(f"licences: {len(unknown)} packages are neither allowed nor denied: {'; '.join(unknown)}")


def expression(package: Package, names: Mapping[str, str]) -> str:
    """Return the SPDX expression that a package's metadata amounts to; empty where it amounts to none.

    Core metadata 2.4: License-Expression wins over License, and that over the classifiers.
    """
    if package.kind != "pypi":
        return ""
    said = [value.strip() for key in ("License-Expression", "License") for value in package.fields.get(key, ())]
    said += [value.rpartition(" :: ")[2] for value in _classifiers(package)]
    found = (_spdx(value, names) for value in said)
    return next((value for value in found if value), "")


def is_spdx(text: str) -> bool:
    """Tell whether a text is an SPDX expression of known identifiers."""
    try:
        return not SPDX.unknown_license_keys(text) and SPDX.parse(text) is not None
    except (ExpressionError, ValueError, AttributeError, TypeError):  # the library's own, for prose
        return False


def _spdx(value: str, names: Mapping[str, str]) -> str:
    title = value.partition("\n")[0].strip()
    if title in names:
        return names[title]
    return value if len(value) < LONGEST and "\n" not in value and is_spdx(value) else ""


def _classifiers(package: Package) -> list[str]:
    return [value for value in package.fields.get("Classifier", ()) if value.startswith("License :: ")]


def _licensed(package: Package, policy: LicencePolicy) -> Licensed:
    told = policy.packages.get(package.name) if package.kind == "pypi" else None
    licence = told.licence if told else expression(package, policy.names)
    verdict, because = _judge(package, licence, policy)
    said = [value[:LONGEST] for key in ("License-Expression", "License") for value in package.fields.get(key, ())]
    return Licensed(
        kind=package.kind,
        name=package.name,
        version=package.version,
        licence=licence,
        said=(*said, *_classifiers(package)),
        verdict=verdict,
        because=told.because if told and verdict != "denied" else because,
    )


def _judge(package: Package, licence: str, policy: LicencePolicy) -> tuple[Verdict, str]:
    origin = policy.origins.get("deb") if package.kind == "deb" else None
    if origin:
        return ("allowed" if origin.verdict == "allow" else "denied"), origin.because
    if not licence:
        return "unknown", "its metadata names no licence that SPDX knows"
    if _all_in(licence, set(policy.allow)):
        return "allowed", "the policy allows it"
    refused = {item.licence: item.because for item in policy.deny}
    reason = next((because for name, because in refused.items() if name in _keys(licence)), "")
    return ("denied", reason) if reason else ("unknown", f"{licence} is neither allowed nor denied")


def _all_in(licence: str, allowed: set[str]) -> bool:
    """Tell whether an expression is met by allowed licences alone."""
    return _met(SPDX.parse(licence), allowed)


def _met(node: Any, allowed: set[str]) -> bool:
    if isinstance(node, LicenseWithExceptionSymbol):
        return str(node) in allowed
    if node.isliteral:
        return node.key in allowed
    results = [_met(part, allowed) for part in node.args]
    return any(results) if isinstance(node, SPDX.OR) else all(results)


def _keys(licence: str) -> set[str]:
    return set(SPDX.license_keys(licence))


def _line(item: Licensed) -> str:
    said = f" (it says {', '.join(item.said)})" if item.said and not item.licence else ""
    return f"{item.name} {item.version}: {item.licence or 'no known licence'}{said}: {item.because}"
