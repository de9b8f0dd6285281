"""Turns a Debian suite and package names into exact, signed packages, and packages into the URLs that may serve them.

IO: apt resolves, in a root of its own that shares nothing with the machine's but how mirrors are reached: their
addresses, proxies, passwords and certificates are what the machine's own apt configuration says.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from debian.deb822 import Deb822

from drydock.config.access import Access
from drydock.config.mirrors import read_mirrors as read_substitutes
from drydock.config.mirrors import rewritten
from drydock.core.errors import DrydockError, FetchError, GoneError, InputError
from drydock.core.files import disk_full
from drydock.inputs.store import Store
from drydock.inputs.transfer import Wanted, download
from drydock.model.locked import LockedDeb

ARCHITECTURES = {
    "linux/amd64": "amd64",
    "linux/arm64": "arm64",
    "linux/s390x": "s390x",
    "linux/ppc64le": "ppc64el",
    "linux/riscv64": "riscv64",
}
BASIC = ("?essential", "?exact-name(usr-is-merged)")
"""In every root. usr-is-merged satisfies init-system-helpers without usrmerge, which would bring all of perl."""
SUITES = (
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
)
"""Names that tell a mirror of Debian from any other repository; a mirror carries all suites."""
KEYRINGS = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
MIRROR_HINT = (
    "set DRYDOCK_DEBIAN_MIRROR to the root of a Debian mirror (the folder that holds dists/ and pool/); the security "
    "archive is looked for at the same address with -security after it, or is the variable's second word; "
    "DRYDOCK_DEBIAN_KEYRING names the keys of a mirror that signs for itself"
)
GONE_HINT = (
    "mirrors drop a package when a newer version comes: `invoke build --relock` locks the newest ones; or name a "
    "snapshot archive in DRYDOCK_SNAPSHOT_ARCHIVE, as an address with {timestamp} and {filename} in it"
)
TOOL_HINT = (
    "resolving Debian packages needs apt: run `invoke lock` on Debian or Ubuntu; `fetch` and `build` do not need it"
)


class DebianArchives(NamedTuple):
    """Roots of Debian archives, best first."""

    main: tuple[str, ...]
    security: tuple[str, ...]
    signed_by: str | None = None
    """What the machine's own sources say about keys, where they do."""


def resolve_packages(
    suite: str, packages: Sequence[str], platform: str, env: Mapping[str, str] = os.environ
) -> tuple[LockedDeb, ...]:
    """Return the essential packages, the given ones and what those depend on, at their newest; sorted by name.

    Raises InputError for a package that does not exist, FetchError where no mirror serves the suite.
    """
    with tempfile.TemporaryDirectory(prefix="drydock-apt-") as folder, disk_full(Path(folder)):
        options = _isolated(Path(folder), suite, platform, read_mirrors(env))
        _apt(["apt-get", *options, "update", "--error-on=any"], FetchError)
        simulated = _apt(["apt-get", *options, "install", "--simulate", *BASIC, *packages], InputError)
        chosen = parse_simulation(simulated)
        names = [f"{name}:{architecture}={version}" for name, version, architecture in chosen]
        return parse_packages(_apt(["apt-cache", *options, "show", *names], InputError))


def fetch_packages(debs: Sequence[LockedDeb], snapshot: str, store: Store, env: Mapping[str, str]) -> None:
    """Fetch locked packages that the store lacks; raise one FetchError that names all that are gone."""
    missing = [deb for deb in debs if not store.has(deb.sha256, deb.size)]
    if not missing:
        return
    mirrors = read_mirrors(env)
    if not (mirrors.main or env.get("DRYDOCK_SNAPSHOT_ARCHIVE")):
        raise FetchError("no Debian mirror is configured to fetch packages from", hint=MIRROR_HINT)
    wanted = [Wanted(_label(deb), deb.sha256, deb.size, urls(deb, mirrors, snapshot, env)) for deb in missing]
    try:
        download(store, wanted, access(env))
    except GoneError as error:
        raise GoneError(*error.problems, hint=GONE_HINT) from error


def parse_simulation(text: str) -> tuple[tuple[str, str, str], ...]:
    """Return (name, version, architecture) of each `Inst` line of `apt-get install --simulate`."""
    return tuple(re.findall(r"^Inst (\S+) \((\S+) .*\[(\w+)\]\)", text, re.MULTILINE))


def parse_packages(text: str) -> tuple[LockedDeb, ...]:
    """Return the packages of a Packages file (Debian Policy, chapter 5), sorted by name."""
    found = {(stanza["Package"], stanza["Version"]): _deb(stanza) for stanza in Deb822.iter_paragraphs(text)}
    return tuple(found[key] for key in sorted(found))


def read_mirrors(env: Mapping[str, str] = os.environ) -> DebianArchives:
    """Return the machine's Debian mirrors: DRYDOCK_DEBIAN_MIRROR, else apt's own; none where there is no apt.

    Each at its mirror, where mirrors.yaml names one.
    """
    found, prefixes = _configured(env), read_substitutes(env).indexes
    main, security = (tuple(rewritten(root, prefixes) for root in roots) for roots in (found.main, found.security))
    return found._replace(main=main, security=security)


def _configured(env: Mapping[str, str]) -> DebianArchives:
    if env.get("DRYDOCK_DEBIAN_MIRROR"):
        main, *rest = (root.rstrip("/") for root in env["DRYDOCK_DEBIAN_MIRROR"].split())
        return DebianArchives((main,), tuple(rest) or (f"{main}-security",), env.get("DRYDOCK_DEBIAN_KEYRING"))
    with tempfile.TemporaryDirectory(prefix="drydock-apt-") as empty:
        Path(empty, "partial").mkdir()
        try:
            uris = _apt(["apt-get", "-o", f"Dir::State::lists={empty}", "update", "--print-uris"], FetchError)
        except FetchError:
            return DebianArchives((), ())
    mirrors = parse_uris(uris)
    return mirrors._replace(signed_by=_signed_by((*mirrors.main, *mirrors.security)))


def parse_uris(text: str) -> DebianArchives:
    """Return the roots of Debian archives among what `apt-get update --print-uris` would fetch."""
    found = re.findall(r"^'(\S+?)/dists/([\w./-]+?)/InRelease'", text, re.MULTILINE)
    debian = [(root, release) for root, release in found if re.split(r"[-/]", release)[0] in SUITES]
    is_security = [(root, release.endswith(("-security", "/updates"))) for root, release in debian]
    return DebianArchives(
        _unique(r for r, secure in is_security if not secure), _unique(r for r, secure in is_security if secure)
    )


def urls(deb: LockedDeb, mirrors: DebianArchives, snapshot: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return where a package may be had: every mirror, then the snapshot archives of DRYDOCK_SNAPSHOT_ARCHIVE."""
    path = quote(deb.filename, safe="/+~:")
    templates = env.get("DRYDOCK_SNAPSHOT_ARCHIVE", "").split()
    return (
        *(f"{root}/{path}" for root in (*mirrors.main, *mirrors.security)),
        *(template.format(timestamp=snapshot, filename=path) for template in templates),
    )


def access(env: Mapping[str, str] = os.environ) -> Access:
    """Return how apt reaches its mirrors: proxies, certificates and passwords."""
    try:
        options = _options()
    except FetchError:
        return Access(
            certificates=env.get("REQUESTS_CA_BUNDLE") or env.get("SSL_CERT_FILE"),
            mirrors=read_substitutes(env).indexes,
        )
    proxies = {
        scheme: options[f"Acquire::{scheme}::Proxy"]
        for scheme in ("http", "https")
        if options.get(f"Acquire::{scheme}::Proxy", "DIRECT") != "DIRECT"
    }
    return Access(
        certificates=options.get("Acquire::https::CaInfo") or env.get("REQUESTS_CA_BUNDLE") or env.get("SSL_CERT_FILE"),
        proxies=proxies,
        credentials=dict(_logins(_etc())),
        mirrors=read_substitutes(env).indexes,
    )


def parse_options(text: str) -> dict[str, str]:
    """Return the options of `apt-config dump`."""
    return dict(re.findall(r'^(\S+) "(.*)";$', text, re.MULTILINE))


def parse_logins(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (host, (user, password)) from apt's auth.conf; the scheme and path it may name play no part."""
    machine = r"machine\s+(?:\w+://)?([^\s/]+)\S*\s+login\s+(\S+)\s+password\s+(\S+)"
    for host, user, password in re.findall(machine, text):
        yield host.partition(":")[0], (user, password)


def _logins(etc: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    for path in (etc / "auth.conf", *sorted(etc.glob("auth.conf.d/*.conf"))):
        if os.access(path, os.R_OK):
            yield from parse_logins(path.read_text())


def _label(deb: LockedDeb) -> str:
    return f"{deb.name} {deb.version} ({deb.architecture})"


def _deb(stanza: Mapping[str, str]) -> LockedDeb:
    return LockedDeb(
        name=stanza["Package"],
        version=stanza["Version"],
        architecture=stanza["Architecture"],
        filename=stanza["Filename"],
        size=int(stanza["Size"]),
        sha256=stanza["SHA256"],
    )


def _isolated(folder: Path, suite: str, platform: str, mirrors: DebianArchives) -> tuple[str, ...]:
    """Make an empty apt root for one suite and architecture; return the options that select it."""
    if not mirrors.main:
        raise FetchError(f"no Debian mirror is configured to resolve {suite} from", hint=MIRROR_HINT)
    for name in ("lists/partial", "cache/archives/partial", "sources", "empty"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources" / "drydock.sources").write_text(_sources(suite, mirrors))
    architecture = ARCHITECTURES[platform]
    options = {
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::State::extended_states": folder / "extended_states",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "sources",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": folder / "empty",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Default-Release": "",
        "APT::Sandbox::User": "",
        "APT::Get::List-Cleanup": "false",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
        # apt counts itself as essential otherwise; the image does without.
        "pkgCacheGen::ForceEssential": ",",
        "pkgCacheGen::ForceImportant": ",",
    }
    return tuple(part for key, value in options.items() for part in ("-o", f"{key}={value}"))


def _sources(suite: str, mirrors: DebianArchives) -> str:
    stanzas = [(mirrors.main[0], f"{suite} {suite}-updates")]
    stanzas += [(root, f"{suite}-security") for root in mirrors.security[:1]]
    key = mirrors.signed_by or _keyring()
    return "\n".join(
        f"Types: deb\nURIs: {root}\nSuites: {suites}\nComponents: main\nSigned-By: {key}\n" for root, suites in stanzas
    )


def _keyring(folder: Path = Path("/usr/share/keyrings")) -> str:
    for name in KEYRINGS:
        if (folder / name).is_file():
            return str(folder / name)
    raise FetchError(
        f"{folder}: no keyring of Debian's archive ({' or '.join(KEYRINGS)}), so nothing could be verified",
        hint="install the package debian-archive-keyring",
    )


def parse_signed_by(text: str, roots: Sequence[str]) -> str | None:
    """Return the key that a sources file (either format) names for one of these roots."""
    one_line = re.findall(r"^deb\s+\[[^]]*?signed-by=([^]\s]+)[^]]*\]\s+(\S+)", text, re.MULTILINE)
    stanzas = [stanza for stanza in Deb822.iter_paragraphs(text) if "Signed-By" in stanza]
    keys = [*one_line, *((stanza["Signed-By"], uri) for stanza in stanzas for uri in stanza.get("URIs", "").split())]
    return next((key for key, uri in keys if uri.rstrip("/") in roots), None)


def _signed_by(roots: Sequence[str]) -> str | None:
    etc = _etc()
    files = (
        etc / "sources.list",
        *sorted(etc.glob("sources.list.d/*.list")),
        *sorted(etc.glob("sources.list.d/*.sources")),
    )
    keys = (parse_signed_by(path.read_text(), roots) for path in files if os.access(path, os.R_OK))
    return next((key for key in keys if key), None)


def _options() -> dict[str, str]:
    return parse_options(_apt(["apt-config", "dump"], FetchError))


def _etc() -> Path:
    options = _options()
    return Path(options.get("Dir", "/"), options.get("Dir::Etc", "etc/apt"))


def _unique(roots: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(roots))


def _apt(command: Sequence[str], error: type[DrydockError]) -> str:
    """Run apt in English; raise what it says, without the passwords of its URLs."""
    try:
        result = subprocess.run(command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False)
    except FileNotFoundError as missing:
        raise error(f"{command[0]} is not installed", hint=TOOL_HINT) from missing
    if result.returncode:
        said = re.sub(r"//[^/\s@]+@", "//", result.stderr).strip()
        raise error(f"{command[0]} failed:\n{said}", hint=MIRROR_HINT if error is FetchError else "")
    return result.stdout
