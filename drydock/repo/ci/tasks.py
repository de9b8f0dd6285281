"""The invoke tasks `ci`, `ci.changed`, `ci.publish`, `ci.propose` and `ci.variables`."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.context import Context

from drydock.config.matrix import read_matrix
from drydock.core.console import emit
from drydock.core.files import dumps
from drydock.model.record import dump
from drydock.repo.task_helpers import foundations_of, here, report, verb

JSON = {"json": "print the result as JSON on standard output"}
FORMAT = {"format": "github or gitlab [default: both]"}


@verb(name="render", default=True, help=JSON | FORMAT | {"check": "write nothing; fail if a file is outdated"})
def ci(_: Context, format: str = "", check: bool = False, json: bool = False) -> None:  # noqa: A002 - the option's name
    """Write the CI workflows from the matrix: test, build what changed, verify, publish, check for drift."""
    from drydock.repo import ci_requirements
    from drydock.repo.ci import workflow

    variants = read_matrix(here())
    if check:
        workflow.check(here(), variants, format)
        ci_requirements.check_requirements(here())
    else:
        report(workflow.write(here(), variants, format), json=json)


SINCE = {"since": "compare with this commit; if it is empty or unknown, everything counts as changed"}
ONLY = {"only": "changed, all, or a variant to build whether it changed or not"}


@verb(
    name="changed",
    help=JSON
    | SINCE
    | ONLY
    | {
        "target": "variant id, alias or accelerator [default: every variant]",
        "github": "print a line for $GITHUB_OUTPUT",
        "large": "architectures whose runners have disk for every variant, such as amd64 [default: none]",
    },
)
def ci_changed(
    _: Context,
    since: str,
    target: str = "",
    only: str = "changed",
    json: bool = False,
    github: bool = False,
    large: str = "",
) -> None:
    """Print the variants whose inputs changed since a commit, of those that CI builds."""
    from drydock.repo.ci import changed

    selection = changed.Selection(target, only, large)
    emit(changed.report(here(), since, selection, json=json, github=github))


@verb(
    name="publish",
    help={"target": "variant id, alias or accelerator"}
    | JSON
    | {
        "registry": "host and path of the repositories",
        "ref": "refs/heads/main or refs/tags/vN.N.N; decides the tags",
        "key": "sign with this cosign key [default: DRYDOCK_COSIGN_KEY, else keyless]",
    },
)
def ci_publish(_: Context, target: str, registry: str, ref: str, key: str = "", json: bool = False) -> None:
    """Log in with credentials of the environment, publish and sign the built image, and push its foundation."""
    from drydock.publish import push
    from drydock.repo.ci import release

    published = release.release(here(), target, registry, ref, key)
    if foundations := foundations_of(""):
        release.push_foundation(here(), target, foundations, key)
    emit(dumps(dump(published)) if json else push.report(published))


@verb(
    name="propose",
    help={
        "format": "github or gitlab",
        "unlocked": "lock variants that are not locked, where this machine can",
        "recipes": "take newer published recipes of vLLM instead",
    },
)
def ci_propose(
    _: Context,
    format: str,  # noqa: A002 - the option's name
    unlocked: bool = False,
    recipes: bool = False,
) -> None:
    """Lock the variants that have drifted, push a branch and open a pull or merge request."""
    from drydock.repo.ci import proposal

    propose = proposal.propose_first if unlocked else proposal.propose
    propose = proposal.propose_recipes if recipes else propose
    emit(propose(here(), proposal.server(format)))


@verb(
    name="variables",
    help={
        "format": "github or gitlab",
        "check": "print nothing; fail if this environment lacks a variable that a release needs",
        "registry": "with --check: host and path that the release would be published to",
    },
)
def ci_variables(_: Context, format: str, registry: str = "", check: bool = False) -> None:  # noqa: A002 - as above
    """Print the commands that set the CI server's variables, or check that a release has those it needs."""
    from drydock.repo.ci import variables

    variables.check(format, registry) if check else emit(variables.text(format))


VERBS = Collection(ci, ci_changed, ci_publish, ci_propose, ci_variables)
