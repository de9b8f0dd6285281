"""What this vLLM says of itself: the lists that were read from its files when the image was built. Pure.

Planning without an image has the lists of the locked wheel, or those of a release, which are assumed: an assumed list
warns and never refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

ACCEPT = "--vllm-accepts"
"""drydock's flag: vLLM takes what it names, whatever the lists say; repeatable."""
BOOLEAN = "boolean"
"""A flag that also exists with `--no-` before its name (templates/tools/read_vllm.py)."""


class VllmLists(NamedTuple):
    """The lists by name. A list that is absent is not known."""

    lists: Mapping[str, Any] = MappingProxyType({})
    assumed: str = ""
    """Whose lists these are, if they are not this vLLM's own; empty if they are."""

    def names(self, kind: str) -> frozenset[str] | None:
        """Return the entries of a list; None if it is not known."""
        return frozenset(self.lists[kind]) if kind in self.lists else None

    def own_or_assumed(self, kind: str) -> frozenset[str] | None:
        """Return the entries of a list, or of the release with this version; None if neither is known.

        A fork adds to the flags of its release and seldom removes one: good enough to leave something out.
        """
        entries = self.lists.get(kind, self.lists.get(f"{kind}_of_release"))
        return None if entries is None else frozenset(entries)

    def read_table(self, kind: str) -> Mapping[str, Any]:
        """Return a list that has a value for each entry, or that of the release with this version; else empty."""
        table: Mapping[str, Any] = self.lists.get(kind, self.lists.get(f"{kind}_of_release", {}))
        return table

    def lacks_package(self, package: str) -> bool:
        """Return whether the image lacks an optional package; False if that is not known."""
        packages = self.names("packages")
        excluded: list[str] = self.lists.get("excluded_packages", [])
        return package in excluded if packages is None else package not in packages

    def refuse_float16(self, model_type: str) -> str:
        """Return why this vLLM refuses float16 for a model type; empty if it takes it, or that is not known."""
        return str(self.lists.get("float16_refused", {}).get(model_type, "")).partition(".")[0].lower()

    def option_strings(self) -> frozenset[str]:
        """Return every option string of the server, empty if they are not known or only assumed."""
        flags: Mapping[str, Any] = self.lists.get("flags", {})
        if not flags or self.assumed:
            return frozenset()
        booleans = [name for name, takes in flags.items() if takes == BOOLEAN and name[:2] == "--"]
        inverses: list[str] = self.lists.get("inverses", [])
        inverted = (
            opposite + name[len(beginning) :]
            for beginning, opposite in zip(inverses, reversed(inverses), strict=True)
            for name in booleans
            if name.startswith(beginning)
        )
        return frozenset({*flags, *(f"--no-{name[2:]}" for name in booleans), *inverted, "-h", "--help"})


NOT_KNOWN = VllmLists()
