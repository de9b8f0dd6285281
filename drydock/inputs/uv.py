"""Runs uv to resolve requirements to files, and reads its answer. IO; reading is pure."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import uv
from packaging.utils import canonicalize_name

from drydock.config.validation import make_record
from drydock.core.errors import IndexFailedError, InputError
from drydock.core.files import read_bounded
from drydock.core.network_settings import check_certificate_folders, check_certificates, check_client_certificate
from drydock.inputs.downloads import run_patiently
from drydock.inputs.indexes import Indexes, make_index_access, uv_environment
from drydock.model.locked import LockedWheel
from drydock.model.variant import PublicIndex

UV_NEWEST_GLIBC = 40
"""The newest glibc that uv's --python-platform accepts."""
UV_MACHINES = ("x86_64", "aarch64")

LARGEST_PYLOCK = 64 << 20
"""Bytes of what uv resolved: names and links of every file of an index are in it."""
REFUSED = re.compile(r"HTTP status \w+ error \((?P<status>\d{3})[^)]*\) for url\s+\((?P<url>[^)\s]+)\)")
"""How uv says that a server refuses a request."""
INDEX_HINT = (
    "add an index or a folder that has it to pip's configuration "
    "(PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS or pip.conf)"
)
FAILED_HINT = (
    "if this index is wrong, set another in pip's configuration (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or pip.conf; "
    f"`{sys.executable} -m pip config list` prints it) or in mirrors.yaml; if it is right, check the network, proxy "
    "and login (in the address, in ~/.netrc, or from the keyring: PIP_KEYRING_PROVIDER); `./inv doctor` asks each "
    "server"
)
WHEEL_HINT = (
    "source distributions are not built: exclude it (the stack's `exclude`), override it with a version that has a "
    "wheel, or build a wheel and put it into a folder of pip's find-links"
)
CONFLICT_HINT = (
    "no index helps: change the requirement, or write one that replaces what the others ask for (the stack's "
    "`overrides: [{requirement: NAME==VERSION, because: WHY}]`)"
)
ADDRESS_HINT = (
    "a stack takes nothing from an address: build a wheel of it, put it into a folder of pip's find-links or on an "
    "index, and override the requirement (the stack's `overrides: [{requirement: NAME==VERSION, because: WHY}]`); or "
    "compile it from `sources` with `builds`"
)
_OWN_ADVICE = re.compile(r" URL dependencies must be expressed as direct requirements.*")
"""What uv says about its own files, and what a stack refuses."""
_LACKS_VERSION = re.compile(r"\b(is|are) available\b|\bno versions? of\b|\bnot found\b")
"""uv's words where an index lacks a version: another index may have it."""
YANKED_HINT = (
    "its publisher withdrew this version (PEP 592): name another one; to take it nevertheless, name it with `==` in the"
    " stack's `requirements`, also where another package requires it"
)


class Environment(NamedTuple):
    """The environment that wheels must fit."""

    python: str
    """Such as 3.11."""
    machine: str
    """Such as x86_64."""
    glibc: int
    """Minor version: 36 for glibc 2.36."""

    @property
    def summary(self) -> str:
        """Return it in words."""
        return f"Python {self.python}, {self.machine}, glibc 2.{self.glibc}"


class ResolveRequest(NamedTuple):
    """Input of the resolver."""

    requirements: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Distributions that are left out, with what they require."""
    built: tuple[str, ...] = ()
    """Distributions that are left out, because they are built from source, but not what they require."""
    no_deps: bool = False
    sdist: bool = False
    """Whether to resolve one source distribution, without building it to find its dependencies."""
    public: tuple[PublicIndex, ...] = ()
    """Indexes of packages that the default index lacks."""
    explicit: tuple[tuple[str, str], ...] = ()
    """More required packages, each with the address of the one index that it comes from."""
    prefer: tuple[tuple[str, str], ...] = ()
    """Name and version of distributions to take again where the requirements allow it."""
    refused: tuple[str, ...] = ()
    """Versions that must not be taken, such as numba!=0.61.0."""
    layers: tuple[tuple[str, ...], ...] = ()
    """Distributions of each layer that names some. Two wheels of one layer should not share a path."""


class Candidate(NamedTuple):
    """A wheel or source distribution that an index offers."""

    name: str
    version: str
    filename: str
    url: str
    sha256: str
    size: int | None = None
    yanked: str | None = None
    """Why the index withdrew the file, which may be empty; None if it did not."""
    newer: str = ""
    """The newest version on the index, and why no wheel of it fits, if only that makes this one the newest."""


def run_uv(
    request: ResolveRequest, target: Environment, indexes: Indexes, env: Mapping[str, str]
) -> tuple[Candidate, ...]:
    """Run uv; raise InputError with its message, or IndexFailedError if an index does not answer or refuses.

    Raises NetworkSettingsError for certificates that are not there: uv goes on without them.
    """
    if target.machine not in UV_MACHINES:
        raise InputError(f"{target.machine}: uv cannot resolve for this machine, only for {', '.join(UV_MACHINES)}")
    with tempfile.TemporaryDirectory(prefix="drydock-") as folder:
        files = {"requirements": request.requirements, "overrides": request.overrides, "excludes": request.exclude}
        files["constraints"] = request.refused
        for name, lines in files.items():
            Path(folder, f"{name}.in").write_text("".join(f"{line}\n" for line in lines))
        Path(folder, "pyproject.toml").write_text(_format_pyproject(request, target.python))
        output = Path(folder, "pylock.toml")
        if request.prefer:
            output.write_text(_format_preferences(request))
        command = _make_uv_command(Path(folder), output, target, request)
        command += [*(["--no-index"] if indexes.no_index else []), *(["--no-deps"] if request.no_deps else [])]
        variables = uv_environment(indexes, env)
        check_certificates(variables.get("SSL_CERT_FILE"), env)
        check_client_certificate(variables.get("SSL_CLIENT_CERT"), env)
        check_certificate_folders(env)

        def run_once() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

        result = run_patiently(run_once, REFUSED, "uv", make_index_access(indexes, env))
        if result.returncode:
            message = _OWN_ADVICE.sub("", result.stderr.strip())
            if failure := failed_index(message):
                raise IndexFailedError(failure, hint=FAILED_HINT)
            raise InputError(
                f"uv cannot resolve {', '.join(request.requirements)}:\n{message}", hint=_choose_hint(message)
            )
        return parse_pylock(read_bounded(output, LARGEST_PYLOCK).decode())


def _make_uv_command(folder: Path, output: Path, target: Environment, request: ResolveRequest) -> list[str]:
    platform = f"{target.machine}-manylinux_2_{min(target.glibc, UV_NEWEST_GLIBC)}"
    return [
        *(str(uv_binary()), "pip", "compile", "--quiet"),
        *([str(folder / "pyproject.toml")] if request.explicit else [str(folder / "requirements.in"), "--no-sources"]),
        *("--overrides", str(folder / "overrides.in"), "--excludes", str(folder / "excludes.in")),
        *("--constraints", str(folder / "constraints.in")),
        *(word for name in request.built for word in ("--no-emit-package", name)),
        *("--format", "pylock.toml", "--output-file", str(output), "--no-header", "--no-annotate"),
        *("--python", sys.executable, "--python-version", target.python, "--python-platform", platform),
        # Not the best version of any index: an extra index could then replace a package of the main one.
        *("--index-strategy", "first-index"),
        *(_without_building(folder, request.requirements[0]) if request.sdist else _WHEELS_ONLY),
    ]


def _format_pyproject(request: ResolveRequest, python: str) -> str:
    """Return a pyproject.toml with the requirements; only there does uv pin a package to an index (PEP 621, tool.uv).

    Source: https://docs.astral.sh/uv/concepts/indexes/ ("Pinning a package to an index").
    """
    required = [*request.requirements, *(name for name, _ in request.explicit)]
    lines = ["[project]", 'name = "drydock-image"', 'version = "0"', f'requires-python = "=={python}.*"']
    lines += [f"dependencies = {json.dumps(required)}", "[tool.uv.sources]"]
    lines += [f'{json.dumps(name)} = {{index = "{name}"}}' for name, _ in request.explicit]
    for name, url in request.explicit:
        lines += ["[[tool.uv.index]]", f'name = "{name}"', f"url = {json.dumps(url)}", "explicit = true"]
    return "".join(f"{line}\n" for line in lines)


def _format_preferences(request: ResolveRequest) -> str:
    """Return an older answer with the versions to prefer: uv reads its output file before it replaces it.

    Source: https://docs.astral.sh/uv/pip/compile/ ("Upgrading requirements").
    """
    lines = ['lock-version = "1.0"', 'created-by = "drydock"']
    for name, version in request.prefer:
        lines += ["[[packages]]", f"name = {json.dumps(name)}", f"version = {json.dumps(version)}"]
    return "".join(f"{line}\n" for line in lines)


_WHEELS_ONLY = ("--only-binary", ":all:", "--no-config")


def _without_building(folder: Path, requirement: str) -> tuple[str, ...]:
    """Return options that declare a source distribution without dependencies, so that uv does not build it."""
    name, _, version = requirement.partition("==")
    fields = {"name": name, "version": version} if version else {"name": name}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
    (folder / "uv.toml").write_text(f"[[dependency-metadata]]\n{lines}requires-dist = []\n")
    return "--no-binary", name, "--config-file", str(folder / "uv.toml")


def uv_binary() -> Path:
    """Return the path of uv in drydock's own environment."""
    return Path(uv.find_uv_bin())


def failed_index(message: str) -> str:
    """Return which index uv could not use, and what it said; empty if every index answered.

    A refusal by its status (401, 403) is only a hint in uv's message. The last cause is the most exact one.
    """
    if refusal := re.search(r"hint: (An index .{0,500}\b40[13]\b[^.\n]*)", message):
        return refusal[1]
    address = re.search(r"Failed to fetch: `?(\S+?)/[^/\s]*/?`?$", message, re.MULTILINE)
    if not address:
        return ""
    cause = re.findall(r"cause: (.+)", message)[-1].partition(" for url (")[0]
    return f"the index {address[1]} failed: {cause}"


def _choose_hint(message: str) -> str:
    """Return the hint for the cause that uv names."""
    if "was yanked" in message:
        return YANKED_HINT
    if "URL dependency" in message:
        return ADDRESS_HINT
    if "incompatible" in message and not _LACKS_VERSION.search(message):
        return CONFLICT_HINT
    return WHEEL_HINT if re.search(r"no (usable )?wheels|no wheels with a matching", message) else INDEX_HINT


def parse_pylock(text: str) -> tuple[Candidate, ...]:
    """Return the wheels and source distributions of a pylock.toml (PEP 751)."""
    packages = tomllib.loads(text).get("packages", [])
    candidates = []
    for package in packages:
        files = [*package.get("wheels", ()), *(package[kind] for kind in ("sdist", "archive") if kind in package)]
        candidates += [_parse_candidate(package, file) for file in files]
    return tuple(candidates)


def _parse_candidate(package: Mapping[str, Any], wheel: Mapping[str, Any]) -> Candidate:
    """Return a file that an index offers. Raises InputError for a name, version or hash that cannot be one."""
    url = wheel.get("url") or Path(wheel["path"]).resolve().as_uri()
    if "sha256" not in wheel.get("hashes", {}):
        hint = "download the file, and put it into a folder of pip's find-links: its hash is then computed"
        raise InputError(f"{package['name']} {package.get('version')}: its index publishes no sha256", hint=hint)
    values = {
        "name": canonicalize_name(package["name"]),
        "version": package.get("version"),
        "filename": wheel.get("name") or unquote(urlsplit(url).path.rpartition("/")[2]),
        "sha256": wheel["hashes"]["sha256"],
        "size": wheel.get("size", 0),
    }
    pin = make_record(LockedWheel, f"the index's answer for {values['name']}", values)
    return Candidate(pin.name, pin.version, pin.filename, url, pin.sha256, wheel.get("size"))
