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


def run_command(words: Sequence[str], seconds: float = SECONDS) -> dict[str, Any]:
    """Return what a command printed, or why it could not be run."""
    try:
        result = subprocess.run(words, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return {"rc": -1, "stdout": "", "stderr": str(error)[:1000]}
    text = [stream[:OUTPUT].decode("utf-8", "replace") for stream in (result.stdout, result.stderr)]
    return {"rc": result.returncode, "stdout": text[0], "stderr": text[1][-1000:]}


def inspect_images(names: Sequence[str]) -> dict[str, Any]:
    """Return name → its id and digests; empty for an image that the engine has not."""
    images: dict[str, Any] = {}
    for name in names:
        result = run_command(["docker", "image", "inspect", name], 60)
        try:
            image = json.loads(result["stdout"])[0] if result["rc"] == 0 else {}
            digests = [text.rpartition("@")[2] for text in image.get("RepoDigests") or ()]
            images[name] = {"id": image.get("Id", ""), "digests": digests, "failure": result["stderr"]}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            images[name] = {"id": "", "digests": [], "failure": str(error)}
    return images


def hash_model_file(path: str, size: int) -> str:
    """Return the sha256 of a file: whole, or of its ends."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if size <= WHOLE:
            for chunk in iter(lambda: file.read(END), b""):
                digest.update(chunk)
        else:
            digest.update(file.read(END))
            file.seek(-END, os.SEEK_END)
            digest.update(file.read(END))
    return digest.hexdigest()


def list_model_files(folder: str) -> dict[str, Any]:
    """Return the files of a model's folder by name, and why one could not be read."""
    files: dict[str, Any] = {}
    failure = ""
    try:
        for name in sorted(os.listdir(folder))[:FILES]:
            path = os.path.join(folder, name)
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                files[name] = [status.st_size, hash_model_file(path, status.st_size)]
    except OSError as error:
        failure = str(error)
    return {"files": files, "failure": failure, "free": read_free_bytes(folder)}


def read_free_bytes(path: str) -> int:
    """Return the free bytes of a folder's file system, or of the first folder above it that exists."""
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path) or "/"
    filesystem = os.statvfs(path)
    return filesystem.f_bavail * filesystem.f_frsize


def try_ports(address: str, numbers: Sequence[int]) -> dict[str, str]:
    """Return port → why a server cannot listen on it; empty if it can."""
    failures: dict[str, str] = {}
    for number in numbers:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", number))
                probe.listen(1)
                failures[str(number)] = ""
            except OSError as error:
                failures[str(number)] = error.strerror or str(error)
    return failures


def ask_chips(numbers: Sequence[int], peer_addresses: Sequence[str]) -> dict[str, Any]:
    """Return chip → what hccn_tool says of it: address, link, TLS, and the other machines' chips."""
    answers: dict[str, Any] = {}
    for number in numbers if os.path.exists(HCCN) else ():
        answer: dict[str, Any] = {}
        for kind in ("ip", "link", "tls"):
            answer[kind] = run_command([HCCN, "-i", str(number), "-" + kind, "-g"], 30)
        answer["ping"] = {}
        for address in peer_addresses:
            answer["ping"][address] = run_command([HCCN, "-i", str(number), "-ping", "-g", "address", address], 30)
        answers[str(number)] = answer
    return answers


def run_in_container(words: Sequence[str], groups: Sequence[str], command: Sequence[str]) -> dict[str, Any]:
    """Run a command of the image as its servers are run; names of groups are this machine's."""
    if not words:
        return {"rc": -1, "stdout": "", "stderr": "not asked for"}
    group_options = []
    for name in groups:
        with contextlib.suppress(KeyError):
            group_options += ["--group-add", str(grp.getgrnam(name).gr_gid)]
    return run_command([*words[:2], *group_options, *words[2:], *command])


def main(request: dict[str, Any]) -> None:
    """Print the answer."""
    words, groups = request["container"], request["groups"]
    answer = {
        "images": inspect_images(request["images"]),
        "model": list_model_files(request["model"]) if request["model"] else None,
        "ports": try_ports(request["address"], request["ports"]),
        "chips": ask_chips(request["chips"], request["others"]),
        "check": run_in_container(words, groups, request["check"]),
        "facts": run_in_container(words, groups, ["facts", "--json"]),
        "fabric": run_in_container(words, groups, request["fabric"]) if request["fabric"] else None,
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(base64.b64decode(sys.argv[1])))
