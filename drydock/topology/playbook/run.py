"""Runs a rendered playbook, and reads what each machine answered. IO; reading is pure.

Ansible gets settings of its own and none of the user's: host keys are checked, no inventory is executed, no retry files
are written. What machines answer is bounded and made printable.
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
from typing import IO, Any, NamedTuple

from drydock.core.console import detail, printable
from drydock.core.errors import BuildError, InputError
from drydock.core.files import loads
from drydock.topology.playbook.environment import programs

TAGS = ("check", "ranktable", "run", "logs", "stop", "preflight")
"""Tags of the rendered playbook."""
FORKS = 32
"""Machines at the same time."""
LINE_AT_MOST = 16 << 20
"""Bytes of one event: the answer of one machine to one task."""
OUTPUT_AT_MOST = 1 << 30
"""Bytes of all events."""
TEXT_AT_MOST = 4000
"""Characters of what a failed task says."""
CONNECT_SECONDS = 10
_FAILED = ("v2_runner_on_failed", "v2_runner_on_unreachable")
_FROM_THE_USER = ("HOME", "PATH", "USER", "LOGNAME", "SSH_AUTH_SOCK", "SSH_ASKPASS", "DISPLAY", "TMPDIR")
"""Variables that ansible-playbook and ssh get; ANSIBLE_* of the user's shell are not among them."""


class Ssh(NamedTuple):
    """How machines are logged in to. What is empty is as in the user's own ~/.ssh/config."""

    user: str = ""
    key: str = ""
    """File with the private key."""
    known_hosts: str = ""
    """File with the machines' host keys; only these are believed then."""
    port: int = 0
    become: bool = False
    """Whether tasks run as root by sudo, which must not ask for a password."""


class Failure(NamedTuple):
    """A task that failed on a machine, or a machine that ssh did not reach."""

    node: str
    task: str
    text: str
    unreachable: bool


class Counts(NamedTuple):
    """How many tasks ended how on one machine."""

    ok: int = 0
    changed: int = 0
    failures: int = 0
    unreachable: int = 0
    skipped: int = 0


class Played(NamedTuple):
    """What a playbook did."""

    nodes: Mapping[str, Counts]
    failures: tuple[Failure, ...]
    answers: Mapping[str, Mapping[str, Any]]
    """Task that was asked for → node → what the module returned. Not to be trusted: a machine said it."""

    @property
    def good(self) -> bool:
        """Whether every task succeeded on every machine."""
        return bool(self.nodes) and not self.failures

    @property
    def changed(self) -> int:
        """How many tasks changed something."""
        return sum(counts.changed for counts in self.nodes.values())


def playbook(  # noqa: PLR0913 - the options of ansible-playbook, by name
    folder: Path,
    tags: Sequence[str] = (),
    *,
    limit: Sequence[str] = (),
    check: bool = False,
    ssh: Ssh | None = None,
    variables: Mapping[str, Any] | None = None,
    keep: Sequence[str] = (),
    seconds: float = 7200.0,
    told: Callable[[str, str], None] | None = None,
) -> Played:
    """Run the playbook of a rendered folder; return what each machine answered, failed tasks too.

    `tags`: those of the playbook to run, all but `never` if empty; `limit`: nodes or groups; `check`: change nothing;
    `variables`: extra ones, such as {"topology_secrets": {…}}, which are passed in a private file; `keep`: names of
    tasks whose answers are returned; `seconds`: after which it is ended; `told(event, name)` is called as plays and
    tasks begin. Raises InputError for a folder without a playbook or an unknown tag, BuildError if Ansible did not run.
    """
    _check(folder, tags)
    own = programs()
    with tempfile.TemporaryDirectory(prefix="drydock-ansible-") as made:
        scratch = Path(made)
        (scratch / "ansible.cfg").touch()
        command = [*_command(own, folder, tags, limit, check=check), *_extra(scratch, variables or {})]
        events = Events(keep, told or (lambda event, name: detail(f"{event}: {name}")))
        code = _run(command, folder, environment(own, scratch, ssh or Ssh()), events, seconds)
    if not events.counts:
        text = f"ansible-playbook ended with {code} before any machine answered:\n{bounded(events.said)}"
        raise BuildError(text, hint=_HINT)
    return Played(events.counts, tuple(events.failures), events.answers)


_HINT = "every node needs ssh, Python 3 with requests, and docker; its host key must be in known_hosts"


def _check(folder: Path, tags: Sequence[str]) -> None:
    """Raise InputError unless the folder has a playbook with these tags."""
    missing = [name for name in ("playbook.yml", "inventory.yml") if not (folder / name).is_file()]
    if missing:
        text = f"{folder}: found no {missing[0]}, expected what `topology render --format ansible` wrote"
        raise InputError(text, hint="./inv topology render PLAN --format ansible --output FOLDER")
    unknown = [tag for tag in tags if tag not in TAGS]
    if unknown:
        raise InputError(f"tag {unknown[0]}: unknown, expected one of {', '.join(TAGS)}")


def _command(own: Path, folder: Path, tags: Sequence[str], limit: Sequence[str], *, check: bool) -> list[str]:
    return [
        str(own / "ansible-playbook"),
        *("--inventory", str(folder.absolute() / "inventory.yml"), "--forks", str(FORKS)),
        *(("--tags", ",".join(tags)) if tags else ()),
        *(("--limit", ",".join(limit)) if limit else ()),
        *(("--check",) if check else ()),
        str(folder.absolute() / "playbook.yml"),
    ]


def _extra(scratch: Path, variables: Mapping[str, Any]) -> list[str]:
    """Write extra variables to a private file: the arguments of a process are no secret."""
    if not variables:
        return []
    path = scratch / "variables.json"
    path.touch(0o600)
    path.write_text(json.dumps(dict(variables)))
    return ["--extra-vars", f"@{path}"]


def environment(own: Path, scratch: Path, ssh: Ssh) -> dict[str, str]:
    """Return Ansible's environment.

    Source of the names: https://docs.ansible.com/ansible/latest/reference_appendices/config.html
    """
    kept = {name: os.environ[name] for name in _FROM_THE_USER if name in os.environ}
    login = {"ANSIBLE_REMOTE_USER": ssh.user, "ANSIBLE_PRIVATE_KEY_FILE": ssh.key}
    login["ANSIBLE_REMOTE_PORT"] = str(ssh.port or "")
    return {
        **kept,
        **{name: value for name, value in login.items() if value},
        "PATH": f"{own}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(scratch / "ansible.cfg"),
        "ANSIBLE_HOME": str(scratch / "home"),
        "ANSIBLE_LOCAL_TEMP": str(scratch / "tmp"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(scratch / "cp"),
        "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "true",
        "ANSIBLE_COLLECTIONS_PATH": str(scratch / "collections"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.jsonl",
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


def _ssh_options(ssh: Ssh) -> Iterator[str]:
    """Yield ssh's options: it never asks, and believes only known machines."""
    options = {"BatchMode": "yes", "StrictHostKeyChecking": "yes", "ControlMaster": "auto", "ControlPersist": "60s"}
    if ssh.key:
        options["IdentitiesOnly"] = "yes"
    if ssh.known_hosts:
        options |= {"UserKnownHostsFile": str(Path(ssh.known_hosts).absolute()), "GlobalKnownHostsFile": "/dev/null"}
    for name, value in options.items():
        yield from ("-o", f"{name}={value}")


def _run(command: Sequence[str], folder: Path, env: Mapping[str, str], events: Events, seconds: float) -> int:
    """Run Ansible and return its exit code. Raises BuildError after `seconds`."""
    due = time.monotonic() + seconds
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        timer = threading.Timer(seconds, process.terminate)
        timer.start()
        try:
            for line in _lines(process.stdout) if process.stdout else ():
                events.take(line)
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.terminate()
    if time.monotonic() >= due:
        raise BuildError(f"ansible-playbook did not end within {seconds:.0f} s, and was stopped")
    return code


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield lines in bounds. Raises BuildError for one that is too long, or for too many bytes."""
    left = OUTPUT_AT_MOST
    while line := stream.readline(LINE_AT_MOST + 1):
        left -= len(line)
        if len(line) > LINE_AT_MOST or left < 0:
            raise BuildError(f"ansible-playbook: found an answer of more than {LINE_AT_MOST} bytes")
        yield line


class Events:
    """What ansible.posix.jsonl prints, one event a line."""

    def __init__(self, keep: Sequence[str], told: Callable[[str, str], None]) -> None:
        self.counts: dict[str, Counts] = {}
        self.failures: list[Failure] = []
        self.answers: dict[str, dict[str, Any]] = {name: {} for name in keep}
        self.said = ""
        self._told = told

    def take(self, line: bytes) -> None:
        """Read one line. What is no event, such as an error before the first play, is kept as text."""
        try:
            event = loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.said = f"{self.said}{line.decode(errors='replace')}"[-TEXT_AT_MOST:]
            return
        kind = event.get("_event")
        if kind == "v2_playbook_on_stats":
            self.counts = {printable(node): _counts(found) for node, found in _items(event.get("stats"))}
        elif kind in ("v2_playbook_on_play_start", "v2_playbook_on_task_start"):
            part = "play" if kind.endswith("play_start") else "task"
            self._told(part, _name(event.get(part)))
        elif kind in (*_FAILED, "v2_runner_on_ok"):
            self._result(str(kind), event)

    def _result(self, kind: str, event: Mapping[str, Any]) -> None:
        task = _name(event.get("task"))
        short = task.rpartition(" : ")[2]
        for node, found in _items(event.get("hosts")):
            if short in self.answers:
                self.answers[short][node] = found
            if kind in _FAILED:
                told = bounded(" ".join(dict.fromkeys(_texts(found))) or "failed and said nothing")
                self.failures.append(Failure(printable(node), task, told, kind.endswith("unreachable")))


def _items(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of an object."""
    if isinstance(value, Mapping):
        yield from ((str(name), item) for name, item in value.items() if isinstance(item, Mapping))


def _counts(found: Mapping[str, Any]) -> Counts:
    return Counts(**{name: value for name in Counts._fields if isinstance(value := found.get(name, 0), int)})


def _name(value: Any) -> str:
    return printable(str(value.get("name", "")) if isinstance(value, Mapping) else "")


def _texts(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a failed task says; of a loop, what each failed item says."""
    items = found.get("results")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping) and (item.get("failed") or item.get("unreachable")):
            yield from _texts(item)
    if not isinstance(items, list):
        yield from (str(found[key]).strip() for key in ("msg", "stderr", "module_stderr") if found.get(key))


def bounded(text: str) -> str:
    """Return text of a machine as it may be printed: its end, if it is long."""
    return printable(text.strip()[-TEXT_AT_MOST:])
