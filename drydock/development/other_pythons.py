"""The tests with another Python than that of .venv: first that of the distribution, /usr/bin/python3. IO."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.inputs.locked_environment import EnvironmentRequest, prepare_environment

DISTRIBUTION = Path("/usr/bin/python3")
OLDEST = (3, 11)
DIFFERING = (
    "tests/unit/test_inv.py",
    "tests/unit/test_bare_invoke.py",
    "tests/unit/drydock/core",
    "tests/unit/drydock/bundle/test_archive.py",
    "tests/unit/drydock/inputs/test_debs.py",
    "tests/unit/drydock/inputs/test_downloads.py",
    "tests/unit/drydock/inputs/test_source_tree.py",
    "tests/unit/drydock/inputs/test_sources.py",
    "tests/unit/drydock/inputs/test_store.py",
    "tests/unit/drydock/inputs/test_wheel_contents.py",
    "tests/unit/drydock/oci/test_layers.py",
    "tests/unit/drydock/development/test_other_pythons.py",
)
"""What the usual run repeats with the distribution's Python: what can differ between two releases of one Python.

That is the standard library where it meets the system: archives (tarfile has no filter before 3.11.4), compression,
processes, files, HTTP and TLS, and `inv`, which people start with that Python. The rest is computed alike.
"""


def distribution_python(running: str = sys.executable, python: Path = DISTRIBUTION) -> Path | None:
    """Return the distribution's Python if it is another than the running one and drydock supports it."""
    if not python.is_file() or python.resolve() == Path(running).resolve() or read_version(python) < OLDEST:
        return None
    return python


def read_version(python: Path) -> tuple[int, ...]:
    """Return the version of a Python. Raises InputError if it does not run."""
    command = (str(python), "-I", "-c", "import sys; print(*sys.version_info[:3])")
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        return tuple(int(number) for number in result.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InputError(
            f"--python {python}: does not run: {error}", hint="name a Python, such as python3.13"
        ) from error


def interpreter_of(name: str | Path) -> Path:
    """Return the interpreter of an environment of another Python, which a path or a name in PATH names.

    The environment has what requirements.txt pins. Raises InputError for a Python that is missing or too old, and if
    the packages cannot be had.
    """
    path = shutil.which(name)
    if not path:
        raise InputError(f"--python {name}: not found", hint="name a Python in PATH, or the path of one")
    python = Path(path)
    version = read_version(python)
    if version < OLDEST:
        version_text = ".".join(map(str, version))
        raise InputError(f"--python {python}: found Python {version_text}, expected 3.11 or newer")
    purpose = f"what requirements.txt pins, for {python}"
    request = EnvironmentRequest(purpose, "pythons", ROOT / "requirements.txt", python, with_pip=True)
    return prepare_environment(request) / "bin" / "python"
