"""Finds the Docker engine, or installs (on Debian) and starts one, and runs docker commands. IO.

Required: an engine with the containerd image store, and a buildx whose BuildKit can rewrite timestamps (0.13 or newer).
docker-py cannot drive BuildKit, so builds go through `docker buildx`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drydock.core.console import log
from drydock.core.errors import EngineError
from drydock.core.files import format_json, hold_lock_file, restore_files, write_atomically
from drydock.core.ownership import user_name
from drydock.core.paths import cache_home
from drydock.engine import debian
from drydock.engine.connection import is_remote, name_engine, read_engine_address, refuse_ssh
from drydock.model.record import Record

MINIMUM_ENGINE = (25, 0)
"""First release whose containerd image store loads and exports OCI layouts."""
MINIMUM_BUILDX = (0, 13)
"""First release with rewrite-timestamp in its BuildKit, and `network` and `contexts` in bake files."""
DAEMON_CONFIG = Path("/etc/docker/daemon.json")
SOCKET_REFUSED = "permission denied while trying to connect"
"""What docker prints for a user who may not use the engine's socket (docker/cli 20.10 to 29)."""
SNAPSHOTTER = {"features": {"containerd-snapshotter": True}}
KEEP_LAYERS = {
    "all": True,
    "minFreeSpace": "10GB",
    "maxUsedSpace": "1000TB",
    "keepStorage": "1000TB",  # maxUsedSpace of Docker 27 and older, which do not start without it
    "reservedSpace": "0",  # if it is missing, newer ones take keepStorage for it
}
SETTINGS = {**SNAPSHOTTER, "builder": {"gc": {"enabled": True, "policy": [KEEP_LAYERS]}}}
"""Settings of an engine that drydock sets up. By default BuildKit keeps a fifth of the disk free; on a fuller disk it
drops, after each build, the layers that the next one needs (https://docs.docker.com/build/cache/garbage-collection/)."""
SETUP_HINT = (
    "install Docker Engine 25 or newer with buildx 0.13 or newer, and enable its containerd image store: "
    f"{debian.IMAGE_STORE}, then restart the engine"
)

PLATFORM_HINT = (
    "build on a machine of that kind; or add one (`docker buildx create --append --name BUILDER ENDPOINT`), and pass"
    " --builder; or emulate it: as root, `apt-get install qemu-user-binfmt`, QEMU 11 or newer, which is slow"
)
"""What to do for a platform whose programs an engine cannot run. QEMU 7.2, that of Debian 12, crashes in PyTorch."""


class Engine(Record):
    """A running engine that can build reproducible images."""

    version: str
    buildx: str
    buildkit: str
    started: bool
    """Whether this process started it."""
    limits: tuple[str, ...] = ()
    """What an engine of its kind lacks, a sentence each: on another machine, or rootless."""


def run_docker(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a docker command and return its standard output.

    Raises EngineError with the last line of its error output if it fails.
    """
    try:
        result = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd=cwd)
    except FileNotFoundError as error:
        raise EngineError(f"{argv[0]}: not found on PATH", hint=debian.explain_engine_setup()) from error
    if result.returncode:
        raise EngineError(f"{' '.join(argv)}: exit {result.returncode}: {_find_last_line(result.stderr)}")
    return result.stdout


def parse_version(text: str) -> tuple[int, ...]:
    """Return the first dotted number, such as (28, 5, 2) for "28.5.2+dfsg4"; empty if there is none."""
    match = re.search(r"(?<!\d)\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def find_shortcomings(version: str, driver_status: Sequence[Sequence[str]], buildx: str) -> list[str]:
    """Return what an engine lacks; empty if it meets all requirements. Pure."""
    problems = []
    if parse_version(version) < MINIMUM_ENGINE:
        problems.append(f"docker engine: found {version}, expected {_format_version(MINIMUM_ENGINE)} or newer")
    if parse_version(buildx) < MINIMUM_BUILDX:
        problems.append(f"docker buildx: found {buildx or 'none'}, expected {_format_version(MINIMUM_BUILDX)} or newer")
    if not any("containerd.snapshotter" in value for _, value in driver_status):
        problems.append("docker engine: found the classic image store, expected the containerd image store")
    return problems


def find_engine() -> Engine | None:
    """Return the engine that answers, or None. Raises EngineError if it does not meet the requirements."""
    refuse_ssh()
    info = read_info()
    if not info:
        refuse_podman()
        return None
    buildx = read_buildx_version()
    problems = find_shortcomings(info["ServerVersion"], info.get("DriverStatus") or (), buildx)
    if problems:
        refuse_podman()
        raise EngineError(*problems, hint=SETUP_HINT)
    limits = list_engine_limits(info, read_engine_address())
    return Engine(
        version=info["ServerVersion"],
        buildx=buildx,
        buildkit=buildkit_version(engine=info["ServerVersion"]),
        started=False,
        limits=tuple(limits),
    )


def read_info() -> dict[str, Any]:
    """Return what `docker info` says; empty if no engine answers. Raises EngineError if it refuses this user."""
    if not shutil.which("docker"):
        return {}
    answer = subprocess.run(["docker", "info", "--format", "{{json .}}"], capture_output=True, text=True, check=False)
    if SOCKET_REFUSED in answer.stderr:
        raise make_unreachable_error(SOCKET_REFUSED)
    try:
        info: dict[str, Any] = json.loads(answer.stdout) if answer.returncode == 0 and answer.stdout.strip() else {}
    except ValueError:
        return {}
    return info if info.get("ServerVersion") else {}


def refuse_podman() -> None:
    """Raise EngineError if Podman answers the docker command, as a program of that name or by its socket.

    drydock would else install and start dockerd, whose command has the same name.
    """
    if podman := _podman_version():
        raise EngineError(
            f"docker is Podman's here ({podman}), which cannot build these images: "
            f"expected Docker Engine {_format_version(MINIMUM_ENGINE)} or newer with buildx",
            hint="to run a published image with Podman: `./inv run --format quadlet`; to build, install Docker Engine "
            "in place of the package podman-docker, or set DOCKER_HOST to an engine and put its docker first on PATH",
        )


def _podman_version() -> str:
    """Return the line in which the docker command names Podman; empty if it does not."""
    if not shutil.which("docker"):
        return ""
    for command in (["docker", "--version"], ["docker", "version"]):
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        for line in (*result.stdout.splitlines(), *result.stderr.splitlines()):
            if "podman" in line.lower():
                return " ".join(line.split())
    return ""


def list_engine_limits(info: Mapping[str, Any], address: str) -> list[str]:
    """Return what an engine of this kind lacks, a sentence each: one on another machine, and a rootless one. Pure.

    Source: https://docs.docker.com/engine/security/rootless/ (known limitations).
    """
    limits = []
    if is_remote(address):
        limits.append(
            f"the engine is on another machine ({address}): builds are sent to it, but containers get its devices, its "
            "folders and its ports, while drydock looks at this machine's: use `run` and `demo` there"
        )
    if any("rootless" in option for option in info.get("SecurityOptions") or ()):
        limits.append(
            "the engine is rootless: containers see only devices that you can open, lock no more memory than your own "
            "`ulimit -l`, publish no port below 1024, and --network host is not this machine's network"
        )
        if info.get("CgroupDriver") == "none":
            limits.append("this rootless engine limits no memory and no processors: it needs cgroup v2 with systemd")
    return limits


def make_unreachable_error(reason: object) -> EngineError:
    """Return the error for an engine that cannot be reached; `reason` is what docker or docker-py says."""
    if "permission denied" not in str(reason).lower():
        if named := name_engine():
            return _make_silent_error(named)
        is_absent = "FileNotFoundError" in str(reason)
        problem = "no Docker engine is running" if is_absent else f"cannot connect to the Docker engine: {reason}"
        return EngineError(problem, hint=debian.explain_engine_setup(is_installed=bool(find_dockerd())))
    name = user_name(os.geteuid())
    return EngineError(
        f"the Docker engine refuses the user {name}: permission denied",
        hint=f"as root: `usermod --append --groups docker {name}`, then log in again; or set DOCKER_HOST to your own"
        " engine",
    )


def ensure_engine(*, install: bool = True) -> Engine:
    """Return the running engine, or start one; as root on Debian, install it first if necessary and allowed.

    Raises EngineError that says what is missing and how to get it.
    """
    with hold_lock_file(_state_folder() / "lock"):
        engine = find_engine()
        if engine:
            return engine
        refuse_named_engine()
        if not find_dockerd() or not shutil.which("docker") or not read_buildx_version():
            if not install:
                raise EngineError("no Docker engine is installed", hint=debian.explain_engine_setup())
            _install_engine()
        return _start_engine()


def describe_steps(*, stop: bool = False) -> dict[str, bool]:
    """Return which steps `ensure_engine` or `stop_engine` would take here."""
    if stop:
        pid_file = _state_folder() / "dockerd.pid"
        return {"would_stop": pid_file.is_file() and _is_dockerd(int(pid_file.read_text()))}
    is_running = find_engine() is not None
    is_installed = bool(find_dockerd() and shutil.which("docker") and read_buildx_version())
    return {"would_install": not (is_running or is_installed), "would_start": not is_running}


def stop_engine() -> bool:
    """Stop the engine that drydock started, by its pid; return whether one was running."""
    pid_file = _state_folder() / "dockerd.pid"
    pid = int(pid_file.read_text()) if pid_file.is_file() else 0
    if not pid or not _is_dockerd(pid):
        return False
    os.kill(pid, signal.SIGTERM)
    stopped = wait_for(lambda: not _is_dockerd(pid), seconds=60)
    if not stopped:
        raise EngineError(f"dockerd (pid {pid}): still running 60 seconds after SIGTERM", hint=f"kill -9 {pid}")
    pid_file.unlink(missing_ok=True)
    return True


def buildkit_version(builder: str | None = None, engine: str = "") -> str:
    """Return the BuildKit version of a builder, or of the default builder; `engine` is the engine's, where known."""
    text = run_docker(["docker", "buildx", "inspect", *([builder] if builder else [])])
    version = re.search(r"BuildKit version:\s*(v?[1-9]\S*|v?0\.[1-9]\S*)", text)
    if version:
        return version[1]
    # The engine of a distribution may contain a BuildKit that does not know its version.
    return f"of Docker Engine {engine or run_docker(['docker', 'version', '--format', '{{.Server.Version}}']).strip()}"


def list_builder_platforms(builder: str | None = None) -> frozenset[str]:
    """Return the platforms that the nodes of a builder have, their own and emulated. Raises EngineError."""
    inspect, of = ["docker", "buildx", "inspect"], [builder] if builder else []
    text = run_docker([*inspect, "--bootstrap", *of])
    if "\nPlatforms:" not in text:  # buildx gives up on what took longer than 20 s to start, though it runs now
        text = run_docker([*inspect, *of])
    lines = re.findall(r"^Platforms:(.*)$", text, re.MULTILINE)
    if not lines:
        reason = re.search(r"^(?:Error|Status):\s*(.+)$", text, re.MULTILINE)
        raise EngineError(
            f"builder {builder or 'default'}: none of its nodes answers: {reason[1] if reason else 'it has none'}",
            hint=f"docker buildx inspect --bootstrap {builder or ''}".rstrip(),
        )
    return frozenset(name.strip(" *") for line in lines for name in line.split(",")) - {""}


def require_platform(platform: str, builder: str | None = None) -> None:
    """Raise EngineError unless a node of a builder runs a platform's programs, itself or by emulation."""
    platforms = list_builder_platforms(builder)
    if platform not in platforms:
        raise make_platform_error(platform, {builder: platforms})


def make_platform_error(platform: str, platforms: Mapping[str | None, Iterable[str]]) -> EngineError:
    """Return the error for a platform that no builder has; `platforms` are those of each builder, by its name."""
    nodes = "; ".join(
        f"{builder or 'the default builder'} has {', '.join(sorted(names))}" for builder, names in platforms.items()
    )
    return EngineError(f"{platform}: no builder has a node for it: {nodes}", hint=PLATFORM_HINT)


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    """Poll until the condition holds; return False if it does not within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return bool(condition())


def refuse_named_engine() -> None:
    """Raise EngineError if the user has named an engine: drydock then does not start another one."""
    if name := name_engine():
        raise _make_silent_error(name)


def _make_silent_error(name: str) -> EngineError:
    return EngineError(
        f"no Docker engine answers at {name}",
        hint="start it, or use the default one: unset DOCKER_HOST DOCKER_CONTEXT; docker context use default",
    )


def _install_engine() -> None:
    if os.geteuid() != 0 or not debian.is_debian():
        raise EngineError("no Docker engine is running or installed", hint=debian.explain_engine_setup())
    packages = ("docker.io", "docker-cli", "docker-buildx", "containerd")
    with restore_files((DAEMON_CONFIG,)):
        if not DAEMON_CONFIG.exists():
            log(f"writing {DAEMON_CONFIG}: enables the containerd image store and lets BuildKit keep its layers")
            write_atomically(DAEMON_CONFIG, format_json(SETTINGS))
        debian.install_packages(*packages, minimum={"docker.io": MINIMUM_ENGINE, "docker-buildx": MINIMUM_BUILDX})


def _start_engine() -> Engine:
    if os.geteuid() != 0:
        raise EngineError("no Docker engine is running", hint=debian.explain_engine_setup(is_installed=True))
    state = _state_folder()
    state.mkdir(parents=True, exist_ok=True)
    command = ["dockerd", "--pidfile", str(state / "dockerd.pid")]
    if not DAEMON_CONFIG.exists():
        write_atomically(state / "daemon.json", format_json(SETTINGS))
        command += ["--config-file", str(state / "daemon.json")]
    log_file = state / "dockerd.log"
    log(f"starting {' '.join(command)} (log: {log_file}; to stop it: `./inv engine --stop`)")
    with log_file.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    wait_for(lambda: process.poll() is not None or _is_engine_answering(), seconds=60)
    engine = find_engine() if process.poll() is None else None
    if not engine:
        raise EngineError(
            f"dockerd did not start: {_find_last_line(log_file.read_text(errors='replace'))}", hint=f"read {log_file}"
        )
    return engine.model_copy(update={"started": True})


def find_dockerd() -> str | None:
    """Return the path of dockerd. Ordinary users do not have its folder, /usr/sbin, in PATH."""
    return shutil.which("dockerd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin")


def _is_engine_answering() -> bool:
    return subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0


def read_buildx_version() -> str:
    """Return the version of buildx; empty if there is none."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    result = subprocess.run(["docker", "buildx", "version"], **pipes, check=False)
    return _format_version(parse_version(result.stdout)) if result.returncode == 0 else ""


def _is_dockerd(pid: int) -> bool:
    """Tell whether the process is a running dockerd; a zombie has an empty command line."""
    try:
        program = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        return False
    return program.endswith(b"dockerd")


def _state_folder() -> Path:
    return cache_home() / "engine"


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _find_last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "(no output)"
