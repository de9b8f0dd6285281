"""Compile every .py file below a folder that has no bytecode yet, so that the bytes depend on the sources alone.

compileall would write the bytecode of earlier layers again. Bytecode is "unchecked-hash": no time stamp is in it, and
Python does not look at the source when it starts. Marshal notes which strings are shared, and that depends on what the
interpreter compiled before; so every folder is compiled in its own fork of this process, in the order of file names,
whatever the number of cores.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode, PyCompileError
from py_compile import compile as compile_file


def folders_to_compile(root: str) -> list[list[str]]:
    """Return, for each folder that has sources without bytecode, those sources in order."""
    found = []
    for folder, children, files in os.walk(root):
        children.sort()
        sources = [f"{folder}/{name}" for name in sorted(files) if name.endswith(".py")]
        missing = [source for source in sources if not Path(cache_from_source(source, optimization="")).exists()]
        if missing:
            found.append(missing)
    return found


def compile_folder(sources: list[str]) -> int:
    """Return how many of the sources are no valid Python (templates, other versions' syntax) and stay as they are."""
    skipped = 0
    for source in sources:
        try:
            compile_file(source, doraise=True, optimize=0, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        except (PyCompileError, ValueError, RecursionError, MemoryError):  # what compile() raises for a hopeless source
            skipped += 1
    return skipped


MOST = 99
"""The largest number of skipped files in one folder that an exit status reports; above it the child has failed."""


def fork(sources: list[str]) -> None:
    """Compile one folder's sources in a child process, whose exit status is the number of files it skipped."""
    if os.fork() == 0:
        status = MOST + 1
        try:
            status = min(compile_folder(sources), MOST)
        except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as a second parent
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)


def join() -> int:
    """Wait for a child and return how many files it skipped. Raises ChildProcessError when it failed."""
    status = os.waitstatus_to_exitcode(os.wait()[1])
    if not 0 <= status <= MOST:
        raise ChildProcessError(f"a child ended with status {status}")
    return status


def compile_all(folders: list[list[str]], jobs: int) -> int:
    """Compile each folder in a process of its own, so many at once; return the number of files skipped."""
    skipped = 0
    for running, sources in enumerate(folders):
        if running >= jobs:
            skipped += join()
        fork(sources)
    return skipped + sum(join() for _ in range(min(jobs, len(folders))))


def main(roots: list[str]) -> None:
    """Compile below each root."""
    warnings.simplefilter("ignore")  # showing one imports modules, which the next file's bytecode would notice
    for root in roots:
        folders = folders_to_compile(root)
        skipped = compile_all(folders, os.cpu_count() or 1)
        sys.stderr.write(f"{root}: {sum(map(len, folders)) - skipped} files compiled, {skipped} skipped\n")


if __name__ == "__main__":
    main(sys.argv[1:])
