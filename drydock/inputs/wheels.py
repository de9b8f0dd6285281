"""Resolves requirements to exact wheels for one Python and one platform, and fetches them. IO: uv resolves.

The packages installed on this machine do not matter, and no source distribution is built.
"""

from __future__ import annotations

import functools
import os
import platform as host
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from drydock.config.mirrors import find_mirrors_file, rewrite_url
from drydock.config.server_access import Access, redact_url
from drydock.core.console import log, show_step
from drydock.core.errors import FetchError, GoneError, IndexFailedError, InputError
from drydock.inputs.device_code import DeviceCode
from drydock.inputs.downloads import WORKERS, Wanted, ask_sizes, ask_status, download_files, local_path
from drydock.inputs.index_pages import IndexFiles, read_index_files
from drydock.inputs.indexes import (
    Indexes,
    make_index_access,
    page_of,
    pips_default,
    read_indexes,
    select_public_index,
    split_indexes,
)
from drydock.inputs.store import Store
from drydock.inputs.uv import FAILED_HINT, INDEX_HINT, Candidate, Environment, ResolveRequest, run_uv
from drydock.inputs.wheel_contents import (
    NoRangesError,
    WheelContents,
    check_wheels,
    read_local_code,
    read_local_wheel,
    read_remote_code,
    read_remote_wheel,
)
from drydock.model.bases import GLIBC, Base, DebianBase
from drydock.model.locked import LockedWheel
from drydock.model.variant import PublicIndex
from entrypoints.core.text import format_one_line

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
SHOWN = 3
"""Wheels that an error names, of those that were not found."""
ABSENT = (404, 410)
NOWHERE = "no configured index has it"
MUSL = ("alpine", "chimera", "postmarketos")
"""Distributions whose C library is musl."""
ROUNDS = 32
"""Attempts to find versions for the row's Python; each leaves out versions of several packages."""
MISFIT_HINT = (
    "take a version with a wheel that fits (the stack's `requirements`, or `overrides` where another package asks for "
    "it), exclude it (the stack's `exclude`), change the stack's `python` or `base` or the row's `platforms`, or build "
    "a wheel and put it into a folder of pip's find-links"
)
PYTHON_HINT = (
    "name a version for this Python (the stack's `requirements`, or `overrides` where another package asks for it), or "
    "change `python` of the stack"
)
Rank = tuple[bool, int, tuple[()] | tuple[int, str]]
"""Of a wheel: not yanked, how well its tags fit, build number. The highest is the best."""


def find_image_environment(python: str, platform: str, base: Base) -> Environment:
    """Return the environment of an image; raise InputError if the glibc of its base is not known."""
    release = base.suite if isinstance(base, DebianBase) else base.release
    if release.startswith(MUSL):
        text = f"base {release!r}: has musl instead of glibc, and the wheels of PyTorch and vLLM need glibc"
        raise InputError(text, hint=f"name another base: {', '.join(sorted(GLIBC))}")
    glibc = base.glibc or GLIBC.get(release, "")
    if not glibc:
        raise InputError(
            f"base {release!r}: unknown glibc version; known bases: {', '.join(sorted(GLIBC))}",
            hint='add `glibc` to the base, such as glibc: "2.28" (`ldd --version` in the base prints it)',
        )
    return Environment(python, MACHINES[platform], int(glibc.removeprefix("2.")))


def is_native_platform(platform: str) -> bool:
    """Tell whether this machine runs a platform's programs without emulation."""
    return host.machine() == MACHINES[platform]


def resolve_wheels(
    request: ResolveRequest, target: Environment, store: Store, env: Mapping[str, str] = os.environ
) -> tuple[LockedWheel, ...]:
    """Resolve requirements to wheels; return them sorted by name, with the hashes of the index.

    Warns of a yanked file, and of two wheels of a layer that install the same path. Raises InputError if the resolver
    fails, and for a wheel whose metadata is not its file name's; FetchError if an index does not deliver a file.
    """
    indexes = read_indexes(env)
    server_access = make_index_access(indexes, env)
    _warn_of_constraints(indexes.constraints)
    chosen, pins, contents = _resolve_for_python(request, target, indexes, store, env)
    for wheel in chosen:
        if wheel.newer and not _is_pinned(wheel.name, request):
            log(f"{wheel.name} {wheel.version}: {wheel.newer}")
        if wheel.yanked is not None:
            reason = f": {format_one_line(wheel.yanked)}" if wheel.yanked else ", without a reason"
            log(f"warning: {wheel.name} {wheel.version} was yanked{reason} ({wheel.filename}); name another version")
    for name in _list_idle_exclusions(request, contents):
        log(f"warning: exclude: no package of the image requires {name}")
    public = {name for index in request.public for name in index.packages}
    usual = [wheel for wheel in chosen if wheel.name not in public and not wheel.url.startswith("file:")]
    for line in _describe_hidden_indexes(usual, indexes, server_access):
        log(line)
    check_wheels(contents, request.layers)
    return pins


Resolved = tuple[tuple[Candidate, ...], tuple[LockedWheel, ...], tuple[WheelContents, ...]]
"""Wheels as their indexes offer them, their pins, and what they contain."""


def _resolve_for_python(
    request: ResolveRequest, target: Environment, indexes: Indexes, store: Store, env: Mapping[str, str]
) -> Resolved:
    """Resolve requirements without versions whose METADATA excludes the row's Python, as pip does and uv does not.

    Raises InputError if no version is left, with what those that were left out require.
    """
    server_access = make_index_access(indexes, env)
    reasons: dict[str, str] = {}
    for _ in range(ROUNDS):
        try:
            refused = request._replace(refused=tuple(reasons))
            resolved_wheels = choose_wheels(_resolve_request(refused, target, indexes, env), target)
        except InputError as error:
            if not reasons:
                raise
            raise InputError(*reasons.values(), *error.problems, hint=PYTHON_HINT) from error
        pins = _pin_candidates(resolved_wheels, store, server_access)
        with show_step("read wheels"):
            contents = _read_all_contents(resolved_wheels, pins, store, server_access)
        unfit = {wheel.filename: wheel for wheel in contents if not wheel.allows_python(target.python)}
        if not unfit:
            for reason in reasons.values():
                log(f"not taken: {reason}")
            return resolved_wheels, pins, contents
        reasons |= {
            f"{wheel.name}!={wheel.version}": f"{wheel.name} {wheel.version} requires Python "
            f"{unfit[wheel.filename].requires_python}, and the row has {target.python}"
            for wheel in resolved_wheels
            if wheel.filename in unfit
        }
    raise InputError(*reasons.values(), hint=PYTHON_HINT)


@functools.cache
def _warn_of_constraints(constraints: tuple[str, ...]) -> None:
    """Say once that pip's constraints are not used: a lock would depend on the machine."""
    if constraints:
        hint = "write the versions into the stack's `requirements` or `overrides`"
        files = " ".join(map(redact_url, constraints))
        log(f"warning: {files}: pip's constraints (PIP_CONSTRAINT or pip.conf) are not used: {hint}")


def _list_idle_exclusions(request: ResolveRequest, contents: Iterable[WheelContents]) -> list[str]:
    """Return the exclusions that exclude nothing; none where METADATA of what is compiled is not known yet."""
    lines = (*request.requirements, *request.overrides)
    required: set[str] = {canonicalize_name(Requirement(line).name) for line in lines}
    required |= {name for wheel in contents for name in wheel.required_names}
    return [] if request.built else sorted({*map(canonicalize_name, request.exclude)} - required)


def _is_pinned(name: str, request: ResolveRequest) -> bool:
    """Tell whether a requirement or override names one version of a package."""
    lines = map(Requirement, (*request.overrides, *request.requirements))
    return any(canonicalize_name(line.name) == name and "==" in str(line.specifier) for line in lines)


def _describe_hidden_indexes(wheels: Sequence[Candidate], indexes: Indexes, server_access: Access) -> Iterator[str]:
    """Yield which packages another index of the machine has too: the first one alone was asked."""
    places = () if indexes.no_index else (indexes.main or pips_default(), *indexes.extra)
    if len(places) == 1:
        return

    def list_holders(wheel: Candidate) -> list[str]:
        return [redact_url(place) for place in places if _has_page(page_of(place, wheel.name), server_access)]

    with ThreadPoolExecutor(WORKERS) as pool:
        for wheel, holders in zip(wheels, pool.map(list_holders, wheels), strict=True):
            if len(holders) > 1:
                yield (
                    f"warning: {wheel.name} {wheel.version} is from {holders[0]}, the first index with that name; "
                    f"with that name too, but not asked: {' and '.join(holders[1:])}"
                )


def list_offered_wheels(
    request: ResolveRequest, target: Environment, env: Mapping[str, str] = os.environ
) -> tuple[Candidate, ...]:
    """Return the wheels, or the source distribution, that requirements resolve to today, sorted by name.

    Fetches nothing. Raises InputError.
    """
    candidates = _resolve_request(request, target, read_indexes(env), env)
    if request.sdist:
        return tuple(candidate for candidate in candidates if candidate.filename.endswith(".tar.gz"))
    return choose_wheels(candidates, target)


def read_required_pins(
    requirement: str, publics: tuple[PublicIndex, ...], target: Environment, store: Store, env: Mapping[str, str]
) -> dict[str, str]:
    """Return distribution → the one version of it that a wheel requires in this environment, without what is local.

    Raises InputError and FetchError.
    """
    request = ResolveRequest((requirement,), no_deps=True, public=publics)
    candidates = list_offered_wheels(request, target, env)
    server_access = make_index_access(read_indexes(env), env)
    pins = _pin_candidates(candidates, store, server_access)
    markers = {"python_version": target.python, "platform_machine": target.machine, "platform_system": "Linux"}
    versions: dict[str, str] = {}
    for contents in _read_all_contents(candidates, pins, store, server_access):
        for required in map(Requirement, contents.requires):
            exact = [item.version for item in required.specifier if item.operator == "=="]
            if exact and (not required.marker or required.marker.evaluate({**markers, "extra": ""})):
                versions[canonicalize_name(required.name)] = exact[0].partition("+")[0]
    return versions


def resolve_sdist(requirement: str, target: Environment, store: Store, env: Mapping[str, str]) -> LockedWheel:
    """Resolve one source distribution, such as vllm-tpu==0.32.0. Raises InputError or FetchError."""
    indexes = read_indexes(env)
    request = ResolveRequest((requirement,), no_deps=True, sdist=True)
    sdists = [c for c in run_uv(request, target, indexes, env) if c.filename.endswith(".tar.gz")]
    if not sdists:
        raise InputError(f"{requirement}: no configured index has a source distribution of it", hint=INDEX_HINT)
    return _pin_candidates(sdists[:1], store, make_index_access(indexes, env))[0]


def fetch_sdists(sdists: Sequence[LockedWheel], target: Environment, store: Store, env: Mapping[str, str]) -> None:
    """Fetch locked source distributions that the store lacks. Raises GoneError if no index has a file any more."""
    indexes = read_indexes(env)
    for pin in sdists:
        if store.has(pin.sha256, pin.size):
            continue
        request = ResolveRequest((f"{pin.name}=={pin.version}",), no_deps=True, sdist=True)
        urls = [c.url for c in run_uv(request, target, indexes, env) if c.sha256 == pin.sha256]
        if not urls:
            raise GoneError(f"{pin.filename} (sha256 {pin.sha256[:12]}…): {NOWHERE}", hint=INDEX_HINT)
        download_files(
            store, [Wanted(pin.filename, pin.sha256, pin.size, tuple(urls))], make_index_access(indexes, env)
        )


def fetch_wheels(
    wheels: Sequence[LockedWheel],
    target: Environment,
    store: Store,
    env: Mapping[str, str],
    publics: Sequence[PublicIndex] = (),
) -> None:
    """Fetch locked wheels that the store lacks; raise one GoneError that names all that no index has."""
    missing = [wheel for wheel in wheels if not store.has(wheel.sha256, wheel.size)]
    if not missing:
        return
    indexes = read_indexes(env)
    with show_step("find wheels"):
        urls = locate_wheels(missing, target, indexes, env, publics)
    absent = [wheel for wheel in missing if wheel.sha256 not in urls]
    if absent:
        lines = (f"{w.filename} (sha256 {w.sha256[:12]}…): {_describe_absence(w.name, publics)}" for w in absent)
        raise GoneError(*lines, hint=_suggest_index(absent[0].name, publics, env))
    downloads = [Wanted(w.filename, w.sha256, w.size, (urls[w.sha256],)) for w in missing]
    download_files(store, downloads, make_index_access(indexes, env))


def read_code(
    wheel: LockedWheel, target: Environment, store: Store, env: Mapping[str, str], publics: Sequence[PublicIndex] = ()
) -> dict[str, DeviceCode]:
    """Return path → its code for cards, of the files of a wheel that have some.

    A wheel that the store lacks is read on its server and not stored, or else fetched. Raises FetchError, InputError.
    """
    indexes = read_indexes(env)
    has = store.has(wheel.sha256, wheel.size)
    urls = {} if has else locate_wheels([wheel], target, indexes, env, publics)
    access = make_index_access(indexes, env)
    url = rewrite_url(urls.get(wheel.sha256, ""), access.mirrors)
    with show_step(f"read {wheel.filename}"):
        if url and not url.startswith("file:"):
            try:
                return read_remote_code(url, wheel.filename, wheel.size, access)
            except NoRangesError:
                log(f"{wheel.filename}: its server sends whole files only, so it is fetched")
        fetch_wheels([wheel], target, store, env, publics)
        return read_local_code(store.path(wheel.sha256), wheel.filename)


def locate_wheels(
    wheels: Iterable[LockedWheel],
    target: Environment,
    indexes: Indexes,
    env: Mapping[str, str],
    publics: Sequence[PublicIndex] = (),
) -> dict[str, str]:
    """Return sha256 → URL of every wheel that an index has.

    Asks the machine's indexes together, then each one alone, then each public index for its own packages.
    Raises IndexFailedError if a wheel was not found, and an index that may have it does not answer or refuses.
    """
    missing = {wheel.sha256: wheel for wheel in wheels}
    special = {name for index in publics for name in index.packages}
    usual = {wheel.name for wheel in missing.values()} - special
    alone = [(place, usual | special) for place in split_indexes(indexes)]
    rounds = [(indexes, usual), *alone] if len(alone) > 1 else alone
    rounds += [(select_public_index(indexes, index.url, env), set(index.packages)) for index in publics]
    urls: dict[str, str] = {}
    failed: set[str] = set()
    for configuration, names in rounds:
        selected = tuple(wheel for wheel in missing.values() if wheel.name in names)
        try:
            for batch in _resolve_in_batches(selected, target, configuration, env):
                urls |= {c.sha256: c.url for c in batch if c.sha256 in missing}
        except IndexFailedError as error:
            failed |= {*error.problems}
        missing = {sha256: wheel for sha256, wheel in missing.items() if sha256 not in urls}
        if not missing:
            return urls
    if failed:
        raise IndexFailedError(*sorted(failed), _not_found(missing.values()), hint=FAILED_HINT)
    return urls


def _not_found(wheels: Collection[LockedWheel]) -> str:
    names = sorted(wheel.filename for wheel in wheels)
    more_count = len(names) - SHOWN
    return f"not found: {', '.join(names[:SHOWN])}{f' and {more_count} more wheels' if more_count > 0 else ''}"


def choose_wheels(candidates: Iterable[Candidate], target: Environment) -> tuple[Candidate, ...]:
    """Return the best wheel of each distribution, chosen as pip does; sorted by name.

    A yanked file comes last (PEP 592); then the best tag counts, then the highest build number, and no number is the
    lowest ("Build number" in the specification of the binary distribution format).
    """
    ranks = {tag: rank for rank, tag in enumerate(list_wheel_tags(target))}
    wheels = sorted((c for c in candidates if c.filename.endswith(".whl")), key=lambda wheel: wheel.filename)
    best: dict[str, tuple[Rank, Candidate]] = {}
    for wheel in wheels:
        _, _, build, wheel_tags = parse_wheel_filename(wheel.filename)
        fits = [ranks[tag] for tag in wheel_tags if tag in ranks]
        rank = (wheel.yanked is None, -min(fits, default=0), build)
        if fits and (wheel.name not in best or rank > best[wheel.name][0]):
            best[wheel.name] = (rank, wheel)
    missing = sorted({wheel.name for wheel in wheels} - set(best))
    if missing:
        filenames = {name: [wheel.filename for wheel in wheels if wheel.name == name] for name in missing}
        lines = (f"{name}: none of its wheels fits: {describe_misfit(filenames[name], target)}" for name in missing)
        raise InputError(*lines, hint=MISFIT_HINT)
    return tuple(best[name][1] for name in sorted(best))


def describe_misfit(filenames: Iterable[str], target: Environment) -> str:
    """Return why none of some wheels fits: the machine, the Python, or the glibc."""
    tags = {tag for filename in filenames for tag in parse_wheel_filename(filename)[3]}
    pythons = {(tag.interpreter, tag.abi) for tag in list_wheel_tags(target)}
    of_machine = {tag for tag in tags if tag.platform == "any" or tag.platform.endswith(f"_{target.machine}")}
    if not of_machine:
        return f"they are for {_join_some(tag.platform for tag in tags)}, and the row is for {target.machine}"
    of_python = {tag for tag in of_machine if (tag.interpreter, tag.abi) in pythons}
    if not of_python:
        names = _join_some(f"{tag.interpreter}-{tag.abi}" for tag in of_machine)
        return f"they are for {names}, and the row's Python is {target.python}"
    glibcs = [int(found[1]) for tag in of_python if (found := re.match(r"manylinux_2_(\d+)_", tag.platform))]
    if glibcs:
        return f"they need glibc 2.{min(glibcs)} or later, and the row's base has glibc 2.{target.glibc}"
    return f"they are for {_join_some(tag.platform for tag in of_python)}, and the row has {target.summary}"


def _join_some(words: Iterable[str]) -> str:
    names = sorted({*words})
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _describe_newer(candidate: Candidate, files: IndexFiles, target: Environment) -> str:
    """Return which version on an index is newer, if none of the newer ones fits, and why not; else an empty text."""
    filenames: dict[Version, list[str]] = {}
    for filename, yanked in files.items():
        try:
            version = parse_wheel_filename(filename)[1]
        except InvalidWheelFilename:
            continue
        if yanked is None and version > Version(candidate.version) and not version.is_prerelease:
            filenames.setdefault(version, []).append(filename)
    if not filenames or any(is_wheel_compatible(name, target) for names in filenames.values() for name in names):
        return ""
    newest = max(filenames)
    return f"the index has {newest}, but no wheel that fits: {describe_misfit(filenames[newest], target)}"


def is_wheel_compatible(filename: str, target: Environment) -> bool:
    """Tell whether a wheel fits an interpreter."""
    return not parse_wheel_filename(filename)[3].isdisjoint(list_wheel_tags(target))


def list_wheel_tags(target: Environment) -> Iterator[Tag]:
    """Yield the wheel tags that fit, best first."""
    major, minor = (int(part) for part in target.python.split(".")[:2])
    platforms = list(_list_platform_tags(target))
    yield from cpython_tags((major, minor), platforms=platforms)
    yield from compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms)


def _pin_candidates(candidates: Sequence[Candidate], store: Store, server_access: Access) -> tuple[LockedWheel, ...]:
    """Return pins with sizes: from the index, from the store or the server, or else by fetching the file."""
    sizes = {c.sha256: c.size or _stored_size(c, store) for c in candidates}
    unknown = [c for c in candidates if sizes[c.sha256] is None]
    sizes |= ask_sizes([(c.sha256, c.url) for c in unknown], server_access)
    download_files(
        store, [Wanted(c.filename, c.sha256, None, (c.url,)) for c in unknown if sizes[c.sha256] is None], server_access
    )
    return tuple(_make_locked_wheel(c, sizes[c.sha256] or _stored_size(c, store) or 0) for c in candidates)


def _stored_size(candidate: Candidate, store: Store) -> int | None:
    path = store.path(candidate.sha256)
    return path.stat().st_size if path.is_file() else None


def _make_locked_wheel(candidate: Candidate, size: int) -> LockedWheel:
    return LockedWheel(
        name=candidate.name,
        version=candidate.version,
        filename=candidate.filename,
        size=size,
        sha256=candidate.sha256,
    )


def _read_all_contents(
    candidates: Sequence[Candidate], pins: Sequence[LockedWheel], store: Store, server_access: Access
) -> tuple[WheelContents, ...]:
    """Read what wheels contain. One whose server sends no ranges is fetched into the store, which a build needs anyway.

    Raises FetchError or InputError.
    """
    with ThreadPoolExecutor(WORKERS) as pool:
        contents = list(pool.map(partial(_read_contents, store, server_access), candidates, (pin.size for pin in pins)))
    unranged_wheels = [wheel for wheel, content in zip(candidates, contents, strict=True) if content is None]
    download_files(
        store, [Wanted(wheel.filename, wheel.sha256, None, (wheel.url,)) for wheel in unranged_wheels], server_access
    )
    fetched = (read_local_wheel(store.path(wheel.sha256), wheel.filename) for wheel in unranged_wheels)
    return (*(content for content in contents if content), *fetched)


def _read_contents(store: Store, server_access: Access, candidate: Candidate, size: int) -> WheelContents | None:
    """Read what a wheel contains; None if its server sends no ranges."""
    url = rewrite_url(candidate.url, server_access.mirrors)
    if store.has(candidate.sha256, size):
        return read_local_wheel(store.path(candidate.sha256), candidate.filename)
    if url.startswith("file:"):
        return read_local_wheel(local_path(url), candidate.filename)
    try:
        return read_remote_wheel(url, candidate.filename, size, server_access)
    except NoRangesError:
        return None


def _list_platform_tags(target: Environment) -> Iterator[str]:
    for minor in range(target.glibc, OLDEST_GLIBC.get(target.machine, 17) - 1, -1):
        yield f"manylinux_2_{minor}_{target.machine}"
        if minor in LEGACY_MANYLINUX:
            yield f"{LEGACY_MANYLINUX[minor]}_{target.machine}"
    yield f"linux_{target.machine}"


def _resolve_in_batches(
    wheels: Sequence[LockedWheel], target: Environment, indexes: Indexes, env: Mapping[str, str]
) -> Iterator[tuple[Candidate, ...]]:
    """Resolve all pins at once. One unknown pin makes that fail: then leave out the packages that no place knows."""
    try:
        yield _resolve_together(wheels, target, indexes, env)
    except InputError:
        with ThreadPoolExecutor(WORKERS) as pool:
            answers = pool.map(partial(_may_have, indexes, make_index_access(indexes, env)), wheels)
            yield from _resolve_halves(
                [wheel for wheel, may_be in zip(wheels, answers, strict=True) if may_be], target, indexes, env
            )


def _resolve_halves(
    wheels: Sequence[LockedWheel], target: Environment, indexes: Indexes, env: Mapping[str, str]
) -> Iterator[tuple[Candidate, ...]]:
    """Resolve all pins at once, or else each half separately."""
    try:
        yield _resolve_together(wheels, target, indexes, env)
    except InputError:
        if len(wheels) > 1:
            log(f"no index has all of {len(wheels)} wheels: each half is looked for separately")
            middle = len(wheels) // 2
            yield from _resolve_halves(wheels[:middle], target, indexes, env)
            yield from _resolve_halves(wheels[middle:], target, indexes, env)


def _resolve_together(
    wheels: Sequence[LockedWheel], target: Environment, indexes: Indexes, env: Mapping[str, str]
) -> tuple[Candidate, ...]:
    pins = tuple(f"{wheel.name}=={wheel.version}" for wheel in wheels)
    return run_uv(ResolveRequest(pins, no_deps=True), target, indexes, env) if pins else ()


def _may_have(indexes: Indexes, server_access: Access, wheel: LockedWheel) -> bool:
    """Tell whether an index has a page of a wheel's package, or a folder the wheel; true if that cannot be asked."""
    places = () if indexes.no_index else (indexes.main or pips_default(), *indexes.extra)
    return any(_has_page(page_of(url, wheel.name), server_access) for url in places) or any(
        not folder.is_dir() or (folder / wheel.filename).is_file() for folder in indexes.list_link_folders()
    )


def _has_page(page: str, server_access: Access) -> bool:
    try:
        return ask_status(page, server_access) not in ABSENT
    except FetchError:
        return True  # uv then says what is wrong


# --- one index for a package ----------------------------------------------------------------------------------------


def _list_candidates(
    request: ResolveRequest, target: Environment, indexes: Indexes, env: Mapping[str, str], chosen: Collection[str] = ()
) -> tuple[Candidate, ...]:
    """Return the files that requirements resolve to, and which of them are yanked, except of packages in `chosen`."""
    server_access = make_index_access(indexes, env)
    try:
        candidates = run_uv(request, target, indexes, env)
    except InputError as error:
        raise _explain_failure(error, target, indexes, server_access) from error
    names = {candidate.name for candidate in candidates} - set(chosen)
    files = read_index_files(sorted(names), indexes, server_access)
    newer = {c.name: _describe_newer(c, files[c.name], target) for c in candidates if c.name in files}
    return tuple(
        c._replace(yanked=files.get(c.name, {}).get(c.filename), newer=newer.get(c.name, "")) for c in candidates
    )


def _explain_failure(
    error: InputError, target: Environment, indexes: Indexes, server_access: Access
) -> InputError | IndexFailedError:
    """Return uv's error with what the index's page says: why no wheel fits, or that it is no page of files."""
    message = "\n".join(error.problems)
    misfit = re.search(r"\b([\w.-]{1,128})(?:==\S{1,64}|[<>]\S{1,64})? (?:has|have) no wheels with a matching", message)
    empty = re.search(r"there are no versions of ([\w.-]+)", message)
    name = canonicalize_name((misfit or empty or [""] * 2)[1])
    if not name:
        return error
    files = read_index_files((name,), indexes, server_access)[name]
    if empty and not files:
        main = redact_url(indexes.main or pips_default())
        text = f"{name}: a page of an index ({main} or another) has no file; a login or an error page with status 200?"
        return IndexFailedError(text, *error.problems, hint=FAILED_HINT)
    filenames = [filename for filename in files if filename.endswith(".whl")]
    if not filenames:
        return error
    return InputError(f"{name}: no wheel fits: {describe_misfit(filenames, target)}", *error.problems, hint=MISFIT_HINT)


def _resolve_request(
    request: ResolveRequest, target: Environment, indexes: Indexes, env: Mapping[str, str]
) -> tuple[Candidate, ...]:
    """Resolve a request, with the packages of public indexes chosen first and pinned to that one file.

    Those that only other packages ask for come from the place where their index's other packages were found.
    """
    candidates_by_name: dict[str, Candidate] = {}
    explicit: list[tuple[str, str]] = []
    for index in request.public:
        lines_by_name = {name: lines for name in index.packages if (lines := _find_lines_for(name, request))}
        place = indexes
        for name, lines in lines_by_name.items():
            package_request = ResolveRequest(lines, no_deps=True, prefer=request.prefer, refused=request.refused)
            match, place = _from_first_place(name, package_request, index, target, indexes, env)
            candidates_by_name |= {candidate.name: candidate for candidate in match}
        if place.main and place.main != indexes.main:
            explicit += [(name, place.main) for name in index.packages if name not in lines_by_name]
    pinned = request._replace(
        requirements=tuple(_pin_to_file(line, candidates_by_name) for line in request.requirements),
        overrides=tuple(_pin_to_file(line, candidates_by_name) for line in request.overrides),
        explicit=tuple(explicit),
    )
    return tuple(
        candidates_by_name.get(match.name, match)
        for match in _list_candidates(pinned, target, indexes, env, candidates_by_name)
    )


def _from_first_place(
    name: str,
    request: ResolveRequest,
    index: PublicIndex,
    target: Environment,
    indexes: Indexes,
    env: Mapping[str, str],
) -> tuple[tuple[Candidate, ...], Indexes]:
    """Return the wheel of a package and the first place that has it: one of the machine's indexes, or the public one.

    No wheel if the requirements do not apply to this machine. Raises InputError.
    """
    problem = ""
    for place in (*split_indexes(indexes), select_public_index(indexes, index.url, env)):
        try:
            return choose_wheels(_list_candidates(request, target, place, env), target), place
        except (InputError, IndexFailedError) as error:
            problem = error.problems[0]
    requirements = ", ".join(request.requirements)
    raise InputError(
        f"{requirements}: {_describe_absence(name, (index,))}\n{problem}", hint=_suggest_index(name, (index,), env)
    )


def select_named_indexes(indexes: Iterable[PublicIndex], requirements: Iterable[str]) -> tuple[PublicIndex, ...]:
    """Return the indexes with those of their packages that requirements name."""
    names = {canonicalize_name(Requirement(line).name) for line in requirements}
    pairs = ((index, tuple(name for name in index.packages if name in names)) for index in indexes)
    return tuple(index.model_copy(update={"packages": packages}) for index, packages in pairs if packages)


def _find_lines_for(name: str, request: ResolveRequest) -> tuple[str, ...]:
    """Return the overrides, or else the requirements, for a package."""
    matches = (
        tuple(line for line in lines if canonicalize_name(Requirement(line).name) == name)
        for lines in (request.overrides, request.requirements)
    )
    return next(filter(None, matches), ())


def _pin_to_file(line: str, chosen: Mapping[str, Candidate]) -> str:
    """Return a requirement for the one file that was chosen for its package, if there is one."""
    requirement = Requirement(line)
    candidate = chosen.get(canonicalize_name(requirement.name))
    if candidate is None:
        return line
    requirement.specifier = SpecifierSet()
    requirement.url = f"{candidate.url}#sha256={candidate.sha256}"
    return str(requirement)


def _describe_absence(name: str, publics: Iterable[PublicIndex]) -> str:
    urls = [index.url for index in publics if name in index.packages]
    return f"no configured index has it, and {urls[0]} lacks it or does not answer" if urls else NOWHERE


def _suggest_index(name: str, publics: Iterable[PublicIndex], env: Mapping[str, str]) -> str:
    """Return what to set so that a package is found."""
    url = next((index.url for index in publics if name in index.packages), "")
    if not url:
        return INDEX_HINT
    return (
        f"if {url} cannot be reached from here, name a mirror of it: in {find_mirrors_file(env)}\n"
        f'  indexes: {{"{url}": "https://MIRROR"}}\n'
        "or in pip's configuration\n"
        "  pip config set global.extra-index-url https://MIRROR    (or PIP_EXTRA_INDEX_URL=https://MIRROR)\n"
        "or put the wheel into a folder\n"
        "  pip config set global.find-links FOLDER    (or PIP_FIND_LINKS=FOLDER)"
    )
