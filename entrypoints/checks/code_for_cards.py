"""Which cards a library has code for, and what is said of those that it has none for. Pure.

What a library has code for is read of its files on the host (drydock/lock/code_lists.py): planning without an image
knows it, and an image does not. Sources: NVIDIA, CUDA C++ programming guide, compute capabilities (binary and PTX
compatibility, architecture-specific and family-specific code); LLVM, AMDGPU usage, generic processors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from entrypoints.checks.findings import make_notice
from entrypoints.core.records import Facts, Notice

Code = Mapping[str, Mapping[str, Collection[str]]]
"""Library with its version → file that every start loads → what it has code for: sm_90a, compute_80, gfx942."""

NO_CODE, COMPILED = "CODE-001", "CODE-002"
"""Findings: a library has no code for a card, or only what the card's driver compiles."""
_NVIDIA = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_CARD = re.compile(r"(\d+)\.(\d)")
_GENERIC = {
    "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
    "gfx9-4-generic": ("gfx942", "gfx950"),
    "gfx10-1-generic": ("gfx101",),
    "gfx10-3-generic": ("gfx103",),
    "gfx11-generic": ("gfx11",),
    "gfx12-generic": ("gfx12",),
}
"""Code for a generation of AMD's → how the names of its cards begin."""


def is_code_for(card: str, architecture: str) -> bool:
    """Return whether a card, such as 12.1 or gfx942, can run code for an architecture, PTX after it was compiled."""
    numbers, code = _CARD.fullmatch(card), _NVIDIA.fullmatch(architecture)
    if not numbers or not code:
        return card == architecture or card.startswith(_GENERIC.get(architecture, (" ",)))
    mine, its = (int(numbers[1]), int(numbers[2])), (int(code[2]), int(code[3]))
    if code[4] == "a":
        return mine == its
    if code[1] == "compute" and not code[4]:
        return mine >= its
    return mine[0] == its[0] and mine >= its


def find_missing_code(card: str, code: Code) -> tuple[str, ...]:
    """Return the libraries with a file that has no code for a card, nor any that its driver could compile."""
    return tuple(
        library
        for library, files in code.items()
        if any(not any(is_code_for(card, name) for name in names) for names in files.values())
    )


def find_compiled_code(card: str, code: Code) -> tuple[str, ...]:
    """Return the libraries with a file that has only PTX for a card, which the driver compiles at the first start."""
    return tuple(
        library
        for library, files in code.items()
        if library not in find_missing_code(card, code)
        and any(
            not any(is_code_for(card, name) for name in names if not name.startswith("compute_"))
            for names in files.values()
        )
    )


def list_cards(facts: Facts) -> tuple[str, ...]:
    """Return the different kinds of cards whose architecture is known by a number that code is compiled for."""
    kinds = sorted({device.architecture for device in facts.devices})
    return tuple(kind for kind in kinds if _CARD.fullmatch(kind) or kind.startswith("gfx"))


def describe_code(files: Mapping[str, Collection[str]]) -> str:
    """Return what the files of a library have code for, in words: sm_75, sm_80 and PTX of compute_90."""
    names = sorted({name for its in files.values() for name in its}, key=_sort_key)
    machine = ", ".join(name for name in names if not name.startswith("compute_"))
    ptx = ", ".join(name for name in names if name.startswith("compute_"))
    if not ptx:
        return machine
    return f"{machine} and PTX of {ptx}" if machine else f"PTX of {ptx}"


def _sort_key(name: str) -> tuple[int, str]:
    number = re.search(r"\d+", name)
    return (int(number[0]) if number else 0, name)


def find_code_notices(code: Code, facts: Facts, remedy: str) -> Iterator[Notice]:
    """Yield a notice for each library that lacks code for a card, and for each whose code its driver compiles.

    `remedy` says which rows run on this machine.
    """
    for card in list_cards(facts):
        expected = f"code for {card}"
        for library in find_missing_code(card, code):
            has = describe_code(code[library])
            yield make_notice("CODE-001", has, expected, library=library, card=card, code=has, remedy=remedy)
        for library in find_compiled_code(card, code):
            yield make_notice("CODE-002", describe_code(code[library]), expected, library=library, card=card)
