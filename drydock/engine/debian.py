"""Installs packages on Debian hosts from the host's mirrors, if necessary from Debian testing. IO."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from drydock.core.console import log
from drydock.core.errors import EngineError
from drydock.core.files import restore_files, write_together

TESTING_SOURCE = Path("/etc/apt/sources.list.d/drydock-testing.sources")
TESTING_PIN = Path("/etc/apt/preferences.d/drydock-testing")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def is_debian(os_release: Path = Path("/etc/os-release")) -> bool:
    """Tell whether this is Debian itself; derivatives have other packages on their mirrors."""
    return os_release.is_file() and "\nID=debian\n" in f"\n{os_release.read_text()}\n"


def install_packages(*packages: str, minimum: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Install packages with apt-get, as root; from testing if the release's own are older than `minimum`.

    Logs what it does. Raises EngineError with apt's error lines; then apt's configuration is as it was.
    """
    _run_apt_get("update")
    old = [
        name
        for name, version in (minimum or {}).items()
        if parse_policy(_capture_output("apt-cache", "policy", name)) < version
    ]
    options: tuple[str, ...] = ()
    with restore_files((TESTING_SOURCE, TESTING_PIN)):  # a source that fails ends each later `apt-get update`
        if old:
            log(f"{', '.join(old)}: too old in this release; installing from Debian testing, pinned to low priority")
            _add_testing()
            _run_apt_get("update")
            options = ("-t", "testing")
        log(f"installing {' '.join(packages)} with apt-get")
        _run_apt_get("install", "--yes", "--no-install-recommends", *options, *packages)


def parse_policy(text: str) -> tuple[int, ...]:
    """Return the candidate version from the output of `apt-cache policy NAME`; empty if there is none."""
    version = re.search(r"Candidate: (?:\d+:)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in version[1].split(".")) if version else ()


def find_debian_mirror() -> str:
    """Return the Debian mirror of this machine's apt configuration.

    Raises EngineError if there is none.
    """
    targets = _capture_output(
        "apt-get", "indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(SITE) $(REPO_URI)", "Created-By: Packages"
    )
    for line in targets.splitlines():
        origin, _, _, uri = [*line.split(), "", "", "", ""][:4]
        if origin == "Debian" and uri:
            return uri.rstrip("/")
    raise EngineError("apt: no Debian mirror is configured on this machine", hint="add one to /etc/apt/sources.list.d")


def _add_testing() -> None:
    source = f"Types: deb\nURIs: {find_debian_mirror()}\nSuites: testing\nComponents: main\nSigned-By: {KEYRING}\n"
    pin = "Package: *\nPin: release a=testing\nPin-Priority: 100\n"
    write_together({TESTING_PIN: pin, TESTING_SOURCE: source})  # without its pin, the source would upgrade the machine


def _run_apt_get(*arguments: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    result = subprocess.run(["apt-get", "-q", *arguments], capture_output=True, text=True, check=False, env=env)
    if result.returncode:
        errors = [line for line in (result.stderr + result.stdout).splitlines() if line.startswith("E:")]
        raise EngineError(f"apt-get {' '.join(arguments)}: exit {result.returncode}: {' '.join(errors)}")


def _capture_output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
