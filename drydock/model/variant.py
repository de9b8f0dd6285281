"""The build side's records: matrix, variant and profile. Pure data; pydantic gives key paths and JSON Schema.

Names of distributions are normalised (lower case, hyphens). Sizes are bytes, times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from drydock.model.bases import Base
from drydock.model.caches import Caches
from drydock.model.checks import Check, Findings, KnownFinding, Places
from drydock.model.distributions import Exclusion, Layer, Override, Trim
from drydock.model.record import Because, Identifier, Platform, Record, Scalar, Setting, Sha256, Source
from drydock.model.running import Run
from drydock.model.variables import Variables

# --- what a person writes -------------------------------------------------------------------------------------------


Env = Annotated[Mapping[str, Setting], Field(description="Environment variables that serve sets unless the user did.")]
Serve = Annotated[Mapping[str, Setting], Field(description="vLLM flags, with dashes, that serve passes unless set.")]


class Threshold(Record):
    """A number that a decision uses, kept as data so that it can be questioned."""

    value: Scalar | tuple[Scalar, ...]
    """In the unit that the threshold's name ends in."""
    because: Because
    source: Source


Thresholds = Annotated[Mapping[str, Threshold], Field(description="Numbers that decisions use, by name.")]


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


# --- accelerators and stacks ----------------------------------------------------------------------------------------


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
    variables: Variables = Variables()
    """Environment variables that mean something on this accelerator."""
    converted_name: str = ""
    """The word in a model's name that tells that its weights were converted: G2 in DeepSeek-R1-0528-G2."""
    caches: Caches = {}
    thresholds: Thresholds = {}
    facts: Places = {}
    checks: tuple[Check, ...] = ()
    """Tuning checks of host and container."""
    findings: Findings = {}
    run: Run | None = None
    """How its containers are started, unless the stack says otherwise."""


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


class SourceCode(Record):
    """Source code that is compiled into the image: a named build context."""

    name: Identifier
    """Of the context."""
    repository: str = Field(default="", description="Optional: URL of the git repository; a sdist has none.")
    ref: str = Field(default="", description="Optional: tag or branch, for people; the commit decides.")
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")] | None = None
    """What is compiled, as git names it; lock asks the repository where it is left out."""
    sdist: str = Field(default="", description="Optional: a source distribution instead, such as vllm-tpu==0.32.0.")
    unresolved: str = Field(default="", description="Optional: why there is no commit, when there is none.")
    source: Source


class Build(Record):
    """One distribution that is compiled from sources, offline, in a stage of its own."""

    distribution: str
    """Normalised name of what comes out."""
    source: Identifier
    """Name of the source that it is compiled from."""
    version: str = Field(description="Required: its version, since an exported tree has no tags to read it from.")
    folder: str = "."
    """Where in the source its pyproject.toml or setup.py lies."""
    contexts: tuple[Identifier, ...] = ()
    """Other sources and files that it needs, each below /sources/: a local CUTLASS, a precompiled wheel."""
    env: Mapping[str, Setting] = {}
    """Such as VLLM_TARGET_DEVICE, MAX_JOBS, TORCH_CUDA_ARCH_LIST."""
    existing_torch: bool = False
    """Whether vLLM's use_existing_torch.py runs first, so that the base's own PyTorch stays."""
    compiler_cache: Literal["", "ccache", "sccache"] = ""
    """Keeps compiled objects between builds, in a BuildKit cache mount."""


class Supplied(Record):
    """Files that only their vendor may hand out: the operator brings them as a named build context."""

    name: Identifier
    """Of the context."""
    patterns: tuple[str, ...]
    """File names, such as TopsRider_i3x_3.5.*.run."""
    install: Literal["run", "wheels", "debs", ""] = ""
    """How the image takes them: a self-extracting installer, wheels, Debian packages, or not by itself."""
    arguments: tuple[str, ...] = ()
    """What an installer is given."""
    how: str
    """Where an operator gets them."""
    source: Source


class Conversion(Record):
    """One of the vendor's scripts that makes of a model what its devices compute: `docker run IMG convert` runs it."""

    kind: Identifier
    """What `--kind` calls it."""
    text: str
    """What it does, in one sentence."""
    context: Identifier
    """Name of the source that it comes with."""
    files: tuple[str, ...]
    """Files and folders of that source which the image takes."""
    argv: tuple[str, ...]
    """The command; {python}, {scripts}, {model} and {output} are filled in, and what the user adds is appended."""
    takes: Literal["fp8", "images", "any"]
    """Models that it is chosen for by itself: float8 weights, unquantised ones that take images, or none."""
    gives: Literal["model", "measurements"]
    """A folder that is served, or measurements that a model is served with."""
    keep: tuple[str, ...] = ()
    """What to keep of the folder of scripts, where the script writes its results there."""
    programs: tuple[str, ...] = ()
    """Programs that the script calls."""
    modules: tuple[str, ...] = ()
    """Python modules that it imports."""
    env: Mapping[str, str] = {}
    """Its environment, beside the image's."""
    room: float
    """Bytes that it writes for each byte of the model's weights, at most."""
    serve: Mapping[str, str] = {}
    """Variables that its results are served with; {output} is filled in, and a value with * names the file found."""
    source: Source


class Elsewhere(Record):
    """Packages that the usual index lacks; the machine's own configuration decides where they come from."""

    packages: tuple[str, ...]
    """Which."""
    published: str
    """Where their vendor publishes them, in words."""
    source: Source


class Contents(Record):
    """What goes into an image, as a stack says it and a variant has it."""

    requirements: tuple[str, ...] = ()
    """What the resolver starts from, as pip writes it."""
    overrides: tuple[Override, ...] = ()
    """Requirements forced upon the resolver."""
    exclude: tuple[Exclusion, ...] = ()
    """Distributions that the resolver wants and the image does without."""
    layers: tuple[Layer, ...] = ()
    """How its distributions are spread over image layers, in build order; what changes least comes first."""
    trim: tuple[Trim, ...] = ()
    """What the image does without of its distributions; added to what the stack inherits."""
    sources: tuple[SourceCode, ...] = ()
    """Source code that is compiled."""
    build_requirements: tuple[str, ...] = ()
    """What compiling needs and the image does not, as pip writes it."""
    builds: tuple[Build, ...] = ()
    """Distributions compiled from the sources, in this order, and installed after the layers."""
    supplied: tuple[Supplied, ...] = ()
    """Files that an operator brings."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """Packages that the usual index lacks: where it does, a lock says so instead of failing."""
    setup: tuple[str, ...] = ()
    """Shell scripts of the base whose environment vLLM needs, such as /usr/local/Ascend/nnal/atb/set_env.sh."""


class Serving(Record):
    """What the entrypoint goes by, as a stack says it and a profile has it."""

    caches: Caches = {}
    thresholds: Thresholds = {}
    known_answers: tuple[KnownAnswer, ...] = ()
    """What a right stack answers; checked before an image calls itself ready."""
    conversions: tuple[Conversion, ...] = ()
    """The vendor's scripts that its images can convert models with."""


class Stack(Contents, Serving):
    """templates/<accelerator>/stacks/<stack>.yaml: versions that ship together. It inherits what it leaves out."""

    inherits: str | None = None
    """Another stack of the same accelerator, by its file's name without .yaml: it fills in what this one leaves out."""
    summary: str | None = None
    """What the stack is, and whose, in one sentence."""
    vllm: Vllm | None = None
    """The vLLM that it serves with."""
    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")] | None = None
    """Version of the interpreter that runs vLLM, quoted: "3.11"."""
    module: str | None = Field(default=None, description="Optional: the module python -m starts as the server.")
    base: Base | None = None
    """Where its images start; wins over the accelerator's."""
    compression: Compression | None = None
    """Of the image's layers."""
    env: Env = {}
    serve: Serve = {}
    checks: tuple[Check, ...] = ()
    """Beside the accelerator's: which drivers, devices and models go with just these versions."""
    run: Run | None = None
    """How its containers are started; wins over the accelerator's."""


class Listed(Record):
    """How the matrix lists an image."""

    default: bool = Field(default=False, description="Optional: what the accelerator's name means as a target.")
    platforms: tuple[Platform, ...]
    """OCI platforms, such as linux/amd64."""
    aliases: tuple[Identifier, ...] = ()
    """Other names for --target."""
    hermetic: bool = True
    """Whether the build does without the network."""
    not_hermetic_because: str = ""
    """Why it does not; only with hermetic: false."""


class Row(Listed):
    """One variant of the matrix."""

    stack: Identifier
    """Name of a file templates/<accelerator>/stacks/<stack>.yaml."""
    env: Env = {}
    serve: Serve = {}


class Matrix(Record):
    """matrix.yaml: which images exist."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's layout."""
    epoch: int = Field(description="Required: SOURCE_DATE_EPOCH of every image, Unix seconds.")
    variants: Mapping[Identifier, Row]
    """Images, by id: a stack on platforms."""


# --- what that expands to -------------------------------------------------------------------------------------------


class ResolvedSetting(Record):
    """A setting with the layer it came from (default, accelerator, stack or variant)."""

    setting: str
    value: Scalar
    origin: str
    because: str
    source: str


class ResolvedServing(Serving):
    """What the entrypoint goes by, as a variant and its profile have it: accelerator, stack and row in one."""

    accelerator: Identifier
    stack: Identifier
    module: str
    settings: tuple[ResolvedSetting, ...]
    variables: Variables
    converted_name: str
    libraries: Mapping[str, Mapping[str, str]]
    facts: Mapping[str, str]
    """Fact that a check names → where it is read in a container."""
    checks: tuple[Check, ...]
    findings: Mapping[str, KnownFinding]
    """Findings that code makes, by id: any host's and the accelerator's."""
    run: Run


class Variant(Contents, ResolvedServing, Listed):
    """An accelerator with a stack on platforms, every inherited value filled in."""

    id: Identifier
    title: str
    summary: str
    vllm: Vllm
    python: str
    base: Base
    compression: Compression
    epoch: int

    @property
    def interpreter(self) -> str:
        """Return the interpreter of the base: it runs the entrypoint."""
        return self.base.python if self.base.kind == "image" else "/usr/bin/python3"

    def trims(self, layer: Layer) -> list[Trim]:
        """Return what is trimmed of the distributions in a layer."""
        named = {name for each in self.layers for name in each.distributions}
        return [
            trim
            for trim in self.trim
            if (trim.distribution in layer.distributions if layer.distributions else trim.distribution not in named)
        ]

    @property
    def installs(self) -> bool:
        """Tell whether the image adds distributions to its base; else vLLM comes with the base."""
        return bool(self.layers or self.builds or any(item.install == "wheels" for item in self.supplied))


class Profile(ResolvedServing):
    """profile.json in the image: all that the entrypoint must know about its own image. Compiled from the variant."""

    schema_: Literal[1] = Field(alias="schema")
    variant: str
    vllm: str
    python: str
    """The interpreter that runs vLLM."""
