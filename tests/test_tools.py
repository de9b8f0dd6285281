"""The scripts that run inside a build: bytecode that depends on the sources alone, and vLLM's own list of flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.paths import ROOT

TOOLS = ROOT / "templates" / "tools"

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
    found = bytecode(tmp_path)
    assert len(found) == 4
    assert {content[4:8] for content in found.values()} == {b"\1\0\0\0"}


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


def test_flags_come_from_the_parser_that_the_server_makes(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--model', '-m')\n"
        "parser.add_argument('--eager', action=argparse.BooleanOptionalAction)\n"
        "try:\n    parser.parse_args()\nexcept Exception:\n    pass\n"
    )
    run("vllm_flags.py", "server", tmp_path / "flags.json", PYTHONPATH=str(tmp_path))
    assert json.loads((tmp_path / "flags.json").read_text()) == [
        "--eager",
        "--help",
        "--model",
        "--no-eager",
        "-h",
        "-m",
    ]


def test_a_server_that_reads_no_command_line_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run("vllm_flags.py", "server", tmp_path / "flags.json", PYTHONPATH=str(tmp_path))
    assert "server: ended without reading its command line" in raised.value.stderr
    assert not (tmp_path / "flags.json").exists()


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


NEEDS_A_DEVICE = """
import argparse, vllm.platforms
parser = argparse.ArgumentParser()
if vllm.platforms._current_platform is None:
    raise RuntimeError("Failed to infer device type")
parser.add_argument('--model')
parser.parse_args()
"""


def test_a_vllm_that_asks_for_a_device_tells_its_flags_as_on_a_cpu(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "platforms").mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("")
    (tmp_path / "vllm" / "platforms" / "__init__.py").write_text("_current_platform = None\n")
    (tmp_path / "server.py").write_text(NEEDS_A_DEVICE)
    said = run("vllm_flags.py", "server", tmp_path / "none.json", PYTHONPATH=str(tmp_path))
    assert json.loads((tmp_path / "none.json").read_text()) == []
    assert "Failed to infer device type" in said

    (tmp_path / "vllm" / "platforms" / "cpu.py").write_text("class CpuPlatform: pass\n")
    run("vllm_flags.py", "server", tmp_path / "flags.json", PYTHONPATH=str(tmp_path))
    assert json.loads((tmp_path / "flags.json").read_text()) == ["--help", "--model", "-h"]
