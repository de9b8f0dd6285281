"""A node of the test cluster: the first process of its own mount, process and host name namespaces. Stdlib only.

Starts containerd, kubelet and kube-proxy, and ends when one of them does. All that they write to fixed places of a
machine goes to this node's folder, or to memory: nothing is left when this process ends, and with it all others.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ENDPOINT = "/run/containerd/containerd.sock"
IN_MEMORY = ("/run", "/var/lib", "/var/log")
ON_DISK = ("/var/lib/kubelet", "/var/lib/containerd")
"""Large, or a file system on which the kernel's overlays work."""
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What the kubelet sets if the kernel has other values: here in files of its own, instead of in this machine's."""
SANDBOX = "localhost/pause:1"


class Node(NamedTuple):
    """What a node is told."""

    name: str
    address: str
    pods: str
    folder: str
    keys: str
    binaries: str
    cgroup: str
    archive: str
    """Images that it has from the start."""


def main(node: Node) -> int:
    """Run the node's daemons until one ends."""
    folder, root = Path(node.folder), Path(node.binaries, "root")
    socket.sethostname(node.name)
    hide_the_machine(folder)
    program_folders = (Path(node.binaries, "bin"), root / "usr/bin", root / "usr/sbin")
    os.environ["PATH"] = ":".join([*map(str, program_folders), os.environ["PATH"]])
    write_configuration(node, folder, root)
    daemons = [start(folder, "containerd", "--config", str(folder / "containerd.toml"))]
    wait_for_containerd()
    subprocess.run(["ctr", "--namespace", "k8s.io", "images", "import", node.archive], check=True)
    daemons += [start(folder, "kubelet", *kubelet(node)), start(folder, "kube-proxy", *proxy(node))]
    return end_of({daemon.pid: daemon.args[0] for daemon in daemons})  # type: ignore[misc, index]


def hide_the_machine(folder: Path) -> None:
    """Give this node its own folders for state, and its own kernel settings."""
    mount("--make-rshared", "/")
    for place in IN_MEMORY:
        mount("-t", "tmpfs", "tmpfs", place)
    for place in ON_DISK:
        (stand_in := folder / Path(place).name).mkdir()
        Path(place).mkdir()
        mount("--bind", str(stand_in), place)
    Path("/run/netns").mkdir()
    for number, (name, value) in enumerate(SYSCTLS.items()):
        (stand_in := folder / f"sysctl-{number}").write_text(value)
        mount("--bind", str(stand_in), f"/proc/sys/{name}")


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def start(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    with (folder / f"{command[0]}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def wait_for_containerd() -> None:
    while subprocess.run(["ctr", "version"], capture_output=True, check=False).returncode:
        time.sleep(0.1)


def end_of(daemons: dict[int, Any]) -> int:
    """Reap what ends, as the first process must, until a daemon does."""
    while True:
        pid, status = os.wait()
        if pid in daemons:
            sys.stdout.write(f"{daemons[pid]} ended with status {status}\n")
            return 1


# --- configuration --------------------------------------------------------------------------------------------------


def write_configuration(node: Node, folder: Path, root: Path) -> None:
    (folder / "net.d").mkdir()
    (folder / "net.d" / "10-bridge.conflist").write_text(json.dumps(bridge(node)))
    (folder / "kubelet.json").write_text(json.dumps(kubelet_configuration(node, folder)))
    (folder / "containerd.toml").write_text(CONTAINERD.format(folder=folder, root=root, sandbox=SANDBOX))
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")


CONTAINERD = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox}"
  disable_apparmor = true
  # A machine without CAP_SYS_RESOURCE may not lower oom_score_adj: "can't get final child's PID from pipe: EOF".
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{root}/usr/lib/cni"
    conf_dir = "{folder}/net.d"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
"""


def bridge(node: Node) -> dict[str, Any]:
    """Return the pods' network: a bridge of the node. No masquerading, because each node has routes to all pods."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": node.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    plugin = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}


def kubelet_configuration(node: Node, folder: Path) -> dict[str, Any]:
    authority = {"clientCAFile": f"{node.keys}/ca.crt"}
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": authority},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failSwapOn": False,
        "clusterDNS": ["10.96.0.10"],  # nothing answers there: Debian has no CoreDNS
        "clusterDomain": "cluster.local",
        "resolvConf": str(folder / "resolv.conf"),
        # A full disk of the developer must not evict the tests' pods.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
    }


def kubelet(node: Node) -> tuple[str, ...]:
    return (
        f"--kubeconfig={node.keys}/{node.name}.kubeconfig",
        f"--config={node.folder}/kubelet.json",
        f"--cert-dir={node.folder}/certificates",
        "--container-runtime=remote",
        f"--container-runtime-endpoint=unix://{ENDPOINT}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        "--v=2",
    )


def proxy(node: Node) -> tuple[str, ...]:
    """Return kube-proxy's arguments. It must not change the size of the connection table, which nodes share."""
    return (
        f"--kubeconfig={node.keys}/admin.kubeconfig",
        "--cluster-cidr=10.244.0.0/16",
        "--proxy-mode=iptables",
        f"--hostname-override={node.name}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    )


if __name__ == "__main__":
    sys.exit(main(Node(**json.loads(sys.argv[1]))))
