"""Runs on a machine, or in a container that stands for one: answers what `topology check` asks, as JSON. IO.

It is sent as text and needs nothing but Python 3.8. It reads, and changes nothing; the containers that it starts are
removed. Everything is bounded, and what cannot be read is told as text. It has no braces next to each other, because
Ansible would read them as a template.
"""

from __future__ import annotations

import base64
import contextlib
import grp
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

WHOLE = 64 << 20
"""Bytes up to which a file is hashed as a whole; of a longer one, its size and both ends."""
END = 1 << 20
FILES = 4096
OUTPUT = 4 << 20
"""Bytes of what a command prints."""
SECONDS = 300
HCCN = "/usr/local/Ascend/driver/tools/hccn_tool"


def run(words: Sequence[str], seconds: float = SECONDS) -> dict[str, Any]:
    """Return what a command printed, or why it could not be run."""
    try:
        done = subprocess.run(words, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return {"rc": -1, "stdout": "", "stderr": str(error)[:1000]}
    text = [stream[:OUTPUT].decode("utf-8", "replace") for stream in (done.stdout, done.stderr)]
    return {"rc": done.returncode, "stdout": text[0], "stderr": text[1][-1000:]}


def images(names: Sequence[str]) -> dict[str, Any]:
    """Return name → its id and digests; empty for an image that the engine has not."""
    found: dict[str, Any] = {}
    for name in names:
        done = run(["docker", "image", "inspect", name], 60)
        try:
            image = json.loads(done["stdout"])[0] if done["rc"] == 0 else {}
            digests = [text.rpartition("@")[2] for text in image.get("RepoDigests") or ()]
            found[name] = {"id": image.get("Id", ""), "digests": digests, "failure": done["stderr"]}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            found[name] = {"id": "", "digests": [], "failure": str(error)}
    return found


def fingerprint(path: str, size: int) -> str:
    """Return the sha256 of a file: whole, or of its ends."""
    own = hashlib.sha256()
    with open(path, "rb") as file:
        if size <= WHOLE:
            for chunk in iter(lambda: file.read(END), b""):
                own.update(chunk)
        else:
            own.update(file.read(END))
            file.seek(-END, os.SEEK_END)
            own.update(file.read(END))
    return own.hexdigest()


def model(folder: str) -> dict[str, Any]:
    """Return the files of a model's folder by name, and why one could not be read."""
    files: dict[str, Any] = {}
    failure = ""
    try:
        for name in sorted(os.listdir(folder))[:FILES]:
            path = os.path.join(folder, name)
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode):
                files[name] = [found.st_size, fingerprint(path, found.st_size)]
    except OSError as error:
        failure = str(error)
    return {"files": files, "failure": failure, "free": free(folder)}


def free(path: str) -> int:
    """Return the free bytes of a folder's file system, or of the first folder above it that exists."""
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path) or "/"
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def ports(address: str, numbers: Sequence[int]) -> dict[str, str]:
    """Return port → why a server cannot listen on it; empty if it can."""
    found: dict[str, str] = {}
    for number in numbers:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", number))
                probe.listen(1)
                found[str(number)] = ""
            except OSError as error:
                found[str(number)] = error.strerror or str(error)
    return found


def chips(numbers: Sequence[int], others: Sequence[str]) -> dict[str, Any]:
    """Return chip → what hccn_tool says of it: address, link, TLS, and the other machines' chips."""
    found: dict[str, Any] = {}
    for number in numbers if os.path.exists(HCCN) else ():
        own: dict[str, Any] = {}
        for kind in ("ip", "link", "tls"):
            own[kind] = run([HCCN, "-i", str(number), "-" + kind, "-g"], 30)
        own["ping"] = {}
        for address in others:
            own["ping"][address] = run([HCCN, "-i", str(number), "-ping", "-g", "address", address], 30)
        found[str(number)] = own
    return found


def container(words: Sequence[str], groups: Sequence[str], command: Sequence[str]) -> dict[str, Any]:
    """Run a command of the image as its servers are run; names of groups are this machine's."""
    if not words:
        return {"rc": -1, "stdout": "", "stderr": "not asked for"}
    own = []
    for name in groups:
        with contextlib.suppress(KeyError):
            own += ["--group-add", str(grp.getgrnam(name).gr_gid)]
    return run([*words[:2], *own, *words[2:], *command])


def main(asked: dict[str, Any]) -> None:
    """Print the answer."""
    words, groups = asked["container"], asked["groups"]
    answer = {
        "images": images(asked["images"]),
        "model": model(asked["model"]) if asked["model"] else None,
        "ports": ports(asked["address"], asked["ports"]),
        "chips": chips(asked["chips"], asked["others"]),
        "check": container(words, groups, asked["check"]),
        "facts": container(words, groups, ["facts", "--json"]),
        "fabric": container(words, groups, asked["fabric"]) if asked["fabric"] else None,
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(base64.b64decode(sys.argv[1])))
