"""Do a step of an image, and end it: no file keeps the time at which it was written.

    layer.py install            install what /wheels/requirements.txt names, without what /wheels/trims.json lists
    layer.py install WORD …     install what the words tell uv, such as files of wheels
    layer.py compile [FOLDER …] compile the bytecode of folders, else that of the standard library
    layer.py settle             only end the step, after other commands

BuildKit then compresses a layer once, as it was written; `rewrite-timestamp` would unpack and compress each one again.
Source: moby/buildkit, docs/build-repro.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import trim

TOOLS = Path(__file__).parent
WHEELS = Path("/wheels")
MOUNTS = Path("/proc/self/mountinfo")


def install(venv: Path, words: list[str], wheels: Path = WHEELS) -> None:
    """Install distributions with their bytecode, without a network; what a layer's list names only by its hash."""
    offline = ("--offline", "--no-index", "--no-deps", "--no-cache", "--link-mode", "hardlink")
    locked = ("--find-links", str(wheels), "--require-hashes", "--requirement", f"{wheels}/requirements.txt")
    uv = (f"{TOOLS}/uv", "pip", "install", "--python", f"{venv}/bin/python3")
    subprocess.run((*uv, *offline, *(words or locked)), check=True)
    (venv / ".lock").unlink()
    (site,) = venv.glob("lib/python*/site-packages")
    for times in site.glob("*.dist-info/uv_cache.json"):  # it contains the time of the wheel file
        times.unlink()
        record = times.with_name("RECORD")
        lines = record.read_bytes().splitlines(keepends=True)
        record.write_bytes(b"".join(line for line in lines if b"uv_cache.json" not in line))
    unused = wheels / "trims.json"
    if not words and unused.is_file():
        for each in json.loads(unused.read_text()):
            trim.trim_installed(site, **each)
    compile_missing(str(venv / "lib"))


def compile_missing(*folders: str) -> None:
    """Compile the bytecode of folders, in a process that has imported nothing else and hashes strings as always."""
    command = (sys.executable, "-BS", f"{TOOLS}/compile_missing.py", *folders)
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})


def settle(folder: str, epoch: int, mounted: frozenset[str]) -> None:
    """Give what is newer than the epoch, in Unix seconds, that time; a folder after what is in it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.path in mounted:
                continue
            if entry.is_dir(follow_symlinks=False):
                settle(entry.path, epoch, mounted)
            elif entry.stat(follow_symlinks=False).st_mtime > epoch:
                os.utime(entry.path, (epoch, epoch), follow_symlinks=False)
    if os.lstat(folder).st_mtime > epoch:
        os.utime(folder, (epoch, epoch))


def main(verb: str = "", *words: str) -> None:
    """Do a step and end it. Raises KeyError without SOURCE_DATE_EPOCH, CalledProcessError for a command that fails."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])  # first: without it, the work would be for nothing
    if verb == "install":
        install(Path(sys.executable).parent.parent, [*words])
    elif verb == "compile":
        compile_missing(*(words or [str(Path(os.__file__).parent)]))
    elif verb != "settle" or words:
        sys.exit(__doc__)
    settle("/", epoch, frozenset(line.split()[4] for line in MOUNTS.read_text().splitlines()) - {"/"})


if __name__ == "__main__":
    main(*sys.argv[1:])
