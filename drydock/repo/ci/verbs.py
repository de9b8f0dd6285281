"""`ci` and its parts as invoke verbs."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.context import Context

from drydock.config.matrix import read_matrix
from drydock.core.console import emit
from drydock.core.files import dumps
from drydock.core.paths import ROOT
from drydock.model.record import dump
from drydock.repo.verbs import report, verb

JSON = {"json": "print the result as JSON on standard output"}
FORMAT = {"format": "github or gitlab; both when left out"}


@verb(name="render", default=True, help=FORMAT | {"check": "write nothing; fail where something is stale"})
def ci(_: Context, format: str = "", check: bool = False) -> None:  # noqa: A002 - the option's name
    """Write the CI server's workflow from the matrix: test, build what changed, verify, publish, look for drift."""
    from drydock.repo.ci import workflow

    variants = read_matrix(ROOT)
    if check:
        workflow.check(ROOT, variants, format)
    else:
        report(workflow.write(ROOT, variants, format))


SINCE = {"since": "a commit; an empty one, or one that git lacks, means that everything changed"}
ONLY = {"only": "changed, all, or a variant to build whether it changed or not"}


@verb(
    name="changed",
    help=JSON
    | SINCE
    | ONLY
    | {
        "target": "variant id, alias or accelerator; every variant when left out",
        "github": "print what a step of GitHub's writes into its output",
    },
)
def ci_changed(
    _: Context, since: str, target: str = "", only: str = "changed", json: bool = False, github: bool = False
) -> None:
    """Print the variants that CI builds whose inputs changed since a commit, by their checksum."""
    from drydock.repo.ci import changed

    asked = changed.Selection(target, only)
    emit(changed.report(ROOT, since, asked, json=json, github=github))


@verb(
    name="publish",
    help={"target": "variant id, alias or accelerator"}
    | JSON
    | {
        "registry": "host and path that the repositories lie below",
        "ref": "refs/heads/main or refs/tags/vN.N.N: says under which tags",
        "key": "what cosign signs with; DRYDOCK_COSIGN_KEY, else an identity, when left out",
    },
)
def ci_publish(_: Context, target: str, registry: str, ref: str, key: str = "", json: bool = False) -> None:
    """Log in with what the environment holds, publish what was built under the tags of a git ref, and sign it."""
    from drydock.publish import push
    from drydock.repo.ci import release

    published = release.release(target, registry, ref, key)
    emit(dumps(dump(published)) if json else push.report(published))


@verb(name="propose", help={"format": "github or gitlab"})
def ci_propose(_: Context, format: str) -> None:  # noqa: A002 - the option's name
    """Lock anew what has drifted of the variants that CI builds, push that as a branch, and ask for its merge."""
    from drydock.repo.ci import proposal

    emit(proposal.propose(ROOT, proposal.server(format)))


VERBS = Collection(ci, ci_changed, ci_publish, ci_propose)
