"""How large images are, unpacked and as pulled, and how much of them variants share. IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from packaging.version import Version

from bench import images, plain_image
from bench.records import Figure, Goal, Measurement
from drydock.config.matrix import read_matrix
from drydock.core.paths import ROOT
from drydock.lock import lockfile as locks
from drydock.model.locked import LockedDeb, LockedDebianBase, LockedPlatform, LockedWheel
from drydock.model.variant import Variant

COMMAND = "./inv bench size"
TEXT = "cpu-text"
"""The row for text alone."""
HALF = Goal(compares="ratio", sense="at most", limit=0.5)
TWO_FIFTHS = Goal(compares="ratio", sense="at most", limit=0.4)
SHARED = Goal(compares="ratio", sense="at least", limit=0.6)
PLATFORM = "linux/amd64"
"""Not named in a row's title."""

Key = tuple[str, ...]


def rows(_: int) -> list[Measurement]:
    """Build all where they are not there, and measure them; once, since a size does not vary."""
    mine, text, theirs = _made("cpu"), _made(TEXT), _made(None)
    return [
        *_sizes("image", mine, theirs, HALF),
        *_sizes("image for text only", text, theirs, TWO_FIFTHS),
        *shared(read_matrix(ROOT)),
    ]


def _made(target: str | None) -> list[images.Content]:
    """Build a target of ours, or the plain image; return what is in it."""
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
    """What one variant's lock says of its image for one platform: bytes by what makes two blobs the same."""

    blobs: Mapping[Key, float]
    wheels: Mapping[Key, float]
    """As `blobs`, were each wheel a layer of its own, which is the finest cut there is."""
    pins: tuple[LockedWheel, ...]


def shared(variants: tuple[Variant, ...]) -> Iterator[Measurement]:
    """Return for each accelerator and platform how many bytes of its variants' blobs are in more than one of them."""
    of: dict[str, list[Held]] = {}
    for variant in variants:
        for platform, pins in locks.read_lock(locks.path_of(ROOT, variant.id)).platforms.items():
            if any(pins.layers.values()):
                of.setdefault(f"{variant.accelerator} {platform}", []).append(held(variant, pins))
    for name, own in of.items():
        if len(own) > 1:
            what = f"blobs shared between variants, {name.removesuffix(f' {PLATFORM}')}"
            blobs = [each.blobs for each in own]
            yield _row(what, "all blobs", (twice(blobs), _sum(blobs)), SHARED, _note(own))


def held(variant: Variant, pins: LockedPlatform) -> Held:
    """Return a variant's blobs of wheels, and its base where a lock has its size."""
    made = (variant.python, str(variant.compression), str(variant.epoch))
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
    """Return the bytes that more than one of them has, counted in each that has them."""
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
    """Name the three packages with the most bytes in wheels that one variant alone has, with their versions."""
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
