"""Resolves requirements to exact wheels for one Python and one platform. IO: uv resolves; the choice by tags is pure.

The packages installed on this machine do not matter, and no source distribution is built.
"""

from __future__ import annotations

import json
import os
import platform as host
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from drydock.config.access import Access
from drydock.core.errors import GoneError, InputError
from drydock.core.files import read_bounded
from drydock.inputs.indexes import Indexes, access, read_indexes, single, uv_environment
from drydock.inputs.store import Store
from drydock.inputs.transfer import Wanted, ask_sizes, download
from drydock.model.bases import GLIBC, Base, DebianBase
from drydock.model.locked import LockedWheel

MACHINES = {
    "linux/amd64": "x86_64",
    "linux/arm64": "aarch64",
    "linux/s390x": "s390x",
    "linux/ppc64le": "ppc64le",
    "linux/riscv64": "riscv64",
}
OLDEST_GLIBC = {"x86_64": 5}
"""The oldest glibc for manylinux (PEP 600); 17 on other machines."""
LEGACY_MANYLINUX = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
UV_NEWEST_GLIBC = 40
"""The newest glibc that uv's --python-platform accepts."""
UV_MACHINES = ("x86_64", "aarch64")

LARGEST_PYLOCK = 64 << 20
"""Bytes of what uv resolved: names and links of every file of an index are in it."""
INDEX_HINT = (
    "add an index or a folder that has it to pip's configuration "
    "(PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS or pip.conf)"
)
WHEEL_HINT = (
    "source distributions are not built: exclude it (the stack's `exclude`), override it with a version that has a "
    "wheel, or build a wheel and put it into a folder of pip's find-links"
)


class Environment(NamedTuple):
    """The environment that wheels must fit."""

    python: str
    """Such as 3.11."""
    machine: str
    """Such as x86_64."""
    glibc: int
    """Minor version: 36 for glibc 2.36."""


class ResolveRequest(NamedTuple):
    """Input of the resolver."""

    requirements: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    no_deps: bool = False
    sdist: bool = False
    """Whether to resolve one source distribution, without building it to find its dependencies."""


class Candidate(NamedTuple):
    """A wheel or source distribution that an index offers."""

    name: str
    version: str
    filename: str
    url: str
    sha256: str
    size: int | None = None


def environment(python: str, platform: str, base: Base) -> Environment:
    """Return the environment of an image; raise InputError if the glibc of its base is not known."""
    release = base.suite if isinstance(base, DebianBase) else base.release
    glibc = base.glibc or GLIBC.get(release, "")
    if not glibc:
        raise InputError(
            f"base {release!r}: unknown glibc version; known bases: {', '.join(sorted(GLIBC))}",
            hint='add `glibc` to the base, such as glibc: "2.28" (`ldd --version` in the base prints it)',
        )
    return Environment(python, MACHINES[platform], int(glibc.removeprefix("2.")))


def native(platform: str) -> bool:
    """Tell whether this machine runs a platform's programs without emulation."""
    return host.machine() == MACHINES[platform]


def resolve_wheels(
    request: ResolveRequest, target: Environment, store: Store, env: Mapping[str, str] = os.environ
) -> tuple[LockedWheel, ...]:
    """Resolve requirements to wheels; return them sorted by name, with the hashes of the index.

    Raises InputError if the resolver fails, FetchError if an index does not deliver a file that it lists.
    """
    indexes = read_indexes(env)
    chosen = choose(_compile(request, target, indexes, env), target)
    return _pinned(chosen, store, access(indexes, env))


def offered(request: ResolveRequest, target: Environment, env: Mapping[str, str] = os.environ) -> tuple[Candidate, ...]:
    """Return the wheels, or the source distribution, that requirements resolve to today, sorted by name.

    Fetches nothing. Raises InputError.
    """
    candidates = _compile(request, target, read_indexes(env), env)
    if request.sdist:
        return tuple(candidate for candidate in candidates if candidate.filename.endswith(".tar.gz"))
    return choose(candidates, target)


def resolve_sdist(requirement: str, target: Environment, store: Store, env: Mapping[str, str]) -> LockedWheel:
    """Resolve one source distribution, such as vllm-tpu==0.32.0. Raises InputError or FetchError."""
    indexes = read_indexes(env)
    request = ResolveRequest((requirement,), no_deps=True, sdist=True)
    sdists = [c for c in _compile(request, target, indexes, env) if c.filename.endswith(".tar.gz")]
    if not sdists:
        raise InputError(f"{requirement}: no configured index has a source distribution of it", hint=INDEX_HINT)
    return _pinned(sdists[:1], store, access(indexes, env))[0]


def fetch_sdists(sdists: Sequence[LockedWheel], target: Environment, store: Store, env: Mapping[str, str]) -> None:
    """Fetch locked source distributions that the store lacks. Raises GoneError if no index has a file any more."""
    indexes = read_indexes(env)
    for pin in sdists:
        if store.has(pin.sha256, pin.size):
            continue
        request = ResolveRequest((f"{pin.name}=={pin.version}",), no_deps=True, sdist=True)
        urls = [c.url for c in _compile(request, target, indexes, env) if c.sha256 == pin.sha256]
        if not urls:
            raise GoneError(f"{pin.filename} (sha256 {pin.sha256[:12]}…): no configured index has it", hint=INDEX_HINT)
        download(store, [Wanted(pin.filename, pin.sha256, pin.size, tuple(urls))], access(indexes, env))


def fetch_wheels(wheels: Sequence[LockedWheel], target: Environment, store: Store, env: Mapping[str, str]) -> None:
    """Fetch locked wheels that the store lacks; raise one GoneError that names all that no index has."""
    missing = [wheel for wheel in wheels if not store.has(wheel.sha256, wheel.size)]
    if not missing:
        return
    indexes = read_indexes(env)
    urls = locate(missing, target, indexes, env)
    gone = [
        f"{w.filename} (sha256 {w.sha256[:12]}…): no configured index has it" for w in missing if w.sha256 not in urls
    ]
    if gone:
        raise GoneError(*gone, hint=INDEX_HINT)
    wanted = [Wanted(w.filename, w.sha256, w.size, (urls[w.sha256],)) for w in missing]
    download(store, wanted, access(indexes, env))


def locate(
    wheels: Iterable[LockedWheel], target: Environment, indexes: Indexes, env: Mapping[str, str]
) -> dict[str, str]:
    """Return sha256 → URL of every wheel that an index has. Asks all indexes together, then each one alone."""
    missing = {wheel.sha256: wheel for wheel in wheels}
    urls: dict[str, str] = {}
    for configuration in (indexes, *single(indexes)):
        for batch in _batches(tuple(missing.values()), target, configuration, env):
            urls |= {c.sha256: c.url for c in batch if c.sha256 in missing}
        missing = {sha256: wheel for sha256, wheel in missing.items() if sha256 not in urls}
        if not missing:
            break
    return urls


def choose(candidates: Iterable[Candidate], target: Environment) -> tuple[Candidate, ...]:
    """Return the best wheel of each distribution, chosen as pip does; sorted by name."""
    ranks = {tag: rank for rank, tag in enumerate(tags(target))}
    candidates = tuple(candidate for candidate in candidates if candidate.filename.endswith(".whl"))
    best: dict[str, tuple[int, Candidate]] = {}
    for candidate in candidates:
        fits = [ranks[tag] for tag in parse_wheel_filename(candidate.filename)[3] if tag in ranks]
        if fits and (candidate.name not in best or (min(fits), candidate) < best[candidate.name]):
            best[candidate.name] = (min(fits), candidate)
    missing = sorted({c.name for c in candidates} - set(best))
    if missing:
        raise InputError(*(f"{name}: none of its wheels fits {target}" for name in missing), hint=WHEEL_HINT)
    return tuple(best[name][1] for name in sorted(best))


def tags(target: Environment) -> Iterator[Tag]:
    """Yield the wheel tags that fit, best first."""
    major, minor = (int(part) for part in target.python.split(".")[:2])
    platforms = list(_platforms(target))
    yield from cpython_tags((major, minor), platforms=platforms)
    yield from compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms)


def parse_pylock(text: str) -> tuple[Candidate, ...]:
    """Return the wheels and source distributions of a pylock.toml (PEP 751)."""
    packages = tomllib.loads(text).get("packages", [])
    candidates = []
    for package in packages:
        files = [*package.get("wheels", ())]
        if "sdist" in package:
            files.append(package["sdist"])
        candidates += [_candidate(package, file) for file in files]
    return tuple(candidates)


def _pinned(candidates: Sequence[Candidate], store: Store, server_access: Access) -> tuple[LockedWheel, ...]:
    """Return pins with sizes: from the index, from the store or the server, or else by fetching the file."""
    sizes = {c.sha256: c.size or _stored_size(c, store) for c in candidates}
    unknown = [c for c in candidates if sizes[c.sha256] is None]
    sizes |= ask_sizes([(c.sha256, c.url) for c in unknown], server_access)
    download(
        store, [Wanted(c.filename, c.sha256, None, (c.url,)) for c in unknown if sizes[c.sha256] is None], server_access
    )
    return tuple(_locked(c, sizes[c.sha256] or _stored_size(c, store) or 0) for c in candidates)


def _stored_size(candidate: Candidate, store: Store) -> int | None:
    path = store.path(candidate.sha256)
    return path.stat().st_size if path.is_file() else None


def _locked(candidate: Candidate, size: int) -> LockedWheel:
    return LockedWheel(
        name=candidate.name,
        version=candidate.version,
        filename=candidate.filename,
        size=size,
        sha256=candidate.sha256,
    )


def _candidate(package: Mapping[str, Any], wheel: Mapping[str, Any]) -> Candidate:
    url = wheel.get("url") or Path(wheel["path"]).resolve().as_uri()
    return Candidate(
        name=canonicalize_name(package["name"]),
        version=package["version"],
        filename=wheel.get("name") or unquote(urlsplit(url).path.rpartition("/")[2]),
        url=url,
        sha256=wheel["hashes"]["sha256"],
        size=wheel.get("size"),
    )


def _platforms(target: Environment) -> Iterator[str]:
    for minor in range(target.glibc, OLDEST_GLIBC.get(target.machine, 17) - 1, -1):
        yield f"manylinux_2_{minor}_{target.machine}"
        if minor in LEGACY_MANYLINUX:
            yield f"{LEGACY_MANYLINUX[minor]}_{target.machine}"
    yield f"linux_{target.machine}"


def _batches(
    wheels: Sequence[LockedWheel], target: Environment, indexes: Indexes, env: Mapping[str, str]
) -> Iterator[tuple[Candidate, ...]]:
    """Resolve all pins at once. One unknown pin makes that fail, so then resolve each half separately."""
    pins = tuple(f"{wheel.name}=={wheel.version}" for wheel in wheels)
    try:
        yield _compile(ResolveRequest(pins, no_deps=True), target, indexes, env)
    except InputError:
        if len(wheels) > 1:
            middle = len(wheels) // 2
            yield from _batches(wheels[:middle], target, indexes, env)
            yield from _batches(wheels[middle:], target, indexes, env)


def _compile(
    request: ResolveRequest, target: Environment, indexes: Indexes, env: Mapping[str, str]
) -> tuple[Candidate, ...]:
    """Run uv; raise InputError with its message."""
    if target.machine not in UV_MACHINES:
        raise InputError(f"{target.machine}: uv cannot resolve for this machine, only for {', '.join(UV_MACHINES)}")
    with tempfile.TemporaryDirectory(prefix="drydock-") as folder:
        files = {"requirements": request.requirements, "overrides": request.overrides, "excludes": request.exclude}
        for name, lines in files.items():
            Path(folder, f"{name}.in").write_text("".join(f"{line}\n" for line in lines))
        output = Path(folder, "pylock.toml")
        command = _command(Path(folder), output, target, request)
        command += [*(["--no-index"] if indexes.no_index else []), *(["--no-deps"] if request.no_deps else [])]
        result = subprocess.run(command, env=uv_environment(indexes, env), capture_output=True, text=True, check=False)
        if result.returncode:
            message = re.sub(r"//[^/\s@]+@", "//", result.stderr).strip()  # without passwords
            raise InputError(f"uv cannot resolve {', '.join(request.requirements)}:\n{message}", hint=_hint(message))
        return parse_pylock(read_bounded(output, LARGEST_PYLOCK).decode())


def _command(folder: Path, output: Path, target: Environment, request: ResolveRequest) -> list[str]:
    platform = f"{target.machine}-manylinux_2_{min(target.glibc, UV_NEWEST_GLIBC)}"
    return [
        *(str(uv_binary()), "pip", "compile", str(folder / "requirements.in"), "--quiet"),
        *("--overrides", str(folder / "overrides.in"), "--excludes", str(folder / "excludes.in")),
        *("--format", "pylock.toml", "--output-file", str(output), "--no-header", "--no-annotate"),
        *("--python", sys.executable, "--python-version", target.python, "--python-platform", platform),
        # Like pip: the best version of any index. Every file is pinned by hash afterwards.
        *("--index-strategy", "unsafe-best-match", "--no-sources"),
        *(_without_building(folder, request.requirements[0]) if request.sdist else _WHEELS_ONLY),
    ]


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
    return Path(sys.executable).parent / "uv"


def _hint(message: str) -> str:
    """Return the hint for a distribution without a fitting wheel, or for one that no index has."""
    return WHEEL_HINT if re.search(r"no (usable )?wheels|no wheels with a matching", message) else INDEX_HINT
