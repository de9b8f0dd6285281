"""The build side's records: matrix, variant, lock and profile. Pure data; pydantic gives key paths and JSON Schema.

Names of distributions are normalised (lower case, hyphens). Sizes are bytes, times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Platform = Annotated[str, StringConstraints(pattern=r"^linux/(amd64|arm64|s390x|ppc64le|riscv64)$")]
Scalar = bool | int | float | str


class Record(BaseModel):
    """Immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


# --- what a person writes -------------------------------------------------------------------------------------------


class DebianBase(Record):
    """A root file system that mmdebstrap makes from locked packages; needs no container registry."""

    kind: Literal["debian"]
    suite: str = Field(description="Required: Debian release by code name, such as bookworm.")
    packages: tuple[str, ...] = Field(description="Required: packages beside the essential ones.")


class ImageBase(Record):
    """An image of a registry, by digest."""

    kind: Literal["image"]
    reference: str = Field(description="Required: name and tag, without digest, such as ubuntu:24.04.")
    digest: Digest | None = Field(default=None, description="Optional: a digest somebody published; lock resolves it.")
    source: str = Field(default="", description="Optional: where the digest was read.")
    unresolved: str = Field(default="", description="Optional: why there is no digest, when there is none.")


Base = Annotated[DebianBase | ImageBase, Field(discriminator="kind")]


class Setting(Record):
    """A value for one vLLM flag or environment variable, with its reason."""

    value: Scalar
    because: str = Field(description="Required: why, in one sentence, shown to operators.")
    source: str = Field(description="Required: manual, vendor page or measurement.")


class Threshold(Record):
    """A number that a decision uses, kept as data so that it can be questioned."""

    value: Scalar | tuple[Scalar, ...]
    because: str
    source: str


class Condition(Record):
    """A fact compared with an expectation; `fact` is a dotted path into the image's facts, such as kernel.governor."""

    fact: str
    operator: Literal["eq", "ne", "in", "not_in", "gte", "lte", "contains", "absent", "present"]
    expected: Scalar | tuple[Scalar, ...] | None = None


class Check(Condition):
    """One tuning check: a condition, and what to say when it is not met."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Z]{2,8}-\d{3}$")]
    severity: Literal["INFO", "WARN", "FAIL"]
    scope: Literal["host", "container"]
    text: str = Field(description="Required: what is checked and why it matters, one or two sentences.")
    remediation: str = Field(description="Required: the command or setting that mends it.")
    source: str
    when: tuple[Condition, ...] = Field(default=(), description="Optional: checked only if all of these are met.")


class KnownAnswer(Record):
    """A greedy answer that a right stack gives for one model."""

    model: str = Field(description="Required: a name for people.")
    config_sha256: Sha256 = Field(description="Required: sha256 of the model's config.json, which identifies it.")
    prompt: str
    contains: str = Field(description="Required: text that the answer must contain.")
    max_tokens: int
    source: str


class Accelerator(Record):
    """templates/<accelerator>/accelerator.yaml: what every stack of one accelerator shares."""

    schema_: Literal[1] = Field(alias="schema")
    accelerator: Identifier
    title: str
    summary: str
    base: Base | None = None
    env: Mapping[str, Setting] = {}
    """Environment variables that serve sets unless the user did."""
    serve: Mapping[str, Setting] = {}
    """vLLM flags (with their dashes) that serve passes unless the user did; true means a bare flag."""
    libraries: Mapping[str, Mapping[str, str]] = {}
    """Preload candidates: name → machine architecture → path in the image."""
    thresholds: Mapping[str, Threshold] = {}
    checks: tuple[Check, ...] = ()


class Exclusion(Record):
    """A distribution the resolver wants and the image does without."""

    name: str
    reason: str


class Override(Record):
    """A requirement forced upon the resolver."""

    requirement: str
    reason: str


class Layer(Record):
    """One image layer of Python distributions; the layer without any takes all the others. Order is build order."""

    name: Identifier
    distributions: tuple[str, ...] = ()


class Vllm(Record):
    version: str
    distribution: str = Field(description="Required: the distribution that carries the package vllm.")
    origin: str = Field(description="Required: who builds it.")


class Compression(Record):
    """How the image's layers are compressed; enters the digest."""

    algorithm: Literal["zstd", "gzip", "uncompressed"]
    level: int


class Stack(Record):
    """Versions that ship together. Every field but `accelerator` can come from the stack it inherits from."""

    accelerator: Identifier
    inherits: str | None = None
    summary: str | None = None
    vllm: Vllm | None = None
    python: str | None = None
    module: str | None = Field(default=None, description="Optional: the module python -m starts as the server.")
    base: Base | None = None
    requirements: tuple[str, ...] | None = None
    overrides: tuple[Override, ...] | None = None
    exclude: tuple[Exclusion, ...] | None = None
    layers: tuple[Layer, ...] | None = None
    compression: Compression | None = None
    env: Mapping[str, Setting] = {}
    serve: Mapping[str, Setting] = {}
    thresholds: Mapping[str, Threshold] = {}
    known_answers: tuple[KnownAnswer, ...] | None = None


class Row(Record):
    """One variant of the matrix."""

    stack: Identifier
    default: bool = Field(default=False, description="Optional: what the accelerator's name means as a target.")
    platforms: tuple[Platform, ...]
    aliases: tuple[Identifier, ...] = ()
    hermetic: bool = True
    not_hermetic_because: str = ""
    env: Mapping[str, Setting] = {}
    serve: Mapping[str, Setting] = {}


class Matrix(Record):
    """matrix.yaml as written."""

    schema_: Literal[1] = Field(alias="schema")
    epoch: int = Field(description="Required: SOURCE_DATE_EPOCH of every image, Unix seconds.")
    stacks: Mapping[Identifier, Stack]
    variants: Mapping[Identifier, Row]


# --- what that expands to -------------------------------------------------------------------------------------------


class ResolvedSetting(Record):
    """A setting with the layer it came from (default, accelerator, stack or variant)."""

    setting: str
    value: Scalar
    origin: str
    because: str
    source: str


class Variant(Record):
    """accelerator × stack, with every inherited value filled in."""

    id: Identifier
    accelerator: Identifier
    title: str
    stack: Identifier
    summary: str
    default: bool
    aliases: tuple[str, ...]
    vllm: Vllm
    python: str
    module: str
    base: Base
    platforms: tuple[Platform, ...]
    requirements: tuple[str, ...]
    overrides: tuple[Override, ...]
    exclude: tuple[Exclusion, ...]
    layers: tuple[Layer, ...]
    compression: Compression
    settings: tuple[ResolvedSetting, ...]
    libraries: Mapping[str, Mapping[str, str]]
    thresholds: Mapping[str, Threshold]
    checks: tuple[Check, ...]
    known_answers: tuple[KnownAnswer, ...]
    hermetic: bool
    not_hermetic_because: str
    epoch: int


# --- what is generated ----------------------------------------------------------------------------------------------


class LockedDeb(Record):
    name: str
    version: str
    architecture: str
    filename: str
    """Path below the mirror's root, pool/main/…; which mirror serves it is the machine's own configuration."""
    size: int
    sha256: Sha256


class LockedWheel(Record):
    name: str
    version: str
    filename: str
    size: int
    sha256: Sha256


class LockedDebianBase(Record):
    kind: Literal["debian"]
    suite: str
    snapshot: str
    """When it was resolved, as snapshot archives write it: 20261121T041500Z."""
    digest: Digest
    """Manifest of the OCI layout made from the packages."""
    packages: tuple[LockedDeb, ...]
    bootstrap: tuple[LockedDeb, ...]
    """The packages that mmdebstrap itself runs from, so that its version is pinned too."""


class LockedImageBase(Record):
    kind: Literal["image"]
    reference: str
    digest: Digest | None
    verified: bool
    """Whether the registry itself confirmed the digest."""
    source: str
    unresolved: str = ""


class LockedImage(Record):
    """The digest that two builds agreed upon, and what made it."""

    digest: Digest
    inputs_sha256: Sha256
    """Of everything that went in: lock, Dockerfile, profile, entrypoint. Other inputs make another digest."""
    buildkit: str
    buildx: str


class LockedPlatform(Record):
    base: Annotated[LockedDebianBase | LockedImageBase, Field(discriminator="kind")]
    layers: Mapping[str, tuple[LockedWheel, ...]]
    """Layer name → its wheels, sorted by name."""
    tools: tuple[LockedWheel, ...]
    """Used while building, absent from the image: uv."""
    image: LockedImage | None = None


class Lock(Record):
    """images/<variant>/lock.json: the truth about what goes into an image."""

    schema_: Literal[1] = Field(alias="schema")
    variant: Identifier
    inputs_sha256: Sha256
    """Of the part of the variant that it was resolved from."""
    source_date_epoch: int
    compatibility_version: int
    """BuildKit's exporter behaviour that the digest depends on."""
    platforms: Mapping[Platform, LockedPlatform]
    content_sha256: Sha256
    """Of everything above, so that an edit by hand is seen."""


class Profile(Record):
    """profile.json in the image: all that the entrypoint must know about its own image. Compiled from the variant."""

    schema_: Literal[1] = Field(alias="schema")
    variant: str
    accelerator: str
    stack: str
    vllm: str
    python: str
    """The interpreter that runs vLLM."""
    module: str
    settings: tuple[ResolvedSetting, ...]
    libraries: Mapping[str, Mapping[str, str]]
    thresholds: Mapping[str, Threshold]
    checks: tuple[Check, ...]
    known_answers: tuple[KnownAnswer, ...]


def dump(record: Record) -> dict[str, Any]:
    """Turn a record into plain JSON values under the names people write (`schema`, not `schema_`)."""
    return record.model_dump(mode="json", by_alias=True)
