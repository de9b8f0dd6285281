"""Runs a rendered playbook. IO.

Ansible gets settings of its own and none of the user's: host keys are checked, no inventory is executed, no retry files
are written. What it prints of machines is bounded and made printable.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drydock.core.console import log, printable
from drydock.core.errors import EngineError, InputError
from drydock.model.shared_options import SshOptions
from drydock.topology.playbook.environment import prepare_ansible_programs

TAGS = ("check", "ranktable", "run", "logs", "stop", "preflight")
"""Tags of the rendered playbook."""
FORKS = 32
"""Machines at the same time."""
LINE_AT_MOST = 1 << 20
"""Bytes of a line that Ansible prints, before it is cut."""
TEXT_AT_MOST = 4000
"""Characters of a line, or of what a machine says, that are shown."""
CONNECT_SECONDS = 10
_FROM_THE_USER = ("HOME", "PATH", "USER", "LOGNAME", "SSH_AUTH_SOCK", "SSH_ASKPASS", "DISPLAY", "TMPDIR")
"""Variables that ansible-playbook and ssh get; ANSIBLE_* of the user's shell are not among them."""


def run_playbook(
    folder: Path,
    tags: Sequence[str] = (),
    *,
    ssh: SshOptions | None = None,
    variables: Mapping[str, Any] | None = None,
    seconds: float = 7200.0,
    on_line: Callable[[str], None] = log,
) -> None:
    """Run the playbook of a rendered folder; `on_line` gets each line that Ansible prints.

    `tags`: those of the playbook to run, all but `never` if empty; `variables`: extra ones, such as
    {"topology_secrets": {…}}, which are passed in a private file; `seconds`: after which it is ended. Raises InputError
    for a folder without a playbook or an unknown tag, EngineError if a task failed or Ansible did not run.
    """
    _check_playbook(folder, tags)
    program_folder = prepare_ansible_programs()
    with tempfile.TemporaryDirectory(prefix="drydock-ansible-") as scratch_name:
        scratch = Path(scratch_name)
        (scratch / "ansible.cfg").touch()
        command = [
            *_make_playbook_command(program_folder, folder, tags),
            *_write_extra_variables(scratch, variables or {}),
        ]
        code = _run_ansible(
            command, folder, make_ansible_environment(program_folder, scratch, ssh or SshOptions()), on_line, seconds
        )
    if code:
        raise EngineError(f"ansible-playbook --tags {','.join(tags)}: exit {code}", hint=_HINT)


_HINT = (
    "`./inv topology check FILE` says what a machine lacks: it needs ssh, Python 3 with requests, docker, and its host"
    " key in known_hosts"
)


def _check_playbook(folder: Path, tags: Sequence[str]) -> None:
    """Raise InputError unless the folder has a playbook with these tags."""
    missing = [name for name in ("playbook.yml", "inventory.yml") if not (folder / name).is_file()]
    if missing:
        text = f"{folder}: found no {missing[0]}, expected what `topology render --format ansible` wrote"
        raise InputError(text, hint="./inv topology render PLAN --format ansible --output FOLDER")
    unknown = [tag for tag in tags if tag not in TAGS]
    if unknown:
        raise InputError(f"tag {unknown[0]}: unknown, expected one of {', '.join(TAGS)}")


def _make_playbook_command(program_folder: Path, folder: Path, tags: Sequence[str]) -> list[str]:
    return [
        str(program_folder / "ansible-playbook"),
        *("--inventory", str(folder.absolute() / "inventory.yml"), "--forks", str(FORKS)),
        *(("--tags", ",".join(tags)) if tags else ()),
        str(folder.absolute() / "playbook.yml"),
    ]


def _write_extra_variables(scratch: Path, variables: Mapping[str, Any]) -> list[str]:
    """Write extra variables to a private file: the arguments of a process are no secret."""
    if not variables:
        return []
    path = scratch / "variables.json"
    path.touch(0o600)
    path.write_text(json.dumps(dict(variables)))
    return ["--extra-vars", f"@{path}"]


def make_ansible_environment(program_folder: Path, scratch: Path, ssh: SshOptions) -> dict[str, str]:
    """Return Ansible's environment.

    Source of the names: https://docs.ansible.com/ansible/latest/reference_appendices/config.html
    """
    user_variables = {name: os.environ[name] for name in _FROM_THE_USER if name in os.environ}
    login = {"ANSIBLE_REMOTE_USER": ssh.user, "ANSIBLE_PRIVATE_KEY_FILE": ssh.ssh_key}
    return {
        **user_variables,
        **{name: value for name, value in login.items() if value},
        "PATH": f"{program_folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(scratch / "ansible.cfg"),
        "ANSIBLE_HOME": str(scratch / "home"),
        "ANSIBLE_LOCAL_TEMP": str(scratch / "tmp"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(scratch / "cp"),
        "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "true",
        "ANSIBLE_COLLECTIONS_PATH": str(scratch / "collections"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "false",
        "ANSIBLE_INVENTORY_ENABLED": "ansible.builtin.yaml",
        "ANSIBLE_HOST_KEY_CHECKING": "true",
        "ANSIBLE_SSH_ARGS": shlex.join(_ssh_options(ssh)),
        "ANSIBLE_TIMEOUT": str(CONNECT_SECONDS),
        "ANSIBLE_PIPELINING": "true",
        "ANSIBLE_BECOME": str(ssh.become).lower(),
        "ANSIBLE_BECOME_ASK_PASS": "false",
        "ANSIBLE_RETRY_FILES_ENABLED": "false",
        "ANSIBLE_INJECT_FACT_VARS": "false",
        "ANSIBLE_PYTHON_INTERPRETER": "auto_silent",
        "ANSIBLE_DEPRECATION_WARNINGS": "false",
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_NOCOLOR": "true",
    }


def _ssh_options(ssh: SshOptions) -> Iterator[str]:
    """Yield ssh's options: it never asks, and believes only known machines."""
    options = {"BatchMode": "yes", "StrictHostKeyChecking": "yes", "ControlMaster": "auto", "ControlPersist": "60s"}
    if ssh.ssh_key:
        options["IdentitiesOnly"] = "yes"
    if ssh.known_hosts:
        options |= {"UserKnownHostsFile": str(Path(ssh.known_hosts).absolute()), "GlobalKnownHostsFile": "/dev/null"}
    for name, value in options.items():
        yield from ("-o", f"{name}={value}")


def _run_ansible(
    command: Sequence[str], folder: Path, env: Mapping[str, str], on_line: Callable[[str], None], seconds: float
) -> int:
    """Run Ansible and return its exit code. Raises EngineError after `seconds`."""
    due = time.monotonic() + seconds
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        timer = threading.Timer(seconds, process.terminate)
        timer.start()
        try:
            while process.stdout and (line := process.stdout.readline(LINE_AT_MOST)):
                on_line(shorten_machine_text(line.decode(errors="replace")))
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.terminate()
    if time.monotonic() >= due:
        raise EngineError(f"ansible-playbook did not end within {seconds:.0f} s, and was stopped")
    return code


def shorten_machine_text(text: str) -> str:
    """Return text of a machine as it may be printed: its end, if it is long."""
    return printable(text.strip()[-TEXT_AT_MOST:])
