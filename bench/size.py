"""Image sizes, unpacked and as pulled, and the share of blobs common to several variants. IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from packaging.version import Version

from bench import images, plain_image
from bench.records import Figure, Goal, Measurement
from drydock.config.matrix import find, read_matrix
from drydock.config.project import DRYDOCK
from drydock.lock import lockfile as locks
from drydock.model.locked import LockedDeb, LockedDebianBase, LockedPlatform, LockedWheel
from drydock.model.variant import Variant

COMMAND = "./inv bench size"
TEXT = "cpu-text"
"""The target for text models only."""
HALF = Goal(compares="ratio", sense="at most", limit=0.5)
TWO_FIFTHS = Goal(compares="ratio", sense="at most", limit=0.4)
SHARED = Goal(compares="ratio", sense="at least", limit=0.6)
UPGRADES = (
    ("cuda13.0-vllm0.27", "cuda13.0-vllm0.33"),
    ("habana1.21-fork0.8", "habana1.22-fork0.9"),
    ("habana1.22-fork0.9", "habana1.23-plugin0.16"),
)
"""Rows of which a node has the first and then gets the second."""
MARGIN = 1.5
"""Goal of an upgrade, as a multiple of its lower limit."""
PLATFORM = "linux/amd64"
"""Left out of a row's title."""

Key = tuple[str, ...]


def rows(_: int) -> list[Measurement]:
    """Build the images if needed and measure them, once, because sizes do not vary."""
    mine, text, theirs = _made("cpu"), _made(TEXT), _made(None)
    return [
        *_sizes("image", mine, theirs, HALF),
        *_sizes("image for text only", text, theirs, TWO_FIFTHS),
        *shared(read_matrix(DRYDOCK)),
        *upgrades(read_matrix(DRYDOCK)),
    ]


def _made(target: str | None) -> list[images.Content]:
    """Build a target, or the plain image if None; return its contents."""
    if target:
        return images.read(images.ours(target).layout)
    with images.folder() as folder:
        images.make_plain(plain_image.contexts(), folder / "image")
        return images.read(folder / "image")


def _sizes(what: str, mine: list[images.Content], theirs: list[images.Content], goal: Goal) -> Iterator[Measurement]:
    for how, ours, plains in (
        ("uncompressed", sum(each.unpacked for each in mine), sum(each.unpacked for each in theirs)),
        ("as pulled", sum(each.size for each in mine), sum(each.size for each in theirs)),
    ):
        yield _row(f"{what}, {how}", "plain", (ours, plains), goal, "")


def _row(what: str, against: str, bytes_of: tuple[float, float], goal: Goal, note: str) -> Measurement:
    ours, theirs = (Figure(unit="B", values=(size,)) for size in bytes_of)
    return Measurement(what=what, against=against, goal=goal, ours=ours, theirs=theirs, command=COMMAND, note=note)


class Held(NamedTuple):
    """The blobs of one variant's image for one platform, according to its lock."""

    blobs: Mapping[Key, float]
    """Key → bytes. Blobs with the same key are identical."""
    wheels: Mapping[Key, float]
    """As `blobs`, but with one layer per wheel, the finest possible division."""
    pins: tuple[LockedWheel, ...]


def shared(variants: tuple[Variant, ...]) -> Iterator[Measurement]:
    """Return for each accelerator and platform how many bytes are in blobs that several variants share."""
    of: dict[str, list[Held]] = {}
    for variant in variants:
        for platform, pins in locks.read_lock(locks.path_of(DRYDOCK, variant.id)).platforms.items():
            if any(pins.layers.values()):
                of.setdefault(f"{variant.accelerator} {platform}", []).append(held(variant, pins))
    for name, own in of.items():
        if len(own) > 1:
            what = f"blobs shared between variants, {name.removesuffix(f' {PLATFORM}')}"
            blobs = [each.blobs for each in own]
            yield _row(what, "all blobs", (twice(blobs), _sum(blobs)), SHARED, _note(own))


def upgrades(variants: Sequence[Variant]) -> Iterator[Measurement]:
    """Return how many bytes of the next release's image a node lacks that has the one before."""
    for old, new in UPGRADES:
        before, after = (_held(find(variants, name)) for name in (old, new))
        lacks, least = _lacks(before.blobs, after.blobs), _lacks(before.wheels, after.wheels)
        all_ = _sum([after.blobs])
        goal = Goal(compares="ratio", sense="at most", limit=min(1, round(MARGIN * least / all_, 2)))
        note = f"The lower limit is {least / all_:.2f}, with one layer per wheel."
        yield _row(f"bytes pulled for an upgrade, {old} → {new}", "the whole image", (lacks, all_), goal, note)


def _held(variant: Variant) -> Held:
    return held(variant, locks.read_lock(locks.path_of(DRYDOCK, variant.id)).platforms[PLATFORM])


def _lacks(before: Mapping[Key, float], after: Mapping[Key, float]) -> float:
    return sum(size for key, size in after.items() if key not in before)


def held(variant: Variant, pins: LockedPlatform) -> Held:
    """Return a variant's blobs: its wheels, and its base if the lock has its size."""
    pressed = f"{variant.compression.algorithm} {variant.compression.level}"
    made = (variant.python, pressed, str(variant.epoch))
    base = pins.base if isinstance(pins.base, LockedDebianBase) and pins.base.digest else None
    below = {(str(base.digest),): _bytes(base.packages)} if base else {}
    layers = [wheels for wheels in pins.layers.values() if wheels]
    wheels = tuple(wheel for layer in layers for wheel in layer)
    return Held(
        below | {(*made, *sorted(wheel.sha256 for wheel in layer)): _bytes(layer) for layer in layers},
        below | {(*made, wheel.sha256): float(wheel.size) for wheel in wheels},
        wheels,
    )


def twice(own: Sequence[Mapping[Key, float]]) -> float:
    """Return the bytes of blobs that occur more than once, counting each occurrence."""
    often = Counter(key for each in own for key in each)
    return sum(size for each in own for key, size in each.items() if often[key] > 1)


def _note(own: Sequence[Held]) -> str:
    """Describe how many variants were compared, the best possible ratio, and the largest packages not shared."""
    blobs, finest = [each.blobs for each in own], [each.wheels for each in own]
    distinct = sum({key: size for each in blobs for key, size in each.items()}.values())
    alone = _alone(own)
    return (
        f"{len(own)} variants have locked wheels. A registry with all of them stores {distinct / _sum(blobs):.2f} of "
        f"the sum. With one layer per wheel, the ratio would be {twice(finest) / _sum(finest):.2f}."
        + (f" Most of the rest is in one variant only: {'; '.join(alone)}." if alone else "")
    )


def _alone(own: Sequence[Held]) -> list[str]:
    """Return the three packages with the most bytes in wheels of one variant only, with their versions."""
    often = Counter(wheel.sha256 for each in own for wheel in each.pins)
    of: dict[str, list[LockedWheel]] = {}
    for wheel in (wheel for each in own for wheel in each.pins if often[wheel.sha256] == 1):
        of.setdefault(wheel.name, []).append(wheel)
    largest = sorted(of, key=lambda name: -_bytes(of[name]))[:3]
    return [f"{name} {', '.join(sorted((w.version for w in of[name]), key=Version))}" for name in largest]


def _bytes(files: Sequence[LockedWheel | LockedDeb]) -> float:
    return float(sum(file.size for file in files))


def _sum(own: Sequence[Mapping[Key, float]]) -> float:
    return sum(sum(each.values()) for each in own)
