"""How long builds take: from nothing, after an edit of the entrypoint, after nothing. IO.

Each ends with an image that the engine can run. Downloads count for nobody: our store is filled, and the plain build
finds its wheels in a folder, where a filled pip cache would still ask an index for each.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from drydock import build
from drydock.bench import images, plain
from drydock.bench.records import Goal, Row
from drydock.bench.turns import Measure, in_turns, timed

COMMAND = "./inv bench build"
CASES = {
    "build, store filled, BuildKit empty": (
        "plain with a filled pip cache",
        0.35,
        "Layers that the engine holds of another image, of either kind, are not unpacked again.",
    ),
    "build after an entrypoint edit": (
        "plain after an edit of its script",
        0.05,
        (
            "The floor is the next row's buildx, which has nothing to do. The first of ours also asks BuildKit what it "
            "holds of the layers, and takes twice as long as the others."
        ),
    ),
    "build after nothing": ("docker buildx build, all cached", 1.2, ""),
}
"""What is built → what it is compared with, at most how many times as long it may take, and what to know of it."""


def rows(rounds: int) -> list[Row]:
    """Measure builds, each kind in turns with its peer."""
    with images.folder() as folder:
        builds = _Builds(folder)
        pairs: tuple[tuple[Measure, Measure], ...] = (
            (builds.ours, builds.plain),
            (builds.ours_edited, builds.plain_edited),
            (builds.ours_again, builds.plain_again),
        )
        try:
            return [row for what, pair in zip(CASES, pairs, strict=True) for row in _rows(what, pair, rounds)]
        finally:
            builds.forget()


def _rows(what: str, pair: tuple[Measure, Measure], rounds: int) -> list[Row]:
    figures = in_turns({"ours": pair[0], "plain": pair[1]}, rounds, "s")
    against, limit, note = CASES[what]
    goal, ours, theirs = Goal(compares="ratio", sense="at most", limit=limit), figures["ours"], figures["plain"]
    return [Row(what=what, against=against, goal=goal, ours=ours, theirs=theirs, command=COMMAND, note=note)]


class _Builds:
    """Builds both, forgets what it built, and leaves BuildKit's cache as a next build would find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = plain.contexts()
        self.of = images.ours()
        self.number = itertools.count(1)
        self.newest: Path | None = None

    def ours(self) -> float:
        """Build ours with nothing in BuildKit, and none of its kind in the engine."""
        self.forget()
        return self._ours(no_cache=True)

    def ours_edited(self) -> float:
        """Build ours after one more edit; as for any user, layout and image of the build before it are there."""
        return self._ours(images.edited(self.folder, next(self.number)))

    def ours_again(self) -> float:
        """Ask for a build that was made before."""
        job = self.of.job
        build.build(job)
        return timed(lambda: build.build(job))

    def _ours(self, entrypoints: Path | None = None, *, no_cache: bool = False) -> float:
        before, number = self.newest, next(self.number)
        output = self.folder / f"ours-{number}"

        def make() -> None:
            images.make_ours(self.of, output, entrypoints, before, no_cache=no_cache)
            images.load(output, str(number), [before] if before else [])

        seconds = timed(make)
        self.forget()
        self.newest = output
        return seconds

    def forget(self) -> None:
        """Drop the newest image of ours, and its layout."""
        if self.newest:
            number = self.newest.name.rpartition("-")[2]
            images.run(["docker", "image", "rm", "--force", f"{images.NAME}:{number}"])
            images.run(["rm", "-rf", str(self.newest)])
        self.newest = None

    def plain(self) -> float:
        """Build the plain image with nothing in BuildKit."""
        return self._plain(plain.FOLDER, "--no-cache")

    def plain_edited(self) -> float:
        """Build the plain image after one more edit of its own script, which a careful author copies last."""
        return self._plain(images.edited_plain(self.folder, next(self.number)))

    def plain_again(self) -> float:
        """Build the plain image again."""
        return self._plain(plain.FOLDER)

    def _plain(self, source: Path, *options: str) -> float:
        images_made: list[str] = []
        seconds = timed(lambda: images_made.append(plain.build(self.inputs, source, *options)))
        if source != plain.FOLDER:
            images.run(["docker", "image", "rm", "--force", *images_made])
        return seconds
