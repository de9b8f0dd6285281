"""What the test cluster is made of: packages and one source of Debian 12, by hash.

Kubernetes 1.20.2 is the newest whose whole source a Debian suite has; of later ones there is kubectl alone. Its kubelet
speaks CRI v1alpha2, which containerd 1.6 has and 2.x has not.
"""

from __future__ import annotations

from drydock.model.locked import LockedDeb

SNAPSHOT = "20261122T000000Z"
"""When the hashes were read from Debian's signed index: what DRYDOCK_SNAPSHOT_ARCHIVE gets as {timestamp}."""
VERSION = "v1.20.2"

_KUBERNETES = "pool/main/k/kubernetes/kubernetes"
_SOURCE = "1.20.5+really1.20.2-1.1+deb12u1"


def _pin(filename: str, size: int, sha256: str) -> LockedDeb:
    """Return a package's pin; its file is called NAME_VERSION_ARCHITECTURE.deb."""
    name, version, architecture = filename.rpartition("/")[2].removesuffix(".deb").split("_")
    return LockedDeb(name=name, version=version, architecture=architecture, filename=filename, size=size, sha256=sha256)


def _source(ending: str, size: int, sha256: str, version: str = _SOURCE) -> LockedDeb:
    """Return the pin of a file of Kubernetes' source."""
    filename = f"{_KUBERNETES}_{version}.{ending}"
    return LockedDeb(
        name="kubernetes", version=version, architecture="all", filename=filename, size=size, sha256=sha256
    )


SOURCE = (
    _source("dsc", 1973, "19fa1da5aefcef673894ac9511986bd98a14410cf8eea0b626613c30df435257"),
    _source("debian.tar.xz", 21300, "9b6e5fd41769d2b5badf2e73b274e3bcd90f85e13d06a1a4a845ccce018127d8"),
    _source(
        "orig.tar.gz",
        34428927,
        "b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc",
        "1.20.5+really1.20.2",
    ),
)
TOOLCHAIN = (
    _pin(
        "pool/main/g/golang-1.19/golang-1.19-go_1.19.8-2_amd64.deb",
        62705552,
        "545123039b6c79e75cf2d86528781a825424cf33ce9d3f4513d772d7144cd531",
    ),
    _pin(
        "pool/main/g/golang-1.19/golang-1.19-src_1.19.8-2_all.deb",
        18308084,
        "2dfa82fe4f08f4e0193c532e561af4c91871f5235608f04f2bb8d57bb288df5a",
    ),
    _pin(
        "pool/main/g/golang-github-modern-go-reflect2/golang-github-modern-go-reflect2-dev_1.0.2-2_all.deb",
        10872,
        "af150a5172cf4c19bb321a53e67103e7fb18d07c1baa1e816a235155265d3948",
    ),
    _pin(
        "pool/main/g/golang-github-json-iterator-go/golang-github-json-iterator-go-dev_1.1.12-1_all.deb",
        62240,
        "b03bbfae7e679be899cd583e2560de92e652979c40a8c44816ff8c8d25e1a5fe",
    ),
)
"""Go, and the two modules that must be newer than Kubernetes' own copies."""
AROUND = (
    _pin(
        "pool/main/c/containerd/containerd_1.6.20~ds1-1+deb12u3_amd64.deb",
        25903404,
        "8669d264eeb0fcdb4a0b1ba436ab88ec5dafde4a66e1278ec279d830db4c2216",
    ),
    _pin(
        "pool/main/r/runc/runc_1.1.5+ds1-1+deb12u1_amd64.deb",
        2709960,
        "a00351f8c0318de0b424ecf5cd0fdb69880a89f3511cae4f6fff7de3e57881c5",
    ),
    _pin(
        "pool/main/g/golang-github-containernetworking-plugins/containernetworking-plugins_1.1.1+ds1-3+b5_amd64.deb",
        6768984,
        "4cac8143474d1249b19f7b0e80b8d0daaa6dfdaa8bd514bc468d38d4a108099f",
    ),
    _pin(
        "pool/main/e/etcd/etcd-server_3.4.23-4+b4_amd64.deb",
        8438488,
        "3a9445d4560ad6de1c375756b2a17d97713df44cbd20a658c871fe108af7ef5d",
    ),
    _pin(
        "pool/main/k/kubernetes/kubernetes-client_1.20.5+really1.20.2-1.1+deb12u1_amd64.deb",
        8293048,
        "087c42dc26c847740043cdaa8b16db666be5591a1da957f822922aa1b677494e",
    ),
)
