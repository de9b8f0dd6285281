"""Duration of builds: without cache, after an edit of the entrypoint, without changes. IO.

Each ends with an image that the engine can run. Downloads are not measured: drydock's store is full, and the plain
build takes its wheels from a folder, because pip would ask an index for each wheel even with a full cache.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import compared_images, plain_image
from bench.bench_records import Figure, Measurement, ratio_at_most
from bench.turns import LEAST, in_turns, time_least_process, time_work
from drydock.build import build
from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT

COMMAND = "./inv bench build"
PLAIN = "plain, with a filled pip cache"
BUILDX = "docker buildx build, everything cached"
EMPTY = "build, full store, empty BuildKit cache"
FIRST = "build, wheels and base stored, empty BuildKit cache"
EDITED = "build after an entrypoint edit"
EDITED_PROCESS = "build after an entrypoint edit, including process start"
SCRIPT = "plain, after an edit of its script"
NOTHING = "build without changes"
PROCESS = "build without changes, including process start"
GOALS = {
    EMPTY: ratio_at_most(
        0.05, "Nothing is installed: BuildKit copies layers that are stored, and the engine unpacks them."
    ),
    FIRST: ratio_at_most(
        0.35, "Nothing is downloaded, vLLM is not imported, and bytecode is compiled on all processors."
    ),
    EDITED: ratio_at_most(0.3, "Two small layers are made; the plain image copies a script of four lines."),
    NOTHING: ratio_at_most(0.3, "Files and one answer of the engine say that nothing changed; BuildKit is not asked."),
    EDITED_PROCESS: ratio_at_most(0.45, "As above, with the start of Python and the matrix."),
    PROCESS: ratio_at_most(1.25, "What is not import and matrix is the row's lock, its inputs and one question."),
}
NOTES = {
    EMPTY: (
        "The store contains the foundation of an earlier build: the whole image except the entrypoint. "
        "Layers that the engine already has from another image, of either kind, are not unpacked again."
    ),
    FIRST: (
        "Three fifths of the time compile the bytecode of 16,000 files, which pip does on one processor; a fifth "
        "unpacks and strips wheels, and a seventh is BuildKit compressing all layers, once."
    ),
    EDITED: (
        "BuildKit and the engine take most of it. While BuildKit works, the kept foundation is read whole, so that a "
        "damaged one is made again."
    ),
    NOTHING: "The other figure includes process start, drydock's does not; see the next row.",
    PROCESS: (
        "`./inv build` as it is typed. The other figure is the lower limit: the libraries of command line, records, "
        "templates and engine, and the same code for the matrix. What the goal leaves is the command line, the row's "
        "lock and Dockerfile, the checksum of its inputs, and one question to the engine."
    ),
}


def measure_builds(rounds: int) -> list[Measurement]:
    """Measure builds; drydock and plain alternate for each kind."""
    with _open_builds() as builds:
        whole = in_turns({"ours": builds.ours, "first": builds.first, "plain": builds.plain}, rounds, "s")
        return [
            _make_build_row(EMPTY, PLAIN, (whole["ours"], whole["plain"])),
            _make_build_row(FIRST, PLAIN, (whole["first"], whole["plain"])),
            *_measure_small(builds, rounds),
        ]


def measure_cached_builds() -> list[Measurement]:
    """Measure once what uses BuildKit's cache, which is filled first, as is the engine: a user edits an image again."""
    with _open_builds() as builds:
        for warm_up in (builds.plain_again, builds.ours_edited, builds.process_edited, builds.plain_edited):
            warm_up()
        return _measure_small(builds, 1)


def _measure_small(builds: _Builds, rounds: int) -> list[Measurement]:
    edits = {"ours": builds.ours_edited, "process": builds.process_edited, "plain": builds.plain_edited}
    edited = in_turns(edits, rounds, "s")
    measures = {
        "ours": builds.ours_again,
        "process": builds.process_again,
        "least": time_least_process("docker", "invoke", "jinja2"),
        "plain": builds.plain_again,
    }
    again = in_turns(measures, rounds, "s")
    return [
        _make_build_row(EDITED, SCRIPT, (edited["ours"], edited["plain"])),
        _make_build_row(EDITED_PROCESS, SCRIPT, (edited["process"], edited["plain"])),
        _make_build_row(NOTHING, BUILDX, (again["ours"], again["plain"])),
        _make_build_row(PROCESS, LEAST, (again["process"], again["least"])),
    ]


@contextlib.contextmanager
def _open_builds() -> Iterator[_Builds]:
    """Make a folder for builds; at the end it goes, with the images of the builds."""
    with compared_images.make_temporary_folder() as folder:
        builds = _Builds(folder)
        try:
            yield builds
        finally:
            builds.forget()
            for image in builds.typed_images:
                compared_images.run_docker_command(["docker", "image", "rm", "--force", image])


def _make_build_row(what: str, against: str, figures: tuple[Figure, Figure]) -> Measurement:
    ours, theirs = figures
    return Measurement(
        what=what,
        against=against,
        goal=GOALS[what],
        ours=ours,
        theirs=theirs,
        command=COMMAND,
        note=NOTES.get(what, ""),
    )


class _Builds:
    """Builds both images and removes them; leaves BuildKit's cache for the next build."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = plain_image.fetch_plain_contexts()
        self.of = compared_images.build_ours()
        self.number = itertools.count(1)
        self.newest: Path | None = None
        self.typed_images: list[str] = []
        """Made by `./inv build` of an edit."""

    def ours(self) -> float:
        """Build drydock's image on the stored foundation, with no BuildKit cache and no such image in the engine."""
        self.forget()
        return self._ours(lambda _: self.of.below, no_cache=True)

    def first(self) -> float:
        """Build drydock's image and its foundation, with no BuildKit cache and no such image in the engine."""
        self.forget()
        return self._ours(self._foundation, no_cache=True)

    def ours_edited(self) -> float:
        """Build drydock's image after an edit, with the previous build's layout and image present, as for a user."""
        return self._ours(
            lambda _: self.of.below, compared_images.copy_edited_entrypoint(self.folder, next(self.number))
        )

    def process_edited(self) -> float:
        """Build drydock's image after an edit, on the command line; the image stays until the end, as for a user."""
        edited = compared_images.copy_edited_entrypoint(self.folder, next(self.number))
        command = [str(ROOT / "inv"), "build", "--target", self.of.job.variant.id, "--context", f"entrypoints={edited}"]
        printed_lines: list[str] = []
        seconds = time_work(lambda: printed_lines.extend(compared_images.run_docker_command(command).splitlines()))
        self.typed_images.append(printed_lines[0])
        return seconds

    def ours_again(self) -> float:
        """Build again without changes."""
        build.build_image(self.of.job)
        return time_work(lambda: build.build_image(prepare_job(DRYDOCK, self.of.job.variant.id)))

    def process_again(self) -> float:
        """Build again without changes, on the command line."""
        build.build_image(self.of.job)
        return time_work(
            lambda: compared_images.run_docker_command([str(ROOT / "inv"), "build", "--target", self.of.job.variant.id])
        )

    def _foundation(self, number: int) -> Path:
        below = self.folder / f"foundation-{number}"
        compared_images.make_foundation(self.of, below)
        return below

    def _ours(
        self, foundation: Callable[[int], Path], entrypoints: Path | None = None, *, no_cache: bool = False
    ) -> float:
        before, number = self.newest, next(self.number)
        output = self.folder / f"ours-{number}"

        def make() -> None:
            compared_images.make_ours(self.of, output, foundation(number), entrypoints, no_cache=no_cache)
            compared_images.load_bench_image(output, str(number), [before] if before else [])

        seconds = time_work(make)
        self.forget()
        self.newest = output
        return seconds

    def forget(self) -> None:
        """Remove drydock's newest image and its layout."""
        if self.newest:
            number = self.newest.name.rpartition("-")[2]
            compared_images.run_docker_command(["docker", "image", "rm", "--force", compared_images.name_image(number)])
            compared_images.run_docker_command(
                ["rm", "-rf", str(self.newest), str(self.folder / f"foundation-{number}")]
            )
        self.newest = None

    def plain(self) -> float:
        """Build the plain image with no BuildKit cache."""
        return self._plain(plain_image.FOLDER, "--no-cache")

    def plain_edited(self) -> float:
        """Build the plain image after an edit of its script, which its Dockerfile copies last."""
        return self._plain(compared_images.copy_edited_plain(self.folder, next(self.number)))

    def plain_again(self) -> float:
        """Build the plain image again without changes."""
        return self._plain(plain_image.FOLDER)

    def _plain(self, source: Path, *options: str) -> float:
        images_made: list[str] = []
        seconds = time_work(lambda: images_made.append(plain_image.build_plain_image(self.inputs, source, *options)))
        if source != plain_image.FOLDER:
            compared_images.run_docker_command(["docker", "image", "rm", "--force", *images_made])
        return seconds
