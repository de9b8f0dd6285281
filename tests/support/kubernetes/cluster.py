"""A Kubernetes cluster of two nodes on this machine: real daemons in network namespaces of their own. IO.

Nothing of this machine is used or changed: not its engine, containerd, iptables, kernel settings or /var/lib/kubelet.
Whoever kills the tests ends the cluster too. Needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from drydock.core.console import log
from tests.support.kubernetes import cgroups
from tests.support.kubernetes.binaries import binaries
from tests.support.kubernetes.cluster_keys import make_keys
from tests.support.kubernetes.cluster_network import Network, networks
from tests.support.kubernetes.cluster_node import Node
from tests.support.kubernetes.cluster_processes import end, start
from tests.support.waiting import wait_until

TOOLS = ("dpkg-deb", "dpkg-source", "ip", "iptables", "nsenter", "openssl", "patch", "setpriv", "unshare")
"""Programs of this machine, of Debian's packages dpkg-dev, iproute2, iptables, openssl, patch and util-linux."""
NODES = 2
READY_WITHIN = 180
"""Seconds. On an idle machine it takes 20."""
ALONE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
"""What ends when this one process does, with its containers."""
ASK = """
import json, sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[3].encode() or None, json.loads(sys.argv[2]))
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, error.read().decode()]))
except OSError as error:
    print(json.dumps([0, str(error)]))
"""


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    """Of HTTP; 0 if it could not be reached."""
    text: str


class Cluster:
    """A running cluster."""

    def __init__(self, folder: Path, archive: Path) -> None:
        """Start a cluster in an empty folder, with the images of an archive on each node."""
        self.folder, self.archive = folder, archive
        self.log = folder / "log"
        self.log.mkdir()
        self.binaries = binaries()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.group = f"{cgroups.PREFIX}{os.getpid()}"
        self.networks = networks(NODES, self.log / "namespaces")
        self.keys = folder / "keys"
        make_keys(self.keys, self.networks)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"node{network.number}" for network in self.networks)

    def start(self) -> None:
        """Start everything; return when each node is ready."""
        for network in self.networks:
            self._start_node(network)
        self._control("etcd", self.binaries / "root/usr/bin/etcd", f"--data-dir={self.folder / 'etcd'}")
        self._control("kube-apiserver", self.binaries / "bin/kube-apiserver", *self._api())
        self._until(lambda: self._answers("get", "--raw", "/readyz"), "the API server")
        for name in ("kube-controller-manager", "kube-scheduler"):
            self._control(name, self.binaries / "bin" / name, *self._asking(name))
        self._until(lambda: self._ready() == NODES, "the nodes")
        self._until(lambda: self._answers("get", "serviceaccount", "default"), "the first service account")

    def stop(self) -> None:
        """End every process, and remove what the kernel keeps for them."""
        for process in (*reversed(self.processes.values()), *(network.holder for network in self.networks)):
            end(process)
        for node in self.nodes:
            cgroups.remove(f"{self.group}-{node}")

    # --- daemons ----------------------------------------------------------------------------------------------------

    def _control(self, name: str, *command: str | Path) -> None:
        self.processes[name] = start(self.log / name, *self.networks[0].inside(*command))

    def _start_node(self, network: Network) -> None:
        name = f"node{network.number}"
        folder = self.folder / name
        folder.mkdir()
        cgroups.make(f"{self.group}-{name}")
        node = Node(
            name=name,
            address=network.address,
            pods=network.pods,
            folder=str(folder),
            keys=str(self.keys),
            binaries=str(self.binaries),
            cgroup=f"{self.group}-{name}",
            archive=str(self.archive),
        )
        script = Path(__file__).with_name("cluster_node.py")
        command = network.inside(*ALONE, sys.executable, "-I", script, json.dumps(node._asdict()))
        self.processes[name] = start(self.log / name, *command)

    def _api(self) -> tuple[str, ...]:
        return (
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={self.networks[0].address}",
            f"--tls-cert-file={self.keys / 'api.crt'}",
            f"--tls-private-key-file={self.keys / 'api.key'}",
            f"--client-ca-file={self.keys / 'ca.crt'}",
            f"--token-auth-file={self.keys / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self.keys / 'accounts.key'}",
            f"--service-account-key-file={self.keys / 'accounts.pub'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={self.keys / 'kubelet-client.crt'}",
            f"--kubelet-client-key={self.keys / 'kubelet-client.key'}",
            f"--cert-dir={self.keys}",
        )

    def _asking(self, name: str) -> tuple[str, ...]:
        """Return the arguments of a daemon that asks the API server."""
        kubeconfig = self.keys / "admin.kubeconfig"
        kubeconfig_flags = [
            f"--{prefix}kubeconfig={kubeconfig}" for prefix in ("", "authentication-", "authorization-")
        ]
        accounts = (
            f"--service-account-private-key-file={self.keys / 'accounts.key'}",
            f"--root-ca-file={self.keys / 'ca.crt'}",
            "--use-service-account-credentials=true",
        )
        certificates = f"--cert-dir={self.keys / name}"
        manager = name == "kube-controller-manager"
        return (*kubeconfig_flags, "--leader-elect=false", certificates, *(accounts if manager else ()))

    def _until(self, condition: Any, what: str) -> None:
        """Wait for the start of something; name a daemon that ended meanwhile."""

        def holds() -> bool:
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name} ended:\n{(self.log / name).read_text()[-3000:]}"
            return bool(condition())

        wait_until(holds, what, READY_WITHIN)

    def _ready(self) -> int:
        result = self.try_kubectl("get", "nodes", "--no-headers")
        return sum(line.split()[1] == "Ready" for line in result.stdout.splitlines()) if result.returncode == 0 else 0

    # --- use --------------------------------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """Run kubectl and return what it prints. Raises AssertionError with its error."""
        result = self.try_kubectl(*arguments, stdin=given)
        assert result.returncode == 0, f"kubectl {' '.join(arguments)}: {result.stderr}"
        return result.stdout

    def get(self, *what: str) -> dict[str, Any]:
        """Return an object, or the list of a kind."""
        resource: dict[str, Any] = json.loads(self.kubectl("get", *what, "--output=json"))
        return resource

    def ask(self, node: str, url: str, *, key: str = "", data: Any = None) -> Answer:
        """Send a request from a node, with a key and with JSON, if given."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        headers |= {"Content-Type": "application/json"} if data else {}
        body = json.dumps(data) if data else ""
        network = self.networks[self.nodes.index(node)]
        command = network.inside(sys.executable, "-I", "-c", ASK, url, json.dumps(headers), body)
        return Answer(*json.loads(subprocess.check_output(command)))

    def load(self, node: str, archive: Path) -> None:
        """Import the images of an archive on a node."""
        outside = self.processes[node].pid
        (inside,) = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()
        ctr = self.binaries / "root/usr/bin/ctr"
        enter = ("nsenter", f"--target={inside}", "--mount", "--pid")
        subprocess.run([*enter, ctr, "--namespace", "k8s.io", "images", "import", archive], check=True)

    def _answers(self, *arguments: str) -> bool:
        return self.try_kubectl(*arguments).returncode == 0

    def try_kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl, whatever its exit code."""
        program = self.binaries / "root/usr/bin/kubectl"
        options = (f"--kubeconfig={self.keys / 'admin.kubeconfig'}", f"--cache-dir={self.folder / 'kubectl'}")
        command = self.networks[0].inside(program, *options, *arguments)
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def lacking() -> list[str]:
    """Return what this machine lacks for a cluster."""
    return [*(name for name in TOOLS if not shutil.which(name)), *(["root's rights"] if os.geteuid() else [])]


@contextlib.contextmanager
def running(folder: Path, archive: Path) -> Iterator[Cluster]:
    """Start a cluster; end it after the block."""
    cluster = Cluster(folder, archive)
    try:
        cluster.start()
        log("Kubernetes: two nodes are ready")
        yield cluster
    finally:
        cluster.stop()
