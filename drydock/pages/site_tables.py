r"""Cells of tables as GitHub shows them: `\\|` in code is a bar. A Markdown extension, which Zensical loads. Pure."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown  # type: ignore[import-untyped]
from markdown.treeprocessors import Treeprocessor  # type: ignore[import-untyped]
from markdown.util import AtomicString  # type: ignore[import-untyped]

_AFTER_INLINE = 15
"""Below the priority of Python-Markdown's inline processor (20), which makes the elements of code."""


class _Bars(Treeprocessor):  # type: ignore[misc]
    """Python-Markdown keeps the backslash that GitHub's tables need: https://github.github.com/gfm/#example-200."""

    def run(self, root: Element) -> None:
        for row in root.iter("tr"):
            for code in row.iter("code"):
                code.text = AtomicString((code.text or "").replace("\\|", "|"))


class _TableCode(Extension):  # type: ignore[misc]
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Python-Markdown's name
        md.treeprocessors.register(_Bars(md), "drydock_bars", _AFTER_INLINE)


def makeExtension(**settings: Any) -> Extension:  # noqa: N802 - Python-Markdown's name
    """Return the extension; Python-Markdown calls this."""
    return _TableCode(**settings)
