"""The licence of each package in an image, from its metadata, and the policy's verdict. Reads licences.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from license_expression import ExpressionError, LicenseWithExceptionSymbol, get_spdx_licensing
from pydantic import Field

from drydock.attest.contents import ImageContents, Package
from drydock.config.project_layers import read_layers
from drydock.config.validation import validate_document
from drydock.core.console import log
from drydock.core.errors import LicenceError
from drydock.core.project import Project
from drydock.model.record import Because, Record

FILE = "policy/licences.yaml"
SPDX = get_spdx_licensing()
LONGEST = 120
"""Characters: a longer licence field contains the licence's text, not its name."""
Verdict = Literal["allowed", "denied", "unknown"]


class Denied(Record):
    """A licence that may not be published."""

    licence: str = Field(description="Required: its SPDX identifier.")
    because: Because


class LicenceOverride(Record):
    """The licence of a package whose metadata is insufficient."""

    licence: str = Field(
        description="Required: an SPDX expression, or LicenseRef-… for a licence that SPDX does not list."
    )
    because: Because


class OriginRule(Record):
    """One verdict for all packages of an origin."""

    verdict: Literal["allow", "refuse"]
    because: Because


class LicencePolicy(Record):
    """licences.yaml as written."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of the file format."""
    allow: tuple[str, ...]
    """SPDX identifiers."""
    deny: tuple[Denied, ...]
    unknown: Literal["warn", "refuse"]
    """Action if the licence is unknown, or neither allowed nor denied."""
    names: Mapping[str, str]
    """Licence name in metadata → SPDX identifier."""
    packages: Mapping[str, LicenceOverride] = {}
    """Licences of Python distributions whose metadata is insufficient."""
    origins: Mapping[Literal["deb"], OriginRule] = {}
    """Verdicts for whole origins."""


class Licensed(Record):
    """One package's licence."""

    kind: str
    name: str
    version: str
    licence: str
    """An SPDX expression; empty if unknown."""
    said: tuple[str, ...]
    """Licence fields of the package's metadata."""
    verdict: Verdict
    because: str


class Inventory(Record):
    """The licences of everything in an image."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    image: str
    packages: tuple[Licensed, ...]


def read_policy(project: Project) -> LicencePolicy:
    """Return the policy with what the project changes. Raises InputError with the position of each problem."""
    return validate_document(LicencePolicy, read_layers(project, FILE))


def make_licence_inventory(image: str, contents: ImageContents, policy: LicencePolicy) -> Inventory:
    """Return the licence of every package, with the policy's verdict."""
    return Inventory(image=image, packages=tuple(_judge_package(package, policy) for package in contents.packages))


def refuse_licence(text: str, where: str, policy: LicencePolicy) -> None:
    """Raise LicenceError for a licence, as an image's label states it, that the policy denies."""
    try:
        expression = SPDX.parse(text)
    except ExpressionError:  # free text: the policy has identifiers only
        return
    if expression is None or _is_allowed(expression, set(policy.allow)):
        return
    keys = set(SPDX.license_keys(text))
    denied = [f"{where}: {item.licence}: {item.because}" for item in policy.deny if item.licence in keys]
    if denied:
        raise LicenceError(*denied, hint=f"see deny in {FILE}")


def judge_base(name: str, digest: str, licence: str, policy: LicencePolicy) -> Licensed:
    """Return the licence of an adopted image's base, as its label states it."""
    is_known = is_spdx(licence)
    return Licensed(
        kind="oci",
        name=name,
        version=digest,
        licence=licence if is_known else "",
        said=(licence[:LONGEST],) if licence else (),
        verdict="allowed" if is_known and _is_allowed(SPDX.parse(licence), set(policy.allow)) else "unknown",
        because="as the base's label states it; packages in the base may have others",
    )


def enforce_licences(inventory: Inventory, policy: LicencePolicy) -> None:
    """Raise LicenceError if the policy refuses a package; log the packages with unknown verdict."""
    denied = [_format_licence(item) for item in inventory.packages if item.verdict == "denied"]
    unknown = [_format_licence(item) for item in inventory.packages if item.verdict == "unknown"]
    refused = denied + unknown if policy.unknown == "refuse" else denied
    if refused:
        raise LicenceError(*refused, hint=f"see allow, packages and unknown in {FILE}")
    if unknown:
        log(_table([item for item in inventory.packages if item.verdict == "unknown"]))


_HEAD = ("package", "version", "licence")
_WIDEST = 60
"""Characters of a cell; metadata may contain a whole licence."""


def _table(unknown: Sequence[Licensed]) -> str:
    """Return a table of packages that the policy says nothing about, and where to allow them."""
    rows = [_HEAD, *((item.name, item.version, _shown_licence(item)) for item in unknown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    count = f"{len(unknown)} packages have a licence" if len(unknown) > 1 else "1 package has a licence"
    return "\n  ".join((
        f"licences: {count} that {FILE} neither allows nor denies:",
        *lines,
        "to allow: the SPDX identifier in `allow`; if there is none, in `packages`, by name, with `because`",
    ))  # fmt: skip


def _shown_licence(item: Licensed) -> str:
    metadata = ", ".join(" ".join(text.split()) for text in item.said)
    text = item.licence or (f"none known to SPDX; metadata: {metadata}" if metadata else "none stated")
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def find_spdx_expression(package: Package, names: Mapping[str, str]) -> str:
    """Return the SPDX expression for a package's metadata, or an empty string.

    Core metadata 2.4: License-Expression takes precedence over License, and License over the classifiers.
    """
    if package.kind != "pypi":
        return ""
    values = [value.strip() for value in _list_licence_fields(package)]
    values += [value.rpartition(" :: ")[2] for value in _list_classifiers(package)]
    for value in values:
        spdx = _match_spdx(value, names)
        if spdx:
            return spdx
    return ""


def is_spdx(text: str) -> bool:
    """Return whether a text is an SPDX expression of known identifiers."""
    try:
        return not SPDX.unknown_license_keys(text) and SPDX.parse(text) is not None
    except (ExpressionError, ValueError, AttributeError, TypeError):  # what the library raises for free text
        return False


def _match_spdx(value: str, names: Mapping[str, str]) -> str:
    title = value.partition("\n")[0].strip()
    if title in names:
        return names[title]
    return value if len(value) < LONGEST and "\n" not in value and is_spdx(value) else ""


def _list_licence_fields(package: Package) -> list[str]:
    return [value for key in ("License-Expression", "License") for value in package.fields.get(key, ())]


def _list_classifiers(package: Package) -> list[str]:
    return [value for value in package.fields.get("Classifier", ()) if value.startswith("License :: ")]


def _judge_package(package: Package, policy: LicencePolicy) -> Licensed:
    override = policy.packages.get(package.name) if package.kind == "pypi" else None
    licence = override.licence if override else find_spdx_expression(package, policy.names)
    verdict, because = _judge_licence(package, licence, policy)
    return Licensed(
        kind=package.kind,
        name=package.name,
        version=package.version,
        licence=licence,
        said=(*(value[:LONGEST] for value in _list_licence_fields(package)), *_list_classifiers(package)),
        verdict=verdict,
        because=override.because if override and verdict != "denied" else because,
    )


def _judge_licence(package: Package, licence: str, policy: LicencePolicy) -> tuple[Verdict, str]:
    origin = policy.origins.get("deb") if package.kind == "deb" else None
    if origin:
        return ("allowed" if origin.verdict == "allow" else "denied"), origin.because
    if not licence:
        return "unknown", "its metadata contains no licence known to SPDX"
    if _is_allowed(SPDX.parse(licence), set(policy.allow)):
        return "allowed", "the policy allows it"
    keys = set(SPDX.license_keys(licence))
    for item in policy.deny:
        if item.licence in keys:
            return "denied", item.because
    return "unknown", f"{licence} is neither allowed nor denied"


def _is_allowed(node: Any, allowed: set[str]) -> bool:
    """Return whether a parsed expression can be satisfied with allowed licences only."""
    if isinstance(node, LicenseWithExceptionSymbol):
        return str(node) in allowed
    if node.isliteral:
        return node.key in allowed
    results = [_is_allowed(part, allowed) for part in node.args]
    return any(results) if isinstance(node, SPDX.OR) else all(results)


def _format_licence(item: Licensed) -> str:
    metadata = f" (metadata: {', '.join(item.said)})" if item.said and not item.licence else ""
    return f"{item.name} {item.version}: {item.licence or 'no known licence'}{metadata}: {item.because}"
