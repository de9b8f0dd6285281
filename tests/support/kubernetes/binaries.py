"""Builds Kubernetes from Debian's source, once, and unpacks what a node needs beside it. IO.

The result is kept in drydock's cache folder under a key of the pins and of this recipe. `python -m
tests.support.kubernetes.binaries` makes it outside a test; what was compiled before an interruption is not compiled
again. Nothing is installed on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from drydock.core.console import log
from drydock.core.files import compute_checksum, hold_lock_file
from drydock.core.paths import cache_home
from drydock.inputs.debs import fetch_packages
from drydock.inputs.store import default_store
from drydock.model.locked import LockedDeb
from tests.support.kubernetes import cluster_pins

MODULE = "k8s.io/kubernetes"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
NEWER = ("github.com/modern-go/reflect2", "github.com/json-iterator/go")
"""Modules replaced by Debian's: Kubernetes' own reflect2 does not go with Go 1.18 and later, and the API server dies of
SIGSEGV in mapiternext after minutes (https://github.com/modern-go/reflect2/issues/23)."""
OPENAPI = "pkg/generated/openapi"
OPENAPI_FILE = "zz_generated.openapi.go"
"""Made by `make generated_files`, which needs bash, git and rsync; here by its one generator that is missing."""
MARK = "// +k8s:openapi-gen=true"
POLITE = ("nice", "-n", "15")
AT_ONCE = 2
"""Packages that Go compiles at the same time: each may need 1 GiB."""


def binaries() -> Path:
    """Return the folder with `bin` (Kubernetes) and `root` (containerd, etcd …); build it if the cache lacks it."""
    final = cache_home() / "kubernetes" / key()
    final.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock_file(final.with_suffix(".lock")):
        if not final.exists():
            work = final.with_suffix(".work")
            build_folder = _made(work)
            build_folder.rename(final)
            shutil.rmtree(work)
    return final


def key() -> str:
    """Return the key of the pins and of the recipe: this file."""
    packages = [pin.sha256 for pin in (*cluster_pins.SOURCE, *cluster_pins.TOOLCHAIN, *cluster_pins.AROUND)]
    return compute_checksum([packages, cluster_pins.VERSION, Path(__file__).read_text()])[:16]


def _made(work: Path) -> Path:
    fetch_packages(
        (*cluster_pins.SOURCE, *cluster_pins.TOOLCHAIN, *cluster_pins.AROUND),
        cluster_pins.SNAPSHOT,
        default_store(),
        os.environ,
    )
    log("Kubernetes: compiling it from Debian's source, once; this takes 6 to 20 minutes")
    work.mkdir(exist_ok=True)
    go, source, target = work / "go", work / "gopath" / "src" / MODULE, work / "made"
    _unpack(cluster_pins.TOOLCHAIN, go)
    _unpack(cluster_pins.AROUND, target / "root")
    if not source.exists():
        _prepare(source, go)
    _generate(source, work)
    for program in PROGRAMS:
        _build(work, target / "bin" / program, f"{MODULE}/cmd/{program}")
    return target


def _unpack(packages: Iterable[LockedDeb], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for pin in packages:
        _run("dpkg-deb", "--extract", default_store().path(pin.sha256), folder)


def _prepare(source: Path, go: Path) -> None:
    """Extract Debian's source, with its patches and the newer modules."""
    source.parent.mkdir(parents=True, exist_ok=True)
    unpacked = source.with_name("unpacked")
    shutil.rmtree(unpacked, ignore_errors=True)
    for pin in cluster_pins.SOURCE:
        link = source.parent / Path(pin.filename).name
        link.unlink(missing_ok=True)
        link.symlink_to(default_store().path(pin.sha256))
    description = source.parent / Path(cluster_pins.SOURCE[0].filename).name
    _run("dpkg-source", "--no-check", "--extract", description, unpacked)
    for module in NEWER:
        shutil.rmtree(unpacked / "vendor" / module)
        shutil.copytree(
            go / "usr/share/gocode/src" / module,
            unpacked / "vendor" / module,
            ignore=shutil.ignore_patterns("*_test.go"),
        )
    unpacked.rename(source)


def _generate(source: Path, work: Path) -> None:
    """Make the one generated file that the source lacks."""
    if (source / OPENAPI / OPENAPI_FILE).exists():
        return
    generator = work / "openapi-gen"
    _build(work, generator, f"{MODULE}/vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    _run(
        *(*POLITE, generator, "--logtostderr", "-i", ",".join(sorted(set(_described(source))))),
        *("-p", f"{MODULE}/{OPENAPI}", "-O", OPENAPI_FILE.removesuffix(".go")),
        *("-h", "hack/boilerplate/boilerplate.generatego.txt", "-r", work / "violations.txt"),
        folder=source,
        env=_go(work),
    )


def _described(source: Path) -> Iterator[str]:
    """Yield the packages whose types the API describes."""
    for top in ("pkg", "cmd", "staging/src/k8s.io"):
        for path in (source / top).rglob("*.go"):
            name = path.relative_to(source).as_posix()
            if any(word in name for word in ("_test.go", "sample-", "code-generator", "/test")):
                continue
            if any(line.startswith(MARK) for line in path.read_text().splitlines()):
                yield f"{MODULE}/{Path(name).parent}".replace("/staging/src/", "/vendor/")


def _build(work: Path, program: Path, package: str) -> None:
    if program.exists():
        return
    log(f"Kubernetes: {program.name}")
    _run(
        *(*POLITE, "go", "build", "-trimpath", "-p", str(AT_ONCE), "-o", program, "-ldflags", _flags(), package),
        folder=work / "gopath" / "src" / MODULE,
        env=_go(work),
    )


def _flags() -> str:
    """Return the linker's flags: no symbols, and the version that the programs report."""
    major, minor, _ = cluster_pins.VERSION.removeprefix("v").split(".")
    values = {
        "gitVersion": cluster_pins.VERSION,
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "0" * 40,
        "gitTreeState": "clean",
        "buildDate": "2021-01-13T00:00:00Z",
    }
    packages = ("component-base/version", "client-go/pkg/version")
    stamped = [
        f"-X {MODULE}/vendor/k8s.io/{package}.{name}={value}" for package in packages for name, value in values.items()
    ]
    return " ".join(("-s", "-w", *stamped))


def _go(work: Path) -> dict[str, str]:
    """Return Go's environment: the toolchain of the work folder, no modules, no network."""
    root = work / "go" / "usr" / "lib" / "go-1.19"
    return {
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "HOME": str(work),
        "GOROOT": str(root),
        "GOPATH": str(work / "gopath"),
        "GOCACHE": str(work / "gocache"),
        "GO111MODULE": "off",
        "GOPROXY": "off",
        "CGO_ENABLED": "0",
    }


def _run(*command: str | Path, folder: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    subprocess.run([str(word) for word in command], cwd=folder, env=env, check=True)


if __name__ == "__main__":
    sys.stdout.write(f"{binaries()}\n")
