"""Asks everything that a build needs, at once: engine, disk, mirrors, certificates, and each server. IO.

A server is asked as `fetch` and `build` ask it: by this machine's own pip, apt, git, docker and mirrors.yaml.
"""

from __future__ import annotations

import email.utils
import os
import shutil
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import NamedTuple

import requests

from drydock.build.job import choose_platform
from drydock.config.access import Access, redact
from drydock.config.mirrors import DEBIAN, DEFAULT, path_of, read_mirrors, rewritten
from drydock.core import http, network_settings
from drydock.core.amounts import byte_count
from drydock.core.console import as_lines
from drydock.core.errors import (
    DiskFullError,
    DrydockError,
    EngineError,
    FetchError,
    GoneError,
    IndexFailedError,
    RegistryError,
)
from drydock.core.files import check_cache_folder
from drydock.core.http import TransientRequestError
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.engine import daemon
from drydock.inputs import debs, git, hub, images
from drydock.inputs.indexes import Indexes, access, page_of, pips_default, read_indexes
from drydock.inputs.transfer import request_options
from drydock.lock import lockfile
from drydock.model.locked import LockedImageBase, LockedPlatform
from drydock.model.variant import Variant
from drydock.oci.reference import parse
from drydock.registry.client import Client, HttpRequest
from drydock.registry.manifests import ACCEPTED
from drydock.repo import ci_requirements

PATIENCE = 5.0
"""Seconds for one answer of a server."""
LONGEST = 7.0
"""Seconds for one check, after which it has failed; all run at the same time."""
LARGEST_SKEW = 300.0
"""Seconds that this machine's clock may differ from a server's: signatures and tokens are refused for more."""
LEAST_FREE = 20_000_000_000
"""Bytes that an image and what it is built from take, if no lock says more: of a base image no lock has the size."""
ROOM = 4
"""How often the bytes of a lock's files are needed: the files, the layers, the layout and the engine's image."""
PROBE = "pip"
"""Package whose page an index is asked for, without a target."""
SUITE = "bookworm"
"""Suite that a Debian archive is asked for, without a target."""
OK, WARN, FAIL = "ok", "warn", "FAIL"


class Diagnosis(NamedTuple):
    """What one check found."""

    name: str
    state: str
    found: str
    """What was asked, and what came."""
    remedy: str = ""
    code: int = 0


class Question(NamedTuple):
    """Returns what it found; raises DrydockError for what a build would fail at, with the remedy as hint."""

    name: str
    run: Callable[[], str]
    state: str = FAIL
    """What a failure means; WARN if a build does without."""


def examine(project: Project, variant: Variant | None, env: Mapping[str, str] = os.environ) -> tuple[Diagnosis, ...]:
    """Run all checks at once, for what one variant needs or else for what most do."""
    pins = None
    if variant:
        lock = lockfile.read_lock(lockfile.path_of(project, variant.id))
        pins = lock.platforms[choose_platform(variant, None)]
    dates: list[tuple[float, str]] = []
    try:
        checks = [*_machine(project, pins, env), *_servers(variant, pins, env, dates)]
    except DrydockError as error:  # the configuration itself
        return (_failed(Question("configuration", str), error),)
    return (*_at_once(checks), _clock(dates))


def worst(answers: Iterable[Diagnosis]) -> int:
    """Return the exit code: that of the first failure."""
    return next((answer.code for answer in answers if answer.state == FAIL), 0)


def text(answers: Sequence[Diagnosis]) -> str:
    """Return one line for each check, and below a failure what to do: once, if it is the cause of several."""
    width = max(len(answer.name) for answer in answers)
    lines = [f"{a.state:5} {a.name:{width}}  {a.found}" for a in answers]
    causes = {(a.found, a.remedy): a for a in reversed(answers)}
    remedies = [
        f"{'':{width + 7}} → {a.remedy}".replace("\n", " ") if a.remedy and causes[a.found, a.remedy] is a else ""
        for a in answers
    ]
    return as_lines(line for pair in zip(lines, remedies, strict=True) for line in pair if line)


def _at_once(checks: Sequence[Question]) -> Iterator[Diagnosis]:
    """Yield the answers, in order. A check that takes too long goes on in its thread, which nothing waits for."""
    futures: list[Future[str]] = [Future() for _ in checks]
    for check, future in zip(checks, futures, strict=True):
        threading.Thread(target=_fulfil, args=(check, future), daemon=True).start()
    end = time.monotonic() + LONGEST
    for check, future in zip(checks, futures, strict=True):
        try:
            yield Diagnosis(check.name, OK, future.result(max(0.0, end - time.monotonic())))
        except TimeoutError:
            yield _failed(check, FetchError(f"no answer within {LONGEST:g} s", hint="check the network and proxy"))
        except DrydockError as error:
            yield _failed(check, error)


def _fulfil(check: Question, future: Future[str]) -> None:
    try:
        future.set_result(check.run())
    except BaseException as error:  # noqa: BLE001 - raised again where the answer is awaited
        future.set_exception(error)


def _failed(check: Question, error: DrydockError) -> Diagnosis:
    state = WARN if isinstance(error, GoneError) else check.state
    return Diagnosis(check.name, state, "; ".join(error.problems), error.hint, error.code)


# --- this machine ---------------------------------------------------------------------------------------------------


def _machine(project: Project, pins: LockedPlatform | None, env: Mapping[str, str]) -> Iterator[Question]:
    yield Question("engine", _engine)
    yield Question("disk", lambda: _disk(pins, env))
    yield Question("mirrors", lambda: _mirrors(env))
    yield Question("proxy", lambda: _proxy(access(read_indexes(env), env), env))
    yield Question("certificates", lambda: _certificates(access(read_indexes(env), env), env))
    if project.below:
        yield Question("project", lambda: _project(project), WARN)


def _engine() -> str:
    found = daemon.find()
    if not found:
        raise EngineError("no Docker engine answers", hint="`./inv engine` starts one, or installs it on Debian")
    return "; ".join((f"Docker {found.version}, buildx {found.buildx}, BuildKit {found.buildkit}", *found.limits))


def _disk(pins: LockedPlatform | None, env: Mapping[str, str]) -> str:
    folder = cache_home(env)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    check_cache_folder(there)
    free, needed = shutil.disk_usage(there).free, ROOM * sum(_sizes(pins))
    if pins is None or isinstance(pins.base, LockedImageBase):
        needed = max(needed, LEAST_FREE)
    said = f"{folder}:{byte_count(free, None)} free, a build needs{byte_count(needed, None)}"
    if free < needed:
        raise DiskFullError(said, hint="docker builder prune; or set DRYDOCK_CACHE to a folder on a larger disk")
    return said


def _project(project: Project) -> str:
    ci_requirements.check_requirements(project)
    return f"{project.root}: CI installs this drydock, by its hash"


def _sizes(pins: LockedPlatform | None) -> Iterator[int]:
    if pins:
        yield from (wheel.size for wheels in (*pins.layers.values(), pins.build, pins.tools) for wheel in wheels)


def _mirrors(env: Mapping[str, str]) -> str:
    found, path = read_mirrors(env), path_of(env)
    count = len(found.registries) + len(found.git) + len(found.indexes)
    return f"{path}: {count} mirrors" if path.is_file() else f"none: there is no {path}"


def _proxy(reached: Access, env: Mapping[str, str]) -> str:
    names = [name for name in network_settings.PROXY_VARIABLES if env.get(name)]
    for proxy in (*(env[name] for name in names), *reached.proxies.values()):
        network_settings.check_proxy(proxy, env)
    return ", ".join(f"{name}={redact(env[name])}" for name in names) or "none is set"


def _certificates(reached: Access, env: Mapping[str, str]) -> str:
    network_settings.check_all_certificates(env)
    path = reached.certificates or requests.utils.DEFAULT_CA_BUNDLE_PATH
    network_settings.check_certificates(path, env)
    network_settings.check_client_certificate(reached.client_certificate, env)
    if Path(path).is_dir():
        return path
    return f"{path}: {len(ssl.create_default_context(cafile=path).get_ca_certs())} authorities"


def _clock(dates: Sequence[tuple[float, str]]) -> Diagnosis:
    """Compare this machine's clock with the Date of the servers that answered."""
    skews = [abs(when - email.utils.parsedate_to_datetime(date).timestamp()) for when, date in dates]
    if not skews:
        return Diagnosis("clock", WARN, "no server answered with its time")
    said = f"{min(skews):.0f} s from the servers'"
    if min(skews) < LARGEST_SKEW:
        return Diagnosis("clock", OK, said)
    return Diagnosis("clock", FAIL, said, "set it: timedatectl set-ntp true", FetchError.code)


# --- servers --------------------------------------------------------------------------------------------------------


def _servers(
    variant: Variant | None, pins: LockedPlatform | None, env: Mapping[str, str], dates: list[tuple[float, str]]
) -> Iterator[Question]:
    mirrors, places, file = read_mirrors(env), read_indexes(env), path_of(env)
    base, reached = pins.base if pins else None, access(read_indexes(env), env)
    pages = [*_pages(places, variant, pins)]
    for index, package in pages:
        key = DEFAULT if index == places.main else redact(index)
        hint = f'set PIP_INDEX_URL (or pip.conf); or in {file}: indexes: {{"{key}": "https://MIRROR/simple"}}'
        page, absent = page_of(rewritten(index, mirrors.indexes), package), GoneError if pages[1:] else IndexFailedError
        yield Question("index", partial(_ask, page, reached, dates, hint, absent))
    for place in places.find_links:
        folder = place if "://" in place else Path(place).absolute().as_uri()
        yield Question("find-links", partial(_ask, folder, reached, dates, "correct PIP_FIND_LINKS, or pip.conf"), WARN)
    if not isinstance(base, LockedImageBase):
        hint = f'set DRYDOCK_DEBIAN_MIRROR; or in {file}: indexes: {{{DEBIAN}: "https://MIRROR/debian"}}'
        for root in debs.read_mirrors(env).main:
            release = f"{root}/dists/{base.suite if base else SUITE}/InRelease"
            yield Question("debian", partial(_ask, release, debs.access(env), dates, hint))
    else:
        yield Question("registry", partial(_registry, base, reached, env))
    for source in pins.sources if pins else ():
        if source.repository:
            yield Question("git", partial(_git, source.repository, env))
        elif source.url:
            hint = f'in {file}: indexes: {{"{source.url.rpartition("/")[0]}": "https://MIRROR/…"}}'
            yield Question("source", partial(_ask, rewritten(source.url, mirrors.indexes), reached, dates, hint))
    yield Question("hub", partial(_hub, env, dates), WARN)


def _pages(places: Indexes, variant: Variant | None, pins: LockedPlatform | None) -> Iterator[tuple[str, str]]:
    """Yield each index with a package that it should have."""
    special = {name: index.url for index in variant.indexes for name in index.packages} if variant else {}
    wheels = (*(wheel for layer in pins.layers.values() for wheel in layer), *pins.tools) if pins else ()
    usual = [wheel.name for wheel in wheels if wheel.name not in special]
    if not places.no_index and (usual or not pins):
        for index in (places.main or pips_default(), *places.extra):
            yield index, (usual or [PROBE])[0]
    pinned = {wheel.name for wheel in wheels}
    yield from {url: (url, name) for name, url in special.items() if name in pinned}.values()


def _ask(
    url: str,
    reached: Access,
    dates: list[tuple[float, str]],
    hint: str,
    absent: type[FetchError] = FetchError,
) -> str:
    """Ask a server for a page. Raises FetchError that says what was asked and what came, `absent` for a 404."""
    said, path = redact(url), Path(url.removeprefix("file://"))
    if url.startswith("file:"):
        if not path.exists():
            raise absent(f"{said}: no such file or folder", hint=hint)
        return said
    try:
        options = request_options(reached, url) | {"timeout": PATIENCE}
        with http.Session() as session, session.get(url, stream=True, **options) as answer:
            dates += [(time.time(), answer.headers["Date"])] if "Date" in answer.headers else []
            code = answer.status_code
    except requests.RequestException as problem:
        raise FetchError(f"{said}: {http.reason(problem)}", hint=hint) from problem
    if code >= requests.codes.bad_request:
        raise (absent if code == requests.codes.not_found else FetchError)(
            f"{said}: the server answered {code}", hint=hint
        )
    return said


def _hub(env: Mapping[str, str], dates: list[tuple[float, str]]) -> str:
    """Ask the hub of models. Raises FetchError, and InputError where it would get the token without TLS."""
    hint = "set HF_ENDPOINT=https://MIRROR; a model may also be a folder"
    return _ask(f"{hub.endpoint(env)}/api/models?limit=1", hub.access(env), dates, hint)


def _registry(base: LockedImageBase, reached: Access, env: Mapping[str, str]) -> str:
    """Ask the registry of a base, or its mirror, for the base."""
    where = parse(images.at_mirror(base.reference, read_mirrors(env)))
    client = Client(where, reached._replace(timeout=PATIENCE, patience=LONGEST), env=env)
    request = HttpRequest("HEAD", client.path(f"manifests/{base.digest or where.name}"), headers={"Accept": ACCEPTED})
    hint = f"--context base=docker-image://IMAGE; or in {path_of(env)}: registries: "
    hint += f'{{"{parse(base.reference).host}": "HOST/PATH"}}'
    try:
        client.attempt(request, (200,))
    except TransientRequestError as error:
        raise RegistryError(f"{where}: {error}", hint=hint) from error
    except RegistryError as error:
        error.hint = error.hint or hint
        raise
    return str(where)


def _git(repository: str, env: Mapping[str, str]) -> str:
    words = ("ls-remote", "--end-of-options", repository, "HEAD")
    git.run(words, "git", git.network_environment(env), limits=git.Limits(PATIENCE))
    return redact(repository)
