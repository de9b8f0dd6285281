"""What is in a base: what the user says, a file, its labels. What no row can have is refused. Reads files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from drydock.adopt.base_image import BaseImage
from drydock.build.adoption import BaseSettings
from drydock.config.validation import make_record
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import parse_json_object, read_bounded
from drydock.core.project import Project
from drydock.lock import vllm_lists
from drydock.lock.base_lists import BaseLists
from drydock.model.bases import GLIBC
from drydock.model.record import Digest, Record, dump_record

DEVICES = {
    "cuda": "cuda",
    "rocm": "rocm",
    "xpu": "xpu",
    "cpu": "cpu",
    "tpu": "tpu",
    "hpu": "habana",
    "neuron": "neuron",
}
"""Value of VLLM_TARGET_DEVICE, which vLLM's setup.py reads and its Dockerfiles set → accelerator."""
TOOLKITS = {"CUDA_VERSION": "cuda", "PYTORCH_ROCM_ARCH": "rocm", "ASCEND_TOOLKIT_HOME": "ascend"}
"""Variable of a vendor's base image (NVIDIA's cuda, vLLM's Dockerfile.rocm_base, Ascend's cann) → accelerator."""
VERSION = re.compile(r"\d+\.\d[a-z0-9.+]*")
UNVERSIONED = re.compile(r"0\.[01](?:\.0)?\.dev\d+(?:\+.*)?")
"""The version of a build from a clone without tags, as setuptools-scm writes it: 0.1.dev1+g51f799c1a."""
_PYTHON = re.compile(r"3\.\d+")
LARGEST_FACTS = 1 << 20
"""Bytes of a file for --facts; what `adopt --json` prints has 0.2 million, most of it lists of vLLM."""
OLDEST_PYTHON = Version("3.10")
"""The oldest Python that runs the entrypoint."""
OPTIONS = {
    "accelerator": "--accelerator",
    "vllm": "--vllm",
    "interpreter": "--python",
    "python": "--python-version",
    "release": "--release",
}
"""Fact → the option that states it."""
_MEANING = {
    "accelerator": "which accelerator its vLLM is for",
    "vllm": "its vLLM's version",
    "interpreter": "which Python in it has vLLM, by its path",
    "python": "the version of that Python, such as 3.12",
    "release": "its distribution, such as ubuntu:22.04",
}


class BaseFacts(NamedTuple):
    """What is in a base; empty if nothing says it."""

    vllm: str = ""
    python: str = ""
    """Its version, such as 3.12."""
    interpreter: str = ""
    """Path of the Python that has vLLM."""
    release: str = ""
    """Its distribution, as a stack names it."""
    accelerator: str = ""
    glibc: str = ""
    """Version of its glibc, for a release that drydock does not know."""

    def over(self, other: BaseFacts) -> BaseFacts:
        """Return these facts, and others where these are empty."""
        return BaseFacts(*(fact or other_fact for fact, other_fact in zip(self, other, strict=True)))


class BaseContents(NamedTuple):
    """What the files of a base say."""

    facts: BaseFacts
    shell_variables: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """File that shells read → variables that it exports, and scripts that it sources."""
    lists: BaseLists | None = None
    """What its vLLM says of itself; None if that was not read."""
    bytes_read: int = 0
    """Bytes of the layers that were read."""


class FactsFile(Record):
    """What `--facts` reads: the options of `adopt` that say what is in an image. All may be missing."""

    digest: Digest | None = None
    """Digest of the image that it is about."""
    accelerator: str = ""
    vllm: str = ""
    python: str = ""
    python_version: str = ""
    release: str = ""
    glibc: str = ""
    vllm_lists: BaseLists | None = None
    """What the vLLM in the image says of itself."""


def read_facts_file(path: Path, base: BaseImage) -> BaseContents:
    """Return what a file for --facts says of a base. Raises InputError, also for another image's file."""
    try:
        content = parse_json_object(read_bounded(path, LARGEST_FACTS), str(path), InputError)
    except OSError as error:
        raise InputError(f"--facts {path}: {error.strerror or error}") from error
    values = content.get("facts", content)  # of `adopt --json`, only this part
    if not isinstance(values, dict):
        raise InputError(f"--facts {path}: facts: expected a JSON object, found {type(values).__name__}")
    facts = make_record(FactsFile, str(path), values)
    if facts.digest not in (None, base.digest):
        text = f"--facts {path}: is about the image {facts.digest}, and {base.where} is {base.digest}"
        raise InputError(text, hint="--read-layers reads this image")
    lists = facts.vllm_lists
    if lists and lists.digest != base.digest:
        raise InputError(f"--facts {path}: vllm_lists: are about the image {lists.digest}, and this is {base.digest}")
    of_file = BaseFacts(facts.vllm, facts.python_version, facts.python, facts.release, facts.accelerator, facts.glibc)
    return BaseContents(of_file, lists=lists)


def dump_facts(contents: BaseContents, base: BaseImage) -> dict[str, Any]:
    """Return what is in a base as `--facts` takes it."""
    facts = {OPTIONS[name].removeprefix("--").replace("-", "_"): getattr(contents.facts, name) for name in OPTIONS}
    facts |= {"glibc": contents.facts.glibc} if contents.facts.glibc else {}
    return {"digest": base.digest, **facts, **({"vllm_lists": dump_record(contents.lists)} if contents.lists else {})}


def read_stated_facts(base: BaseImage) -> BaseFacts:
    """Return what the labels and variables of a base say is in it. Platforms that differ say nothing."""
    facts = {_read_settings_facts(platform.settings) for platform in base.platforms.values()}
    return facts.pop() if len(facts) == 1 else BaseFacts()


def _read_settings_facts(settings: BaseSettings) -> BaseFacts:
    variables, labels = settings.env, settings.labels
    python = _PYTHON.match(variables.get("PYTHON_VERSION", ""))  # of the official images of Python
    virtual = variables.get("VIRTUAL_ENV", "").rstrip("/")
    vllm = variables.get("VLLM_VERSION", "").removeprefix("v")
    release = ""
    if labels.get("org.opencontainers.image.ref.name") == "ubuntu":  # Ubuntu's own images, and what is built on them
        release = f"ubuntu:{labels.get('org.opencontainers.image.version', '')}"
    toolkits = {accelerator for name, accelerator in TOOLKITS.items() if variables.get(name)}
    return BaseFacts(
        vllm=vllm if VERSION.fullmatch(vllm) else "",
        python=python[0] if python else "",
        interpreter=f"{virtual}/bin/python3" if virtual.startswith("/") else "",
        release=release if release in GLIBC else "",
        accelerator=DEVICES.get(variables.get("VLLM_TARGET_DEVICE", ""), toolkits.pop() if len(toolkits) == 1 else ""),
    )


def require_facts(facts: BaseFacts, base: BaseImage, *, layers_were_read: bool) -> None:
    """Raise InputError that names the option for each fact that nothing says, or for what no row can have."""
    missing = [name for name in OPTIONS if not getattr(facts, name)]
    if missing:
        size = sum(layer["size"] for layer in next(iter(base.platforms.values())).layers)
        problems = [
            f"{base.where}: {OPTIONS[name]}: missing: its labels and variables do not say {_MEANING[name]}"
            f"{_propose(name, base)}"
            for name in missing
        ]
        hint = f"or --read-layers, which reads its layers ({size / 1e6:.0f} MB) as a stream and stores nothing"
        raise InputError(*problems, hint="" if layers_were_read else hint)
    try:
        Version(facts.vllm)
    except InvalidVersion as error:
        raise InputError(f"--vllm {facts.vllm}: expected a version, such as 0.33.0") from error
    if not re.fullmatch(r"3\.\d+", facts.python) or Version(facts.python) < OLDEST_PYTHON:
        problem = f"{base.where}: --python-version {facts.python}: expected {OLDEST_PYTHON} or later, such as 3.12"
        raise InputError(problem, hint="the entrypoint runs on the image's own Python")
    if facts.release not in GLIBC and not facts.glibc:
        raise InputError(
            f"{base.where}: --glibc: missing: {facts.release} has a glibc that drydock does not know",
            hint=f"`ldd --version` in the image prints it; known are {', '.join(sorted(GLIBC))}",
        )


def replace_missing_version(project: Project, facts: BaseFacts, lists: BaseLists | None, base: BaseImage) -> BaseFacts:
    """Return the facts with the nearest release, if the vLLM was built without a version. Raises InputError."""
    if not UNVERSIONED.fullmatch(facts.vllm):
        return facts
    if lists is None:
        raise InputError(
            f"{base.where}: vLLM {facts.vllm} is a build without a version, so that no rule for a version fits it",
            hint="--read-layers compares its options with those of each release; --vllm VERSION names the release",
        )
    version, share = vllm_lists.find_nearest_release(project, lists.lists)
    log(
        f"vLLM {facts.vllm} is a build without a version. Of the releases that drydock knows, {version} is nearest: "
        f"{share:.0%} of options, variables and architectures are the same. --vllm VERSION overrules it"
    )
    return facts._replace(vllm=version)


def _propose(name: str, base: BaseImage) -> str:
    """Return what the image's tag makes likely. It is a name only, and so is not believed."""
    version = re.search(r"(?<!\d)\d+\.\d+(?:\.\d+)?(?:\.post\d+)?", base.reference.tag)
    return f"; its tag makes {version[0]} likely" if name == "vllm" and version else ""
