"""Runs on a machine, or in a container that stands for one: answers what `topology check` asks, as JSON. IO.

It is sent as text and needs nothing but Python 3.8. It reads, and changes nothing; the containers that it starts are
removed. Everything is bounded, and what cannot be read is told as text. It has no braces next to each other, because
Ansible would read them as a template.
"""

import base64
import grp
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import time

WHOLE = 64 << 20
"""Bytes up to which a file is hashed as a whole; of a longer one, its size and both ends."""
END = 1 << 20
FILES = 4096
OUTPUT = 4 << 20
"""Bytes of what a command prints."""
SECONDS = 300
HCCN = "/usr/local/Ascend/driver/tools/hccn_tool"


def run(words, seconds=SECONDS):
    """Return what a command printed, or why it could not be run."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return dict(rc=-1, stdout="", stderr=str(error)[:1000])
    text = [stream[:OUTPUT].decode("utf-8", "replace") for stream in (done.stdout, done.stderr)]
    return dict(rc=done.returncode, stdout=text[0], stderr=text[1][-1000:])


def images(names):
    """Return name → its id and digests; empty for an image that the engine has not."""
    found = dict()
    for name in names:
        done = run(["docker", "image", "inspect", name], 60)
        try:
            (image,) = json.loads(done["stdout"]) if done["rc"] == 0 else [dict()]
            digests = [text.rpartition("@")[2] for text in image.get("RepoDigests") or ()]
            found[name] = dict(id=image.get("Id", ""), digests=digests, failure=done["stderr"])
        except ValueError as error:
            found[name] = dict(id="", digests=[], failure=str(error))
    return found


def fingerprint(path, size):
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


def model(folder):
    """Return the files of a model's folder by name, and why one could not be read."""
    files, failure = dict(), ""
    try:
        for name in sorted(os.listdir(folder))[:FILES]:
            path = os.path.join(folder, name)
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode):
                files[name] = [found.st_size, fingerprint(path, found.st_size)]
    except OSError as error:
        failure = str(error)
    return dict(files=files, failure=failure, free=free(folder))


def free(path):
    """Return the free bytes of a folder's file system, or of the first folder above it that exists."""
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path) or "/"
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def ports(address, numbers):
    """Return port → why a server cannot listen on it; empty if it can."""
    found = dict()
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


def interfaces():
    """Return interface → its MTU, and whether it is up."""
    found = dict()
    for _, name in socket.if_nameindex():
        words = []
        for file in ("mtu", "operstate"):
            try:
                with open(os.path.join("/sys/class/net", name, file)) as text:
                    words.append(text.read(100).strip())
            except OSError:
                words.append("")
        found[name] = dict(mtu=int(words[0]) if words[0].isdigit() else 0, state=words[1])
    return found


def chips(numbers, others):
    """Return chip → what hccn_tool says of it: address, link, TLS, and the other machines' chips."""
    found = dict()
    for number in numbers if os.path.exists(HCCN) else ():
        own = dict()
        for kind in ("ip", "link", "tls"):
            own[kind] = run([HCCN, "-i", str(number), "-" + kind, "-g"], 30)
        own["ping"] = dict()
        for address in others:
            own["ping"][address] = run([HCCN, "-i", str(number), "-ping", "-g", "address", address], 30)
        found[str(number)] = own
    return found


def container(words, groups, command):
    """Run a command of the image as its servers are run; names of groups are this machine's."""
    if not words:
        return dict(rc=-1, stdout="", stderr="not asked for")
    own = []
    for name in groups:
        try:
            own += ["--group-add", str(grp.getgrnam(name).gr_gid)]
        except KeyError:
            pass
    return run([*words[:2], *own, *words[2:], *command])


def main(asked):
    """Print the answer."""
    words, groups = asked["container"], asked["groups"]
    answer = dict(
        time=time.time(),
        images=images(asked["images"]),
        model=model(asked["model"]) if asked["model"] else None,
        ports=ports(asked["address"], asked["ports"]),
        interfaces=interfaces(),
        chips=chips(asked["chips"], asked["others"]),
        check=container(words, groups, asked["check"]),
        facts=container(words, groups, ["facts", "--json"]),
    )
    print(json.dumps(answer))


main(json.loads(base64.b64decode(sys.argv[1])))
