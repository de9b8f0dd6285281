from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from drydock.core.errors import FetchError, InputError
from drydock.inputs.store import Store
from drydock.inputs.uv import Candidate, Environment, ResolveRequest, parse_pylock
from drydock.inputs.wheels import (
    choose,
    environment,
    fetch_sdists,
    fetch_wheels,
    resolve_sdist,
    resolve_wheels,
    tags,
)
from drydock.model.bases import DebianBase, ImageBase
from drydock.model.locked import LockedWheel
from drydock.model.variant import PublicIndex

if TYPE_CHECKING:
    from tests.support.loopback import Loopback

TARGET = Environment("3.11", "x86_64", 36)
Wheel = Callable[..., tuple[str, bytes]]
Publish = Callable[..., None]


@pytest.fixture
def publish(server: Loopback, sha256: Callable[[bytes], str]) -> Publish:
    """Return a function that puts files on a simple index (PEP 503) of the loopback server."""

    def act(*files: tuple[str, bytes], index: str = "simple") -> None:
        for name, data in files:
            project = name.partition("-")[0].replace("_", "-")
            page = f"/{index}/{project}/"
            server.files[f"/{index}/files/{name}"] = data
            link = f'<a href="/{index}/files/{name}#sha256={sha256(data)}">{name}</a>\n'
            server.files[page] = server.files.get(page, b"") + link.encode()

    return act


@pytest.fixture
def env(server: Loopback, tmp_path: Path) -> dict[str, str]:
    """Return an environment in which pip uses only the loopback index."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return {
        **kept,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"{server.url}/simple",
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "NO_PROXY": "127.0.0.1",
    }


def _candidate(filename: str) -> Candidate:
    return Candidate("numpy", "2.0", filename, f"https://x.example/{filename}", "0" * 64)


def test_the_wheel_that_fits_best_is_chosen() -> None:
    names = [
        "numpy-2.0-py3-none-any.whl",
        "numpy-2.0-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "numpy-2.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "numpy-2.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "numpy-2.0-cp311-cp311-manylinux_2_39_x86_64.whl",
        "numpy-2.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "numpy-2.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    ]
    assert choose(map(_candidate, names), TARGET)[0].filename == names[2]


def test_no_fitting_wheel_is_an_error_with_a_hint() -> None:
    with pytest.raises(InputError, match="numpy: none of its wheels fits") as caught:
        choose([_candidate("numpy-2.0-cp312-cp312-manylinux_2_28_x86_64.whl")], TARGET)
    assert "exclude it" in caught.value.hint


def test_tags_go_from_the_glibc_of_the_base_down_to_manylinux1() -> None:
    platforms = [tag.platform for tag in tags(TARGET) if tag.interpreter == "cp311" and tag.abi == "cp311"]
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert platforms[-2:] == ["manylinux1_x86_64", "linux_x86_64"]


def test_the_base_determines_the_glibc() -> None:
    debian = DebianBase(kind="debian", suite="bookworm", packages=())
    ubuntu = ImageBase(kind="image", reference="registry.example/any:1", release="ubuntu:24.04")
    assert environment("3.11", "linux/amd64", debian) == TARGET
    assert environment("3.12", "linux/arm64", ubuntu) == Environment("3.12", "aarch64", 39)


def test_a_base_may_give_its_glibc() -> None:
    kylin = ImageBase(kind="image", reference="registry.example/kylin:v10", release="kylin:v10", glibc="2.28")
    assert environment("3.11", "linux/arm64", kylin) == Environment("3.11", "aarch64", 28)


def test_a_base_of_unknown_glibc_is_an_error() -> None:
    with pytest.raises(InputError, match=r"base 'alpine:3': unknown glibc version"):
        environment("3.11", "linux/amd64", ImageBase(kind="image", reference="alpine:3", release="alpine:3"))


def test_a_platform_that_uv_does_not_know_is_an_error(env: dict[str, str], store: Store) -> None:
    target = environment("3.11", "linux/s390x", DebianBase(kind="debian", suite="bookworm", packages=()))
    with pytest.raises(InputError, match="s390x: uv cannot resolve for this machine"):
        resolve_wheels(ResolveRequest(("app",)), target, store, env)


def test_names_in_a_pylock_are_normalised_and_unquoted() -> None:
    text = """
[[packages]]
name = "My_Torch"
version = "2.0+cpu"
wheels = [{ url = "file:///x/my_torch-2.0%2Bcpu-py3-none-any.whl", hashes = { sha256 = "HASH" } }]
""".replace("HASH", "ab" * 32)
    assert parse_pylock(text) == (
        Candidate(
            "my-torch",
            "2.0+cpu",
            "my_torch-2.0+cpu-py3-none-any.whl",
            "file:///x/my_torch-2.0%2Bcpu-py3-none-any.whl",
            "ab" * 32,
        ),
    )


def test_a_file_whose_index_publishes_no_hash_is_an_error() -> None:
    text = '[[packages]]\nname = "a"\nversion = "1"\nwheels = [{ url = "https://x.example/a-1-py3-none-any.whl" }]\n'
    with pytest.raises(InputError, match="a 1: its index publishes no sha256"):
        parse_pylock(text)


def test_requirements_become_pins_that_can_be_fetched(
    publish: Publish, env: dict[str, str], store: Store, make_wheel: Wheel, sha256: Callable[[bytes], str]
) -> None:
    app, lib = make_wheel("app", "1.0", "lib>=1"), make_wheel("lib", "1.5")
    publish(app, lib, make_wheel("lib", "0.9"))
    wheels = resolve_wheels(ResolveRequest(("app",)), TARGET, store, env)
    assert [(wheel.name, wheel.version, wheel.size) for wheel in wheels] == [
        ("app", "1.0", len(app[1])),
        ("lib", "1.5", len(lib[1])),
    ]
    assert not store.has(sha256(lib[1]))
    fetch_wheels(wheels, TARGET, store, env)
    assert store.path(sha256(lib[1])).read_bytes() == lib[1]


def test_a_source_distribution_is_pinned_without_building_it(
    publish: Publish, env: dict[str, str], store: Store, tmp_path: Path
) -> None:
    archive = tmp_path / "app-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("app-1.0/setup.py"))
    publish((archive.name, archive.read_bytes()))
    pin = resolve_sdist("app==1.0", TARGET, store, env)
    fetch_sdists((pin,), TARGET, store, env)

    assert (pin.name, pin.version, pin.filename, pin.size) == ("app", "1.0", archive.name, archive.stat().st_size)
    assert store.has(pin.sha256, pin.size)


def test_dependencies_of_an_excluded_distribution_are_excluded_too(
    publish: Publish, env: dict[str, str], store: Store, make_wheel: Wheel
) -> None:
    publish(make_wheel("app", "1.0", "triton", "lib"), make_wheel("triton", "3.0", "huge"), make_wheel("huge", "1.0"))
    publish(make_wheel("lib", "1.0"))
    wheels = resolve_wheels(ResolveRequest(("app",), exclude=("triton",)), TARGET, store, env)
    assert [wheel.name for wheel in wheels] == ["app", "lib"]


def test_an_override_wins_over_the_dependency_of_a_distribution(
    publish: Publish, env: dict[str, str], store: Store, make_wheel: Wheel
) -> None:
    publish(make_wheel("app", "1.0", "lib==1.0"), make_wheel("lib", "1.0"), make_wheel("lib", "2.0"))
    wheels = resolve_wheels(ResolveRequest(("app",), overrides=("lib==2.0",)), TARGET, store, env)
    assert [wheel.version for wheel in wheels if wheel.name == "lib"] == ["2.0"]


def test_packages_installed_on_this_machine_do_not_matter(
    publish: Publish, env: dict[str, str], store: Store, make_wheel: Wheel
) -> None:
    publish(make_wheel("app", "1.0", "packaging"), make_wheel("packaging", "0.1"))
    wheels = resolve_wheels(ResolveRequest(("app",)), TARGET, store, env)
    assert [wheel.version for wheel in wheels] == ["1.0", "0.1"]


def test_a_source_distribution_is_named_and_never_built(publish: Publish, env: dict[str, str], store: Store) -> None:
    publish(("old-1.0.tar.gz", b"not even a tar file"))
    with pytest.raises(InputError, match=r"old==1\.0") as caught:
        resolve_wheels(ResolveRequest(("old==1.0",)), TARGET, store, env)
    assert "source distributions are not built" in caught.value.hint


def test_a_requirement_that_no_index_has_hints_at_pips_configuration(
    publish: Publish, env: dict[str, str], store: Store, make_wheel: Wheel
) -> None:
    publish(make_wheel("torch", "2.13.0"))
    with pytest.raises(InputError, match=r"torch==2\.13\.0\+cpu") as caught:
        resolve_wheels(ResolveRequest(("torch==2.13.0+cpu",)), TARGET, store, env)
    assert "PIP_FIND_LINKS" in caught.value.hint


def test_a_folder_of_pips_find_links_is_used(
    publish: Publish, env: dict[str, str], store: Store, make_wheel: Wheel, tmp_path: Path
) -> None:
    publish(make_wheel("torch", "2.13.0"))
    name, data = make_wheel("torch", "2.13.0+cpu")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / name).write_bytes(data)
    folder = {**env, "PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_EXTRA_INDEX_URL": f"file://{tmp_path}/nothing"}
    wheels = resolve_wheels(ResolveRequest(("torch==2.13.0+cpu",)), TARGET, store, folder)
    assert [(wheel.filename, wheel.size) for wheel in wheels] == [(name, len(data))]


def test_error_messages_do_not_contain_the_password_of_an_index(
    env: dict[str, str], store: Store, server: Loopback
) -> None:
    secret = {**env, "PIP_INDEX_URL": f"{server.url.replace('//', '//user:s3cret@')}/simple"}
    with pytest.raises(InputError) as caught:
        resolve_wheels(ResolveRequest(("app",)), TARGET, store, secret)
    assert "s3cret" not in str(caught.value)


def test_the_password_of_an_index_is_sent_for_its_files(
    publish: Publish, env: dict[str, str], store: Store, make_wheel: Wheel, server: Loopback
) -> None:
    publish(make_wheel("app", "1.0"))
    secret = {**env, "PIP_INDEX_URL": f"{server.url.replace('//', '//user:s3cret@')}/simple"}
    resolve_wheels(ResolveRequest(("app",)), TARGET, store, secret)
    files = [authorization for path, _, authorization in server.requests if path.endswith(".whl")]
    assert files
    assert set(files) == {"Basic dXNlcjpzM2NyZXQ="}


def _locked(wheel: tuple[str, bytes], sha256: Callable[[bytes], str]) -> LockedWheel:
    name, version = wheel[0].split("-")[:2]
    return LockedWheel(name=name, version=version, filename=wheel[0], size=len(wheel[1]), sha256=sha256(wheel[1]))


def test_locked_wheels_are_found_by_hash_even_if_another_index_hides_them(
    publish: Publish,
    env: dict[str, str],
    store: Store,
    make_wheel: Wheel,
    server: Loopback,
    sha256: Callable[[bytes], str],
) -> None:
    pinned, other, plain = make_wheel("app", "1.0"), make_wheel("app", "1.0", content="other"), make_wheel("lib", "1.0")
    publish(pinned, plain)
    publish(other, index="first")
    both = {**env, "PIP_EXTRA_INDEX_URL": f"{server.url}/first"}
    fetch_wheels([_locked(pinned, sha256), _locked(plain, sha256)], TARGET, store, both)
    assert store.path(sha256(pinned[1])).read_bytes() == pinned[1]


def test_all_locked_wheels_that_no_index_has_are_named(
    publish: Publish, env: dict[str, str], store: Store, make_wheel: Wheel, sha256: Callable[[bytes], str]
) -> None:
    present, gone, changed = make_wheel("app", "1.0"), make_wheel("gone", "1.0"), make_wheel("lib", "1.0")
    publish(present, make_wheel("lib", "1.0", content="other bytes"))
    with pytest.raises(FetchError) as caught:
        fetch_wheels([_locked(wheel, sha256) for wheel in (present, gone, changed)], TARGET, store, env)
    assert [problem.partition(" ")[0] for problem in caught.value.problems] == [gone[0], changed[0]]
    assert "PIP_EXTRA_INDEX_URL" in caught.value.hint


# --- one index for a package ----------------------------------------------------------------------------------------

BUILDS = PublicIndex(url="https://builds.example/whl/cpu", packages=("torch",), source="its publisher")


@pytest.fixture
def with_builds(env: dict[str, str], server: Loopback, tmp_path: Path) -> dict[str, str]:
    """Return an environment in which a folder of the loopback server stands for the index of BUILDS."""
    (tmp_path / "mirrors.yaml").write_text(f'schema: 1\nindexes: {{"{BUILDS.url}": "{server.url}/builds"}}\n')
    return {**env, "DRYDOCK_MIRRORS": str(tmp_path / "mirrors.yaml")}


def _asked(server: Loopback, index: str) -> set[str]:
    """Return the projects that somebody asked an index for."""
    paths = (path for path, *_ in server.requests)
    return {path.split("/")[2] for path in paths if path.startswith(f"/{index}/") and path.endswith("/")}


@pytest.mark.attack(
    what="an extra index offers a higher version of a package that the main index has",
    before="lock pinned the extra index's version",
    after="lock pins the main index's version: a package comes from the first index that has it",
)
def test_an_extra_index_cannot_replace_a_package_of_the_main_index(
    publish: Publish, env: dict[str, str], store: Store, make_wheel: Wheel, server: Loopback
) -> None:
    publish(make_wheel("app", "1.0", "lib"), make_wheel("lib", "1.0"))
    publish(make_wheel("lib", "99.0"), make_wheel("more", "1.0"), index="hostile")
    both = {**env, "PIP_EXTRA_INDEX_URL": f"{server.url}/hostile"}
    wheels = resolve_wheels(ResolveRequest(("app", "more")), TARGET, store, both)
    assert [(wheel.name, wheel.version) for wheel in wheels] == [("app", "1.0"), ("lib", "1.0"), ("more", "1.0")]


@pytest.mark.attack(
    what="the public index of a package also offers other packages, in higher versions",
    before="with that index as an extra index, lock pinned its versions of all packages",
    after="lock and fetch ask it for the packages that the stack names, and for nothing else",
)
def test_only_its_own_packages_come_from_a_public_index(
    publish: Publish, with_builds: dict[str, str], store: Store, make_wheel: Wheel, server: Loopback
) -> None:
    built = make_wheel("torch", "2.0+cpu", "lib")
    publish(make_wheel("app", "1.0", "torch"), make_wheel("lib", "1.0"), make_wheel("torch", "2.0"))
    publish(built, make_wheel("lib", "99.0"), index="builds")
    request = ResolveRequest(("app", "torch==2.0+cpu"), public=(BUILDS,))
    wheels = resolve_wheels(request, TARGET, store, with_builds)
    assert [(wheel.name, wheel.version) for wheel in wheels] == [("app", "1.0"), ("lib", "1.0"), ("torch", "2.0+cpu")]
    fetch_wheels(wheels, TARGET, store, with_builds, (BUILDS,))
    assert store.path(wheels[2].sha256).read_bytes() == built[1]
    assert _asked(server, "builds") == {"torch"}


def test_an_override_comes_from_the_public_index_too(
    publish: Publish, with_builds: dict[str, str], store: Store, make_wheel: Wheel
) -> None:
    publish(make_wheel("app", "1.0", "torch==1.0"), make_wheel("torch", "2.0"))
    publish(make_wheel("torch", "2.0+cpu"), make_wheel("torch", "9.0+cpu"), index="builds")
    overrides = ("torch==2.0+cpu; platform_machine == 'x86_64'", "torch==2.0; platform_machine != 'x86_64'")
    request = ResolveRequest(("app",), overrides, public=(BUILDS,))
    assert [wheel.version for wheel in resolve_wheels(request, TARGET, store, with_builds)] == ["1.0", "2.0+cpu"]
    other = Environment("3.11", "aarch64", 36)
    assert [wheel.version for wheel in resolve_wheels(request, other, store, with_builds)] == ["1.0", "2.0"]


def test_what_only_a_package_of_the_public_index_asks_for_comes_from_there_if_the_stack_says_so(
    publish: Publish, with_builds: dict[str, str], store: Store, make_wheel: Wheel
) -> None:
    publish(make_wheel("app", "1.0", "torch"), make_wheel("torch", "2.0"), make_wheel("kernels", "0.0"))
    publish(make_wheel("torch", "2.0+cpu", "kernels==1.0"), make_wheel("kernels", "1.0"), index="builds")
    index = BUILDS.model_copy(update={"packages": ("torch", "kernels")})
    wheels = resolve_wheels(ResolveRequest(("app", "torch==2.0+cpu"), public=(index,)), TARGET, store, with_builds)
    assert [(wheel.name, wheel.version) for wheel in wheels] == [
        ("app", "1.0"),
        ("kernels", "1.0"),
        ("torch", "2.0+cpu"),
    ]
    assert resolve_wheels(ResolveRequest(("app",), public=(index,)), TARGET, store, with_builds)[1].version == "2.0"


@pytest.mark.parametrize("place", ["simple", "extra", "folder"])
def test_the_machines_own_configuration_is_tried_before_the_public_index(  # noqa: PLR0913, PLR0917 - fixtures
    place: str,
    publish: Publish,
    with_builds: dict[str, str],
    store: Store,
    make_wheel: Wheel,
    server: Loopback,
    tmp_path: Path,
) -> None:
    own, name = make_wheel("torch", "2.0+cpu", content="own"), "torch==2.0+cpu"
    publish(make_wheel("torch", "2.0"))
    publish(make_wheel("torch", "2.0+cpu"), index="builds")
    if place == "folder":
        (tmp_path / "wheels").mkdir()
        (tmp_path / "wheels" / own[0]).write_bytes(own[1])
    else:
        publish(own, index=place)
    configured = {"PIP_FIND_LINKS": str(tmp_path / "wheels")} if place == "folder" else {}
    configured |= {"PIP_EXTRA_INDEX_URL": f"{server.url}/extra"} if place == "extra" else {}
    env = {**with_builds, **configured}
    wheels = resolve_wheels(ResolveRequest((name,), public=(BUILDS,)), TARGET, store, env)
    fetch_wheels(wheels, TARGET, store, env, (BUILDS,))
    assert store.path(wheels[0].sha256).read_bytes() == own[1]
    assert not _asked(server, "builds")


def test_a_public_index_that_lacks_a_package_is_named_with_the_lines_to_set(
    publish: Publish, with_builds: dict[str, str], store: Store, make_wheel: Wheel, sha256: Callable[[bytes], str]
) -> None:
    publish(make_wheel("torch", "2.0"))
    with pytest.raises(InputError, match=r"torch==3\.0.*https://builds\.example/whl/cpu lacks it") as caught:
        resolve_wheels(ResolveRequest(("torch==3.0",), public=(BUILDS,)), TARGET, store, with_builds)
    assert with_builds["DRYDOCK_MIRRORS"] in caught.value.hint
    assert '  indexes: {"https://builds.example/whl/cpu": "https://MIRROR"}' in caught.value.hint.splitlines()
    assert "pip config set global.extra-index-url https://MIRROR" in caught.value.hint
    pin = _locked(make_wheel("torch", "3.0"), sha256)
    with pytest.raises(FetchError, match=r"torch-3\.0.*https://builds\.example/whl/cpu lacks it") as caught_again:
        fetch_wheels([pin], TARGET, store, with_builds, (BUILDS,))
    assert caught_again.value.hint == caught.value.hint
