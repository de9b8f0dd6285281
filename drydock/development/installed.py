"""`test --installed`: the tests of this checkout against the wheel that it makes. IO: uv, a temporary environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from drydock.core.errors import BuildError
from drydock.inputs.indexes import read_indexes, uv_environment
from drydock.inputs.uv import uv_binary

OWN = {".git", ".venv", "drydock", "entrypoints", "images", "matrix.yaml", "policy", "tasks.py", "templates"}
"""What tests must find in the wheel alone, and what belongs to the checkout alone."""


@contextmanager
def make_wheel_environment(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the interpreter of an environment with the wheel, and the folder to run tests in.

    That is the wheel's own folder of data, with links to what it lacks of the checkout: tests, pages, examples.
    Raises BuildError.
    """
    with TemporaryDirectory(prefix="drydock-installed-") as name:
        folder = Path(name)
        _run_uv_command("build", "--quiet", "--wheel", "--out-dir", name, str(root))
        (wheel,) = folder.glob("*.whl")
        _run_uv_command("venv", "--quiet", "--seed", "--python", sys.executable, str(folder / "venv"))
        python = folder / "venv" / "bin" / "python"
        install = ("pip", "install", "--quiet", "--python", str(python))
        _run_uv_command(*install, "--require-hashes", "--requirement", str(root / "requirements.txt"))
        _run_uv_command(*install, "--no-deps", str(wheel))
        (data,) = folder.glob("venv/lib/python*/site-packages/drydock/data")
        shutil.rmtree(data / "tests")
        for path in root.iterdir():
            if path.name not in OWN and not (data / path.name).exists():
                (data / path.name).symlink_to(path)
        yield python, data


def _run_uv_command(*words: str) -> None:
    """Run uv with this machine's indexes, its output on standard error. Raises BuildError."""
    env = uv_environment(read_indexes(), os.environ)
    if subprocess.run([str(uv_binary()), *words], env=env, stdout=sys.stderr.fileno(), check=False).returncode:
        raise BuildError(f"uv {words[0]} failed; see above")
