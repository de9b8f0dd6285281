"""Which verbs `./inv` has, by what one wants to do. Each is a file of its own: `lock diff` is verbs/lock_diff_verb.py.

The table names modules as text, so that a command imports its own verb only, and so that pages and verbs below it can
read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from drydock import INSTALLED
from drydock.cli.verb import Verb

HEADINGS: dict[str, tuple[str, ...]] = {
    "Get an image": ("build", "run", "demo", "matrix", "images", "doctor"),
    "Ask before you serve": ("plan", "check", "size", "explain", "compare", "review"),
    "Serve on several machines": (
        "topology init",
        "topology plan",
        "topology diff",
        "topology render",
        "topology check",
        "topology up",
        "topology verify",
        "topology down",
    ),
    "Change what is in it": (
        "lock",
        "lock diff",
        "outdated",
        "bump",
        "recipes",
        "adopt",
        "project init",
        "project add",
        "project remove",
        "project upgrade",
        "project push",
    ),
    "Trust it": ("verify", "audit", "image verify", "image inspect", "image diff", "image audit", "policy"),
    "Ship it": (
        "publish",
        "foundations",
        "foundations push",
        "bundle create",
        "bundle load",
        "model pull",
        "model push",
        "model demo",
    ),
    "See the parts": ("fetch", "render", "bake", "engine", "entrypoint"),
    "Develop drydock": ("prove", "ci", "ci changed", "ci publish", "ci propose", "ci variables"),
}
"""Heading → verbs as they are typed."""
OF_CHECKOUTS = ("test", "generate", "lint", "docs", "schema", "requirements", "release", "release files", "bench plot")
"""Verbs that develop drydock itself, which an installed drydock lacks."""


class VerbModules(Mapping[str, Verb]):
    """Verbs by their names, each imported when it is asked for."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Take the names in the order in which help lists them."""
        self._names = names

    def __getitem__(self, name: str) -> Verb:
        """Return the one verb of its module. Raises KeyError for another name."""
        if name not in self._names:
            raise KeyError(name)
        if name.startswith("bench ") and name not in OF_CHECKOUTS:  # a part of the benchmarks
            verb: Verb = import_module("drydock.verbs.bench_verb").make_bench_verb(name.removeprefix("bench "))
            return verb
        module = import_module(f"drydock.verbs.{name.replace(' ', '_')}_verb")
        return next(value for value in vars(module).values() if isinstance(value, Verb))

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return how many verbs there are."""
        return len(self._names)


def _list_headings() -> Mapping[str, tuple[str, ...]]:
    """Return the table, with the verbs of a checkout if this is one."""
    if INSTALLED:
        return HEADINGS
    from bench import PARTS

    parts = (f"bench {part}" for part in PARTS)
    return HEADINGS | {"Develop drydock": (*OF_CHECKOUTS, "bench", *parts, *HEADINGS["Develop drydock"])}


COMMANDS: Mapping[str, VerbModules] = {heading: VerbModules(names) for heading, names in _list_headings().items()}
"""Heading → verbs, by their names."""
