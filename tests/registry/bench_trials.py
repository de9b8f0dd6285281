"""Counts what becomes of publishes that are killed and disturbed: `python tests/registry/bench_trials.py [TRIALS]`.

Each trial publishes to a fresh repository of a real registry through a proxy that drops, delays, truncates, loses
answers and answers 429, 500 and 503; kills the publish with SIGKILL at a random moment; looks whether a tag names
anything that is not whole; and runs it again to its end. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from drydock import publish
from drydock.errors import DrydockError
from drydock.pulled import open_image
from drydock.registry import blobs as blobs_module
from drydock.registry.reference import parse
from drydock.transfer import Access
from tests.registry.servers import Answered, FaultyProxy, Registry
from tests.registry.shelf import VARIANT, Shelf

PROBABILITY = 0.15
CHUNK = 1 << 18
QUICK = Access(pause=0.01, timeout=10)
CREATED, MISSING = 201, 404
UPLOADED, RACED, TWICE = "blobs uploaded", "uploaded twice, the first still under way", "uploaded twice otherwise"
LONGEST = 0.9
"""Seconds within which the kill comes."""


def main(trials: int) -> None:
    """Run the trials and print what they showed."""
    blobs_module.CHUNK = CHUNK
    with tempfile.TemporaryDirectory(prefix="drydock-trials-") as name:
        folder = Path(name)
        os.environ["DRYDOCK_CACHE"] = str(folder / "cache")
        shelf = Shelf(folder, platforms=("linux/amd64",), salt="trials", size=1 << 20)
        registry = Registry(folder / "registry")
        registry.start()
        try:
            sys.stdout.write(json.dumps(_all(shelf, registry, trials), indent=2) + "\n")
        finally:
            registry.stop()


def _all(shelf: Shelf, registry: Registry, trials: int) -> dict[str, object]:
    layouts, wish = publish.built(shelf.variant, shelf.root), publish.Wish("", release="1.0.0")
    image = publish.combined(layouts)
    said = publish.describe(parse("127.0.0.1/trials"), layouts, image, wish)
    found: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    repeats: Counter[str] = Counter()
    chance = random.Random(2026)  # noqa: S311 - the same moments each run
    for trial in range(trials):
        proxy = FaultyProxy(registry.port, PROBABILITY, trial)
        there = publish.Repository(parse(f"{registry.host}/trial/{trial}"), QUICK, state=shelf.cache / "look")
        arguments = (proxy, f"trial/{trial}", layouts, said)
        found["killed in time"] += _killed(arguments, chance.uniform(0, LONGEST))
        found["tag named something that was not whole"] += not _whole_or_absent(there)
        runs = 1
        while not _runs(arguments):
            runs += 1
        found["runs after the kill"] += runs
        found["same digest at the end"] += there.manifests.digest(f"{VARIANT}-1.0.0") == image.digest
        faults.update(proxy.faults)
        repeats += repeated(proxy.journal)
        proxy.close()
    return {
        "trials": trials,
        **found,
        **{key: repeats[key] for key in (UPLOADED, RACED, TWICE)},
        "faults": {name or "none": count for name, count in sorted(faults.items())},
    }


def repeated(journal: Sequence[Answered]) -> Counter[str]:
    """Count the uploads that the registry finished, and of those that were the second of one blob the causes.

    Raced: the blob was asked for, and not there, before the registry had answered the upload that the kill left behind.
    """
    found: Counter[str] = Counter()
    finished: dict[str, Answered] = {}
    for answered in sorted(journal, key=lambda answered: answered.ended):
        digest = next(iter(re.findall(r"digest=(\S+)", answered.request)), "")
        if not answered.request.startswith("PUT") or answered.status != CREATED or not digest:
            continue
        found[UPLOADED] += 1
        if digest in finished:
            asked = [item for item in journal if item.request.startswith("HEAD") and item.request.endswith(digest)]
            missed = [item for item in asked if item.status == MISSING and item.began < answered.began]
            last = max(missed, key=lambda item: item.began)
            found[RACED if last.began < finished[digest].ended else TWICE] += 1
            sys.stderr.write(f"twice: {digest}: first {finished[digest]}, asked {last}, second {answered}\n")
        finished[digest] = answered
    return found


def _push(proxy: FaultyProxy, path: str, layouts: list[publish.Layout], said: publish.Said) -> None:
    there = publish.Repository(parse(f"{proxy.host}/{path}"), QUICK)
    publish.push(there, layouts, publish.combined(layouts), said, publish.Wish("", release="1.0.0"))


def _killed(arguments: tuple[FaultyProxy, str, list[publish.Layout], publish.Said], after: float) -> bool:
    """Publish in a process of its own and kill it; tell whether it was still at work."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _runs(arguments) else 1)
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def _runs(arguments: tuple[FaultyProxy, str, list[publish.Layout], publish.Said]) -> bool:
    try:
        _push(*arguments)
    except DrydockError as error:
        sys.stderr.write(f"{error}\n")
        return False
    return True


def _whole_or_absent(there: publish.Repository) -> bool:
    """Tell whether a tag, if there is one, names an image with every blob and document."""
    if there.manifests.digest(f"{VARIANT}-1.0.0") is None:
        return True
    image = open_image(f"{there.where}:{VARIANT}-1.0.0")
    content = image.manifest.content
    blobs = [there.blobs.has(item["digest"]) for item in (content["config"], *content["layers"])]
    return all(blobs) and len(there.manifests.referrers(image.digest)) >= 6


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
