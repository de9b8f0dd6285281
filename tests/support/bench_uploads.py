"""Kill and disturb publishes, fetches, builds and bundles: `python tests/support/bench_uploads.py [TRIALS]`.

Of ten trials, four publish to a fresh repository of a real registry, three fetch, two write and load a bundle, and one
builds. Publishes and fetches go through a proxy that drops, delays and truncates requests, loses answers, and answers
429, 500 and 503. Each trial is killed with SIGKILL at a random moment. Then it is checked whether incomplete content
has a name (a tag, a file in a store, a kept image, an archive), and the work is run again until it completes. Prints
one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from drydock.build import build
from drydock.build.job import prepare
from drydock.registry import blobs as blobs_module
from tests.support.faulty_client import (
    RACED,
    TWICE,
    UPLOADED,
    Building,
    Bundling,
    Fetching,
    Made,
    Publishing,
    Trial,
    killed,
    repeated,
    runs,
)
from tests.support.loopback import Loopback
from tests.support.servers import Registry
from tests.support.small_image import Small

PROBABILITY = 0.15
CHUNK = 1 << 18
ORDER = ("publish", "fetch", "bundle", "publish", "fetch", "build", "publish", "fetch", "bundle", "publish")


def main(trials: int) -> None:
    """Run the trials and print the results."""
    blobs_module.CHUNK = CHUNK
    with tempfile.TemporaryDirectory(prefix="drydock-trials-") as name:
        folder = Path(name)
        job = prepare("cpu")
        build.fetch_contexts(job)  # the small image uses the real base
        small = Small(folder / "small", job.lock)
        undisturbed = small.build()
        made = Made(folder, PROBABILITY)
        registry, server = Registry(folder / "registry"), _server()
        registry.start()
        kinds: dict[str, Callable[[int], Trial]] = {
            "publish": lambda number: Publishing(registry, number, made),
            "fetch": lambda number: Fetching(server, number, made),
            "bundle": lambda number: Bundling(number, made),
            "build": lambda _: Building(small, undisturbed["digest"], undisturbed["seconds"]),
        }
        try:
            results = _run(kinds, trials, str(made.local.cache))
            sys.stdout.write(json.dumps(results, indent=2) + "\n")
        finally:
            registry.stop()


def _run(kinds: dict[str, Callable[[int], Trial]], trials: int, cache: str) -> dict[str, object]:
    found: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    faults: Counter[str] = Counter()
    repeats: Counter[str] = Counter()
    chance = random.Random(2026)  # noqa: S311 - reproducible moments
    started = time.monotonic()
    for number in range(trials):
        kind = ORDER[number % len(ORDER)]
        os.environ["DRYDOCK_CACHE"] = cache
        trial, count = kinds[kind](number), found[kind]
        count["trials"] += 1
        count["killed in time"] += killed(trial, chance.uniform(0, trial.longest))
        count["something half-made had a name"] += trial.half_made()
        count["runs after the kill"] += 1
        while not runs(trial):
            count["runs after the kill"] += 1
        count["the same at the end"] += trial.same()
        faults.update(trial.faults)
        repeats += repeated(getattr(trial, "journal", ()))
    return {
        "trials": trials,
        "seconds": round(time.monotonic() - started),
        **found,
        **{key: repeats[key] for key in (UPLOADED, RACED, TWICE)},
        "faults": {name or "none": count for name, count in sorted(faults.items())},
    }


def _server() -> Loopback:
    """Return a server with 24 files of up to 400 kB."""
    server = Loopback()
    chance = random.Random(1)  # noqa: S311 - reproducible files
    server.files = {f"/{number}.whl": chance.randbytes(chance.randrange(1, 400_000)) for number in range(24)}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
