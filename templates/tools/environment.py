"""Save the environment that a vendor's shell scripts export, so that no shell is needed at run time.

    environment.py save FILE SCRIPT   add the changes that sourcing SCRIPT makes to FILE
    environment.py run COMMAND …      execute COMMAND with the environment saved in /opt/drydock/environment.json

FILE: {"scripts": […], "variables": {NAME: [before, after]}}. `before` is empty if the variable was not set. At run time
a variable with another value than `before` was set by the user and is kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SAVED = Path("/opt/drydock/environment.json")
OF_THE_SHELL = {"_", "SHLVL", "PWD", "OLDPWD", "HOME", "TERM", "BASH_ENV"}


def sourced(script: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment after bash has sourced a script without arguments."""
    if not Path(script).is_file():
        sys.exit(f"{script}: no such file in the base image; vLLM needs the environment that it exports")
    command = ("bash", "-c", '. "$0" > /dev/null; exec env --null', script)
    output = subprocess.run(command, env=dict(env), check=True, stdout=subprocess.PIPE).stdout.decode()
    return dict(pair.split("=", 1) for pair in output.split("\0") if "=" in pair)


def save(file: Path, script: str) -> None:
    """Add the changes of a script to the saved environment."""
    saved: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"scripts": [], "variables": {}}
    now = {**os.environ, **{name: after for name, (_, after) in saved["variables"].items()}}
    after = sourced(script, now)
    changed = {name: value for name, value in after.items() if now.get(name) != value and name not in OF_THE_SHELL}
    saved["scripts"].append(script)
    saved["variables"] |= {name: [os.environ.get(name, ""), value] for name, value in changed.items()}
    file.write_text(json.dumps(saved, indent=0, sort_keys=True) + "\n")


def run(command: list[str]) -> None:
    """Execute a command with the saved environment."""
    saved = json.loads(SAVED.read_text())["variables"]
    os.execvpe(command[0], command, {**os.environ, **{name: after for name, (_, after) in saved.items()}})  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    if sys.argv[1] == "save":
        save(Path(sys.argv[2]), sys.argv[3])
    else:
        run(sys.argv[2:])
