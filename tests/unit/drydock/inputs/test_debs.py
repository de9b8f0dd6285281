from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
    fetch_packages,
    list_deb_urls,
    parse_logins,
    parse_options,
    parse_packages,
    parse_signed_by,
    parse_simulation,
    parse_uris,
    read_mirrors,
    resolve_packages,
)
from drydock.inputs.downloads import _choose_auth
from drydock.inputs.store import Store
from drydock.model.locked import LockedDeb
from tests.support.hashes import sha256

if TYPE_CHECKING:
    from tests.support.loopback import Loopback

URIS = """\
'http://mirror.example/debian/dists/bookworm/InRelease' mirror.example_debian_dists_bookworm_InRelease 0
'http://mirror.example/debian/dists/bookworm-updates/InRelease' x 0
'http://mirror.example/debian-security/dists/bookworm-security/InRelease' x 0
'http://mirror.example/debian/dists/testing/InRelease' x 0
'https://packages.example/apt/dists/nodistro/InRelease' x 0
'http://mirror.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' x 0
"""


def test_debian_mirrors_are_distinguished_from_other_repositories() -> None:
    assert parse_uris(URIS) == DebianArchives(
        ("http://mirror.example/debian",), ("http://mirror.example/debian-security",)
    )


def test_a_mirror_in_the_environment_wins() -> None:
    env = {"DRYDOCK_DEBIAN_MIRROR": "https://one.example/debian/", "DRYDOCK_DEBIAN_KEYRING": "/key.gpg"}
    assert read_mirrors(env) == DebianArchives(
        ("https://one.example/debian",), ("https://one.example/debian-security",), "/key.gpg"
    )
    two_mirrors = {"DRYDOCK_DEBIAN_MIRROR": "https://one.example/debian https://two.example/security"}
    assert read_mirrors(two_mirrors).security == ("https://two.example/security",)


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


needs_apt = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("gpg")), reason="needs apt-get, and gpg to sign a repository with"
)


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
    text = "".join(
        f"Package: {name}\nVersion: 1:1.0-1\nArchitecture: amd64\nMaintainer: x <x@x.example>\nDescription: x\n"
        f"Filename: pool/main/{name}_1.0-1_amd64.deb\nSize: 7\nSHA256: {number:064x}\n{more}\n\n"
        for number, (name, more) in enumerate(packages.items())
    )
    keyring = tmp_path / "keyring.gpg"
    for root, suite, index in (
        ("debian", "bookworm", text),
        ("debian", "bookworm-updates", ""),
        ("debian-security", "bookworm-security", text.replace("1.0-1", "1.0-1+deb12u1")),
    ):
        release = _release(suite, index)
        folder = f"/{root}/dists/{suite}"
        server.files[f"{folder}/InRelease"] = _sign(release, tmp_path, keyring)
        server.files[f"{folder}/main/binary-amd64/Packages.gz"] = gzip.compress(index.encode(), mtime=0)
    yield {"DRYDOCK_DEBIAN_MIRROR": f"{server.url}/debian", "DRYDOCK_DEBIAN_KEYRING": str(keyring)}
    subprocess.run(["gpgconf", "--homedir", str(tmp_path / "gpg"), "--kill", "gpg-agent"], check=True)


def _release(suite: str, index: str) -> str:
    packed = gzip.compress(index.encode(), mtime=0)
    hashes = "".join(
        f" {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-amd64/{name}\n"
        for name, data in (("Packages", index.encode()), ("Packages.gz", packed))
    )
    return (
        f"Origin: Debian\nSuite: {suite}\nCodename: {suite}\nArchitectures: amd64\nComponents: main\n"
        f"Date: Sat, 21 Nov 2020 00:00:00 UTC\nSHA256:\n{hashes}"
    )


def _sign(text: str, folder: Path, keyring: Path) -> bytes:
    home = folder / "gpg"
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
    if not home.is_dir():
        home.mkdir(mode=0o700)
        key = ["--quick-generate-key", "drydock test <test@test.example>", "ed25519", "sign", "never"]
        subprocess.run([*gpg, *key], check=True, capture_output=True)
        subprocess.run([*gpg, "--output", str(keyring), "--export"], check=True, capture_output=True)
    return subprocess.run([*gpg, "--clearsign"], input=text.encode(), check=True, capture_output=True).stdout


@needs_apt
def test_the_newest_signed_packages_are_chosen_without_recommendations(archive: dict[str, str]) -> None:
    debs = resolve_packages("bookworm", ["python3"], "linux/amd64", archive)
    assert [deb.name for deb in debs] == ["bash", "libc6", "python3", "usr-is-merged"]
    assert {deb.version for deb in debs} == {"1:1.0-1+deb12u1"}
    assert debs[0].filename == "pool/main/bash_1.0-1+deb12u1_amd64.deb"
    assert debs[0].size == 7


@needs_apt
def test_a_package_that_does_not_exist_is_named(archive: dict[str, str]) -> None:
    with pytest.raises(InputError, match="Unable to locate package pyhton3"):
        resolve_packages("bookworm", ["pyhton3"], "linux/amd64", archive)


@needs_apt
def test_an_archive_with_an_invalid_signature_is_refused(archive: dict[str, str], server: Loopback) -> None:
    for path in [path for path in server.files if path.endswith("InRelease")]:
        server.files[path] = server.files[path].replace(b"Origin: Debian", b"Origin: Nobody")
    with pytest.raises(FetchError, match="signature"):
        resolve_packages("bookworm", ["python3"], "linux/amd64", archive)


@needs_apt
def test_an_unknown_suite_is_an_error_whose_hint_names_the_variable(archive: dict[str, str]) -> None:
    with pytest.raises(FetchError, match="bokworm") as caught:
        resolve_packages("bokworm", ["python3"], "linux/amd64", archive)
    assert "DRYDOCK_DEBIAN_MIRROR" in caught.value.hint


@needs_apt
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
'http://ubuntu.example/ubuntu/dists/noble/InRelease' x 0
'http://ubuntu.example/ubuntu/dists/noble-security/InRelease' x 0
'https://dl.google.example/linux/chrome/deb/dists/stable/InRelease' x 0
"""


def test_a_suite_that_others_have_too_identifies_debian_only_with_its_folder_or_its_updates() -> None:
    stable = "'https://m.example/{}/InRelease' x 0\n"
    assert parse_uris(stable.format("chrome/dists/stable")).main == ()
    assert parse_uris(stable.format("debian/dists/stable")).main == ("https://m.example/debian",)
    assert parse_uris(stable.format("d/dists/stable-updates")).main == ("https://m.example/d",)


def test_without_a_debian_archive_in_apt_mirrors_yaml_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drydock.inputs.debs._read_apt_output", lambda *_: NOBLE)
    (tmp_path / "mirrors.yaml").write_text("indexes: {debian: https://m.example/debian/}\n")
    env = {"DRYDOCK_MIRRORS": str(tmp_path / "mirrors.yaml"), "DRYDOCK_DEBIAN_KEYRING": "/key.gpg"}
    expected = ("https://m.example/debian",), ("https://m.example/debian-security",), "/key.gpg"
    assert read_mirrors(env) == expected


def test_otherwise_the_distribution_names_debians_archive(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="names no Debian archive") as caught:
        debs._find_default_archive(Path("/home/mirrors.yaml"), tmp_path)
    assert 'in /home/mirrors.yaml:\n  indexes: {debian: "https://MIRROR/debian"}' in caught.value.hint
    texts = {
        "usr/bin/mmdebstrap": "If no I<MIRROR> option is provided, L<http://one.example/debian> is used.\n",
        "usr/share/python-apt/templates/Debian.info": "Suite: a\nBaseURI: https://two.example/debian/\nBaseURI: x\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
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
