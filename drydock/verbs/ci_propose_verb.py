"""The verb `ci propose`."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Literal

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import log, write_output
from drydock.core.errors import InputError, UnresolvedError, raise_all_errors
from drydock.core.project import Project
from drydock.core.verb_options import VerbOptions

if TYPE_CHECKING:
    from drydock.ci.proposal import Server
    from drydock.examine.advisories.databases import Database

CiFormat = Literal["github", "gitlab"]


class CiProposeOptions(VerbOptions):
    """What is proposed, and where."""

    format: CiFormat
    """github or gitlab"""
    unlocked: bool = False
    """lock variants that are not locked, where this machine can"""
    recipes: bool = False
    """take newer published recipes of vLLM instead"""
    vllm: str = ""
    """take this version of vLLM instead, as `bump` does, such as 0.34.0"""
    target: str = ""
    """the row that takes it: row, alias or accelerator"""


@Verb
def propose_update(options: CiProposeOptions) -> None:
    """Lock the variants that have drifted, push a branch and open a pull or merge request."""
    from drydock.ci import proposal

    project, server = here(), proposal.read_ci_server(options.format)
    if options.vllm or options.target:
        write_output(propose_version(project, server, options.target, options.vllm))
    elif options.recipes:
        write_output(propose_recipes(project, server))
    elif options.unlocked:
        write_output(propose_first_locks(project, server))
    else:
        write_output(propose_locks(project, server))


def propose_locks(project: Project, to: Server, database: Database | None = None) -> str:
    """Lock the drifted and the vulnerable variants that CI builds, push the change and open a request to merge it.

    Returns what was done. Raises DriftError if an input drifted that only a change to a stack can
    fix, AdvisoryError if the new locks have known vulnerabilities, NotAskedError if nothing was found but not every
    source could be checked.
    """
    from drydock.ci import proposal
    from drydock.ci.ci_rows import list_ci_rows
    from drydock.config.matrix import read_matrix
    from drydock.examine.advisories import advisory_record, advisory_search
    from drydock.examine.advisories.databases import OsvService
    from drydock.lock.drift import drift_record, drift_search
    from drydock.lock.drift.ask import LiveUpstream

    project.check_writable("locks")
    proposal.refuse_edits(project)
    variants, database = read_matrix(project), database or OsvService()
    ids = {row.variant for row in list_ci_rows(project, variants)[0]}
    built = [variant for variant in variants if variant.id in ids]
    drift = drift_search.find_drift(project, built, LiveUpstream())
    before = advisory_search.find_advisories(project, built, database)
    log(drift_record.format_drift(drift))
    log(advisory_record.format_advisories(before))

    outdated = {change.variant for change in drift.drifted} | proposal.find_fixable_variants(before)
    relocked = proposal.relock_variants(project, [variant for variant in variants if variant.id in outdated])
    _write_pages(project)
    outcome, after = "", before
    if relocked:
        after = advisory_search.find_advisories(project, built, database)
        fixed = advisory_record.format_advisory_changes(before, after)
        drifted = drift_record.format_drift(drift.model_copy(update={"beyond": ()}))
        quoted = indent(f"{fixed}\n{drifted}", "    ")  # names and advisories from upstream could be Markdown
        outcome = proposal.offer_request(project, to, proposal.UPDATE, f"{proposal.NOTE}\n\n{quoted}")
    if not outcome:
        drift_search.raise_if_found(drift)
        proposal.settle_advisories(after)
        return proposal.NOTHING
    proposal.settle_stack_drift(drift)
    proposal.settle_advisories(after.model_copy(update={"not_asked": ()}))  # the request says what was not asked
    return outcome


def propose_first_locks(project: Project, to: Server) -> str:
    """Lock the project's variants that are not locked, as far as this machine reaches their sources.

    The rest is as in `propose_locks`. Valid pins stay as they are. Returns what was done.
    """
    from drydock.ci import proposal
    from drydock.ci.ci_rows import list_unlocked_rows
    from drydock.config.matrix import read_matrix

    project.check_writable("locks")
    proposal.refuse_edits(project)
    changed: list[Path] = proposal.relock_variants(
        project, list_unlocked_rows(project, read_matrix(project)), first=True
    )
    _write_pages(project)
    lines = (f"- {project.name_of(path)}" for path in changed)
    message = "\n".join(("These locks pin more now:", "", *lines, "", proposal.WORKFLOWS_NOTE))
    return (changed and proposal.offer_request(project, to, proposal.FIRST, message)) or proposal.NOTHING


def propose_recipes(project: Project, to: Server) -> str:
    """Take newer published recipes; the request says which plans of recorded hosts change. Returns what was done."""
    from drydock.ci import proposal
    from drydock.compare.recipe_plans import format_update
    from drydock.lock.recipes import recipes_lock
    from drydock.verbs.recipes_verb import RecipesOptions, update_recipes

    project.check_writable(recipes_lock.LOCK)
    proposal.refuse_edits(project)
    message = format_update(update_recipes(project, RecipesOptions()), project)
    log(message)
    quoted = indent(message, "    ")  # names from upstream could be Markdown
    return proposal.offer_request(project, to, proposal.RECIPES, quoted) or proposal.NOTHING


def propose_version(project: Project, to: Server, target: str, version: str) -> str:
    """Take a version of vLLM; the request says what it changes. Returns what was done.

    What this machine cannot pin is in the request's text. Any other error is raised, and nothing is pushed.
    """
    from drydock.ci import proposal
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.verbs.bump_verb import BumpOptions, update_rows

    if not (target and version):
        raise InputError("--target and --vllm: expected both", hint="such as --target cuda --vllm 0.34.0")
    proposal.refuse_edits(project, proposal.OF_BUMP)
    row = find_variant(read_matrix(project), target).id
    update = update_rows(project, BumpOptions(target=row, vllm=version))
    log(update.report)
    raise_all_errors([error for error in update.errors if not isinstance(error, UnresolvedError)])
    request = proposal.LockRequest(f"drydock/vllm-{row}", f"{row}: take vLLM {version}", proposal.OF_BUMP)
    return proposal.offer_request(project, to, request, update.report) or proposal.NOTHING


def _write_pages(project: Project) -> None:
    """Write drydock's own pages, whose tables are made of locks."""
    from drydock.config.matrix import read_matrix
    from drydock.pages import docs

    if not project.below:
        docs.write(project, read_matrix(project))
