"""Containers that are machines: Debian 12 with systemd, sshd, sudo and a Docker engine of its own (20.10).

Their image is made of this machine's Debian packages once, and kept in the engine under a name with its recipe's hash.
They stay on Debian 12: a newer systemd does not run on cgroup v1.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from docker.types import Mount
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import ExecWaitStrategy

from drydock.core.files import hold_lock_file
from drydock.core.paths import cache_home
from drydock.model.shared_options import SshOptions
from tests.support.needed_programs import require_program
from tests.support.started_containers import make_container

SUITE = "bookworm"
PACKAGES = (
    *("openssh-server", "python3", "python3-requests", "systemd-sysv", "iproute2", "sudo", "dbus"),
    *("docker.io", "ca-certificates", "iptables"),
)
"""community.docker's modules need requests on the machine."""
USER = "ops"
ENGINE = '{"insecure-registries": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]}'
"""Registries of the tests have no TLS."""
HOOKS = (
    f'chroot "$1" useradd --create-home --shell /bin/bash {USER}',
    f"echo '{USER} ALL=(ALL) NOPASSWD: ALL' > \"$1/etc/sudoers.d/{USER}\"",
    f'mkdir -p "$1/etc/docker" && echo \'{ENGINE}\' > "$1/etc/docker/daemon.json"',
    'rm -f "$1"/etc/ssh/ssh_host_*_key*',
    'ln -sf /dev/null "$1/etc/systemd/system/getty@tty1.service"',
    # it would drop this machine's emulators: only a user namespace has handlers of its own
    'ln -sf /dev/null "$1/etc/systemd/system/systemd-binfmt.service"',
    'rm -rf "$1"/var/cache/apt/archives/* "$1"/var/lib/apt/lists/*',
)
"""What is done to the root before it is packed; each machine makes host keys of its own."""
START_SECONDS = 60


class Machine(NamedTuple):
    """A container that is a machine."""

    name: str
    container: str
    """Its id."""
    address: str

    def run(self, *command: str, text: str = "") -> str:
        """Run a command on it, as root; return what it printed."""
        return _docker("exec", "-i", self.container, *command, text=text)


class Machines(NamedTuple):
    """Machines on a network of their own."""

    nodes: tuple[Machine, ...]
    ssh: SshOptions
    gateway: str
    """This machine's address on their network."""


def image() -> str:
    """Return the image's name; make it if the engine has none with this recipe (a minute)."""
    recipe = hashlib.sha256(repr((SUITE, PACKAGES, HOOKS)).encode()).hexdigest()[:16]
    name = f"drydock-tests/machine:{recipe}"
    with hold_lock_file(cache_home() / "tmp" / "machine.lock"):
        if not _docker("image", "ls", "--quiet", name):
            _make(name)
    return name


def _make(name: str) -> None:
    require_program("mmdebstrap")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/machine.tar"
        hooks = [f"--customize-hook={hook}" for hook in HOOKS]
        command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        subprocess.run(
            [*command, *hooks, SUITE, path, *_sources()], check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
        _docker("import", path, name)


def _sources() -> list[str]:
    """Return this machine's lists of packages of the suite; empty for mmdebstrap's own."""
    places = (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.sources")))
    return [str(path) for path in places if path.is_file() and f"{SUITE}-updates" in path.read_text()]


@contextmanager
def machines(folder: Path, *names: str) -> Iterator[Machines]:
    """Start machines on a network of their own; `folder` gets the key and the hosts' keys. Remove all afterwards."""
    with Network() as network, ExitStack() as stack:
        key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        nodes = tuple(_start(name, network, stack) for name in names)
        known_hosts = "".join(_admit(node, key.with_suffix(".pub").read_text()) for node in nodes)
        (folder / "known_hosts").write_text(known_hosts)
        gateway = _docker("network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", network.name)
        yield Machines(
            nodes,
            SshOptions(user=USER, ssh_key=str(key), known_hosts=str(folder / "known_hosts"), become=True),
            gateway,
        )


def _start(name: str, network: Network, stack: ExitStack) -> Machine:
    """Start a machine and wait until its engine answers."""
    options = {"privileged": True, "hostname": name, "stop_signal": "SIGRTMIN+3", "network": network}
    volumes = {"volumes": [("/sys/fs/cgroup", "/sys/fs/cgroup", "rw")], "mounts": [Mount("/var/lib/docker", None)]}
    container = make_container(image(), "/sbin/init", tmpfs=("/run", "/run/lock"), **options, **volumes)
    container.with_tmpfs_mount("/tmp", "exec")
    container.waiting_for(ExecWaitStrategy(["docker", "version"]).with_startup_timeout(START_SECONDS))
    started = stack.enter_context(container).get_container_id()
    return Machine(name, started, container.get_docker_client().bridge_ip(started))


def _admit(machine: Machine, public: str) -> str:
    """Give a machine host keys, and let the key's owner in; return its line of known_hosts."""
    machine.run("ssh-keygen", "-A")
    machine.run("systemctl", "reset-failed", "ssh")  # it had no key until now
    machine.run("systemctl", "restart", "ssh")
    folder = f"/home/{USER}/.ssh"
    machine.run("install", "-d", "-o", USER, "-m", "700", folder)
    machine.run("sh", "-c", f"cat > {folder}/authorized_keys", text=public)
    kind, key, *_ = machine.run("cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()
    return f"{machine.address} {kind} {key}\n"


def _docker(*arguments: str, text: str = "") -> str:
    result = subprocess.run(["docker", *arguments], input=text, capture_output=True, text=True, check=False)
    if result.returncode:
        raise subprocess.CalledProcessError(result.returncode, result.args, result.stdout, result.stderr)
    return result.stdout.strip()
