"""Image sizes, unpacked and as pulled, and the share of blobs common to several variants. IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from packaging.version import Version

from bench import compared_images, plain_image
from bench.bench_records import Figure, Goal, Measurement, ratio_at_least, ratio_at_most
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.lock import lockfile
from drydock.model.locked import LockedDeb, LockedDebianBase, LockedPlatform, LockedWheel
from drydock.model.variant import Variant

COMMAND = "./inv bench size"
TEXT = "cpu-text"
"""The target for text models only."""
UNUSED = "What a CPU server does not load is left out; the rest is vLLM and PyTorch."
WHOLE = (ratio_at_most(0.45, UNUSED), ratio_at_most(0.35, UNUSED))
"""Goals of the image, uncompressed and as pulled."""
TEXT_ONLY = (ratio_at_most(0.36, UNUSED), ratio_at_most(0.28, UNUSED))
"""Goals of the image for text models only."""
SHARED_PART = 0.97
"""Of what one layer a wheel would share: so much, with a tenth of the layers."""
SHARED_PARTS = {"ascend linux/arm64": 0.86}
"""Accelerator and platform of which less is shared: most of Ascend's dependencies change with each release."""
LEAST_SHARED = 0.2
"""Rows that share less with one layer a wheel have no goal: they have nothing in common."""
UPGRADES = (
    ("cuda13.0-vllm0.27", "cuda13.0-vllm0.33"),
    ("habana1.21-fork0.8", "habana1.22-fork0.9"),
    ("habana1.22-fork0.9", "habana1.23-plugin0.16"),
)
"""Rows of which a node has the first and then gets the second."""
MARGIN = 1.04
"""Goal of an upgrade, as a multiple of what one layer a wheel would pull."""
PLATFORM = "linux/amd64"
"""Left out of a row's title."""

Key = tuple[str, ...]


def measure_sizes(_: int) -> list[Measurement]:
    """Build the images if needed and measure them, once, because sizes do not vary."""
    mine, text, theirs = _build_contents("cpu"), _build_contents(TEXT), _build_contents(None)
    return [
        *_compare_sizes("image", mine, theirs, WHOLE),
        *_compare_sizes("image for text only", text, theirs, TEXT_ONLY),
        *compare_shared_blobs(read_matrix(DRYDOCK)),
        *compare_upgrades(read_matrix(DRYDOCK)),
    ]


def _build_contents(target: str | None) -> list[compared_images.Content]:
    """Build a target, or the plain image if None; return its contents."""
    if target:
        return compared_images.read_blobs(compared_images.build_ours(target).layout)
    with compared_images.make_temporary_folder() as folder:
        compared_images.make_plain(plain_image.fetch_plain_contexts(), folder / "image")
        return compared_images.read_blobs(folder / "image")


def _compare_sizes(
    what: str, mine: list[compared_images.Content], theirs: list[compared_images.Content], goals: tuple[Goal, Goal]
) -> Iterator[Measurement]:
    for how, goal, ours, plains in (
        ("uncompressed", goals[0], sum(blob.unpacked for blob in mine), sum(blob.unpacked for blob in theirs)),
        ("as pulled", goals[1], sum(blob.size for blob in mine), sum(blob.size for blob in theirs)),
    ):
        yield _make_size_row(f"{what}, {how}", "plain", (ours, plains), goal, "")


def _make_size_row(what: str, against: str, bytes_of: tuple[float, float], goal: Goal, note: str) -> Measurement:
    ours, theirs = (Figure(unit="B", values=(size,)) for size in bytes_of)
    return Measurement(what=what, against=against, goal=goal, ours=ours, theirs=theirs, command=COMMAND, note=note)


class Held(NamedTuple):
    """The blobs of one variant's image for one platform, according to its lock."""

    blobs: Mapping[Key, float]
    """Key → bytes. Blobs with the same key are identical."""
    wheels: Mapping[Key, float]
    """As `blobs`, but with one layer per wheel, the finest possible division."""
    pins: tuple[LockedWheel, ...]


def compare_shared_blobs(variants: tuple[Variant, ...]) -> Iterator[Measurement]:
    """Return for each accelerator and platform how many bytes are in blobs that several variants share."""
    of: dict[str, list[Held]] = {}
    for variant in variants:
        for platform, pins in lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, variant.id)).platforms.items():
            if any(pins.layers.values()):
                of.setdefault(f"{variant.accelerator} {platform}", []).append(make_held(variant, pins))
    for name, group in of.items():
        blobs, finest = [image.blobs for image in group], [image.wheels for image in group]
        possible = count_repeated_bytes(finest) / _sum_blobs(finest)
        if len(group) > 1 and possible >= LEAST_SHARED:
            what = f"blobs shared between variants, {name.removesuffix(f' {PLATFORM}')}"
            goal = ratio_at_least(
                round(SHARED_PARTS.get(name, SHARED_PART) * possible, 2),
                f"One layer per wheel would share {possible:.3f}.",
            )
            pair = (count_repeated_bytes(blobs), _sum_blobs(blobs))
            yield _make_size_row(what, "all blobs", pair, goal, _describe_sharing(group))


def compare_upgrades(variants: Sequence[Variant]) -> Iterator[Measurement]:
    """Return how many bytes of the next release's image a node lacks that has the one before."""
    for old, new in UPGRADES:
        before, after = (_read_held(find_variant(variants, name)) for name in (old, new))
        lacks, least = (
            _count_lacking_bytes(before.blobs, after.blobs),
            _count_lacking_bytes(before.wheels, after.wheels),
        )
        total = _sum_blobs([after.blobs])
        because = f"One layer per wheel would pull {least / total:.3f}, of {len(after.wheels)} layers."
        goal = ratio_at_most(round(MARGIN * least / total, 2), because)
        note = f"The image has {len(after.blobs)} layers below the entrypoint."
        yield _make_size_row(
            f"bytes pulled for an upgrade, {old} → {new}", "the whole image", (lacks, total), goal, note
        )


def _read_held(variant: Variant) -> Held:
    return make_held(variant, lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, variant.id)).platforms[PLATFORM])


def _count_lacking_bytes(before: Mapping[Key, float], after: Mapping[Key, float]) -> float:
    return sum(size for key, size in after.items() if key not in before)


def make_held(variant: Variant, pins: LockedPlatform) -> Held:
    """Return a variant's blobs: its wheels, and its base if the lock has its size."""
    pressed = f"{variant.compression.algorithm} {variant.compression.level}"
    prefix = (variant.python, pressed, str(variant.epoch))
    base = pins.base if isinstance(pins.base, LockedDebianBase) and pins.base.digest else None
    below = {(str(base.digest),): _count_bytes(base.packages)} if base else {}
    layers = [wheels for wheels in pins.layers.values() if wheels]
    wheels = tuple(wheel for layer in layers for wheel in layer)
    return Held(
        below | {(*prefix, *sorted(wheel.sha256 for wheel in layer)): _count_bytes(layer) for layer in layers},
        below | {(*prefix, wheel.sha256): float(wheel.size) for wheel in wheels},
        wheels,
    )


def count_repeated_bytes(blob_sets: Sequence[Mapping[Key, float]]) -> float:
    """Return the bytes of blobs that occur more than once, counting each occurrence."""
    often = Counter(key for blobs in blob_sets for key in blobs)
    return sum(size for blobs in blob_sets for key, size in blobs.items() if often[key] > 1)


def _describe_sharing(group: Sequence[Held]) -> str:
    """Describe how many variants were compared, what a registry stores, and the largest packages not shared."""
    blobs = [member.blobs for member in group]
    distinct = sum({key: size for member in blobs for key, size in member.items()}.values())
    alone = _list_unshared_packages(group)
    return (
        f"{len(group)} variants have locked wheels. A registry with all of them stores "
        f"{distinct / _sum_blobs(blobs):.2f} of the sum."
        + (f" Most of the rest is in one variant only: {'; '.join(alone)}." if alone else "")
    )


def _list_unshared_packages(group: Sequence[Held]) -> list[str]:
    """Return the three packages with the most bytes in wheels of one variant only, with their versions."""
    often = Counter(wheel.sha256 for image in group for wheel in image.pins)
    of: dict[str, list[LockedWheel]] = {}
    for wheel in (wheel for image in group for wheel in image.pins if often[wheel.sha256] == 1):
        of.setdefault(wheel.name, []).append(wheel)
    largest = sorted(of, key=lambda name: -_count_bytes(of[name]))[:3]
    return [f"{name} {', '.join(sorted((w.version for w in of[name]), key=Version))}" for name in largest]


def _count_bytes(files: Sequence[LockedWheel | LockedDeb]) -> float:
    return float(sum(file.size for file in files))


def _sum_blobs(blob_sets: Sequence[Mapping[Key, float]]) -> float:
    return sum(sum(blobs.values()) for blobs in blob_sets)
