from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from drydock.config.mirrors import NONE, Mirrors, git_environment, read_mirrors, rewrite_url
from drydock.config.server_access import Access
from drydock.core.errors import FetchError, InputError
from drydock.inputs import debs, indexes
from drydock.inputs.downloads import Wanted, download_files
from drydock.inputs.fetch import _make_image_context
from drydock.inputs.git import network_environment, run_limited_git
from drydock.inputs.store import Store
from drydock.model.locked import LockedImageBase
from drydock.oci import image_layout

if TYPE_CHECKING:
    from tests.support.loopback import Loopback

TEXT = """\
schema: 1
registries:
  docker.io: mirror.example/hub
  registry.example/vendor: mirror.example:5000/vendor
git:
  https://git.example/: https://mirror.example/git/
indexes:
  default: https://mirror.example/simple
  https://index.example: https://mirror.example/index
  http://debian.example/debian: file:///mirror/debian
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "mirrors.yaml").write_text(TEXT)
    return {"DRYDOCK_MIRRORS": str(tmp_path / "mirrors.yaml"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}


def test_without_a_file_nothing_changes(tmp_path: Path) -> None:
    assert read_mirrors({"HOME": str(tmp_path)}) == NONE
    assert git_environment(NONE, {}) == {}


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_mirrors({"DRYDOCK_MIRRORS": str(tmp_path / "absent")})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://index.example/simple/torch/", "https://mirror.example/index/simple/torch/"),
        ("https://user:secret@index.example/simple", "https://mirror.example/index/simple"),
        ("https://index.example", "https://mirror.example/index"),
        ("https://index.example.org/simple", "https://index.example.org/simple"),
        ("http://debian.example/debian/pool/main/a_1%2b2.deb", "file:///mirror/debian/pool/main/a_1%2b2.deb"),
        ("http://debian.example/debian-security", "http://debian.example/debian-security"),
        ("/a/folder", "/a/folder"),
    ],
)
def test_a_prefix_ends_where_a_part_of_the_path_does(env: dict[str, str], url: str, expected: str) -> None:
    assert rewrite_url(url, read_mirrors(env).indexes) == expected


def test_the_longest_prefix_counts() -> None:
    assert (
        rewrite_url("https://a/b/c", {"https://a": "https://short", "https://a/b": "https://long"}) == "https://long/c"
    )


def test_a_base_that_is_here_is_taken_from_here(env: dict[str, str], tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(b"layer")
    new_layout = tmp_path / "made"
    digest = image_layout.write_layout(new_layout, layer, "linux/amd64", 0, "tests")
    folder = tmp_path / "store" / "images" / "linux-amd64" / digest.removeprefix("sha256:")
    folder.parent.mkdir(parents=True)
    new_layout.rename(folder)
    base = LockedImageBase(kind="image", reference="docker.io/a/b:1", digest=digest, verified=True, source="")
    assert _make_image_context(base, "linux/amd64", Store(tmp_path), env) == f"oci-layout://{folder}@{digest}"


def test_pips_indexes_are_asked_at_their_mirrors(env: dict[str, str]) -> None:
    assert indexes.read_indexes(env).main == "https://mirror.example/simple"
    pip_indexes = indexes.read_indexes({**env, "PIP_INDEX_URL": "https://user:secret@index.example/simple"})
    assert pip_indexes.main == "https://mirror.example/index/simple"
    assert indexes.make_index_access(pip_indexes, env).credentials == {}


def test_debian_is_fetched_from_its_mirror(env: dict[str, str]) -> None:
    debian_mirrors = debs.read_debian_mirrors({**env, "DRYDOCK_DEBIAN_MIRROR": "http://debian.example/debian"})
    assert debian_mirrors.main == ("file:///mirror/debian",)
    assert debian_mirrors.security == ("http://debian.example/debian-security",)


def test_a_file_that_an_index_names_elsewhere_comes_from_the_mirror(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    access = Access(mirrors={"https://files.example": tmp_path.as_uri()})
    sha256 = hashlib.sha256(b"wheel").hexdigest()
    download_files(store, [Wanted("a.whl", sha256, 5, ("https://files.example/a.whl",))], access)
    assert store.path(sha256).read_bytes() == b"wheel"


def test_a_mirrors_password_comes_from_netrc_and_goes_there_alone(
    store: Store, server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password hunter2\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.files["/a.whl"] = b"wheel"
    server.faults["/a.whl"] = ["403"]
    access = Access(mirrors={"https://files.example": server.url}, pause=0.01)
    wheels = [Wanted("a.whl", hashlib.sha256(b"wheel").hexdigest(), 5, ("https://files.example/a.whl",))]
    with pytest.raises(FetchError, match="answered 403") as caught:
        download_files(store, wheels, access)
    download_files(store, wheels, access)
    expected = f"Basic {base64.b64encode(b'someone:hunter2').decode()}"
    assert [authorization for _, _, authorization in server.requests] == [expected, expected]
    assert "hunter2" not in str(caught.value)


def test_git_goes_to_the_mirror(tmp_path: Path) -> None:
    origin = tmp_path / "mirror" / "a.git"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example", "-C", str(origin)]
    origin.mkdir(parents=True)
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    file = tmp_path / "mirrors.yaml"
    file.write_text(f"git: {{'https://git.invalid/': 'file://{tmp_path}/mirror/'}}\n")
    env = {"DRYDOCK_MIRRORS": str(file), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    assert b"HEAD" in run_limited_git(("ls-remote", "https://git.invalid/a.git"), "a", network_environment(env))


def test_git_configuration_that_the_environment_holds_stays() -> None:
    user_env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a.b", "GIT_CONFIG_VALUE_0": "c"}
    git_env = git_environment(Mirrors(git={"https://a/": "https://b/"}), user_env)
    assert git_env == {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_1": "url.https://b/.insteadOf",
        "GIT_CONFIG_VALUE_1": "https://a/",
    }


@pytest.mark.parametrize(
    "text",
    [
        "indexes: {default: 'https://user:hunter2@mirror.example/simple'}",
        "registries: {docker.io: 'user:hunter2@mirror.example'}",
        "git: {'https://user:hunter2@git.example/': 'https://mirror.example/'}",
        "indexs: 'https://user:hunter2@mirror.example'",
        "'https://user:hunter2@mirror.example': 1",
        "indexes: {default: 'ftp://user:hunt/er2@mirror.example/simple'}",
    ],
)
def test_a_password_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "mirrors.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_mirrors({"DRYDOCK_MIRRORS": str(tmp_path / "mirrors.yaml")})
    assert "er2" not in str(caught.value)
    assert "netrc" in str(caught.value) or "known" in str(caught.value) or "did you mean" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git: {'https://github.com/': git.internal/github}", "an address with https://, http:// or file://"),
        ("indexes: {default: mirror.internal/simple}", "an address with https://, http:// or file://"),
        ("registries: {docker.io: https://mirror.internal/hub}", "HOST[:PORT][/PATH] without https://"),
    ],
)
def test_a_wrong_scheme_is_not_blamed_on_credentials(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "mirrors.yaml").write_text(f"schema: 1\n{text}\n")
    with pytest.raises(InputError) as caught:
        read_mirrors({"DRYDOCK_MIRRORS": str(tmp_path / "mirrors.yaml")})

    assert f"expected {expected}" in caught.value.problems[0]
    assert "credentials" not in str(caught.value)


def test_a_file_of_the_home_folder_that_others_can_write_is_refused_and_a_named_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / ".config" / "drydock" / "mirrors.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("schema: 1\n")
    path.chmod(0o666)
    with pytest.raises(InputError, match=r"mirrors\.yaml: every user can write to it"):
        read_mirrors({"HOME": str(tmp_path)})
    assert read_mirrors({"DRYDOCK_MIRRORS": str(path)}) == NONE
