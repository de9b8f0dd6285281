"""What is read of wheels when they are locked, and which of them cannot be installed together."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from drydock.config.server_access import Access
from drydock.core.errors import InputError
from drydock.inputs.wheel_contents import (
    WINDOW,
    NoRangesError,
    WheelContents,
    check_wheels,
    read_local_wheel,
    read_remote_wheel,
)

if TYPE_CHECKING:
    from tests.support.loopback import Loopback

QUICK = Access(pause=0.001, timeout=5)
ENTRY_POINTS = "[console_scripts]\nA-tool = a:main\n\n[other]\nx = y\n\n[gui_scripts]\nwindow = a.b:show [extra]\n"


def make_archive(files: dict[str, str], name: str = "a", version: str = "1.0", *, compressed: bool = True) -> bytes:
    info = f"{name}-{version}.dist-info"
    metadata = {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\ntext\n"}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        for path, text in {**files, **metadata}.items():
            archive.writestr(path, text)
    return buffer.getvalue()


def write_wheel(folder: Path, filename: str, files: dict[str, str], **metadata: str) -> WheelContents:
    name, version = filename.split("-")[:2]
    data = make_archive(files, **{"name": name, "version": version, **metadata})
    (folder / filename).write_bytes(data)
    return read_local_wheel(folder / filename, filename)


def test_paths_are_those_of_the_installed_environment(tmp_path: Path) -> None:
    files = dict.fromkeys(
        ("a/", "a/b.py", "a-1.0.data/scripts/run", "a-1.0.data/purelib/p.py", "a-1.0.data/platlib/q.py",
         "a-1.0.data/data/share/x", "a-1.0.data/data/lib/python3.11/site-packages/r.py", "a-1.0.data/headers/a.h",
         "a/_vendor/b-2.dist-info/METADATA"), "")  # fmt: skip
    contents = write_wheel(
        tmp_path, "a-1.0-py3-none-any.whl", {**files, "a-1.0.dist-info/entry_points.txt": ENTRY_POINTS}
    )
    assert (contents.name, contents.version) == ("a", "1.0")
    assert {path for path in contents.paths if "dist-info" not in path} == {
        "site-packages/a/b.py", "site-packages/p.py", "site-packages/q.py", "site-packages/r.py",
        "bin/run", "bin/A-tool", "bin/window", "share/x",
    }  # fmt: skip


def test_of_a_wheel_on_a_server_only_the_end_is_read(server: Loopback, tmp_path: Path) -> None:
    data = make_archive({"a/large.bin": "x" * (4 * WINDOW)}, compressed=False)
    server.files["/a.whl"] = data
    (tmp_path / "a.whl").write_bytes(data)
    local = read_local_wheel(tmp_path / "a.whl", "a-1.0-py3-none-any.whl")
    assert read_remote_wheel(f"{server.url}/a.whl", "a-1.0-py3-none-any.whl", len(data), QUICK) == local
    assert server.ranges("/a.whl") == [f"bytes={len(data) - WINDOW}-{len(data) - 1}"]


def test_a_directory_that_is_longer_than_a_window_is_read_too(server: Loopback) -> None:
    data = make_archive({f"a/{number:0200}.py": "" for number in range(3000)})
    server.files["/a.whl"] = data
    server.faults["/a.whl"] = ["503", "cut"]
    contents = read_remote_wheel(f"{server.url}/a.whl", "a-1.0-py3-none-any.whl", len(data), QUICK)
    assert len(contents.paths) == 3001


def test_a_server_that_sends_whole_files_is_told_apart(server: Loopback) -> None:
    server.files["/a.whl"] = data = make_archive({})
    server.faults["/a.whl"] = ["no range"]
    with pytest.raises(NoRangesError):
        read_remote_wheel(f"{server.url}/a.whl", "a-1.0-py3-none-any.whl", len(data), QUICK)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a zip file"),
        (make_archive({})[:-30], "not a zip file"),
        (make_archive({}, name="b"), "its METADATA is of b, expected a"),
        (make_archive({"b-1.dist-info/METADATA": ""}, name="c"), "expected one folder .*, found 2"),
        (
            make_archive({"a-1.0.dist-info/entry_points.txt": "name = x\n"}),
            "entry_points.txt: File contains no section",
        ),
    ],
)
def test_what_is_no_wheel_is_an_error_with_its_name(data: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(data)
    with pytest.raises(InputError, match=rf"^a-1\.0-py3-none-any\.whl: .*{problem}"):
        check_wheels([read_local_wheel(tmp_path / "a.whl", "a-1.0-py3-none-any.whl")])


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filename", "version"),
    [("1.0", "1.0.0"), ("1.0.0", "1.0"), ("1.0+cu130", "1.0+CU130"), ("1.0+a_b", "1.0+a.b"), ("1.0rc1", "1.0-rc.1")],
)
def test_versions_are_compared_as_pep_440_says(filename: str, version: str, tmp_path: Path) -> None:
    check_wheels([write_wheel(tmp_path, f"a-{filename}-py3-none-any.whl", {}, version=version)])


@pytest.mark.parametrize(
    ("filename", "version"), [("1.0", "1.0+cu130"), ("1.0+cu130", "1.0"), ("1.0", "1.1"), ("1", "x")]
)
def test_a_version_that_only_the_file_or_the_metadata_has_is_an_error(
    filename: str, version: str, tmp_path: Path
) -> None:
    wheel = write_wheel(tmp_path, f"a-{filename}-py3-none-any.whl", {}, version=version)
    with pytest.raises(InputError) as caught:
        check_wheels([wheel])
    assert caught.value.problems == (f"{wheel.filename}: its METADATA has version {version}, expected {filename}",)
    assert "find-links" in caught.value.hint


# --- paths ----------------------------------------------------------------------------------------------------------


def test_two_wheels_of_one_layer_with_one_path_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [f"cv2/{name}.py" for name in "abcde"]
    plain = write_wheel(tmp_path, "opencv_python-1.0-py3-none-any.whl", dict.fromkeys(paths, "plain"))
    headless = write_wheel(tmp_path, "opencv_python_headless-1.0-py3-none-any.whl", dict.fromkeys(paths, "headless"))
    other_wheel = write_wheel(tmp_path, "other-1.0-py3-none-any.whl", {"other.py": ""})
    check_wheels([headless, other_wheel, plain])
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(
        "warning: opencv_python-1.0-py3-none-any.whl and opencv_python_headless-1.0-py3-none-any.whl: each installs "
        "its own site-packages/cv2/a.py, site-packages/cv2/b.py, site-packages/cv2/c.py and 2 more paths: "
    )
    assert "`exclude`" in warning
    assert "`layers`" in warning


def test_the_same_content_and_other_layers_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = {"space/__init__.py": "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"}
    one = write_wheel(tmp_path, "one-1.0-py3-none-any.whl", {**shared, "space/one.py": "", "x.py": "1"})
    two = write_wheel(tmp_path, "two-1.0-py3-none-any.whl", {**shared, "space/two.py": "", "x.py": "2"})
    check_wheels([one, two], layers=(("Two",), ()))
    assert not capsys.readouterr().err
    check_wheels([one, two], layers=(("one", "two"),))
    assert "each installs its own site-packages/x.py: " in capsys.readouterr().err


def test_a_script_and_an_entry_point_are_one_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_wheel(tmp_path, "a-1.0-py3-none-any.whl", {"a-1.0.data/scripts/A-tool": "#!python\n"})
    points = write_wheel(tmp_path, "b-1.0-py3-none-any.whl", {"b-1.0.dist-info/entry_points.txt": ENTRY_POINTS})
    same = write_wheel(tmp_path, "c-1.0-py3-none-any.whl", {"c-1.0.dist-info/entry_points.txt": ENTRY_POINTS})
    check_wheels([points, same])
    assert not capsys.readouterr().err
    check_wheels([script, points])
    assert "each installs its own bin/A-tool: " in capsys.readouterr().err
