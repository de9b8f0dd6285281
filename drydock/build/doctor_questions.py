"""What `doctor` asks: all that a build needs, at once: engine, disk, mirrors, certificates, each server. IO.

A server is asked as `fetch` and `build` ask it: by this machine's own pip, apt, git, docker and mirrors.yaml.
"""

from __future__ import annotations

import email.utils
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import requests
from rich.filesize import decimal

from drydock.build import build_preview
from drydock.build.build_job import choose_platform
from drydock.config.mirrors import DEBIAN, DEFAULT, find_mirrors_file, read_mirrors, rewrite_url
from drydock.config.server_access import Access, redact_url
from drydock.core import http, network_settings
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
from drydock.core.files import check_cache_folder, measure_free_bytes
from drydock.core.http import TransientRequestError
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.core.threads import start_daemon
from drydock.core.user_language import translate_lines
from drydock.engine import daemon, debian
from drydock.inputs import debs, git, hub, image_digests
from drydock.inputs.downloads import request_options
from drydock.inputs.index_pages import read_index_files
from drydock.inputs.indexes import Indexes, make_index_access, page_of, pips_default, read_indexes
from drydock.lock import lockfile
from drydock.model.locked import LockedImageBase, LockedPlatform, LockedWheel
from drydock.model.variant import Variant
from drydock.oci.reference import parse_reference
from drydock.registry.manifests import ACCEPTED
from drydock.registry.registry_client import Client, HttpRequest

PATIENCE = 5.0
"""Seconds for one answer of a server."""
LONGEST = 7.0
"""Seconds for one check, after which it has failed; all run at the same time."""
LARGEST_SKEW = 300.0
"""Seconds that this machine's clock may differ from a server's: signatures and tokens are refused for more."""
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


def read_pins(project: Project, variant: Variant) -> LockedPlatform:
    """Return what a variant's lock pins for this machine's platform."""
    lock = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
    return lock.platforms[choose_platform(variant, None)]


def choose_exit_code(answers: Iterable[Diagnosis]) -> int:
    """Return the exit code: that of the first failure."""
    return next((answer.code for answer in answers if answer.state == FAIL), 0)


def format_diagnoses(answers: Sequence[Diagnosis]) -> str:
    """Return one line for each check, and below a failure what to do: once, if it is the cause of several."""
    width = max(len(answer.name) for answer in answers)
    lines = [f"{a.state:5} {a.name:{width}}  {translate_lines(a.found)}" for a in answers]
    causes = {(a.found, a.remedy): a for a in reversed(answers)}
    remedies = [
        f"{'':{width + 7}} → {translate_lines(a.remedy)}".replace("\n", " ")
        if a.remedy and causes[a.found, a.remedy] is a
        else ""
        for a in answers
    ]
    return as_lines(line for pair in zip(lines, remedies, strict=True) for line in pair if line)


def ask_at_once(checks: Sequence[Question]) -> Iterator[Diagnosis]:
    """Yield the answers, in order. A check that takes too long goes on in its thread, which nothing waits for."""
    futures = [start_daemon(check.run) for check in checks]
    end = time.monotonic() + LONGEST
    for check, future in zip(checks, futures, strict=True):
        try:
            yield Diagnosis(check.name, OK, future.result(max(0.0, end - time.monotonic())))
        except TimeoutError:
            yield make_failed_diagnosis(
                check, FetchError(f"no answer within {LONGEST:g} s", hint="check the network and proxy")
            )
        except DrydockError as error:
            yield make_failed_diagnosis(check, error)


def make_failed_diagnosis(check: Question, error: DrydockError) -> Diagnosis:
    """Return what an error says of a question."""
    state = WARN if isinstance(error, GoneError) else check.state
    return Diagnosis(check.name, state, "; ".join(error.problems), error.hint, error.code)


# --- this machine ---------------------------------------------------------------------------------------------------


def list_machine_questions(pins: LockedPlatform | None, env: Mapping[str, str]) -> Iterator[Question]:
    """Yield what is asked of this machine. Raises DrydockError for a configuration that cannot be read."""
    yield Question("engine", _check_engine)
    yield Question("disk", lambda: _check_disk(pins, env))
    yield Question("mirrors", lambda: _check_mirrors(env))
    yield Question("proxy", lambda: _check_proxy(make_index_access(read_indexes(env), env), env))
    yield Question("certificates", lambda: _check_certificates(make_index_access(read_indexes(env), env), env))


def _check_engine() -> str:
    engine = daemon.find_engine()
    if not engine:
        daemon.refuse_named_engine()
        hint = debian.explain_engine_setup(is_installed=bool(daemon.find_dockerd()))
        raise EngineError("no Docker engine answers", hint=hint)
    return "; ".join((f"Docker {engine.version}, buildx {engine.buildx}, BuildKit {engine.buildkit}", *engine.limits))


def _check_disk(pins: LockedPlatform | None, env: Mapping[str, str]) -> str:
    folder = cache_home(env)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    check_cache_folder(there)
    free, needed_bytes = measure_free_bytes(folder), build_preview.estimate_needed_bytes(pins)
    message = f"{folder}: {decimal(free)} free, a build needs about {decimal(needed_bytes)}"
    if free < needed_bytes:
        raise DiskFullError(message, hint="docker builder prune; or set DRYDOCK_CACHE to a folder on a larger disk")
    return message


def _check_mirrors(env: Mapping[str, str]) -> str:
    mirrors, path = read_mirrors(env), find_mirrors_file(env)
    count = len(mirrors.registries) + len(mirrors.git) + len(mirrors.indexes)
    return f"{path}: {count} mirrors" if path.is_file() else f"none: there is no {path}"


def _check_proxy(reached: Access, env: Mapping[str, str]) -> str:
    names = [name for name in network_settings.PROXY_VARIABLES if env.get(name)]
    for proxy in (*(env[name] for name in names), *reached.proxies.values()):
        network_settings.check_proxy(proxy, env)
    return ", ".join(f"{name}={redact_url(env[name])}" for name in names) or "none is set"


def _check_certificates(reached: Access, env: Mapping[str, str]) -> str:
    network_settings.check_all_certificates(env)
    path = reached.certificates or requests.utils.DEFAULT_CA_BUNDLE_PATH
    network_settings.check_certificates(path, env)
    network_settings.check_client_certificate(reached.client_certificate, env)
    if Path(path).is_dir():
        return path
    return f"{path}: {len(ssl.create_default_context(cafile=path).get_ca_certs())} authorities"


def check_clock(dates: Sequence[tuple[float, str]]) -> Diagnosis:
    """Compare this machine's clock with the Date of the servers that answered."""
    skews = [abs(when - email.utils.parsedate_to_datetime(date).timestamp()) for when, date in dates]
    if not skews:
        return Diagnosis("clock", WARN, "no server answered with its time")
    message = f"{min(skews):.0f} s from the servers'"
    if min(skews) < LARGEST_SKEW:
        return Diagnosis("clock", OK, message)
    return Diagnosis("clock", FAIL, message, "set it: timedatectl set-ntp true", FetchError.code)


# --- servers --------------------------------------------------------------------------------------------------------


def list_server_questions(
    variant: Variant | None, pins: LockedPlatform | None, env: Mapping[str, str], dates: list[tuple[float, str]]
) -> Iterator[Question]:
    """Yield what is asked of servers, whose times are added to `dates`. Raises as `list_machine_questions` does."""
    mirrors, places, file = read_mirrors(env), read_indexes(env), find_mirrors_file(env)
    base, reached = pins.base if pins else None, make_index_access(read_indexes(env), env)
    pages = [*_list_index_pages(places, variant, pins)]
    absent = GoneError if len({index for index, _ in pages}) > 1 else IndexFailedError
    for index, package in pages:
        key = DEFAULT if index == places.main else redact_url(index)
        hint = f'set PIP_INDEX_URL (or pip.conf); or in {file}: indexes: {{"{key}": "https://MIRROR/simple"}}'
        address = rewrite_url(index, mirrors.indexes)
        ask = partial(_ask_index, address, package, reached, dates, hint, absent)
        wheels = _list_wheels_of(index, variant, pins)
        yield Question("index", partial(_ask_unless_held, ask, wheels, places, reached) if wheels else ask)
    for place in places.find_links:
        folder = place if "://" in place else Path(place).absolute().as_uri()
        yield Question(
            "find-links", partial(_ask_server, folder, reached, dates, "correct PIP_FIND_LINKS, or pip.conf"), WARN
        )
    if not isinstance(base, LockedImageBase):
        hint = f'set DRYDOCK_DEBIAN_MIRROR; or in {file}: indexes: {{{DEBIAN}: "https://MIRROR/debian"}}'
        for root in debs.read_debian_mirrors(env).main:
            release = f"{root}/dists/{base.suite if base else SUITE}/InRelease"
            yield Question("debian", partial(_ask_server, release, debs.read_apt_access(env), dates, hint))
    else:
        yield Question("registry", partial(_ask_base_registry, base, reached, env))
    for source in pins.sources if pins else ():
        if source.repository:
            yield Question("git", partial(_ask_git_server, source.repository, env))
        elif source.url:
            hint = f'in {file}: indexes: {{"{source.url.rpartition("/")[0]}": "https://MIRROR/…"}}'
            yield Question(
                "source", partial(_ask_server, rewrite_url(source.url, mirrors.indexes), reached, dates, hint)
            )
    yield Question("hub", partial(_ask_model_hub, env, dates), WARN)


def _list_index_pages(
    places: Indexes, variant: Variant | None, pins: LockedPlatform | None
) -> Iterator[tuple[str, str]]:
    """Yield each index with a package that it should have: one of the image, and the tool that installs them."""
    special = {name: index.url for index in variant.indexes for name in index.packages} if variant else {}
    wheels = (*(wheel for layer in pins.layers.values() for wheel in layer), *pins.tools) if pins else ()
    usual = [wheel.name for wheel in wheels if wheel.name not in special]
    tools = [wheel.name for wheel in pins.tools if wheel.name not in special] if pins else []
    if not places.no_index and (usual or not pins):
        for index in (places.main or pips_default(), *places.extra):
            yield from ((index, name) for name in dict.fromkeys([(usual or [PROBE])[0], *tools[:1]]))
    pinned = {wheel.name for wheel in wheels}
    yield from {url: (url, name) for name, url in special.items() if name in pinned}.values()


def _list_wheels_of(index: str, variant: Variant | None, pins: LockedPlatform | None) -> list[LockedWheel]:
    """Return the wheels of a public index that a stack names, which is asked after the machine's own; else none."""
    names = {name for public in (variant.indexes if variant else ()) if public.url == index for name in public.packages}
    return [wheel for layer in (pins.layers.values() if pins else ()) for wheel in layer if wheel.name in names]


def _ask_unless_held(ask: Callable[[], str], wheels: Sequence[LockedWheel], places: Indexes, reached: Access) -> str:
    """Ask a public index. Where it fails, this machine's own indexes may have all that the lock takes from it."""
    try:
        return ask()
    except FetchError as error:
        folders = places.list_link_folders()
        held = {wheel.filename for wheel in wheels if any((folder / wheel.filename).is_file() for folder in folders)}
        names = {wheel.name for wheel in wheels if wheel.filename not in held}
        try:
            pages = read_index_files(names, places, reached._replace(timeout=PATIENCE, patience=PATIENCE))
        except FetchError:
            raise error from None
        held |= {filename for page in pages.values() for filename in page}
        if not held.issuperset(wheel.filename for wheel in wheels):
            raise
        return f"{error.problems[0]}: not needed, this machine's own indexes have {wheels[0].filename}"


def _ask_index(
    index: str, package: str, reached: Access, dates: list[tuple[float, str]], hint: str, absent: type[FetchError]
) -> str:
    """Ask an index for a package. One that lacks the probe may have all that an image needs: it is asked for itself."""
    try:
        return _ask_server(page_of(index, package), reached, dates, hint, absent)
    except (GoneError, IndexFailedError) as error:
        if package != PROBE:
            more = f"add {package} to the index, or an index that has it (PIP_EXTRA_INDEX_URL); else {hint}"
            raise type(error)(f"{error.problems[0]}: the lock takes {package} from it", hint=more) from error
    answered = _ask_server(f"{index.rstrip('/')}/", reached, dates, hint, absent)
    return f"{answered}, which has no {PROBE}"


def _ask_server(
    url: str,
    reached: Access,
    dates: list[tuple[float, str]],
    hint: str,
    absent: type[FetchError] = FetchError,
) -> str:
    """Ask a server for a page. Raises FetchError that says what was asked and what came, `absent` for a 404."""
    address, path = redact_url(url), Path(url.removeprefix("file://"))
    if url.startswith("file:"):
        if not path.exists():
            raise absent(f"{address}: no such file or folder", hint=hint)
        return address
    try:
        options = request_options(reached, url) | {"timeout": PATIENCE}
        with http.Session() as session, session.get(url, stream=True, **options) as answer:
            dates += [(time.time(), answer.headers["Date"])] if "Date" in answer.headers else []
            code = answer.status_code
    except requests.RequestException as problem:
        raise FetchError(f"{address}: {http.explain_request_error(problem)}", hint=hint) from problem
    if code >= requests.codes.bad_request:
        raise (absent if code == requests.codes.not_found else FetchError)(
            f"{address}: the server answered {code}", hint=hint
        )
    return address


def _ask_model_hub(env: Mapping[str, str], dates: list[tuple[float, str]]) -> str:
    """Ask the hub of models. Raises FetchError, and InputError where it would get the token without TLS."""
    hint = "set HF_ENDPOINT=https://MIRROR; a model may also be a folder"
    return _ask_server(f"{hub.find_hub_endpoint(env)}/api/models?limit=1", hub.read_hub_access(env), dates, hint)


def _ask_base_registry(base: LockedImageBase, reached: Access, env: Mapping[str, str]) -> str:
    """Ask the registry of a base, or its mirror, for the base."""
    where = parse_reference(image_digests.at_mirror(base.reference, read_mirrors(env)))
    client = Client(where, reached._replace(timeout=PATIENCE, patience=LONGEST), env=env)
    request = HttpRequest("HEAD", client.path(f"manifests/{base.digest or where.name}"), headers={"Accept": ACCEPTED})
    hint = f"--context base=docker-image://IMAGE; or in {find_mirrors_file(env)}: registries: "
    hint += f'{{"{parse_reference(base.reference).host}": "HOST/PATH"}}'
    try:
        client.attempt(request, (200,))
    except TransientRequestError as error:
        raise RegistryError(f"{where}: {error}", hint=hint) from error
    except RegistryError as error:
        error.hint = error.hint or hint
        raise
    return str(where)


def _ask_git_server(repository: str, env: Mapping[str, str]) -> str:
    words = ("ls-remote", "--end-of-options", repository, "HEAD")
    git.run_limited_git(words, "git", git.network_environment(env), limits=git.Limits(PATIENCE))
    return redact_url(repository)
