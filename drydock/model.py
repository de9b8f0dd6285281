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
Because = Annotated[str, Field(description="Why, in one sentence, shown to operators.")]
Source = Annotated[str, Field(description="Manual, vendor page or measurement that says so.")]


class Record(BaseModel):
    """Immutable, and an unknown key is an error. The text below a field becomes its description in the JSON Schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True)


# --- what a person writes -------------------------------------------------------------------------------------------


class DebianBase(Record):
    """A root file system that mmdebstrap makes from locked packages; needs no container registry."""

    kind: Literal["debian"]
    """This kind of base."""
    suite: str = Field(description="Required: Debian release by code name, such as bookworm.")
    packages: tuple[str, ...] = Field(description="Required: packages beside the essential ones.")


class ImageBase(Record):
    """An image of a registry, by digest."""

    kind: Literal["image"]
    """This kind of base."""
    reference: str = Field(description="Required: name and tag, without digest, such as ubuntu:24.04.")
    digest: Digest | None = Field(default=None, description="Optional: a digest somebody published; lock resolves it.")
    source: str = Field(default="", description="Optional: where the digest was read.")
    unresolved: str = Field(default="", description="Optional: why there is no digest, when there is none.")


Base = Annotated[DebianBase | ImageBase, Field(discriminator="kind")]


class Setting(Record):
    """A value for one vLLM flag or environment variable, with its reason."""

    value: Scalar
    """For a flag, true means the bare flag and false its absence."""
    because: Because
    source: Source


Env = Annotated[Mapping[str, Setting], Field(description="Environment variables that serve sets unless the user did.")]
Serve = Annotated[Mapping[str, Setting], Field(description="vLLM flags, with dashes, that serve passes unless set.")]


class Threshold(Record):
    """A number that a decision uses, kept as data so that it can be questioned."""

    value: Scalar | tuple[Scalar, ...]
    """In the unit that the threshold's name ends in."""
    because: Because
    source: Source


Thresholds = Annotated[Mapping[str, Threshold], Field(description="Numbers that decisions use, by name.")]


class Condition(Record):
    """A fact compared with an expectation."""

    fact: str
    """A dotted path into the image's facts, such as kernel.governor."""
    operator: Literal["eq", "ne", "in", "not_in", "gte", "lte", "contains", "absent", "present"]
    """How the fact is compared."""
    expected: Scalar | tuple[Scalar, ...] | None = None
    """What it is compared with; nothing for absent and present."""


class Check(Condition):
    """One tuning check: a condition, and what to say when it is not met."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Z]{2,8}-\d{3}$")]
    """Stable name, such as CPU-001; never used for another check again."""
    severity: Literal["INFO", "WARN", "FAIL"]
    """What it is called when the condition is not met."""
    scope: Literal["host", "container"]
    """Who can mend it."""
    text: str = Field(description="Required: what is checked and why it matters, one or two sentences.")
    remediation: str = Field(description="Required: the command or setting that mends it.")
    source: Source
    when: tuple[Condition, ...] = Field(default=(), description="Optional: checked only if all of these are met.")


class KnownAnswer(Record):
    """A greedy answer that a right stack gives for one model."""

    model: str = Field(description="Required: a name for people.")
    config_sha256: Sha256 = Field(description="Required: sha256 of the model's config.json, which identifies it.")
    prompt: str
    """What the user says; the model's chat template is applied."""
    contains: str = Field(description="Required: text that the answer must contain.")
    max_tokens: int
    """How many tokens to generate."""
    source: Source


class Accelerator(Record):
    """templates/<accelerator>/accelerator.yaml: what every stack of one accelerator shares."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's layout."""
    accelerator: Identifier
    """The name of the folder that the file lies in."""
    title: str
    """Its name for people."""
    summary: str
    """Which devices it means, in one sentence."""
    base: Base | None = None
    """Where its images start, unless the stack says otherwise."""
    env: Env = {}
    serve: Serve = {}
    libraries: Mapping[str, Mapping[str, str]] = {}
    """Preload candidates: name → machine architecture → path in the image."""
    thresholds: Thresholds = {}
    checks: tuple[Check, ...] = ()
    """Tuning checks of host and container."""


class Exclusion(Record):
    """A distribution the resolver wants and the image does without."""

    name: str
    """Of the distribution, normalised."""
    reason: str
    """Why, in one sentence."""


class Override(Record):
    """A requirement forced upon the resolver."""

    requirement: str
    """As pip writes it, such as numpy==2.3.5."""
    reason: str
    """Why, in one sentence."""


class Layer(Record):
    """One image layer of Python distributions; the layer without any takes all the others. Order is build order."""

    name: Identifier
    """Of the layer."""
    distributions: tuple[str, ...] = ()
    """Normalised names; in exactly one layer of a stack there are none."""


class Vllm(Record):
    """Which vLLM, and whose."""

    version: str
    """Of vLLM itself, quoted."""
    distribution: str = Field(description="Required: the distribution that carries the package vllm.")
    origin: str = Field(description="Required: who builds it.")


class Compression(Record):
    """How the image's layers are compressed; enters the digest."""

    algorithm: Literal["zstd", "gzip", "uncompressed"]
    """What every layer is compressed with."""
    level: int
    """The algorithm's own scale."""


class Stack(Record):
    """Versions that ship together. Every field but `accelerator` can come from the stack it inherits from."""

    accelerator: Identifier
    """A folder below templates/."""
    inherits: str | None = None
    """Another stack of the same accelerator, which fills in what this one leaves out."""
    summary: str | None = None
    """What the stack is, and whose, in one sentence."""
    vllm: Vllm | None = None
    """The vLLM that it serves with."""
    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")] | None = None
    """Version of the interpreter that runs vLLM, quoted: "3.11"."""
    module: str | None = Field(default=None, description="Optional: the module python -m starts as the server.")
    base: Base | None = None
    """Where its images start; wins over the accelerator's."""
    requirements: tuple[str, ...] | None = None
    """What the resolver starts from, as pip writes it."""
    overrides: tuple[Override, ...] | None = None
    """Requirements forced upon the resolver."""
    exclude: tuple[Exclusion, ...] | None = None
    """Distributions that the resolver wants and the image does without."""
    layers: tuple[Layer, ...] | None = None
    """How its distributions are spread over image layers, in build order; what changes least comes first."""
    compression: Compression | None = None
    """Of the image's layers."""
    env: Env = {}
    serve: Serve = {}
    thresholds: Thresholds = {}
    known_answers: tuple[KnownAnswer, ...] | None = None
    """What a right stack answers; checked before an image calls itself ready."""


class Row(Record):
    """One variant of the matrix."""

    stack: Identifier
    """Key of the stack."""
    default: bool = Field(default=False, description="Optional: what the accelerator's name means as a target.")
    platforms: tuple[Platform, ...]
    """OCI platforms, such as linux/amd64."""
    aliases: tuple[Identifier, ...] = ()
    """Other names for --target."""
    hermetic: bool = True
    """Whether the build does without the network."""
    not_hermetic_because: str = ""
    """Why it does not; only with hermetic: false."""
    env: Env = {}
    serve: Serve = {}


class Matrix(Record):
    """matrix.yaml as written."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's layout."""
    epoch: int = Field(description="Required: SOURCE_DATE_EPOCH of every image, Unix seconds.")
    stacks: Mapping[Identifier, Stack]
    """Versions that ship together, by id."""
    variants: Mapping[Identifier, Row]
    """Images, by id: accelerator and stack on platforms."""


# --- what that expands to -------------------------------------------------------------------------------------------


class ResolvedSetting(Record):
    """A setting with the layer it came from (default, accelerator, stack or variant)."""

    setting: str
    value: Scalar
    origin: str
    because: str
    source: str


class Variant(Record):
    """An accelerator with a stack on platforms, every inherited value filled in."""

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
