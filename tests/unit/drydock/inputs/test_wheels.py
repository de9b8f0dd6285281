from __future__ import annotations

import io
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from drydock.core.errors import FetchError, GoneError, IndexFailedError, InputError, NetworkSettingsError
from drydock.inputs.store import Store
from drydock.inputs.uv import Candidate, Environment, ResolveRequest, parse_pylock
from drydock.inputs.wheels import (
    choose_wheels,
    fetch_sdists,
    fetch_wheels,
    find_image_environment,
    list_wheel_tags,
    read_code,
    resolve_sdist,
    resolve_wheels,
)
from drydock.model.bases import DebianBase, ImageBase
from drydock.model.locked import LockedWheel
from drydock.model.variant import PublicIndex
from tests.support.hashes import sha256
from tests.unit.drydock.lock.test_code_lists import make_cubin

if TYPE_CHECKING:
    from tests.support.loopback import Loopback

TARGET = Environment("3.11", "x86_64", 36)
Wheel = tuple[str, bytes]


class Site:
    """A simple index (PEP 503) on the loopback server, and a machine whose pip uses it alone."""

    def __init__(self, server: Loopback, folder: Path, make_wheel: Callable[..., Wheel]) -> None:
        self.server, self.wheel, self.folder, self.store = server, make_wheel, folder, Store(folder / "cache")
        clean_env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        self.env = {**clean_env, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{server.url}/simple",
                    "UV_CACHE_DIR": str(folder / "uv"), "NO_PROXY": "127.0.0.1"}  # fmt: skip

    def publish(self, *files: Wheel, index: str = "simple", yanked: str | None = None) -> None:
        """Put files on an index, withdrawn for a reason if one is given."""
        mark = "" if yanked is None else f' data-yanked="{yanked}"'
        for name, data in files:
            page = f"/{index}/{name.partition('-')[0].replace('_', '-')}/"
            self.server.files[f"/{index}/files/{name}"] = data
            link = f'<a href="/{index}/files/{name}#sha256={sha256(data)}"{mark}>{name}</a>\n'
            self.server.files[page] = self.server.files.get(page, b"") + link.encode()

    def resolve(self, *requirements: str, target: Environment = TARGET, **more: Any) -> tuple[LockedWheel, ...]:
        return resolve_wheels(ResolveRequest(requirements, **more), target, self.store, self.env)

    def versions(self, *requirements: str, **more: Any) -> dict[str, str]:
        """Return what requirements become: name → version."""
        return {wheel.name: wheel.version for wheel in self.resolve(*requirements, **more)}

    def fetch(self, *wheels: LockedWheel, public: tuple[PublicIndex, ...] = ()) -> None:
        fetch_wheels(wheels, TARGET, self.store, self.env, public)

    def log_in(self) -> None:
        """Give pip's index a password."""
        self.env["PIP_INDEX_URL"] = f"{self.server.url.replace('//', '//user:s3cret@')}/simple"

    def asked(self, index: str) -> set[str]:
        """Return the projects that somebody asked an index for."""
        paths = (path for path, *_ in self.server.requests)
        return {path.split("/")[2] for path in paths if path.startswith(f"/{index}/") and path.endswith("/")}


@pytest.fixture
def site(server: Loopback, tmp_path: Path, make_wheel: Callable[..., Wheel]) -> Site:
    return Site(server, tmp_path, make_wheel)


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
    assert choose_wheels(map(_candidate, names), TARGET)[0].filename == names[2]


def test_of_the_same_tags_the_highest_build_number_is_chosen() -> None:
    builds = ["", "-2", "-10", "-9x", "-10a"]
    names = [f"numpy-2.0{build}-cp311-cp311-manylinux_2_28_x86_64.whl" for build in builds]
    for count, expected in ((1, ""), (2, "-2"), (3, "-10"), (4, "-10"), (5, "-10a")):
        chosen = choose_wheels(map(_candidate, reversed(names[:count])), TARGET)[0]
        assert chosen.filename == f"numpy-2.0{expected}-cp311-cp311-manylinux_2_28_x86_64.whl"
    better = "numpy-2.0-cp311-cp311-manylinux_2_34_x86_64.whl"
    assert choose_wheels(map(_candidate, (*names, better)), TARGET)[0].filename == better


@pytest.mark.parametrize("reason", ["broken kernels", ""])
def test_a_yanked_file_is_chosen_only_if_no_other_one_fits(reason: str) -> None:
    best = _candidate("numpy-2.0-1-cp311-cp311-manylinux_2_28_x86_64.whl")._replace(yanked=reason)
    usable = _candidate("numpy-2.0-py3-none-any.whl")
    foreign = _candidate("numpy-2.0-cp312-cp312-manylinux_2_28_x86_64.whl")
    assert choose_wheels([best, usable, foreign], TARGET) == (usable,)
    assert choose_wheels([best, foreign], TARGET) == (best,)


def test_no_fitting_wheel_is_an_error_with_a_hint() -> None:
    with pytest.raises(InputError, match="numpy: none of its wheels fits") as caught:
        choose_wheels([_candidate("numpy-2.0-cp312-cp312-manylinux_2_28_x86_64.whl")], TARGET)
    assert "exclude it" in caught.value.hint


def test_tags_go_from_the_glibc_of_the_base_down_to_manylinux1() -> None:
    platforms = [tag.platform for tag in list_wheel_tags(TARGET) if tag.interpreter == "cp311" and tag.abi == "cp311"]
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert platforms[-2:] == ["manylinux1_x86_64", "linux_x86_64"]


def test_the_base_determines_the_glibc_or_gives_it() -> None:
    debian = DebianBase(kind="debian", suite="bookworm", packages=())
    ubuntu = ImageBase(kind="image", reference="registry.example/any:1", release="ubuntu:24.04")
    kylin = ubuntu.model_copy(update={"release": "kylin:v10", "glibc": "2.28"})
    assert find_image_environment("3.11", "linux/amd64", debian) == TARGET
    assert find_image_environment("3.12", "linux/arm64", ubuntu) == Environment("3.12", "aarch64", 39)
    assert find_image_environment("3.11", "linux/arm64", kylin) == Environment("3.11", "aarch64", 28)


def test_a_base_of_unknown_glibc_is_an_error() -> None:
    for release, problem in (("arch:1", "unknown glibc version"), ("alpine:3", "has musl instead of glibc")):
        base = ImageBase(kind="image", reference=release, release=release)
        with pytest.raises(InputError, match=f"base '{release}': {problem}") as caught:
            find_image_environment("3.11", "linux/amd64", base)
        assert ("add `glibc`" in caught.value.hint) == (release == "arch:1")


def test_a_platform_that_uv_does_not_know_is_an_error(site: Site) -> None:
    target = find_image_environment("3.11", "linux/s390x", DebianBase(kind="debian", suite="bookworm", packages=()))
    with pytest.raises(InputError, match="s390x: uv cannot resolve for this machine"):
        site.resolve("app", target=target)


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


def test_requirements_become_pins_that_can_be_fetched(site: Site) -> None:
    app, lib = site.wheel("app", "1.0", "lib>=1"), site.wheel("lib", "1.5")
    site.publish(app, lib, site.wheel("lib", "0.9"))
    wheels = site.resolve("app")
    assert [(wheel.name, wheel.version, wheel.size) for wheel in wheels] == [
        ("app", "1.0", len(app[1])),
        ("lib", "1.5", len(lib[1])),
    ]
    assert not site.store.has(sha256(lib[1]))
    site.fetch(*wheels)
    assert site.store.path(sha256(lib[1])).read_bytes() == lib[1]


def test_a_yanked_file_is_left_for_another_one_of_its_version(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.publish(site.wheel("app", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64"), yanked="broken kernels")
    site.publish(site.wheel("app", "1.0"), site.wheel("app", "0.9"))
    for requirement in ("app", "app==1.0"):
        assert [wheel.filename for wheel in site.resolve(requirement)] == ["app-1.0-py3-none-any.whl"]
    assert "yanked" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reason", "reason_text"),
    [
        ("a security hole", ": a security hole"),
        ("", ", without a reason"),
        ("two\nlines\x1b[2J", r": two\nlines\u001b[2J"),
    ],
)
def test_a_yanked_version_that_is_pinned_is_taken_with_a_warning(
    reason: str, reason_text: str, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.publish(site.wheel("app", "1.1"), yanked=reason)
    site.publish(site.wheel("app", "1.0"))
    assert site.versions("app") == {"app": "1.0"}
    assert site.versions("app==1.1") == {"app": "1.1"}
    warning = f"warning: app 1.1 was yanked{reason_text} (app-1.1-py3-none-any.whl)"
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith(warning)]


@pytest.mark.parametrize("requirement", ["app>=1.1", "other"])
def test_a_version_that_only_a_yanked_one_satisfies_is_explained(requirement: str, site: Site) -> None:
    site.publish(site.wheel("app", "1.1"), yanked="a security hole")
    site.publish(site.wheel("other", "1.0", "app==1.1"))
    with pytest.raises(InputError, match="was yanked") as error:
        site.resolve(requirement)
    assert "name it with `==`" in error.value.hint
    assert "PIP_INDEX_URL" not in error.value.hint
    assert site.versions("other", "app==1.1") == {"other": "1.0", "app": "1.1"}


def test_wheels_of_one_layer_with_the_same_path_are_named(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = site.wheel("one", "1.0"), site.wheel("two", "1.0")
    site.publish(_with_file(one, "shared.py"), _with_file(two, "shared.py"))
    assert site.versions("one", "two") == {"one": "1.0", "two": "1.0"}
    warning = "one-1.0-py3-none-any.whl and two-1.0-py3-none-any.whl: each installs its own site-packages/shared.py"
    assert warning in capsys.readouterr().err
    assert site.versions("one", "two", layers=(("one",), ())) == {"one": "1.0", "two": "1.0"}
    assert "each installs" not in capsys.readouterr().err


def test_a_wheel_whose_metadata_has_another_version_is_refused(site: Site) -> None:
    _, data = site.wheel("app", "1.0")
    for name in ("app-1.0+cu130-py3-none-any.whl", "app-1.0.0-py3-none-any.whl"):
        site.publish((name, data))
    with pytest.raises(InputError, match=r"app-1\.0\+cu130-py3-none-any\.whl: its METADATA has version 1\.0, expected"):
        site.resolve("app==1.0+cu130")
    assert [wheel.filename for wheel in site.resolve("app<1.0.1", "app!=1.0+cu130")] == ["app-1.0.0-py3-none-any.whl"]


def test_a_wheel_whose_server_sends_no_ranges_is_fetched_at_once(site: Site) -> None:
    app = site.wheel("app", "1.0")
    site.publish(app)
    site.server.faults["/simple/files/app-1.0-py3-none-any.whl"] = ["no range"] * 99
    assert site.versions("app") == {"app": "1.0"}
    assert site.store.has(sha256(app[1]))


@pytest.mark.parametrize("sends_ranges", [True, False])
def test_the_code_of_a_wheel_is_read_on_its_server_and_stored_only_if_it_sends_no_ranges(
    site: Site, *, sends_ranges: bool
) -> None:
    wheel = _with_file(site.wheel("app", "1.0"), "app/kernels.cubin", make_cubin(8, 0x06005A04))
    site.publish(wheel)
    site.server.faults[f"/simple/files/{wheel[0]}"] = [] if sends_ranges else ["no range"] * 9
    code = read_code(_locked(wheel), TARGET, site.store, site.env)
    assert {path: dict(its.counts) for path, its in code.items()} == {"app/kernels.cubin": {"sm_90": 1}}
    assert site.store.has(sha256(wheel[1])) is not sends_ranges


@pytest.mark.parametrize("status", ["429", "503", "509"])
def test_an_index_that_is_busy_is_asked_again(status: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drydock.core.http.time.sleep", lambda _: None)
    site.publish(site.wheel("app", "1.0"))
    site.server.faults["/simple/app/"] = [status] * 5
    assert site.versions("app") == {"app": "1.0"}


def test_an_index_that_stays_busy_is_named_with_its_status(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drydock.core.http.time.sleep", lambda _: None)
    site.publish(site.wheel("app", "1.0"))
    site.server.faults["/simple/app/"] = ["429"] * 99
    with pytest.raises(IndexFailedError, match="429 Too Many Requests"):
        site.resolve("app")


def test_certificates_that_are_not_there_are_an_error_before_uv_goes_on_without(site: Site, tmp_path: Path) -> None:
    site.publish(site.wheel("app", "1.0"))
    for name in ("PIP_CERT", "PIP_CLIENT_CERT", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        env = {key: value for key, value in site.env.items() if key not in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
        with pytest.raises(NetworkSettingsError, match=f"{name}={tmp_path}/none: "):
            resolve_wheels(ResolveRequest(("app",)), TARGET, site.store, {**env, name: f"{tmp_path}/none"})


def _with_file(wheel: Wheel, path: str, content: bytes = b"") -> Wheel:
    """Return a wheel with one more file, whose content is the wheel's name if none is given."""
    name, data = wheel
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(path, content or name)
    return name, buffer.getvalue()


def test_a_source_distribution_is_pinned_without_building_it(site: Site, tmp_path: Path) -> None:
    archive = tmp_path / "app-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("app-1.0/setup.py"))
    site.publish((archive.name, archive.read_bytes()))
    pin = resolve_sdist("app==1.0", TARGET, site.store, site.env)
    fetch_sdists((pin,), TARGET, site.store, site.env)

    assert (pin.name, pin.version, pin.filename, pin.size) == ("app", "1.0", archive.name, archive.stat().st_size)
    assert site.store.has(pin.sha256, pin.size)


def test_dependencies_of_an_excluded_distribution_are_excluded_too(site: Site) -> None:
    site.publish(site.wheel("app", "1.0", "triton", "lib"), site.wheel("triton", "3.0", "huge"))
    site.publish(site.wheel("huge", "1.0"), site.wheel("lib", "1.0"))
    assert site.versions("app", exclude=("triton",)) == {"app": "1.0", "lib": "1.0"}


def test_what_a_distribution_requires_that_is_built_from_source_is_pinned(site: Site) -> None:
    site.publish(site.wheel("app", "1.0", "lib"), site.wheel("lib", "1.0"))
    assert site.versions("app", built=("app",)) == {"lib": "1.0"}


def test_an_override_wins_over_the_dependency_of_a_distribution(site: Site) -> None:
    site.publish(site.wheel("app", "1.0", "lib==1.0"), site.wheel("lib", "1.0"), site.wheel("lib", "2.0"))
    assert site.versions("app", overrides=("lib==2.0",)) == {"app": "1.0", "lib": "2.0"}


def test_packages_installed_on_this_machine_do_not_matter(site: Site) -> None:
    site.publish(site.wheel("app", "1.0", "packaging"), site.wheel("packaging", "0.1"))
    assert site.versions("app") == {"app": "1.0", "packaging": "0.1"}


@pytest.mark.parametrize(
    ("requirements", "problem", "hint"),
    [
        (("lib>=2,<1",), "are incompatible", "no index helps: change the requirement"),
        (("asks-old", "asks-new"), "are incompatible", "no index helps: change the requirement"),
        (("lib==3",), "no version of lib==3", "add an index"),
        (("asks-new", "lib<3"), "depends? on lib>2", "add an index"),
        (("far",), "included as a URL dependency.$", "a stack takes nothing from an address"),
        (
            ("newer-glibc",),
            r"need glibc 2\.39 or later, and the row's base has glibc 2\.36",
            "the stack's `python` or `base`",
        ),
        (("asks-glibc",), r"^newer-glibc: no wheel fits: they need glibc 2\.39", "the stack's `python` or `base`"),
        (("arm",), "are for manylinux_2_28_aarch64, and the row is for x86_64", "the row's `platforms`"),
        (("free",), r"are for cp313-cp313t, and the row's Python is 3\.11", "the stack's `python` or `base`"),
    ],
)
def test_the_hint_follows_the_cause(requirements: tuple[str, ...], problem: str, hint: str, site: Site) -> None:
    site.publish(*(site.wheel("lib", version) for version in ("0.9", "2.0")))
    site.publish(site.wheel("asks_old", "1.0", "lib<1"), site.wheel("asks_new", "1.0", "lib>2"))
    site.publish(site.wheel("far", "1.0", "lib @ git+https://x.example/y.git"))
    site.publish(site.wheel("newer_glibc", "1.0", tag="cp311-cp311-manylinux_2_39_x86_64"))
    site.publish(site.wheel("asks_glibc", "1.0", "newer-glibc"))
    site.publish(site.wheel("arm", "1.0", tag="cp311-cp311-manylinux_2_28_aarch64"))
    site.publish(site.wheel("free", "1.0", tag="cp313-cp313t-manylinux_2_28_x86_64"))
    with pytest.raises(InputError) as caught:
        site.resolve(*requirements)
    assert re.search(problem, "\n".join(caught.value.problems), re.MULTILINE)
    assert hint in caught.value.hint


def test_a_login_page_is_no_package_without_versions(site: Site) -> None:
    site.server.files["/simple/app/"] = b"<html><body><form action=login></form></body></html>"
    with pytest.raises(IndexFailedError, match=r"app: a page of an index .* has no file; a login"):
        site.resolve("app")


def test_a_version_that_excludes_the_rows_python_is_left_for_an_older_one_as_pip_does(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.publish(site.wheel("app", "1.0", python="<3.11"), site.wheel("app", "0.9", python=">=3.9,!=3.11.0"))
    site.publish(site.wheel("app", "0.8"), site.wheel("user", "1.0", "app"))
    assert site.versions("user") == {"app": "0.9", "user": "1.0"}
    assert "not taken: app 1.0 requires Python <3.11, and the row has 3.11\n" in capsys.readouterr().err
    with pytest.raises(InputError) as caught:
        site.resolve("app==1.0")
    assert caught.value.problems[0] == "app 1.0 requires Python <3.11, and the row has 3.11"
    assert "change `python` of the stack" in caught.value.hint


def test_no_choice_is_silent(site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    site.publish(site.wheel("app", "1.0", tag="cp311-cp311-manylinux_2_39_x86_64"), site.wheel("app", "0.9", "lib<2"))
    site.publish(*(site.wheel("lib", version) for version in ("1.0", "2.0")))
    site.publish(site.wheel("app", "3.0"), index="second")
    site.env |= {"PIP_EXTRA_INDEX_URL": f"{site.server.url}/second", "PIP_CONSTRAINT": str(tmp_path / "pins.txt")}
    (tmp_path / "pins.txt").write_text("lib==0.5\n")
    assert site.versions("app", exclude=("trition",)) == {"app": "0.9", "lib": "1.0"}
    lines = capsys.readouterr().err.splitlines()
    assert "app 0.9: the index has 1.0, but no wheel that fits: they need glibc 2.39 or later" in "\n".join(lines)
    assert [line for line in lines if line.startswith("lib 1.0: ")] == []
    assert f"with that name too, but not asked: {site.server.url}/second" in "\n".join(lines)
    assert "warning: exclude: no package of the image requires trition" in lines
    assert f"warning: {tmp_path}/pins.txt: pip's constraints" in "\n".join(lines)


def test_a_source_distribution_is_named_and_never_built(site: Site) -> None:
    site.publish(("old-1.0.tar.gz", b"not even a tar file"))
    with pytest.raises(InputError, match=r"old==1\.0") as caught:
        site.resolve("old==1.0")
    assert "source distributions are not built" in caught.value.hint


def test_a_requirement_that_no_index_has_hints_at_pips_configuration(site: Site) -> None:
    site.publish(site.wheel("torch", "2.13.0"))
    with pytest.raises(InputError, match=r"torch==2\.13\.0\+cpu") as caught:
        site.resolve("torch==2.13.0+cpu")
    assert "PIP_FIND_LINKS" in caught.value.hint


def test_an_index_that_does_not_exist_hides_no_folder_of_wheels(site: Site, tmp_path: Path) -> None:
    site.publish(site.wheel("torch", "2.13.0"))
    name, data = site.wheel("torch", "2.13.0+cpu")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / name).write_bytes(data)
    site.env |= {"PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_EXTRA_INDEX_URL": f"file://{tmp_path}/nothing"}
    assert [(wheel.filename, wheel.size) for wheel in site.resolve("torch==2.13.0+cpu")] == [(name, len(data))]


def test_error_messages_do_not_contain_the_password_of_an_index(site: Site) -> None:
    site.log_in()
    with pytest.raises(InputError) as caught:
        site.resolve("app")
    assert "s3cret" not in str(caught.value)


def test_the_password_of_an_index_is_sent_for_its_files(site: Site) -> None:
    site.publish(site.wheel("app", "1.0"))
    site.log_in()
    site.resolve("app")
    files = [authorization for path, _, authorization in site.server.requests if path.endswith(".whl")]
    assert files
    assert set(files) == {"Basic dXNlcjpzM2NyZXQ="}


def _locked(wheel: Wheel) -> LockedWheel:
    name, version = wheel[0].split("-")[:2]
    return LockedWheel(name=name, version=version, filename=wheel[0], size=len(wheel[1]), sha256=sha256(wheel[1]))


def test_locked_wheels_are_found_by_hash_even_if_another_index_hides_them(site: Site) -> None:
    pinned, twin, plain = site.wheel("app", "1.0"), site.wheel("app", "1.0", content="other"), site.wheel("lib", "1.0")
    site.publish(pinned, plain)
    site.publish(twin, index="first")
    site.env["PIP_EXTRA_INDEX_URL"] = f"{site.server.url}/first"
    site.fetch(_locked(pinned), _locked(plain))
    assert site.store.path(sha256(pinned[1])).read_bytes() == pinned[1]


def test_all_locked_wheels_that_no_index_has_are_named(site: Site) -> None:
    present, missing, changed = (site.wheel(name, "1.0") for name in ("app", "gone", "lib"))
    site.publish(present, site.wheel("lib", "1.0", content="other bytes"))
    with pytest.raises(FetchError) as caught:
        site.fetch(*map(_locked, (present, missing, changed)))
    assert [problem.partition(" ")[0] for problem in caught.value.problems] == [missing[0], changed[0]]
    assert "PIP_EXTRA_INDEX_URL" in caught.value.hint


@pytest.mark.parametrize("status", [401, 403, 503])
def test_an_index_that_refuses_is_named_and_not_asked_for_each_wheel(status: int, site: Site) -> None:
    wheels = [site.wheel(f"app{number}", "1.0") for number in range(9)]
    for number in range(9):
        site.server.faults[f"/simple/app{number}/"] = [str(status)] * 9
    with pytest.raises(IndexFailedError) as caught:
        site.fetch(*map(_locked, wheels))
    refused, not_found = caught.value.problems
    assert f"{site.server.url}/simple" in refused
    assert str(status) in refused
    assert not_found == f"not found: {wheels[0][0]}, {wheels[1][0]}, {wheels[2][0]} and 6 more wheels"
    assert "pip config list" in caught.value.hint
    request_paths = [path for path, *_ in site.server.requests]
    most = 8 if status == 503 else 4  # all indexes together and each one alone, each twice; a busy server once more
    assert max(map(request_paths.count, request_paths)) <= most


def test_wheels_that_no_index_knows_are_not_looked_for_one_by_one(
    site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    present, *missing = (site.wheel(f"app{number}", "1.0") for number in range(9))
    site.publish(present)
    (tmp_path / "wheels").mkdir()
    site.env["PIP_FIND_LINKS"] = str(tmp_path / "wheels")
    with pytest.raises(GoneError) as caught:
        site.fetch(*map(_locked, (present, *missing)))
    assert len(caught.value.problems) == len(missing)
    assert "each half" not in capsys.readouterr().err


def test_an_index_that_nothing_listens_for_is_an_error_within_seconds(site: Site) -> None:
    site.env["PIP_INDEX_URL"] = "http://127.0.0.1:9/simple"
    with pytest.raises(IndexFailedError, match=r"the index http://127\.0\.0\.1:9/simple failed: Connection refused"):
        site.resolve("app")


# --- one index for a package ----------------------------------------------------------------------------------------

BUILDS = PublicIndex(url="https://builds.example/whl/cpu", packages=("torch",), source="its publisher")


@pytest.fixture
def with_builds(site: Site) -> Site:
    """Let a folder of the loopback server stand for the index of BUILDS."""
    mirrors = site.folder / "mirrors.yaml"
    mirrors.write_text(f'schema: 1\nindexes: {{"{BUILDS.url}": "{site.server.url}/builds"}}\n')
    site.env["DRYDOCK_MIRRORS"] = str(mirrors)
    return site


def test_an_extra_index_cannot_replace_a_package_of_the_main_index(site: Site) -> None:
    site.publish(site.wheel("app", "1.0", "lib"), site.wheel("lib", "1.0"))
    site.publish(site.wheel("lib", "99.0"), site.wheel("more", "1.0"), index="hostile")
    site.env["PIP_EXTRA_INDEX_URL"] = f"{site.server.url}/hostile"
    assert site.versions("app", "more") == {"app": "1.0", "lib": "1.0", "more": "1.0"}


def test_only_its_own_packages_come_from_a_public_index(with_builds: Site) -> None:
    site, built = with_builds, with_builds.wheel("torch", "2.0+cpu", "lib")
    site.publish(site.wheel("app", "1.0", "torch"), site.wheel("lib", "1.0"), site.wheel("torch", "2.0"))
    site.publish(built, site.wheel("lib", "99.0"), index="builds")
    wheels = site.resolve("app", "torch==2.0+cpu", public=(BUILDS,))
    assert [(wheel.name, wheel.version) for wheel in wheels] == [("app", "1.0"), ("lib", "1.0"), ("torch", "2.0+cpu")]
    site.fetch(*wheels, public=(BUILDS,))
    assert site.store.path(wheels[2].sha256).read_bytes() == built[1]
    assert site.asked("builds") == {"torch"}


def test_an_override_comes_from_the_public_index_too(with_builds: Site) -> None:
    site = with_builds
    site.publish(site.wheel("app", "1.0", "torch==1.0"), site.wheel("torch", "2.0"))
    site.publish(site.wheel("torch", "2.0+cpu"), site.wheel("torch", "9.0+cpu"), index="builds")
    overrides = ("torch==2.0+cpu; platform_machine == 'x86_64'", "torch==2.0; platform_machine != 'x86_64'")
    for target, version in ((TARGET, "2.0+cpu"), (Environment("3.11", "aarch64", 36), "2.0")):
        assert site.versions("app", target=target, overrides=overrides, public=(BUILDS,))["torch"] == version


def test_what_only_a_package_of_the_public_index_asks_for_comes_from_there_if_the_stack_says_so(
    with_builds: Site,
) -> None:
    site = with_builds
    site.publish(site.wheel("app", "1.0", "torch"), site.wheel("torch", "2.0"), site.wheel("kernels", "0.0"))
    site.publish(site.wheel("torch", "2.0+cpu", "kernels==1.0"), site.wheel("kernels", "1.0"), index="builds")
    index = BUILDS.model_copy(update={"packages": ("torch", "kernels")})
    expected = {"app": "1.0", "kernels": "1.0", "torch": "2.0+cpu"}
    assert site.versions("app", "torch==2.0+cpu", public=(index,)) == expected
    assert site.versions("app", public=(index,))["torch"] == "2.0"


@pytest.mark.parametrize("place", ["simple", "extra", "folder"])
def test_the_machines_own_configuration_is_tried_before_the_public_index(place: str, with_builds: Site) -> None:
    site, local_torch = with_builds, with_builds.wheel("torch", "2.0+cpu", content="own")
    site.publish(site.wheel("torch", "2.0"))
    site.publish(site.wheel("torch", "2.0+cpu"), index="builds")
    if place == "folder":
        (site.folder / "wheels").mkdir()
        (site.folder / "wheels" / local_torch[0]).write_bytes(local_torch[1])
        site.env["PIP_FIND_LINKS"] = str(site.folder / "wheels")
    else:
        site.publish(local_torch, index=place)
    if place == "extra":
        site.env["PIP_EXTRA_INDEX_URL"] = f"{site.server.url}/extra"
    wheels = site.resolve("torch==2.0+cpu", public=(BUILDS,))
    site.fetch(*wheels, public=(BUILDS,))
    assert site.store.path(wheels[0].sha256).read_bytes() == local_torch[1]
    assert not site.asked("builds")


def test_a_public_index_that_lacks_a_package_is_named_with_the_lines_to_set(with_builds: Site) -> None:
    site = with_builds
    site.publish(site.wheel("torch", "2.0"))
    with pytest.raises(InputError, match=r"torch==3\.0.*https://builds\.example/whl/cpu lacks it") as caught:
        site.resolve("torch==3.0", public=(BUILDS,))
    assert site.env["DRYDOCK_MIRRORS"] in caught.value.hint
    assert '  indexes: {"https://builds.example/whl/cpu": "https://MIRROR"}' in caught.value.hint.splitlines()
    assert "pip config set global.extra-index-url https://MIRROR" in caught.value.hint
    with pytest.raises(FetchError, match=r"torch-3\.0.*https://builds\.example/whl/cpu lacks it") as caught_again:
        site.fetch(_locked(site.wheel("torch", "3.0")), public=(BUILDS,))
    assert caught_again.value.hint == caught.value.hint
