"""How a machine gets an engine: which packages, who installs them; on Debian, installs them with apt. IO.

They come from the host's mirrors, if necessary from Debian testing.
"""

from __future__ import annotations

import grp
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from drydock.core.console import log
from drydock.core.errors import EngineError
from drydock.core.files import write_together
from drydock.core.ownership import user_name
from drydock.core.paths import ROOT

TESTING_SOURCE = Path("/etc/apt/sources.list.d/drydock-testing.sources")
TESTING_PIN = Path("/etc/apt/preferences.d/drydock-testing")
SYSTEMD = Path("/run/systemd/system")
"""Is there only where systemd is the init system (sd_booted(3))."""
IMAGE_STORE = '{"features": {"containerd-snapshotter": true}} in /etc/docker/daemon.json'
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def is_debian(os_release: Path = Path("/etc/os-release")) -> bool:
    """Tell whether this is Debian itself; derivatives have other packages on their mirrors."""
    return os_release.is_file() and "\nID=debian\n" in f"\n{os_release.read_text()}\n"


def explain_engine_setup(environment: Path = ROOT / ".venv", *, is_installed: bool = False) -> str:
    """Return what the user of this process does to get an engine, on this system; `environment` is that of ./inv."""
    uid = os.geteuid()
    if uid == 0 and (is_installed or is_debian()):
        return "run `./inv engine`"
    steps = [f"install {_name_engine_packages()}", f"enable its containerd image store ({IMAGE_STORE})"]
    if is_installed and SYSTEMD.is_dir():
        steps = ["`systemctl start docker`"]
    elif is_installed or is_debian():
        steps = [f"`{_name_root_command(environment)} engine`"]
    if uid == 0:
        return f"{', '.join(steps)}, and restart it"
    join = f", then `usermod --append --groups docker {user_name(uid)}`; log in again" if not _is_member() else ""
    return f"as root: {', '.join(steps)}{join}. Or set DOCKER_HOST to an engine that you may use"


def _is_member() -> bool:
    """Tell whether this process may use an engine's socket by its group."""
    try:
        return grp.getgrnam("docker").gr_gid in os.getgroups()
    except KeyError:
        return False


def _name_root_command(environment: Path) -> str:
    """Return how root starts this checkout: an environment of this user is run only if sudo, or SUDO_UID, says so."""
    uid = os.geteuid()
    is_own = environment.is_dir() and environment.stat().st_uid == uid
    return ("sudo ./inv" if shutil.which("sudo") else f"SUDO_UID={uid} ./inv") if is_own else "./inv"


def _name_engine_packages() -> str:
    """Return the packages of an engine and of buildx on this system, of the distribution if it has them."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:  # macOS
        release = {}
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    known = next((ENGINE_PACKAGES[name] for name in names if name in ENGINE_PACKAGES), "")
    if known and "rhel" not in names:
        return f"{known} (Docker Engine 25 or newer, buildx 0.13 or newer)"
    return "Docker Engine 25 or newer with buildx 0.13 or newer (https://docs.docker.com/engine/install/)"


ENGINE_PACKAGES: Mapping[str, str] = {
    "alpine": "docker and docker-cli-buildx",
    "arch": "docker and docker-buildx",
    "fedora": "moby-engine and docker-buildx",
    "suse": "docker and docker-buildx",
    "ubuntu": "docker.io and docker-buildx",
}
"""ID or ID_LIKE in /etc/os-release → its packages. RHEL, which is like Fedora, has none."""


def install_packages(*packages: str, minimum: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Install packages with apt-get, as root; from testing if the release's own are older than `minimum`.

    apt's configuration gets testing only after they are installed: a source that fails, which a killed process would
    leave, ends each later `apt-get update`. Logs what it does. Raises EngineError with apt's error lines.
    """
    _run_apt_get("update", hint="`apt-get update` shows it again: repair this machine's sources, or its network")
    old = [
        name
        for name, version in (minimum or {}).items()
        if parse_policy(_capture_output("apt-cache", "policy", name)) < version
    ]
    if not old:
        _install(packages)
        return
    log(f"{', '.join(old)}: too old in this release; installing from Debian testing, pinned to low priority")
    testing = _describe_testing()
    with tempfile.TemporaryDirectory(prefix="drydock-apt-") as folder:
        options = _copy_configuration(Path(folder), testing)
        _run_apt_get("update", *options, hint=_INSTEAD_OF_TESTING)
        _install(packages, *options, "-t", "testing", hint=_INSTEAD_OF_TESTING)
    write_together(testing)


_INSTEAD_OF_TESTING = (
    "Debian testing was not added to apt. Instead of it: newer packages of this release's backports, if it has them;"
    " Docker's own (https://docs.docker.com/engine/install/debian/); or an engine that is there: set DOCKER_HOST"
)


def _install(packages: Sequence[str], *options: str, hint: str = "") -> None:
    log(f"installing {' '.join(packages)} with apt-get")
    _run_apt_get("install", "--yes", "--no-install-recommends", *options, *packages, hint=hint)


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


def _describe_testing() -> dict[Path, str]:
    """Return apt's files for testing: its pin comes first, as without it the source would upgrade the machine."""
    source = f"Types: deb\nURIs: {find_debian_mirror()}\nSuites: testing\nComponents: main\nSigned-By: {KEYRING}\n"
    pin = "Package: *\nPin: release a=testing\nPin-Priority: 100\n"
    return {TESTING_PIN: pin, TESTING_SOURCE: source}


def _copy_configuration(folder: Path, added: Mapping[Path, str]) -> tuple[str, ...]:
    """Copy apt's folders of sources and of pins, with files that are added; return the options that use the copies."""
    options: list[str] = []
    for name, file in (("SourceParts", TESTING_SOURCE), ("PreferencesParts", TESTING_PIN)):
        copy = folder / name
        copy.mkdir()
        for path in file.parent.glob("*"):
            if path.is_file():
                shutil.copy(path, copy)
        (copy / file.name).write_text(added[file], encoding="utf-8")
        options += ("-o", f"Dir::Etc::{name}={copy}")
    return (*options,)


def _run_apt_get(*arguments: str, hint: str = "") -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    result = subprocess.run(["apt-get", "-q", *arguments], capture_output=True, text=True, check=False, env=env)
    if result.returncode:
        errors = [line for line in (result.stderr + result.stdout).splitlines() if line.startswith("E:")]
        raise EngineError(f"apt-get {arguments[0]}: exit {result.returncode}: {' '.join(errors)}", hint=hint)


def _capture_output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
