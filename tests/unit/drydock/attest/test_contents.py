from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from drydock.attest.contents import ImageContents, read_contents
from drydock.oci import image_layout
from tests.support import layouts

SITE = "opt/venv/lib/python3.11/site-packages"
TEXTS = {
    "var/lib/dpkg/status": (
        "Package: bash\nStatus: install ok installed\nArchitecture: amd64\nVersion: 5.2-1\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n\n"
    ),
    "var/lib/dpkg/info/bash.list": "/.\n/bin\n/bin/bash\n/usr/share/doc/bash/copyright\n",
    "usr/share/doc/bash/copyright": "Format: https://x/doc/packaging-manuals/copyright-format/1.0/\nLicense: GPL-3+\n",
    f"{SITE}/big-1.0.dist-info/METADATA": "Name: Big\nVersion: 1.0\nLicense-Expression: MIT\n",
    f"{SITE}/big-1.0.dist-info/RECORD": (
        "big/__init__.py,sha256=x,1\nbig/_vendor/small-2.0.dist-info/METADATA,,\nbig/_vendor/small/a.py,,\n"
        "../../../bin/big,,\nbig-1.0.dist-info/RECORD,,\nbig-1.0.dist-info/METADATA,,\n"
    ),
    f"{SITE}/big/_vendor/small-2.0.dist-info/METADATA": "Name: small\nVersion: 2.0\nLicense: MIT\n",
    f"{SITE}/big/_vendor/small-2.0.dist-info/RECORD": "small/a.py,,\n",
}
FILES = {
    **{path: text.encode() for path, text in TEXTS.items()},
    "usr/bin/bash": b"bash",
    "opt/drydock/entrypoints/plugin/drydock_plugin-1.dist-info/METADATA": b"Name: drydock-plugin\nVersion: 1\n",
    f"{SITE}/big/__init__.py": b"1",
    f"{SITE}/big/__pycache__/__init__.cpython-311.pyc": b"c",
    f"{SITE}/big/_vendor/small/a.py": b"a",
    "opt/venv/bin/big": b"b",
    "opt/venv/bin/activate": b"",
    "opt/drydock/profile.json": b"{}",
    "etc/passwd": b"",
    "usr/lib/stray": b"s",
}


def layer(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    linked = [
        (f"./{name}", b"", {"type": tarfile.SYMTYPE, "linkname": target}) for name, target in (links or {}).items()
    ]
    return layouts.tar([*linked, *((f"./{name}", data, {}) for name, data in files.items())])


def contents(folder: Path, *layers: bytes) -> ImageContents:
    layout = layouts.write(folder, *layers)
    return read_contents(image_layout.read_manifest(layout), lambda digest: image_layout.path_of_blob(layout, digest))


@pytest.fixture
def image_contents(tmp_path: Path) -> ImageContents:
    return contents(tmp_path, layer(FILES, {"bin": "usr/bin", "usr/bin/awk": "/etc/alternatives/awk"}))


def test_only_installed_packages_are_listed(image_contents: ImageContents) -> None:
    assert [(package.kind, package.name, package.version, package.within) for package in image_contents.packages] == [
        ("deb", "bash", "5.2-1", ""),
        ("pypi", "big", "1.0", ""),
        ("pypi", "small", "2.0", "big"),
    ]
    assert image_contents.packages[0].fields["License"] == ("GPL-3+",)


def test_every_file_has_an_owner_or_is_unaccounted(image_contents: ImageContents) -> None:
    assert {
        path: image_contents.owners[path] for path in ("usr/bin/bash", "opt/venv/bin/big", "opt/venv/bin/activate")
    } == {
        "usr/bin/bash": "deb:bash",
        "opt/venv/bin/big": "pypi:big",
        "opt/venv/bin/activate": "drydock",
    }
    assert image_contents.owners[f"{SITE}/big/__pycache__/__init__.cpython-311.pyc"] == "pypi:big"
    assert image_contents.owners[f"{SITE}/big/_vendor/small/a.py"] == "pypi:big"
    assert image_contents.owners["usr/bin/awk"] == "generated"
    assert image_contents.unaccounted() == (
        f"{SITE}/big/_vendor/small-2.0.dist-info/RECORD",
        "usr/lib/stray",
        "var/lib/dpkg/info/bash.list",
        "var/lib/dpkg/status",
    )


def test_later_layers_hide_and_replace_files(tmp_path: Path) -> None:
    first = layer({"a/one": b"1", "a/two": b"2", "b/three": b"3", "c": b"old"})
    second = layer({"a/.wh.one": b"", "b/four": b"4", "b/.wh..wh..opq": b"", "c": b"new"})
    image_contents = contents(tmp_path, first, second)
    assert sorted(image_contents.files) == ["a/two", "b/four", "c"]
    assert (image_contents.files["c"].layer, image_contents.files["c"].size) == (1, 3)


def test_a_package_that_a_later_layer_removes_is_not_listed(tmp_path: Path) -> None:
    deletion_layer = layer({f"{SITE}/.wh.big-1.0.dist-info": b""})
    image_contents = contents(tmp_path, layer(FILES), deletion_layer)
    assert [package.name for package in image_contents.packages if package.kind == "pypi"] == ["small"]
