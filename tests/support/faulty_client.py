"""Operations that tests kill and run again: a publish, a fetch, a build, a bundle. Each detects incomplete results."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from drydock.build import build
from drydock.build.job import BuildOptions, prepare
from drydock.bundle.create import create
from drydock.bundle.load import load
from drydock.config.access import Access
from drydock.core.errors import DrydockError
from drydock.examine.pulled import open_image
from drydock.inputs.store import Store
from drydock.inputs.transfer import Wanted, download
from drydock.oci.reference import parse
from drydock.publish import push
from drydock.publish.repository import Repository
from tests.support.filled_registry import StockedRepository
from tests.support.local_registry import VARIANT
from tests.support.loopback import Loopback
from tests.support.servers import Answered, FaultyProxy, Registry
from tests.support.small_image import VARIANT as SMALL
from tests.support.small_image import Small

QUICK = Access(pause=0.01, timeout=10)
CREATED, MISSING = 201, 404
UPLOADED, RACED, TWICE = "blobs uploaded", "uploaded twice, the first still under way", "uploaded twice otherwise"


class Trial(Protocol):
    """One operation on fresh state."""

    longest: float
    """The operation is killed within this time, in seconds."""
    faults: dict[str, int]

    def work(self) -> None:
        """Start the operation, or resume it."""

    def half_made(self) -> bool:
        """Tell whether a name refers to something incomplete."""

    def same(self) -> bool:
        """Tell whether the result is the expected one."""


def runs(trial: Trial) -> bool:
    """Do a trial's work in this process; return whether it succeeded."""
    try:
        trial.work()
    except DrydockError as error:
        sys.stderr.write(f"{error}\n")
        return False
    return True


def killed(trial: Trial, after: float) -> bool:
    """Do a trial's work in its own process group and kill that; return whether it was still working."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os._exit(0 if runs(trial) else 1)
    time.sleep(after)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # killed before it became a group leader
        os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def repeated(journal: Sequence[Answered]) -> Counter[str]:
    """Count the uploads that the registry finished, and classify those that were the second of a blob.

    RACED: the client asked for the blob before the registry finished the upload of the killed run. TWICE: otherwise.
    """
    counts: Counter[str] = Counter()
    finished: dict[str, Answered] = {}
    for answered in sorted(journal, key=lambda answered: answered.ended):
        match = re.search(r"digest=(\S+)", answered.request)
        if not match or not answered.request.startswith("PUT") or answered.status != CREATED:
            continue
        digest = match[1]
        counts[UPLOADED] += 1
        if digest in finished:
            checks = [item for item in journal if item.request.startswith("HEAD") and item.request.endswith(digest)]
            missed = [item for item in checks if item.status == MISSING and item.began < answered.began]
            last = max(missed, key=lambda item: item.began)
            counts[RACED if last.began < finished[digest].ended else TWICE] += 1
            sys.stderr.write(f"uploaded twice: {digest}: first {finished[digest]}, checked {last}, second {answered}\n")
        finished[digest] = answered
    return counts


class Publishing:
    """A publish to a new repository through a proxy that injects faults."""

    longest = 0.9

    def __init__(self, registry: Registry, number: int, made: Made) -> None:
        self._made = made
        self._proxy = FaultyProxy(registry.port, made.probability, number)
        self.faults, self.journal = self._proxy.faults, self._proxy.journal
        self._path = f"trial/{number}"
        there = parse(f"{registry.host}/{self._path}")
        self._there = Repository(there, QUICK, state=made.local.cache / "look")

    def work(self) -> None:
        there = Repository(parse(f"{self._proxy.host}/{self._path}"), QUICK)
        options = push.PublishOptions("", release="1.0.0")
        push.push(there, self._made.layouts, self._made.image, self._made.documents, options)

    def half_made(self) -> bool:
        if self._direct.manifests.digest(f"{VARIANT}-1.0.0") is None:
            return False
        image = open_image(f"{self._direct.where}:{VARIANT}-1.0.0")
        content = image.manifest.content
        blobs = [self._direct.blobs.has(item["digest"]) for item in (content["config"], *content["layers"])]
        return not (all(blobs) and len(self._direct.manifests.referrers(image.digest)) >= 6)

    def same(self) -> bool:
        self._proxy.close()
        return self._direct.manifests.digest(f"{VARIANT}-1.0.0") == self._made.image.digest


class Fetching:
    """A download of many files into an empty store through a proxy that injects faults."""

    longest = 0.5

    def __init__(self, server: Loopback, number: int, made: Made) -> None:
        self._proxy = FaultyProxy(server.server_address[1], made.probability, number)
        self.faults = self._proxy.faults
        self._store = Store(made.folder / f"fetch-{number}")
        self._wanted = [
            Wanted(name, hashlib.sha256(data).hexdigest(), len(data), (f"http://{self._proxy.host}{name}",))
            for name, data in server.files.items()
        ]

    def work(self) -> None:
        download(self._store, self._wanted, QUICK)

    def half_made(self) -> bool:
        return not true_names(self._store.home)

    def same(self) -> bool:
        self._proxy.close()
        complete = all(self._store.has(wanted.sha256, wanted.size) for wanted in self._wanted)
        try:
            return complete and true_names(self._store.home)
        finally:
            shutil.rmtree(self._store.home)


class Building:
    """A real offline build from an empty cache."""

    def __init__(self, small: Small, digest: str, seconds: float) -> None:
        self._small, self._digest = small, digest
        self.longest, self.faults = 0.9 * seconds, dict[str, int]()
        self._built = ""

    def work(self) -> None:
        os.environ["DRYDOCK_CACHE"] = str(self._small.cache)
        wish = BuildOptions(platform="linux/amd64", offline=True)
        job = prepare(SMALL, wish, root=self._small.root)
        self._built = build.build(job, no_cache=True, into_engine=False).digest

    def half_made(self) -> bool:
        layouts = [path.parent for path in (self._small.cache / "images").rglob("index.json")]
        return not all(true_names(layout) for layout in layouts if not layout.name.startswith("."))

    def same(self) -> bool:
        return self._built == self._digest and self._small.leftovers() == []


class Bundling:
    """A bundle that replaces an old one and is loaded into an empty cache."""

    longest = 2.5

    def __init__(self, number: int, made: Made) -> None:
        self._made, self.faults = made, dict[str, int]()
        self._home = made.folder / f"load-{number}"
        self._file = made.folder / "again.tar"
        shutil.copy(made.bundle, self._file)

    def work(self) -> None:
        local = self._made.local
        os.environ["DRYDOCK_CACHE"] = str(local.cache)
        create([VARIANT], self._file, root=local.root)
        os.environ["DRYDOCK_CACHE"] = str(self._there)
        load(self._file, root=local.root)

    def half_made(self) -> bool:
        images = [path.parent for path in (self._home / "images").glob("*/*/*/index.json")]
        return not (self._whole() and true_names(self._home) and all(map(true_names, images)))

    def same(self) -> bool:
        loaded = {path.name for path in (self._there / "store" / "sha256").rglob("*") if path.is_file()}
        stored = {path.name for path in (self._made.local.cache / "store" / "sha256").rglob("*") if path.is_file()}
        image = next((self._there / "images").glob("*/*/*/index.json"), None)
        shutil.rmtree(self._there)
        left = [path.name for path in self._made.folder.glob(".again.tar.*")]
        return self._whole() and loaded == stored and image is not None and not left

    def _whole(self) -> bool:
        return self._file.read_bytes() == self._made.bundle.read_bytes()


class Made:
    """State shared by all trials: built images, their attestations and their bundle."""

    def __init__(self, folder: Path, probability: float) -> None:
        self.folder, self.probability = folder, probability
        self.local = StockedRepository(folder, salt="trials", size=1 << 20)
        self.layouts = push.built(self.local.variant, self.local.root)
        self.image = push.combined(self.layouts)
        options = push.PublishOptions("", release="1.0.0")
        self.documents = push.documents_of(parse("127.0.0.1/trials"), self.layouts, self.image, options)
        self.bundle = folder / "bundle.tar"
        create([VARIANT], self.bundle, root=self.local.root)


def true_names(home: Path) -> bool:
    """Tell whether every file below a folder of hashes matches its name."""
    files = [path for path in home.rglob("sha256/**/*") if path.is_file()]
    return all(hashlib.sha256(path.read_bytes()).hexdigest() == path.name for path in files)
