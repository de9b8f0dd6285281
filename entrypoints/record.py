"""Facts just read → a recorded host: a folder that gives the same facts again, anywhere. IO.

It holds the files that the probe read, cut where it stopped reading, the answers of folders and commands, and nothing
else: no environment, no mount table, no file of the user's.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile

from entrypoints.commands import RECORD, Commands
from entrypoints.errors import HOST, USAGE, EntrypointError
from entrypoints.facts import MACHINE
from entrypoints.host import Host
from entrypoints.lean import Any
from entrypoints.model import Facts, to_json
from entrypoints.probes.system import MOUNTS


def record(host: Host, commands: Commands, facts: Facts, folder: str) -> None:
    """Write a recorded host under a temporary name, then rename it.

    Raises USAGE when `folder` holds something already, HOST when it cannot be written.
    """
    target = os.path.abspath(folder)
    if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise EntrypointError(USAGE, f"--record {folder}: is there already", "name a folder that does not exist yet")
    try:
        _write(_files(host, commands, facts), target)
    except OSError as error:
        raise EntrypointError(
            HOST,
            f"--record {folder}: {error.strerror} (errno {error.errno}), expected a folder that can be made there",
            "name a new folder inside a writable one, such as /cache/host",
        ) from error


def _files(host: Host, commands: Commands, facts: Facts) -> dict[str, str]:
    """Return every file of the recorded host by its path."""
    return {
        **dict.fromkeys(host.present, ""),
        **host.texts,
        MACHINE: facts.processor.architecture + "\n",
        MOUNTS: _dumps(facts.mounts),
        RECORD: _dumps(commands.answers),
    }


def _dumps(value: Any) -> str:
    return json.dumps(to_json(value), indent=2, sort_keys=True) + "\n"


def _write(files: dict[str, str], target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    temporary = tempfile.mkdtemp(dir=os.path.dirname(target), prefix=f".{os.path.basename(target)}.")
    try:
        folders = {path for path in files if any(other.startswith(f"{path}/") for other in files)}
        for path, text in files.items():
            if path not in folders:
                os.makedirs(temporary + os.path.dirname(path), exist_ok=True)
                with open(temporary + path, "w", encoding="utf-8", newline="") as file:
                    file.write(text)
        os.chmod(temporary, 0o755)  # noqa: S103 - others read the record too
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
