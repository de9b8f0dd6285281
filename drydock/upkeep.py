"""The invoke verbs that keep the repository itself in order, apart from those of images: tasks.py takes them in."""

from __future__ import annotations

from invoke.context import Context

from drydock import docs as tables
from drydock import quality
from drydock import schema as schemas
from drydock.matrix import read_matrix
from drydock.paths import ROOT
from drydock.verbs import CHECK, report, verb


@verb(help=CHECK)
def schema(_: Context, check: bool = False) -> None:
    """Write the JSON Schemas of the files that people and other tools read."""
    schemas.check(ROOT) if check else report(schemas.write(ROOT))


@verb(
    help={
        "kind": "unit, golden, fuzz or engine; all of them when left out",
        "record": "commit what they showed",
    }
)
def test(_: Context, kind: str = "", record: bool = False) -> None:  # noqa: PT028 - a verb, not a test
    """Run the linters and the tests, and count the tests by kind."""
    quality.run_tests(ROOT, kind, record=record)


@verb(help=CHECK)
def docs(_: Context, check: bool = False) -> None:
    """Write the tables of README and docs: what tests have shown, checks, thresholds."""
    variants = read_matrix(ROOT)
    tables.check(ROOT, variants) if check else report(tables.write(ROOT, variants))


@verb()
def lint(_: Context) -> None:
    """Run the linters and the type checker."""
    quality.lint(ROOT)


@verb(help={"upgrade": "take the newest versions instead of keeping those that still fit"})
def requirements(_: Context, upgrade: bool = False) -> None:
    """Resolve requirements.in into requirements.txt, with hashes."""
    report([ROOT / "requirements.txt"] if quality.requirements(ROOT, upgrade=upgrade) else [])


VERBS = (schema, test, docs, lint, requirements)
