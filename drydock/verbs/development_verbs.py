"""Verbs that develop drydock: test, generate, lint, docs, schema, bench, prove, requirements, release, ci."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from drydock.cli.options import CheckOption, JsonOption, RowOption, RowOrAllOption, SignOptions, Verb, VerbOptions
from drydock.cli.task_helpers import foundations_of, here, report_checked, report_written
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.console import write_output
from drydock.core.errors import InputError
from drydock.core.files import format_json, write_atomically
from drydock.core.paths import ROOT
from drydock.model.record import dump_record

CiFormat = Literal["github", "gitlab"]


class SchemaOptions(CheckOption, JsonOption):
    """What happens to the schemas."""


@Verb
def write_schemas(options: SchemaOptions) -> None:
    """Write the JSON Schemas of matrix, stacks, locks and other files."""
    from drydock.pages import schema

    if options.check:
        schema.check_schemas(ROOT)
        report_checked(json=options.json)
    else:
        report_written(schema.write_schemas(ROOT), json=options.json)


class ProveOptions(RowOption, SignOptions):
    """What is proved, and who signs what was seen."""

    model: str = ""
    """folder or hub id of the model [default: SmolLM2-135M-Instruct]"""
    output: str = ""
    """with a signature: file for the statement [default: build/statements/TARGET.sigstore.json]"""


@Verb
def prove_row(options: ProveOptions) -> None:
    """Build an image, serve a model on this machine's device and record the proof."""
    from drydock.prove import prove
    from drydock.publish import push
    from drydock.run import container

    request = container.RunRequest(model=options.model) if options.model else None
    signed = push.signer_of(push.PublishOptions("", key=options.sign_key, keyless=options.keyless))
    file = Path(options.output or here().root / f"build/statements/{options.target}.sigstore.json")
    prove.prove_image(here(), options.target, request, statement=prove.StatementFile(signed, file) if signed else None)


class TestOptions(VerbOptions):
    """Which tests are run, and by whom."""

    __test__ = False  # pytest's: no class of tests
    kind: Literal[
        "", "unit", "golden", "fuzz", "engine", "stand-ins", "packages", "topology", "cluster", "oracle", "ci"
    ] = ""
    """unit, golden, fuzz, engine, stand-ins, packages, topology, cluster, oracle or ci [default: the first four]"""
    all: bool = False
    """also run slow tests, every variant's stand-in and all rounds of fuzz tests, as CI does at night"""
    changed: bool = False
    """only the tests that the changes since main can break: no linters, engine or slow tests; about a minute"""
    record: bool = False
    """with all engine tests: write results into images/VARIANT/record.json, and that a named kind passed"""
    installed: bool = False
    """test this checkout's wheel, installed in an environment of its own"""
    python: str = ""
    """run the tests with this Python, such as /usr/bin/python3, in an environment of its own"""
    ordinary_user: bool = False
    """as root: run the engine tests, or those of --kind, as uid 1000 in group docker"""


@Verb
def run_tests(options: TestOptions) -> None:
    """Run the linters and the tests."""
    from drydock.quality import quality

    if options.changed:
        if any((options.kind, options.all, options.record, options.installed, options.python, options.ordinary_user)):
            raise InputError("--changed: chooses the tests by itself", hint="leave the other options out")
        quality.run_changed_tests(ROOT)
        return
    if options.ordinary_user:
        quality.run_as_ordinary_user(ROOT, options.kind or "engine", every=options.all)
        return
    quality.run_tests(
        ROOT,
        options.kind,
        every=options.all,
        record=options.record,
        wheel=options.installed,
        python=options.python,
    )


class GenerateOptions(CheckOption):
    """What is generated."""

    only: str = ""
    """one part, such as hosts, docs or dockerfiles [default: all]"""


@Verb
def write_generated(options: GenerateOptions) -> None:
    """Write all files that are generated and committed, except for those that need an engine or the network."""
    from drydock.quality import quality

    quality.write_generated_files(ROOT, options.only, check=options.check)


class LintOptions(VerbOptions):
    """How much is checked."""

    quick: bool = False
    """leave out the check of generated files, which takes a minute"""


@Verb
def run_linters(options: LintOptions) -> None:
    """Run the linters and the type checker, and check that generated files are current."""
    from drydock.quality import quality

    quality.run_linters(ROOT, quick=options.quick)


class DocsOptions(CheckOption, JsonOption):
    """What is written of the pages."""

    serve: bool = False
    """serve the site of all pages on http://localhost:8000"""
    site: str = ""
    """build the site, of this checkout and of each release, into this folder"""


@Verb
def write_docs(options: DocsOptions) -> None:
    """Write docs/reference/ and what else is generated in README.md and docs/, or make the site of all pages."""
    from bench import bench_page
    from drydock.pages import commands_page, docs, site
    from tasks import COMMANDS

    if options.serve:
        site.serve_site(ROOT)
    elif options.site:
        report_written(site.publish_site(ROOT, Path(options.site)), json=options.json)
    elif options.check:
        docs.check_pages(
            here(),
            read_matrix(here()),
            [*bench_page.find_stale_files(ROOT), *commands_page.find_stale_page(ROOT, COMMANDS)],
        )
        report_checked(json=options.json)
    else:
        written = docs.write(here(), read_matrix(here()))
        report_written(
            [*written, *bench_page.write_page(ROOT), *commands_page.write_commands_page(ROOT, COMMANDS)],
            json=options.json,
        )


class RequirementsOptions(JsonOption):
    """What moves."""

    upgrade: bool = False
    """upgrade every package to its newest allowed version"""


@Verb
def resolve_requirements(options: RequirementsOptions) -> None:
    """Resolve pyproject.toml and requirements-*.in to requirements*.txt, with hashes."""
    from drydock.quality import quality

    report_written(quality.lock_requirements(ROOT, upgrade=options.upgrade), json=options.json)


class ReleaseOptions(VerbOptions):
    """Which release is tagged."""

    version: str
    """such as 1.4.0; what changed since the last release decides which versions may follow"""
    dry_run: bool = False
    """check, and say what would be written; write nothing"""
    no_verify: bool = False
    """do not run the linters and the tests; all else is checked"""


@Verb
def tag_release(options: ReleaseOptions) -> None:
    """Check everything, write version, changelog and surface, commit and tag. Pushes nothing."""
    from bench import bench_page
    from drydock.pages import commands_page
    from drydock.releases import release
    from tasks import COMMANDS, namespace

    outdated = [*bench_page.find_stale_files(ROOT), *commands_page.find_stale_page(ROOT, COMMANDS)]
    how = release.HowToRelease(verify=not options.no_verify, dry_run=options.dry_run, outdated=outdated)
    write_output(release.make_release(DRYDOCK, namespace, options.version, how))


class ReleaseFilesOptions(JsonOption):
    """Where the files of a release go, and how they are signed."""

    output: str
    """folder to write to"""
    sign_key: str = ""
    """sign with this cosign key: a file, env://NAME or a KMS URI [default: DRYDOCK_COSIGN_KEY, else keyless]"""
    unsigned: bool = False
    """do not sign: for a try"""
    upload: Literal["", "github", "gitlab"] = ""
    """github or gitlab: also upload them from a CI job, to the page of the release or its package"""


@Verb
def make_release_files(options: ReleaseFilesOptions) -> None:
    """Build the files of the release at this commit, twice, and sign them. CI runs it for a tag."""
    from drydock.ci import upload
    from drydock.releases import release_files

    if options.upload:
        upload.check_upload_server(options.upload)
    signer = release_files.choose_signer(options.sign_key, unsigned=options.unsigned)
    files = release_files.make_release_files(DRYDOCK, Path(options.output), signer)
    if options.upload:
        upload.upload_release_files(options.upload, files)
    report_written(files, json=options.json)


# --- benchmarks -----------------------------------------------------------------------------------------------------


class BenchOptions(JsonOption):
    """How a part is measured."""

    record: bool = False
    """write docs/benchmarks.json and the page generated from it"""
    rounds: int = 0
    """number of rounds [default: depends on the part]"""
    short: bool = False
    """measure some rows once, in five minutes, and print their ratios only"""


def make_bench_verb(part: str) -> Verb:
    """Return the verb that measures one part, or every part if no name is given."""

    def measure(options: BenchOptions) -> None:
        """Measure drydock and a plain Dockerfile alternately and print the comparison."""
        from bench import bench_page, run

        if options.short and (options.record or options.rounds):
            raise InputError("--short: excludes --record and --rounds", hint="leave --short out")
        parts: dict[str, Any] = {}
        try:
            run.run_benchmarks(part, options.rounds, parts, short=options.short)
        finally:
            if options.record:
                report_written(bench_page.record_parts(ROOT, parts))
            write_output(run.format_parts(parts, json=options.json, short=options.short))

    return Verb(measure)


class PlotOptions(VerbOptions):
    """What is drawn."""

    folder: str
    """JSON files that `bench --output` of an image wrote"""
    output: str = "bench.svg"
    """the SVG file"""


@Verb
def plot_results(options: PlotOptions) -> None:
    """Draw the results of vLLM's benchmarks, one plot for each figure."""
    from bench import results

    report_written(
        [Path(options.output)]
        if write_atomically(Path(options.output), results.plot_results(Path(options.folder)))
        else []
    )


# --- CI -------------------------------------------------------------------------------------------------------------


class CiOptions(CheckOption, JsonOption):
    """Which workflows are written."""

    format: Literal["", "github", "gitlab"] = ""
    """github or gitlab [default: both]"""


@Verb
def write_workflows(options: CiOptions) -> None:
    """Write the CI workflows from the matrix: test, build what changed, verify, publish, check for drift."""
    from drydock.ci import workflow
    from drydock.projects import ci_requirements

    variants = read_matrix(here())
    if options.check:
        workflow.check_workflows(here(), variants, options.format)
        ci_requirements.check_requirements(here())
        report_checked(json=options.json)
    else:
        report_written(workflow.write(here(), variants, options.format), json=options.json)


class CiChangedOptions(RowOrAllOption, JsonOption):
    """What counts as changed."""

    since: str
    """compare with this commit; if it is empty or unknown, everything counts as changed"""
    only: str = "changed"
    """changed, all, or a variant to build whether it changed or not"""
    github: bool = False
    """print a line for $GITHUB_OUTPUT"""
    large: str = ""
    """architectures whose runners have disk for every variant, such as amd64 [default: none]"""


@Verb
def list_changed_rows(options: CiChangedOptions) -> None:
    """Print the variants whose inputs changed since a commit, of those that CI builds."""
    from drydock.ci import changed

    selection = changed.Selection(options.target, options.only, options.large)
    write_output(
        changed.format_changed_rows(here(), options.since, selection, json=options.json, github=options.github)
    )


class CiPublishOptions(RowOption, JsonOption):
    """What a CI job publishes."""

    registry: str
    """host and path of the repositories"""
    ref: str
    """refs/heads/main or refs/tags/vN.N.N; decides the tags"""
    sign_key: str = ""
    """sign with this cosign key [default: DRYDOCK_COSIGN_KEY, else keyless]"""


@Verb
def publish_from_ci(options: CiPublishOptions) -> None:
    """Log in with credentials of the environment, publish and sign the built image, and push its foundation."""
    from drydock.ci import publishing
    from drydock.publish import push

    published = publishing.publish_release(here(), options.target, options.registry, options.ref, options.sign_key)
    if foundations := foundations_of(""):
        publishing.push_foundation(here(), options.target, foundations, options.sign_key)
    write_output(format_json(dump_record(published)) if options.json else push.format_published_image(published))


class CiProposeOptions(VerbOptions):
    """What is proposed, and where."""

    format: CiFormat
    """github or gitlab"""
    unlocked: bool = False
    """lock variants that are not locked, where this machine can"""
    recipes: bool = False
    """take newer published recipes of vLLM instead"""


@Verb
def propose_update(options: CiProposeOptions) -> None:
    """Lock the variants that have drifted, push a branch and open a pull or merge request."""
    from drydock.projects import proposal

    propose = proposal.propose_first if options.unlocked else proposal.propose_locks
    propose = proposal.propose_recipes if options.recipes else propose
    write_output(propose(here(), proposal.read_ci_server(options.format)))


class CiVariablesOptions(VerbOptions):
    """Whose variables are listed or checked."""

    format: CiFormat
    """github or gitlab"""
    registry: str = ""
    """with --check: host and path that the release would be published to"""
    check: bool = False
    """print nothing; fail if this environment lacks a variable that a release needs"""


@Verb
def list_ci_variables(options: CiVariablesOptions) -> None:
    """Print the commands that set the CI server's variables, or check that a release has those it needs."""
    from drydock.ci import ci_variables

    if options.check:
        ci_variables.check_release_variables(options.format, options.registry)
    else:
        write_output(ci_variables.format_all_variables(options.format))
