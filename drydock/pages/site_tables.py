r"""Code in tables and headings as GitHub shows it. A Markdown extension, which Zensical loads. Pure."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from markdown import Extension, Markdown  # type: ignore[import-untyped]
from markdown.treeprocessors import Treeprocessor  # type: ignore[import-untyped]
from markdown.util import AtomicString  # type: ignore[import-untyped]

_ATTRIBUTE = re.compile("(?<=id)(?==)")
"""Where a line of a log looks like an attribute of HTML: pid=2101."""
_AFTER_INLINE = 15
"""Below the priority of Python-Markdown's inline processor (20), which makes the elements of code."""


class _Bars(Treeprocessor):  # type: ignore[misc]
    """Python-Markdown keeps the backslash that GitHub's tables need: https://github.github.com/gfm/#example-200."""

    def run(self, root: Element) -> None:
        for row in root.iter("tr"):
            for code in row.iter("code"):
                code.text = AtomicString((code.text or "").replace("\\|", "|"))


class _Headings(Treeprocessor):  # type: ignore[misc]
    """Zensical's list of a page's headings loses `id=` and what follows it, the end of its code too: part the two."""

    def run(self, root: Element) -> None:
        for level in "23456":
            for code in (code for heading in root.iter(f"h{level}") for code in heading.iter("code")):
                first, *others = _ATTRIBUTE.split(code.text or "")
                code.text = AtomicString(first)
                for text in others:
                    SubElement(code, "wbr").tail = AtomicString(text)


class _SiteCode(Extension):  # type: ignore[misc]
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Python-Markdown's name
        md.treeprocessors.register(_Bars(md), "drydock_bars", _AFTER_INLINE)
        md.treeprocessors.register(_Headings(md), "drydock_headings", _AFTER_INLINE)


def makeExtension(**settings: Any) -> Extension:  # noqa: N802 - Python-Markdown's name
    """Return the extension; Python-Markdown calls this."""
    return _SiteCode(**settings)
