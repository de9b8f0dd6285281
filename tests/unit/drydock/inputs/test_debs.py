from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drydock.config.server_access import Access
from drydock.core.errors import FetchError, GoneError, InputError
from drydock.core.http import send_no_password
from drydock.inputs import debs
from drydock.inputs.debs import (
    KEYRING,
    KEYRINGS,
    DebianArchives,
    _find_keyring,
    choose_proxies,
    fetch_packages,
    list_deb_urls,
    parse_index_targets,
    parse_logins,
    parse_options,
    parse_packages,
    parse_signed_by,
    parse_simulation,
    read_debian_mirrors,
    resolve_packages,
)
from drydock.inputs.downloads import _choose_auth
from drydock.inputs.store import Store
from drydock.model.locked import LockedDeb
from tests.support.debian_archive import describe_package, needs_apt_and_gpg, serve_archive
from tests.support.hashes import sha256
from tests.support.hosts.trees import write_tree
from tests.support.loopback import Loopback

TARGETS = """\
cdrom://[Debian GNU/Linux 12.5]/ bookworm main
https://others.example/repos/cloud/ bookworm main
http://mirror.example/debian/ bookworm main
http://mirror.example/debian/ bookworm contrib
http://mirror.example/debian/ bookworm-updates main
http://mirror.example/debian-security/ bookworm-security updates/main
http://mirror.example/debian/ testing main
https://packages.example/linux/debian/ bookworm stable
https://packages.example/apt/ nodistro main
mirror://mirror.example/list/ bookworm main
https://flat.example/ ./ $(COMPONENT)
"""


def test_debian_mirrors_are_distinguished_from_other_repositories() -> None:
    assert parse_index_targets(TARGETS) == DebianArchives(
        ("http://mirror.example/debian", "https://others.example/repos/cloud"),
        ("http://mirror.example/debian-security",),
    )


needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="needs apt-get")


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return a function that gives this machine's apt other sources, options and logins, by the names of their files.

    It returns an environment without a mirrors.yaml. The distribution names no archive.
    """
    etc = tmp_path / "etc"
    (etc / "sources.list.d").mkdir(parents=True)
    (tmp_path / "lists").mkdir()
    monkeypatch.setattr(debs, "DEFAULTS", {})

    def configure(options: str = "", **files: str) -> dict[str, str]:
        for name, text in files.items():
            path = etc / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        configuration = tmp_path / "apt.conf"
        configuration.write_text(
            f'Dir::Etc "{etc}";\nDir::State::lists "{tmp_path}/lists";\n#clear Acquire::http;\n#clear Acquire::https;\n'
            f"{options}\n"
        )
        monkeypatch.setenv("APT_CONFIG", str(configuration))
        return {"HOME": str(tmp_path)}

    return configure


BARE = "deb http://m.example/debian bookworm main\n"
"""All that debootstrap writes."""
DEB822 = """\
Types: deb deb-src
URIs: http://one.example/debian/ http://two.example/d
Suites: trixie trixie-updates trixie-backports
Components: main non-free-firmware
Signed-By: /keys.pgp

Types: deb
URIs: http://one.example/security
Suites: trixie-security
Components: main

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: trixie
Components: main
"""


@needs_apt
@pytest.mark.parametrize(
    ("files", "main", "security", "is_named", "key"),
    [
        pytest.param(
            {"sources_list": BARE},
            ("http://m.example/debian",),
            ("http://m.example/debian-security",),
            False,
            None,
            id="as debootstrap writes it",
        ),
        pytest.param(
            {"sources_list_d__debian_sources": DEB822},
            ("http://one.example/debian", "http://two.example/d"),
            ("http://one.example/security",),
            True,
            "/keys.pgp",
            id="deb822, two mirrors, backports, a security archive with another path",
        ),
        pytest.param(
            {
                "sources_list_d__azure_list": "deb [arch=amd64] https://others.example/repos/cloud bookworm main\n",
                "sources_list_d__debian_list": "deb [signed-by=/k.gpg arch=arm64] http://m.example/debian sid main\n",
                "sources_list_d__docker_list": "deb https://packages.example/linux/debian bookworm stable\n",
            },
            ("http://m.example/debian", "https://others.example/repos/cloud"),
            ("http://m.example/debian-security", "https://others.example/repos/cloud-security"),
            False,
            "/k.gpg",
            id="repositories of others, with the same suite",
        ),
        pytest.param(
            {"sources_list": "deb cdrom:[Debian 12.5]/ bookworm main\ndeb file:/srv/debian bookworm main\n"},
            ("file:/srv/debian",),
            ("file:/srv/debian-security",),
            False,
            None,
            id="a disc and a folder",
        ),
    ],
)
def test_archives_are_found_in_the_sources_of_apt(
    files: dict[str, str],
    main: tuple[str, ...],
    security: tuple[str, ...],
    is_named: bool,
    key: str | None,
    apt: Callable[..., dict[str, str]],
) -> None:
    assert read_debian_mirrors(apt(**files)) == DebianArchives(main, security, key, is_named)


@needs_apt
def test_the_file_of_mirrors_of_a_cloud_image_is_read(apt: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    mirrors = "# nearest first\nhttp://near.example/debian/\tpriority:1\nhttp://far.example/debian\ncopy:/x\n"
    source = f"Types: deb\nURIs: mirror+file://{tmp_path}/etc/mirrors/debian.list\nSuites: bookworm\nComponents: main\n"
    env = apt(mirrors__debian_list=mirrors, sources_list_d__debian_sources=source)
    assert read_debian_mirrors(env).main == ("http://near.example/debian", "http://far.example/debian")


@needs_apt
def test_sources_that_apt_cannot_read_are_named(apt: Callable[..., dict[str, str]]) -> None:
    with pytest.raises(FetchError, match=r"names no Debian archive: apt-get failed:\n(.|\n)*Malformed") as caught:
        read_debian_mirrors(apt(sources_list="deb\n"))
    assert "DRYDOCK_DEBIAN_MIRROR" in caught.value.hint


def test_a_mirror_in_the_environment_wins() -> None:
    env = {"DRYDOCK_DEBIAN_MIRROR": "https://one.example/debian/", "DRYDOCK_DEBIAN_KEYRING": "/key.gpg"}
    assert read_debian_mirrors(env) == DebianArchives(
        ("https://one.example/debian",), ("https://one.example/debian-security",), "/key.gpg"
    )
    two_mirrors = {"DRYDOCK_DEBIAN_MIRROR": "https://one.example/debian https://two.example/security"}
    assert read_debian_mirrors(two_mirrors).security == ("https://two.example/security",)


STANZAS = """\
Types: deb
URIs: http://m.example/other
Suites: x

Types: deb
URIs: http://m.example/debian/
Suites: x
Signed-By: /key.gpg
"""
ONE_LINE = "# a comment\ndeb [arch=amd64 signed-by=/key.gpg] http://m.example/debian bookworm main\n"


@pytest.mark.parametrize("sources", [STANZAS, ONE_LINE])
def test_the_key_of_a_mirror_is_read_from_either_format(sources: str) -> None:
    assert parse_signed_by(sources, ["http://m.example/debian"]) == "/key.gpg"
    assert parse_signed_by(sources, ["http://m.example/ubuntu"]) is None


def test_a_simulation_names_versions_and_architectures() -> None:
    text = """\
NOTE: This is only a simulation!
Inst libcap2 (1:2.66-4+b1 Debian:12.15/oldstable, Debian-Security:12/oldstable-security [amd64]) []
Inst adduser (3.134 Debian:12.15/oldstable [all])
Conf libcap2 (1:2.66-4+b1 Debian:12.15/oldstable [amd64])
"""
    assert parse_simulation(text) == (("libcap2", "1:2.66-4+b1", "amd64"), ("adduser", "3.134", "all"))


def test_options_and_logins_of_apt_are_read() -> None:
    assert parse_options('Acquire "";\nAcquire::http::Proxy "http://proxy.example:3128";\n') == {
        "Acquire": "",
        "Acquire::http::Proxy": "http://proxy.example:3128",
    }
    text = "machine https://m.example:8080/debian login user\n  password secret\nmachine n.example login a password b\n"
    assert dict(parse_logins(text)) == {
        "https://m.example:8080": ("user", "secret"),
        "https://n.example:443": ("a", "b"),
    }


def test_a_password_of_apt_is_sent_to_its_own_archive_only() -> None:
    access = Access(credentials=dict(parse_logins("machine m.example/debian login user password secret\n")))
    deb_urls = ("https://m.example/debian/a.deb", "http://m.example/a.deb", "https://m.example:8443/a.deb")
    assert [_choose_auth(access, url) for url in deb_urls] == [("user", "secret"), send_no_password, send_no_password]


DEB = LockedDeb(
    name="bash", version="5.2", architecture="amd64", filename="pool/b/bash_5.2+x_amd64.deb", size=4, sha256="0" * 64
)


def test_every_mirror_is_tried_and_then_the_snapshot_archive() -> None:
    mirrors = DebianArchives(("http://one/debian", "http://two/debian"), ("http://one/debian-security",))
    fixed = DEB.model_copy(update={"filename": "pool/updates/main/b/bash.deb"})
    assert list_deb_urls(fixed, mirrors, "", {}) == (
        "http://one/debian-security/pool/updates/main/b/bash.deb",
        "http://one/debian/pool/main/b/bash.deb",
        "http://two/debian/pool/main/b/bash.deb",
    )
    env = {"DRYDOCK_SNAPSHOT_ARCHIVE": "http://archive/{timestamp}/{filename}"}
    assert list_deb_urls(DEB, mirrors, "20261121T041500Z", env) == (
        "http://one/debian/pool/b/bash_5.2+x_amd64.deb",
        "http://two/debian/pool/b/bash_5.2+x_amd64.deb",
        "http://one/debian-security/pool/b/bash_5.2+x_amd64.deb",
        "http://archive/20261121T041500Z/pool/b/bash_5.2+x_amd64.deb",
    )


def test_a_package_removed_from_the_mirrors_comes_from_the_snapshot_archive(server: Loopback, store: Store) -> None:
    deb = DEB.model_copy(update={"sha256": sha256(b"bash")})
    server.files[f"/archive/20261121T041500Z/{DEB.filename}"] = b"bash"
    env = {
        "DRYDOCK_DEBIAN_MIRROR": f"{server.url}/debian",
        "DRYDOCK_SNAPSHOT_ARCHIVE": f"{server.url}/archive/{{timestamp}}/{{filename}}",
    }
    fetch_packages([deb], "20261121T041500Z", store, env)
    assert store.path(deb.sha256).read_bytes() == b"bash"
    assert len(server.requests) == 3


def test_missing_packages_are_named_with_a_hint(server: Loopback, store: Store) -> None:
    dash = DEB.model_copy(update={"name": "dash", "sha256": "1" * 64})
    mirrors = {"DRYDOCK_DEBIAN_MIRROR": f"{server.url} {server.url}/security"}
    with pytest.raises(GoneError) as caught:
        fetch_packages([DEB, dash], "20261121T041500Z", store, mirrors)
    missing_packages = {problem.partition(" from ")[0] for problem in caught.value.problems}
    assert missing_packages == {"bash 5.2 (amd64)", "dash 5.2 (amd64)"}
    assert "./inv lock --upgrade" in caught.value.hint
    assert "DRYDOCK_SNAPSHOT_ARCHIVE" in caught.value.hint


def test_packages_that_a_mirror_refuses_do_not_count_as_gone(server: Loopback, store: Store) -> None:
    server.faults["/pool/b/bash_5.2%2Bx_amd64.deb"] = ["403"] * 9
    server.faults["/pool/b/bash_5.2+x_amd64.deb"] = ["403"] * 9
    mirrors = {"DRYDOCK_DEBIAN_MIRROR": f"{server.url} {server.url}/security"}
    with pytest.raises(FetchError) as caught:
        fetch_packages([DEB], "20261121T041500Z", store, mirrors)
    assert not isinstance(caught.value, GoneError)


@needs_apt
def test_a_package_of_the_security_archive_is_found_where_apt_names_the_main_archive_only(
    apt: Callable[..., dict[str, str]], server: Loopback, store: Store
) -> None:
    fixed = DEB.model_copy(update={"filename": "pool/updates/main/b/bash.deb", "sha256": sha256(b"bash")})
    server.files["/debian-security/pool/updates/main/b/bash.deb"] = b"bash"
    fetch_packages([fixed], "", store, apt(sources_list=BARE.replace("http://m.example", server.url)))
    assert store.path(fixed.sha256).read_bytes() == b"bash"


@needs_apt
def test_a_missing_security_archive_is_named_before_superseded_packages(
    apt: Callable[..., dict[str, str]], server: Loopback, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    example = tmp_path / "sources.list"
    example.write_text(f"deb {server.url}/usual/debian bookworm main\n")
    monkeypatch.setattr(debs, "DEFAULTS", {str(example): r"^deb (\S+/debian) "})
    env = apt(sources_list=BARE.replace("http://m.example", server.url))
    fixed = DEB.model_copy(update={"filename": "pool/updates/main/b/bash.deb"})
    with pytest.raises(GoneError) as caught:
        fetch_packages([fixed], "", store, env)
    sought = f"{server.url}/debian-security, {server.url}/usual/debian-security"
    assert caught.value.hint.index(f"apt sources name none, and it was sought at {sought}") < caught.value.hint.index(
        "./inv lock --upgrade"
    )
    with pytest.raises(GoneError) as caught:
        fetch_packages([DEB], "", store, env)
    assert caught.value.hint == debs.GONE_HINT, "a package of the main archive"


@pytest.mark.parametrize(
    ("options", "proxies"),
    [
        ({}, {}),
        ({"Acquire::http::Proxy": "http://p:1"}, {"http": "http://p:1", "https": "http://p:1"}),
        (
            {"Acquire::http::Proxy": "http://p:1", "Acquire::https::Proxy": "DIRECT"},
            {"http": "http://p:1", "https": ""},
        ),
        (
            {"Acquire::http::Proxy": "http://p:1", "Acquire::http::Proxy::m.example": "DIRECT"},
            {"http": "http://p:1", "https": "http://p:1", "http://m.example": "", "https://m.example": ""},
        ),
        ({"Acquire::http::Proxy-Auto-Detect": "/usr/bin/auto-apt-proxy"}, {}),
    ],
)
def test_proxies_of_apt_are_used_as_apt_uses_them(options: dict[str, str], proxies: dict[str, str]) -> None:
    assert choose_proxies(options) == proxies


@pytest.fixture
def archive(server: Loopback, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Serve a small signed Debian archive on the loopback server; yield the environment that selects it."""
    packages = {
        "libc6": "Priority: required",
        "bash": "Essential: yes\nDepends: libc6",
        "python3": "Depends: libc6\nRecommends: bloat",
        "bloat": "Priority: optional",
        "usr-is-merged": "Priority: optional",
        "huge": "Priority: important",
    }
    text = "".join(describe_package(name, number, more) for number, (name, more) in enumerate(packages.items()))
    with serve_archive(server, tmp_path, {"amd64": text}) as env:
        yield env


@needs_apt_and_gpg
def test_the_newest_signed_packages_are_chosen_without_recommendations(archive: dict[str, str]) -> None:
    debs = resolve_packages("bookworm", ["python3"], "linux/amd64", archive)
    assert [deb.name for deb in debs] == ["bash", "libc6", "python3", "usr-is-merged"]
    assert {deb.version for deb in debs} == {"1:1.0-1+deb12u1"}
    assert debs[0].filename == "pool/main/bash_1.0-1+deb12u1_amd64.deb"
    assert debs[0].size == 7


@needs_apt_and_gpg
def test_the_security_archive_is_found_where_apt_names_the_main_archive_only(
    archive: dict[str, str], apt: Callable[..., dict[str, str]], server: Loopback
) -> None:
    signed = f"deb [signed-by={archive['DRYDOCK_DEBIAN_KEYRING']}] {server.url}/debian bookworm main\n"
    env = apt(sources_list=signed)
    assert {deb.version for deb in resolve_packages("bookworm", ["python3"], "linux/amd64", env)} == {"1:1.0-1+deb12u1"}
    for path in [path for path in server.files if "bookworm-security" in path]:
        del server.files[path]
    with pytest.raises(FetchError, match=r"no security archive of bookworm.*sought at \S+/debian-security\n"):
        resolve_packages("bookworm", ["python3"], "linux/amd64", env)


@needs_apt_and_gpg
def test_a_package_that_does_not_exist_is_named(archive: dict[str, str]) -> None:
    with pytest.raises(InputError, match="Unable to locate package pyhton3"):
        resolve_packages("bookworm", ["pyhton3"], "linux/amd64", archive)


@needs_apt_and_gpg
def test_an_archive_with_an_invalid_signature_is_refused(archive: dict[str, str], server: Loopback) -> None:
    for path in [path for path in server.files if path.endswith("InRelease")]:
        server.files[path] = server.files[path].replace(b"Origin: Debian", b"Origin: Nobody")
    with pytest.raises(FetchError, match="signature"):
        resolve_packages("bookworm", ["python3"], "linux/amd64", archive)


@needs_apt_and_gpg
def test_an_unknown_suite_is_an_error_whose_hint_names_the_variable(archive: dict[str, str]) -> None:
    with pytest.raises(FetchError, match="bokworm") as caught:
        resolve_packages("bokworm", ["python3"], "linux/amd64", archive)
    assert "DRYDOCK_DEBIAN_MIRROR" in caught.value.hint


@needs_apt_and_gpg
@pytest.mark.parametrize("status", ["429", "503", "509"])
def test_a_busy_archive_is_asked_again(
    status: str, archive: dict[str, str], server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drydock.core.http.time.sleep", lambda _: None)
    for suite in ("debian/dists/bookworm", "debian-security/dists/bookworm-security"):
        server.faults[f"/{suite}/InRelease"] = [status] * 3
        server.faults[f"/{suite}/Release"] = [status] * 3
    debs = resolve_packages("bookworm", ["python3"], "linux/amd64", archive)
    assert {deb.version for deb in debs} == {"1:1.0-1+deb12u1"}


def test_a_package_that_two_archives_have_counts_once() -> None:
    stanza = "Package: bash\nVersion: 1\nArchitecture: amd64\nFilename: pool/b.deb\nSize: 4\nSHA256: " + "0" * 64
    assert len(parse_packages(f"{stanza}\n\n{stanza}\n")) == 1


NOBLE = """\
http://ubuntu.example/ubuntu/ noble main
http://ubuntu.example/ubuntu/ noble-security main
https://dl.google.example/linux/chrome/deb/ stable main
"""


def test_a_suite_that_others_have_too_identifies_debian_only_with_its_folder_or_its_updates() -> None:
    stable = "https://m.example/{} main\n"
    assert parse_index_targets(stable.format("chrome/ stable")).main == ()
    assert parse_index_targets(stable.format("debian/ stable")).main == ("https://m.example/debian",)
    assert parse_index_targets(stable.format("d/ stable-updates")).main == ("https://m.example/d",)


def test_without_a_debian_archive_in_apt_mirrors_yaml_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drydock.inputs.debs._read_apt_output", lambda *_: NOBLE)
    (tmp_path / "mirrors.yaml").write_text("indexes: {debian: https://m.example/debian/}\n")
    env = {"DRYDOCK_MIRRORS": str(tmp_path / "mirrors.yaml"), "DRYDOCK_DEBIAN_KEYRING": "/key.gpg"}
    assert read_debian_mirrors(env) == DebianArchives(
        ("https://m.example/debian",), ("https://m.example/debian-security",), "/key.gpg"
    )


def test_otherwise_the_distribution_names_debians_archive(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="names no Debian archive") as caught:
        debs._find_default_archive(Path("/home/mirrors.yaml"), tmp_path)
    assert 'in /home/mirrors.yaml:\n  indexes: {debian: "https://MIRROR/debian"}' in caught.value.hint
    texts = {
        "usr/bin/mmdebstrap": "If no I<MIRROR> option is provided, L<http://one.example/debian> is used.\n",
        "usr/share/python-apt/templates/Debian.info": "Suite: a\nBaseURI: https://two.example/debian/\nBaseURI: x\n",
    }
    write_tree(tmp_path, texts)
    assert debs._find_default_archive(Path(), tmp_path) == "https://two.example/debian/"
    (tmp_path / "usr/share/python-apt/templates/Debian.info").unlink()
    assert debs._find_default_archive(Path(), tmp_path) == "http://one.example/debian"


def test_a_missing_keyring_is_fetched_by_its_hash(
    server: Loopback, tmp_path: Path, make_deb: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_deb({"Package": "debian-archive-keyring"}, {f"./usr/share/keyrings/{KEYRINGS[0]}": b"keys"})
    monkeypatch.setattr(debs, "KEYRING", KEYRING.model_copy(update={"sha256": sha256(data), "size": len(data)}))
    server.files[f"/debian/{KEYRING.filename}"] = data
    env = {"DRYDOCK_DEBIAN_MIRROR": f"{server.url}/debian"}
    assert Path(_find_keyring(tmp_path, env, tmp_path / "none")).read_bytes() == b"keys"
    assert _find_keyring(tmp_path, {}, tmp_path) == str(tmp_path / KEYRINGS[0]), "an installed one needs no network"


def test_a_keyring_that_cannot_be_fetched_says_what_to_install(server: Loopback, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="no keyring of the Debian archive") as caught:
        _find_keyring(tmp_path, {"DRYDOCK_DEBIAN_MIRROR": f"{server.url}/debian"}, tmp_path / "none")
    assert "apt-get install debian-archive-keyring" in caught.value.hint
