"""How large images are, unpacked and as pulled, and how much of them variants share. IO."""

from __future__ import annotations

from collections.abc import Iterator

from drydock import lock as locks
from drydock.bench import images, plain
from drydock.bench.records import Figure, Goal, Row
from drydock.locked import LockedPlatform
from drydock.matrix import read_matrix
from drydock.model import Variant
from drydock.paths import ROOT

COMMAND = "./inv bench size"
HALF = Goal(compares="ratio", sense="at most", limit=0.5)
SHARED = Goal(compares="ratio", sense="at least", limit=0.6)
PLATFORM = "linux/amd64"


def rows(_: int) -> list[Row]:
    """Build both where they are not there, and measure them; once, since a size does not vary."""
    inputs, of = plain.contexts(), images.ours()
    with images.folder() as folder:
        images.make_ours(of, folder / "ours")
        mine = images.read(folder / "ours")
    with images.folder() as folder:
        images.make_plain(inputs, folder / "plain")
        theirs = images.read(folder / "plain")
    return [*_sizes(mine, theirs), *shared(read_matrix(ROOT))]


def _sizes(mine: list[images.Content], theirs: list[images.Content]) -> Iterator[Row]:
    for what, ours, plains in (
        ("image, uncompressed", sum(each.unpacked for each in mine), sum(each.unpacked for each in theirs)),
        ("image, as pulled", sum(each.size for each in mine), sum(each.size for each in theirs)),
    ):
        yield _row(what, "plain", (ours, plains), HALF, "")


def _row(what: str, against: str, bytes_of: tuple[float, float], goal: Goal, note: str) -> Row:
    ours, theirs = (Figure(unit="B", values=(size,)) for size in bytes_of)
    return Row(what=what, against=against, goal=goal, ours=ours, theirs=theirs, command=COMMAND, note=note)


def shared(variants: tuple[Variant, ...]) -> Iterator[Row]:
    """Return for each accelerator how much of its variants' layers is in more than one of them, by their locks."""
    of: dict[str, list[dict[tuple[str, ...], float]]] = {}
    for variant in variants:
        if layers := wheel_layers(variant):
            of.setdefault(variant.accelerator, []).append(layers)
    for accelerator, own in of.items():
        names = [name for layers in own for name in layers]
        twice = sum(size for layers in own for name, size in layers.items() if names.count(name) > 1)
        if len(own) > 1:
            note = (
                f"The {len(own)} variants whose wheels are locked, each layer counted by its wheels' sizes: it is the "
                "same blob where its wheels are."
            )
            total = sum(sum(layers.values()) for layers in own)
            what = f"blobs shared between variants, {accelerator}"
            yield _row(what, "all of their blobs", (twice, total), SHARED, note)


def wheel_layers(variant: Variant) -> dict[tuple[str, ...], float]:
    """Return a variant's layers of wheels by their hashes, with their bytes; none where the lock could not pin them."""
    pins: LockedPlatform | None = locks.read_lock(locks.path_of(ROOT, variant.id)).platforms.get(PLATFORM)
    return {
        tuple(sorted(wheel.sha256 for wheel in wheels)): float(sum(wheel.size for wheel in wheels))
        for wheels in (pins.layers.values() if pins else ())
        if wheels
    }
