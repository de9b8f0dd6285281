"""Resolves a Debian suite and package names to exact, signed packages, and finds the URLs that serve them. IO.

apt resolves in a separate root. From this machine's apt configuration it uses only the access to mirrors: addresses,
proxies, passwords and certificates.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import requests
from debian.deb822 import Deb822
from debian.debfile import DebFile

from drydock.config.mirrors import DEBIAN, find_mirrors_file, read_mirrors, rewrite_url
from drydock.config.server_access import Access, redact_url
from drydock.config.validation import make_record
from drydock.core import http
from drydock.core.errors import DrydockError, FetchError, GoneError, InputError
from drydock.core.files import disk_full, parse_byte_count
from drydock.inputs.downloads import Wanted, ask_status, download_files, run_patiently
from drydock.inputs.store import Store
from drydock.model.locked import LockedDeb

ARCHITECTURES = {
    "linux/amd64": "amd64",
    "linux/arm64": "arm64",
    "linux/s390x": "s390x",
    "linux/ppc64le": "ppc64el",
    "linux/riscv64": "riscv64",
}
ALWAYS_INSTALLED = ("?essential", "?exact-name(usr-is-merged)")
"""In every root. usr-is-merged satisfies init-system-helpers without usrmerge, which depends on perl."""
CODE_NAMES = ("bullseye", "bookworm", "trixie", "forky", "sid")
"""Suite names, which identify a mirror of Debian among other repositories; a mirror has all suites."""
ALIASES = ("oldoldstable", "oldstable", "stable", "testing", "unstable")
"""Suite names that others use too: Google's repository of Chrome has a suite `stable`."""
KEYRINGS = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
KEYRING = LockedDeb(
    name="debian-archive-keyring",
    version="2023.3+deb12u2",
    architecture="all",
    filename="pool/main/d/debian-archive-keyring/debian-archive-keyring_2023.3+deb12u2_all.deb",
    size=178572,
    sha256="f699e2f88dca05212f2a452b58475f2993cb6993dfbafb1d0205a3291eb8b4b8",
)
"""Debian's keys, up to trixie's, for a machine without them, such as Ubuntu. Bookworm's signed archive has the hash."""
LIMITED = re.compile(r"Failed to fetch (?P<url>https?://\S+)\s+(?P<status>\d{3})\b")
"""How apt says that a server refuses a request."""
APT_AT_MOST = 900
"""Seconds of a call of apt. The lists of a suite are 10 MB."""
MIRROR_HINT = (
    "set DRYDOCK_DEBIAN_MIRROR to the root of a Debian mirror (the folder that contains dists/ and pool/); "
    "the security archive is the same address with -security appended, unless a second address follows after a space; "
    "set DRYDOCK_DEBIAN_KEYRING to the keys of a mirror that signs with its own"
)
GONE_HINT = (
    "mirrors remove a package when a newer version appears: lock the newest versions with `./inv lock --upgrade`, "
    "or set DRYDOCK_SNAPSHOT_ARCHIVE to the address of a snapshot archive, with {timestamp} and {filename} in it"
)
LIST_SOURCES = (
    "apt-get",
    "indextargets",
    "--no-release-info",
    "--format",
    "$(REPO_URI) $(RELEASE) $(COMPONENT)",
    "Created-By: Packages",
)
"""Lists apt's sources, whether their lists were ever fetched or not."""
TOOL_HINT = (
    "resolving Debian packages needs apt: run `./inv lock` on Debian or Ubuntu; `fetch` and `build` do not need it"
)


class DebianArchives(NamedTuple):
    """Root URLs of Debian archives, best first."""

    main: tuple[str, ...]
    security: tuple[str, ...]
    signed_by: str | None = None
    """Keyring named in this machine's apt sources, if there is one."""
    is_security_named: bool = True
    """False if `security` are the places where it usually is: apt's sources name none, as debootstrap writes them."""


DEFAULTS = {
    "usr/share/python-apt/templates/Debian.info": r"^BaseURI: (\S+)",
    "usr/share/doc/apt/examples/sources.list": r"^deb (\S+/debian) ",
    "usr/bin/mmdebstrap": r"^If no I<MIRROR> option is provided, L<(\S+)> is used",
}
"""Where a distribution itself names Debian's archive, for a machine whose apt uses none: python-apt-common, which
Ubuntu installs, apt's example on Debian, and the manual of mmdebstrap, which is in the program."""
SECURITY_POOL = "pool/updates/"
"""How paths of the security archive begin. The main archive takes its packages over at a point release, in pool/."""


def resolve_packages(
    suite: str, packages: Sequence[str], platform: str, env: Mapping[str, str] = os.environ
) -> tuple[LockedDeb, ...]:
    """Return the newest versions of the essential packages, the given ones and their dependencies, sorted by name.

    Raises InputError for a package that does not exist, FetchError if no mirror has the suite.
    """
    with tempfile.TemporaryDirectory(prefix="drydock-apt-") as folder, disk_full(Path(folder)):
        mirrors = read_debian_mirrors(env)
        if not mirrors.is_security_named:
            mirrors = mirrors._replace(security=(find_security_archive(mirrors, suite, env),))
        key = mirrors.signed_by or _find_keyring(Path(folder), env)
        options = _make_isolated_root(Path(folder), suite, platform, mirrors._replace(signed_by=key))
        _update_lists(options, env)
        simulated = _read_apt_output(
            ["apt-get", *options, "install", "--simulate", *ALWAYS_INSTALLED, *packages], InputError
        )
        names = [f"{name}:{architecture}={version}" for name, version, architecture in parse_simulation(simulated)]
        return parse_packages(_read_apt_output(["apt-cache", *options, "show", *names], InputError))


def fetch_packages(debs: Sequence[LockedDeb], snapshot: str, store: Store, env: Mapping[str, str]) -> None:
    """Fetch locked packages that the store lacks; raise one FetchError that names all that failed."""
    missing = [deb for deb in debs if not store.has(deb.sha256, deb.size)]
    if not missing:
        return
    mirrors = read_debian_mirrors(env)
    downloads = [
        Wanted(_format_deb(deb), deb.sha256, deb.size, list_deb_urls(deb, mirrors, snapshot, env)) for deb in missing
    ]
    try:
        download_files(store, downloads, read_apt_access(env))
    except GoneError as error:
        raise GoneError(*error.problems, hint=_explain_missing_debs(missing, mirrors, store, GONE_HINT)) from error
    except FetchError as error:
        raise FetchError(*error.problems, hint=_explain_missing_debs(missing, mirrors, store, MIRROR_HINT)) from error


def find_security_archive(mirrors: DebianArchives, suite: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the first of the usual places of the security archive that has a suite. Raises FetchError for none."""
    access = read_apt_access(env)
    for root in mirrors.security:
        with contextlib.suppress(FetchError):
            if ask_status(f"{root}/dists/{suite}-security/InRelease", access) == requests.codes.ok:
                return root
    raise FetchError(f"no security archive of {suite}: {_name_untold_security(mirrors)}", hint=MIRROR_HINT)


def _name_untold_security(mirrors: DebianArchives) -> str:
    tried = ", ".join(map(redact_url, mirrors.security))
    return f"this machine's apt sources name none, and it was sought at {tried}"


def _explain_missing_debs(debs: Sequence[LockedDeb], mirrors: DebianArchives, store: Store, hint: str) -> str:
    """Return the hint, after the likelier cause where apt names no security archive and packages of it are missing."""
    missing = [deb for deb in debs if not store.has(deb.sha256, deb.size)]
    if mirrors.is_security_named or not any(deb.filename.startswith(SECURITY_POOL) for deb in missing):
        return hint
    return (
        f"packages below {SECURITY_POOL} are in Debian's security archive: {_name_untold_security(mirrors)}. Add the"
        f" right one to apt's sources (`deb URL SUITE-security main`), or set DRYDOCK_DEBIAN_MIRROR='MIRROR SECURITY'."
        f" If they are gone: {hint}"
    )


def parse_simulation(text: str) -> tuple[tuple[str, str, str], ...]:
    """Return (name, version, architecture) of each `Inst` line of `apt-get install --simulate`."""
    return tuple(re.findall(r"^Inst (\S+) \((\S+) .*\[(\w+)\]\)", text, re.MULTILINE))


def parse_packages(text: str) -> tuple[LockedDeb, ...]:
    """Return the packages of a Packages file (Debian Policy, chapter 5), sorted by name."""
    packages = {(deb.name, deb.version): deb for deb in map(_parse_deb, Deb822.iter_paragraphs(text))}
    return tuple(packages[key] for key in sorted(packages))


def read_debian_mirrors(env: Mapping[str, str] = os.environ) -> DebianArchives:
    """Return this machine's Debian mirrors; mirrors.yaml replaces their addresses.

    DRYDOCK_DEBIAN_MIRROR, else apt's, else `debian` in mirrors.yaml, else the archive that the distribution names.
    Raises FetchError if there is none.
    """
    prefixes = read_mirrors(env).indexes
    configured = _find_configured_archives(env, prefixes)
    return configured._replace(
        main=tuple(rewrite_url(root, prefixes) for root in configured.main),
        security=tuple(rewrite_url(root, prefixes) for root in configured.security),
    )


def _find_configured_archives(env: Mapping[str, str], prefixes: Mapping[str, str]) -> DebianArchives:
    if env.get("DRYDOCK_DEBIAN_MIRROR"):
        return _parse_archive_roots(env["DRYDOCK_DEBIAN_MIRROR"], env)
    failure = ""
    try:
        mirrors = parse_index_targets(_read_apt_output([*LIST_SOURCES], FetchError))
    except FetchError as error:  # without apt, or with sources that it cannot read
        mirrors, failure = DebianArchives((), ()), error.problems[0]
    if not mirrors.main:
        default = prefixes.get(DEBIAN) or _find_default_archive(find_mirrors_file(env), failure=failure)
        return _parse_archive_roots(default, env)
    mirrors = mirrors._replace(signed_by=_signed_by((*mirrors.main, *mirrors.security)))
    return mirrors if mirrors.security else _add_usual_security(mirrors, env, prefixes)


def _add_usual_security(mirrors: DebianArchives, env: Mapping[str, str], prefixes: Mapping[str, str]) -> DebianArchives:
    """Add the usual places of the security archive: at the same mirror, then where the distribution has its own."""
    roots = [f"{root}-security" for root in mirrors.main]
    with contextlib.suppress(FetchError):
        default = prefixes.get(DEBIAN) or _find_default_archive(find_mirrors_file(env))
        roots += _parse_archive_roots(default, env).security
    return mirrors._replace(security=_drop_duplicates(roots), is_security_named=False)


def _parse_archive_roots(roots: str, env: Mapping[str, str]) -> DebianArchives:
    main, *rest = (root.rstrip("/") for root in roots.split())
    return DebianArchives((main,), tuple(rest) or (f"{main}-security",), env.get("DRYDOCK_DEBIAN_KEYRING"))


def _find_default_archive(configuration: Path, root: Path = Path("/"), failure: str = "") -> str:
    """Return the archive that the distribution names. Raises FetchError with the key to set in a mirrors.yaml."""
    for name, pattern in DEFAULTS.items():
        text = (root / name).read_text(errors="replace") if (root / name).is_file() else ""
        if match := re.search(pattern, text, re.MULTILINE):
            return match[1]
    raise FetchError(
        f"this machine names no Debian archive: {failure or 'apt has none'}, and neither python-apt-common nor"
        " mmdebstrap is installed",
        hint=f'name one in {configuration}:\n  indexes: {{{DEBIAN}: "https://MIRROR/debian"}}\n'
        "or set DRYDOCK_DEBIAN_MIRROR to it",
    )


def parse_index_targets(text: str) -> DebianArchives:
    """Return the roots of the Debian archives in the output of LIST_SOURCES, in the order of apt's sources."""
    main: list[str] = []
    security: list[str] = []
    for uri, release, component in re.findall(r"^(\S+) (\S+) (\S+)$", text, re.MULTILINE):
        root = uri.rstrip("/")
        if component.rpartition("/")[2] != "main" or not _of_debian(root, release):
            continue
        archives = security if release.endswith(("-security", "/updates")) else main
        archives += _list_mirror_roots(root)
    # Other repositories may have `bookworm main` too, and be named first.
    main.sort(key=lambda root: not root.endswith("/debian"))
    return DebianArchives(_drop_duplicates(main), _drop_duplicates(security))


def _list_mirror_roots(root: str) -> list[str]:
    """Return the URLs behind a root: those of the file that Debian's cloud images name (apt-transport-mirror(1)).

    What only apt reads, such as cdrom:, has none.
    """
    scheme, _, rest = root.partition(":")
    if scheme == "mirror+file":
        path = Path("/", rest.lstrip("/"))
        words = [line.split() for line in path.read_text().splitlines()] if os.access(path, os.R_OK) else []
        return [line[0].rstrip("/") for line in words if line and line[0].startswith(("http://", "https://", "file:"))]
    return [root] if scheme in ("http", "https", "file") else []


def _of_debian(root: str, release: str) -> bool:
    name, *more = re.split(r"[-/]", release)
    return name in CODE_NAMES or (name in ALIASES and (bool(more) or root.endswith("/debian")))


def list_deb_urls(deb: LockedDeb, mirrors: DebianArchives, snapshot: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the URLs to try for a package: every mirror, then the snapshot archives of DRYDOCK_SNAPSHOT_ARCHIVE."""
    path = quote(deb.filename, safe="/+~:")
    main = [f"{root}/{path.replace(SECURITY_POOL, 'pool/', 1)}" for root in mirrors.main]
    security = [f"{root}/{path}" for root in mirrors.security]
    templates = env.get("DRYDOCK_SNAPSHOT_ARCHIVE", "").split()
    return (
        *((*security, *main) if path.startswith(SECURITY_POOL) else (*main, *security)),
        *(template.format(timestamp=snapshot, filename=path) for template in templates),
    )


def read_apt_access(env: Mapping[str, str] = os.environ) -> Access:
    """Return apt's access to mirrors: proxies, certificates and passwords."""
    try:
        options = _read_apt_options()
    except FetchError:
        return Access(
            certificates=env.get("REQUESTS_CA_BUNDLE") or env.get("SSL_CERT_FILE"),
            mirrors=read_mirrors(env).indexes,
        )
    return Access(
        certificates=options.get("Acquire::https::CaInfo") or env.get("REQUESTS_CA_BUNDLE") or env.get("SSL_CERT_FILE"),
        proxies=choose_proxies(options),
        credentials=dict(_read_logins(_find_apt_folder())),
        mirrors=read_mirrors(env).indexes,
    )


def choose_proxies(options: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies of apt's options as requests takes them, where an empty one means none.

    https uses http's options unless it has its own, and a host's come before both (apt.conf(5)).
    """
    proxies = {}
    for scheme, names in {"http": ("http",), "https": ("http", "https")}.items():
        for name in names:
            prefix = f"Acquire::{name}::Proxy"
            for key in (key for key in options if key == prefix or key.startswith(f"{prefix}::")):
                host = key.removeprefix(prefix).removeprefix("::")
                proxy = options[key]
                proxies[f"{scheme}://{host}" if host else scheme] = "" if proxy == "DIRECT" else proxy
    return proxies


def parse_options(text: str) -> dict[str, str]:
    """Return the options of `apt-config dump`."""
    return dict(re.findall(r'^(\S+) "(.*)";$', text, re.MULTILINE))


def parse_logins(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (origin, (user, password)) from apt's auth.conf; the path is ignored.

    An entry without a scheme is for https only (apt_auth.conf(5)).
    """
    machine = r"machine\s+(?:(https?)://)?([^\s/:]+(?::\d{1,5})?)(?:/\S*)?\s+login\s+(\S+)\s+password\s+(\S+)"
    for scheme, host, user, password in re.findall(machine, text):
        yield http.parse_origin(f"{scheme or 'https'}://{host}"), (user, password)


def _read_logins(etc: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    for path in (etc / "auth.conf", *sorted(etc.glob("auth.conf.d/*.conf"))):
        if os.access(path, os.R_OK):
            yield from parse_logins(path.read_text())


def _format_deb(deb: LockedDeb) -> str:
    return f"{deb.name} {deb.version} ({deb.architecture})"


def _parse_deb(stanza: Mapping[str, str]) -> LockedDeb:
    """Return a package that an archive describes. Raises InputError for a name, version or path that is none."""
    names = ("Package", "Version", "Architecture", "Filename", "SHA256")
    values = {name.lower(): stanza.get(name) for name in names}
    size = parse_byte_count(stanza.get("Size", ""))
    where = f"package {values['package']}"
    return make_record(LockedDeb, where, {"name": values.pop("package"), "size": size, **values})


def _make_isolated_root(folder: Path, suite: str, platform: str, mirrors: DebianArchives) -> tuple[str, ...]:
    """Create an empty apt root for one suite and architecture; return the options that select it."""
    for name in ("lists/partial", "cache/archives/partial", "sources", "empty"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources" / "drydock.sources").write_text(_format_sources(suite, mirrors))
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
        # apt 2.6 can lose a file that it asks for again after a pause, and then waits for it without end.
        "Acquire::Retries::Delay": "false",
        "Debug::NoLocking": "true",
        # Otherwise apt counts as essential; the image does not need it.
        "pkgCacheGen::ForceEssential": ",",
        "pkgCacheGen::ForceImportant": ",",
    }
    return tuple(part for key, value in options.items() for part in ("-o", f"{key}={value}"))


def _format_sources(suite: str, mirrors: DebianArchives) -> str:
    stanzas = [(mirrors.main[0], f"{suite} {suite}-updates")]
    stanzas += [(root, f"{suite}-security") for root in mirrors.security[:1]]
    return "\n".join(
        f"Types: deb\nURIs: {root}\nSuites: {suites}\nComponents: main\nSigned-By: {mirrors.signed_by}\n"
        for root, suites in stanzas
    )


def _find_keyring(folder: Path, env: Mapping[str, str], installed: Path = Path("/usr/share/keyrings")) -> str:
    """Return the path of Debian's keyring: the installed one, else the one in KEYRING, fetched and put into a folder.

    Raises FetchError if it cannot be fetched.
    """
    keyring = next((installed / name for name in KEYRINGS if (installed / name).is_file()), None)
    return str(keyring or _fetched_keyring(folder, env))


def _fetched_keyring(folder: Path, env: Mapping[str, str]) -> Path:
    store, keyring = Store(folder), folder / KEYRINGS[0]
    try:
        fetch_packages([KEYRING], "", store, env)
    except FetchError as error:
        raise FetchError(
            f"this machine has no keyring of the Debian archive ({' or '.join(KEYRINGS)}), so signatures cannot be"
            " checked, and it could not be fetched:",
            *error.problems,
            hint="install it (as root: apt-get install debian-archive-keyring), or set DRYDOCK_DEBIAN_KEYRING",
        ) from error
    content = DebFile(store.path(KEYRING.sha256)).data.get_content(f"usr/share/keyrings/{KEYRINGS[0]}")
    keyring.write_bytes(content or b"")
    return keyring


def parse_signed_by(text: str, roots: Sequence[str]) -> str | None:
    """Return the keyring that a sources file, in either format, names for one of these roots."""
    pattern = r"^deb[ \t]+\[[^]\n]{0,500}?signed-by=([^]\s]{1,500})[^]\n]{0,500}\][ \t]+(\S+)"
    keys = re.findall(pattern, text, re.MULTILINE)
    for stanza in Deb822.iter_paragraphs(text):
        if "Signed-By" in stanza:
            keys += [(stanza["Signed-By"], uri) for uri in stanza.get("URIs", "").split()]
    for key, uri in keys:
        if uri.rstrip("/") in roots:
            return str(key)
    return None


def _signed_by(roots: Sequence[str]) -> str | None:
    etc = _find_apt_folder()
    files = (
        etc / "sources.list",
        *sorted(etc.glob("sources.list.d/*.list")),
        *sorted(etc.glob("sources.list.d/*.sources")),
    )
    for path in files:
        key = parse_signed_by(path.read_text(), roots) if os.access(path, os.R_OK) else None
        if key:
            return key
    return None


def _read_apt_options() -> dict[str, str]:
    return parse_options(_read_apt_output(["apt-config", "dump"], FetchError))


def _find_apt_folder() -> Path:
    options = _read_apt_options()
    return Path(options.get("Dir", "/"), options.get("Dir::Etc", "etc/apt"))


def _drop_duplicates(roots: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(roots))


def _update_lists(options: Sequence[str], env: Mapping[str, str]) -> None:
    """Fetch the lists of packages. apt asks again for what could not be fetched, without a pause. Raises FetchError."""
    command = ["apt-get", *options, "update", "--error-on=any"]
    _take_output(
        run_patiently(lambda: _run_apt(command, FetchError), LIMITED, "apt-get", read_apt_access(env)), FetchError
    )


def _read_apt_output(command: Sequence[str], error: type[DrydockError]) -> str:
    """Return what apt prints, in English; raise `error` with apt's message, without the passwords of its URLs."""
    return _take_output(_run_apt(command, error), error)


def _run_apt(command: Sequence[str], error: type[DrydockError]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=APT_AT_MOST
        )
    except FileNotFoundError as missing:
        raise error(f"{command[0]} is not installed", hint=TOOL_HINT) from missing
    except subprocess.TimeoutExpired as late:
        hint = MIRROR_HINT if error is FetchError else ""
        raise error(f"{command[0]} did not end within {APT_AT_MOST // 60} minutes", hint=hint) from late


def _take_output(result: subprocess.CompletedProcess[str], error: type[DrydockError]) -> str:
    if result.returncode:
        message = re.sub(r"//[^/\s@]+@", "//", result.stderr).strip()
        raise error(f"{result.args[0]} failed:\n{message}", hint=MIRROR_HINT if error is FetchError else "")
    return result.stdout
