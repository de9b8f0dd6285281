"""What is printed of an image that anyone may have made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drydock.examine import image, image_diff

HOSTILE = "1\n  shown    hardware\x1b[2J"
"""A label with a line of its own, and with an escape that clears the screen."""


def inspected(stand_in: str = "") -> str:
    platform = image.InspectedPlatform(
        digest="d", created="", layers=1, size=1, labels={"io.drydock.variant": HOSTILE}, attached={}, signatures=0,
        base=HOSTILE, packages={}, built=({"finished": HOSTILE, "builder": "b", "commit": "c"},), shown="none",
        code={HOSTILE: {HOSTILE: HOSTILE}}, releases=(), stand_in=stand_in,
    )  # fmt: skip
    return image.format_inspected(image.Inspected(image="i", digest="d", tag="", platforms={"linux/amd64": platform}))


def compared() -> str:
    change = image_diff.ImageChange(HOSTILE, HOSTILE, "")
    difference = image_diff.ImageDiff(
        old="o", new="n", platform="p", same=False, packages=(), flags=(), config=(change,), files=(change,),
        files_of_packages=0, sizes={},
    )  # fmt: skip
    return image_diff.format_image_diff(difference)


@pytest.mark.parametrize("report", [inspected, compared])
def test_a_label_prints_no_line_of_its_own(report: Callable[[], str]) -> None:
    text = report()

    assert "\x1b" not in text
    assert "1\\n  shown    hardware\\u001b[2J" in text
    assert not [line for line in text.splitlines() if line.startswith("  shown    hardware")]


def test_an_image_of_stand_ins_has_code_for_no_card() -> None:
    assert "\n  code     none: stand-ins for base, wheels\n" in inspected("base,wheels")
