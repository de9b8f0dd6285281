"""The folders of the code, from the bottom to the top, each with the first line of its docstring. IO: reads files."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from pathlib import Path

from drydock.pages.markdown import make_table


def make_folder_tables(root: Path) -> dict[str, str]:
    """Return a table for each package whose folders have an order in pyproject.toml."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    orders: Mapping[str, list[str]] = {
        contract["containers"][0]: contract["layers"]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    }
    return {
        f"folders of {package}": make_table(
            ("folder", "what it is"),
            (
                (f"`{name.strip()}`", read_first_line(root / package / name.strip()))
                for names in reversed(orders[package])
                for name in names.split("|")  # folders of one height
            ),
        )
        for package in ("drydock", "entrypoints")
    }


def read_first_line(folder: Path) -> str:
    """Return the first line of a package's docstring."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0]
