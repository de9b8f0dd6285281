"""Compile every .py file in a folder tree that has no bytecode yet, reproducibly.

compileall would write the bytecode of earlier layers again. The bytecode is "unchecked-hash": it contains no time
stamp, and Python does not check the source at start. Marshal records which strings are shared, which depends on what
the interpreter compiled before. So each folder is compiled in a fork of this process, in the order of file names, and
the result does not depend on the number of cores.
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
    """Return the sources without bytecode, in order, for each folder that has any."""
    found = []
    for folder, children, files in os.walk(root):
        children.sort()
        sources = [f"{folder}/{name}" for name in sorted(files) if name.endswith(".py")]
        missing = [source for source in sources if not Path(cache_from_source(source, optimization="")).exists()]
        if missing:
            found.append(missing)
    return found


def compile_folder(sources: list[str]) -> int:
    """Compile sources; return the number of those that are not valid Python, such as templates or newer syntax."""
    skipped = 0
    for source in sources:
        try:
            compile_file(source, doraise=True, optimize=0, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        except (PyCompileError, ValueError, RecursionError, MemoryError):  # what compile() raises for invalid sources
            skipped += 1
    return skipped


MOST = 99
"""Largest number of skipped files in one folder that the exit status reports. A higher status means an error."""


def fork(sources: list[str]) -> None:
    """Compile the sources of a folder in a child process. Its exit status is the number of skipped files."""
    if os.fork() == 0:
        status = MOST + 1
        try:
            status = min(compile_folder(sources), MOST)
        except BaseException:  # noqa: BLE001 - the child must never continue as a second parent
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)


def join() -> int:
    """Wait for a child; return the number of files it skipped. Raises ChildProcessError if it failed."""
    status = os.waitstatus_to_exitcode(os.wait()[1])
    if not 0 <= status <= MOST:
        raise ChildProcessError(f"a child ended with status {status}")
    return status


def compile_all(folders: list[list[str]], jobs: int) -> int:
    """Compile each folder in its own process, `jobs` at a time; return the number of skipped files."""
    skipped = 0
    for running, sources in enumerate(folders):
        if running >= jobs:
            skipped += join()
        fork(sources)
    return skipped + sum(join() for _ in range(min(jobs, len(folders))))


def main(roots: list[str]) -> None:
    """Compile the sources in each root."""
    warnings.simplefilter("ignore")  # showing a warning imports modules, which changes the bytecode of the next file
    for root in roots:
        folders = folders_to_compile(root)
        skipped = compile_all(folders, os.cpu_count() or 1)
        sys.stderr.write(f"{root}: {sum(map(len, folders)) - skipped} files compiled, {skipped} skipped\n")


if __name__ == "__main__":
    main(sys.argv[1:])
