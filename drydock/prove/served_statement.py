"""What `prove` saw, as an in-toto statement that is signed, and whether a statement is about an image and a host.

Sources: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md; the envelope is DSSE in a Sigstore
bundle, as `cosign attest-blob` writes it. A statement has no serial number and no name of the machine: what is taken
from the facts is listed here. IO.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StringConstraints, ValidationError

from drydock.attest import cosign
from drydock.attest.provenance import STATEMENT
from drydock.build.build_job import prepare_job
from drydock.config.matrix import find_recorded_variant
from drydock.core.console import as_lines
from drydock.core.errors import InputError, UntrustedError
from drydock.core.files import format_compact_json, format_json, read_bounded
from drydock.core.project import Project
from drydock.examine.verify_published import Trusted, format_trusted
from drydock.model.names import OneLine
from drydock.model.record import Count, Digest, Epoch, Identifier, Platform, Record, Sha256, dump_record
from drydock.model.variant import Variant
from drydock.publish.bindings import CLOCK_SKEW, DAY, list_document_errors
from drydock.run.entrypoint import ask_entrypoint

PREDICATE = "urn:drydock:served:v1"
"""docs/run.md describes its fields."""
FAIL = "FAIL"
SIZE_AT_MOST = 1 << 20
"""Bytes of a signed statement; one has about 10 kB."""
MEMORY_MARKS = ("Model loading took ", "Available KV cache memory: ", " KV cache size: ", "Maximum concurrency for ",
                "Actual usage is ", " GPU blocks: ")  # fmt: skip
"""Parts of vLLM's lines on its memory, as in entrypoints/plugin/drydock_plugin/supervisor_report.py."""
MEMORY_LINES, LINE_AT_MOST = 64, 300
"""Each rank writes its own lines."""
_RIGHT = re.compile(
    r"prefill and decode agree on [1-9][0-9]* tokens(?::|$)|[1-9][0-9]* recorded answers? of .+ given$"
    r"|/[a-z0-9/_]+ gives equal answers to equal requests(?::|$)"
)
"""What entrypoints/serve/known_answer.py and pooled.py say of a right answer."""
_NO_COMPARISON = re.compile(r"not compared: |(?:'.*'|\".*\") → |[(]no chat answer: ")
"""What they say of an answer that was not compared, and what `prove` adds: a question and its answer."""
_BEFORE_MESSAGE = re.compile(r"^.*?\] (?=\S)")
"""Process, level, time and place of a line of vLLM's log."""


class ServedDevice(Record):
    """One device, as the image's entrypoint found it."""

    name: OneLine
    memory_total: Count | None
    architecture: OneLine | None


class ServedHost(Record):
    """What a statement says of the host: the kind of machine, nothing that only this machine has."""

    accelerator: Identifier
    architecture: OneLine
    processor: OneLine
    processors: Count
    numa_nodes: Count
    memory_total: Count
    kernel: OneLine
    devices: tuple[ServedDevice, ...]
    versions: Mapping[OneLine, OneLine]


class Served(Record):
    """The predicate: what was served where, and what was seen."""

    variant: Identifier
    platform: Platform
    foundation: Digest | None
    """None if it is not kept on the machine, or the row has none."""
    inputs_sha256: Sha256
    commit: Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{40}(?:[0-9a-f]{24})?\+?)?$")]
    """Of the checkout, with a + if its files differed; empty if unknown."""
    host: ServedHost
    checks: Mapping[OneLine, Literal["PASS", "INFO", "WARN", "UNKNOWN", "FAIL"]]
    """Finding id → severity."""
    command: tuple[str, ...]
    """The plan: vLLM's command."""
    environment: Mapping[str, str]
    """The plan: the variables that are added."""
    known_answer: tuple[OneLine, ...]
    """The results of the known-answer test, then the question and the answer."""
    memory: tuple[OneLine, ...]
    """What vLLM logged of its memory."""
    began: Epoch
    """Unix seconds: when the container was started."""
    ready: Epoch
    ended: Epoch


class _About(Record):
    """The image that a statement names."""

    name: OneLine
    digest: Mapping[Literal["sha256"], Sha256]


class _Statement(Record):
    """An in-toto statement, as `prove` writes it: about one image, and with no other key."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    predicate_type: Literal["urn:drydock:served:v1"] = Field(alias="predicateType")
    subject: Annotated[tuple[_About, ...], Field(min_length=1, max_length=1)]
    predicate: Served


class ServedSubject(NamedTuple):
    """The image that a statement must be about."""

    variant: str
    images: Mapping[str, Collection[str]]
    """Platform → the digests that name its image: its manifest's, and that of the index."""
    inputs: Mapping[str, str]
    """Platform → checksum of the inputs that it was built from."""
    epoch: int
    """SOURCE_DATE_EPOCH of the image: nothing of it can have been seen before. Unix seconds."""
    foundation: str | None = None
    """Its digest; None if it is not known here."""
    host: ServedHost | None = None
    """The host that it must be about; None for any."""
    max_age: int = 0
    """Days since it ended; 0 for any."""


# --- what is taken from a machine -----------------------------------------------------------------------------------


def reduce_facts(facts: Mapping[str, Any]) -> ServedHost:
    """Return what a statement says of a host, from the facts that the entrypoint prints. Pure."""
    return ServedHost(
        accelerator=facts["accelerator"],
        architecture=facts["processor"]["architecture"],
        processor=facts["processor"]["model"] or "unknown",
        processors=len(facts["cpus"]),
        numa_nodes=len(facts["nodes"]),
        memory_total=facts["memory"]["total"],
        kernel=facts["kernel"].get("release") or "unknown",
        devices=tuple(
            ServedDevice(
                name=device["name"] or "unknown",
                memory_total=device["memory_total"],
                architecture=device["architecture"] or None,
            )
            for device in facts["devices"]
        ),
        versions={name: value for name, value in facts["versions"].items() if value},
    )


def list_checks(findings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the severity of each finding by its id. Pure."""
    return {finding["id"]: finding["severity"] for finding in findings}


def find_memory_lines(log: str) -> tuple[str, ...]:
    """Return what vLLM says of its memory in a log, without times and process ids. Pure."""
    lines = (line.strip() for line in log.splitlines() if any(mark in line for mark in MEMORY_MARKS))
    messages = (_BEFORE_MESSAGE.sub("", line)[:LINE_AT_MOST] for line in lines)
    return tuple(message for message in messages if message.isprintable())[:MEMORY_LINES]


# --- writing --------------------------------------------------------------------------------------------------------


def make_statement(served: Served, digest: str) -> dict[str, Any]:
    """Return the statement about an image. Pure."""
    return {
        "_type": STATEMENT,
        "subject": [{"name": served.variant, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": PREDICATE,
        "predicate": dump_record(served),
    }


def sign_served(served: Served, digest: str, signer: cosign.Signer) -> bytes:
    """Return the signed statement. Raises InputError and RegistryError of `cosign`."""
    return cosign.sign_statement(format_compact_json(make_statement(served, digest)).encode(), signer)


# --- reading --------------------------------------------------------------------------------------------------------


def read_served(path: str, trust: cosign.Trust, subject: ServedSubject) -> Served:
    """Return what a signed statement says, after its signature, if it is about this image and host.

    Raises InputError if the file cannot be read, UntrustedError for a signature, an image, a host or a time that is not
    the expected one, with all that differs.
    """
    try:
        data = read_bounded(Path(path), SIZE_AT_MOST)
    except OSError as error:
        raise InputError(f"--statement {path}: {error.strerror}", hint="`./inv prove` writes such a file") from error
    statement = cosign.check_statement(data, PREDICATE, trust)
    digest, served = parse_statement(statement, path)
    problems = [f"{path}: {text}" for text in find_problems(digest, served, subject, int(time.time()))]
    if problems:
        hint = f"expected the statement that `./inv prove --target {served.variant} --sign-key …` wrote for this image"
        raise UntrustedError(*problems, hint=f"{hint}, on this kind of host: run it there, or name its file")
    return served


def parse_statement(statement: Any, where: str) -> tuple[str, Served]:
    """Return the digest that a verified statement is about, and its predicate. Pure. Raises UntrustedError."""
    try:
        if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
            raise UntrustedError(f"{where}: expected a statement of {PREDICATE}, found {statement['predicateType']!a}")
        parsed = _Statement.model_validate(statement)
        return f"sha256:{parsed.subject[0].digest['sha256']}", parsed.predicate
    except ValidationError as error:
        raise UntrustedError(*list_document_errors(error, where)) from error
    except (LookupError, TypeError) as error:
        raise UntrustedError(f"{where}: no in-toto statement with subject and predicate: {error!r}") from error


def find_problems(digest: str, served: Served, subject: ServedSubject, now: int) -> Iterator[str]:
    """Yield what keeps a statement from being about an image and a host, with what was found and expected. Pure.

    What it says must also be that the image answered, on a host whose checks passed, and not too long ago.
    """
    if served.variant != subject.variant:
        yield f"it is about the variant {served.variant}, expected {subject.variant}"
    images = subject.images.get(served.platform, ())
    if not images:
        yield f"it is about {served.platform}, expected {' or '.join(sorted(subject.images))}"
    elif digest not in images:
        yield f"it is about the image {digest}, expected {' or '.join(sorted(images))}"
    if images and served.inputs_sha256 != subject.inputs.get(served.platform):
        expected = subject.inputs.get(served.platform)
        yield f"it is about an image of the inputs {served.inputs_sha256}, expected {expected}"
    if subject.foundation and served.foundation != subject.foundation:
        yield f"it is about {served.foundation or 'no foundation'}, expected the foundation {subject.foundation}"
    yield from _find_failures(served)
    yield from _find_time_problems(served, subject, now)
    if subject.host:
        yield from _find_host_differences(dump_record(served.host), dump_record(subject.host))


def _find_failures(served: Served) -> Iterator[str]:
    """Yield what a statement says went wrong: of the known answer each line must be one that a right answer gives."""
    if failed := sorted(name for name, severity in served.checks.items() if severity == FAIL):
        yield f"checks of its host failed: {', '.join(failed)}"
    if wrong := [line for line in served.known_answer if not _RIGHT.match(line) and not _NO_COMPARISON.match(line)]:
        yield f"it does not say that the known answer was given, but {wrong[0]!a:.200}"
    if not any(map(_RIGHT.match, served.known_answer)):
        yield "it says of no answer that it was compared"


def _find_time_problems(served: Served, subject: ServedSubject, now: int) -> Iterator[str]:
    if not served.began <= served.ready <= served.ended:
        yield f"it ended at {format_time(served.ended)}, before it began ({format_time(served.began)}) or was ready"
    if served.began < subject.epoch:
        yield f"it is of {format_time(served.began)}, older than the image's inputs of {format_time(subject.epoch)}"
    if served.ended > now + CLOCK_SKEW:
        yield f"it is of {format_time(served.ended)}, later than now ({format_time(now)})"
    if subject.max_age and now - served.ended > subject.max_age * DAY:
        yield f"it is of {format_time(served.ended)}, more than {subject.max_age} days ago (--max-age)"


def _find_host_differences(stated: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    for name, value in stated.items():
        if value != expected[name]:
            stated_fact, expected_fact = _describe_fact(value), _describe_fact(expected[name])
            yield f"it is about another host: {name}: found {stated_fact}, expected {expected_fact}"


def _describe_fact(value: Any) -> str:
    """Return a fact of a host in one line; equal devices are counted."""
    if isinstance(value, list):
        counts = Counter(f"{item['name']} ({item['memory_total']} bytes)" for item in value)
        return ", ".join(f"{number} of {name}" for name, number in counts.items()) or "no device"
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, text in sorted(value.items())) or "nothing"
    return str(value)


def format_time(seconds: int) -> str:
    """Return Unix seconds as a time, UTC."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def list_shown(served: Served, subject: ServedSubject) -> tuple[list[str], list[str]]:
    """Return what a verified statement shows, and what was not compared. Pure."""
    counts = Counter(served.checks.values())
    checks = ", ".join(f"{number} {severity}" for severity, number in sorted(counts.items())) or "none"
    shown = [
        f"served on {_describe_fact(dump_record(served.host)['devices'])}, {served.host.processor}",
        f"from {format_time(served.began)} to {format_time(served.ended)}, ready after {served.ready - served.began} s",
        f"checks: {checks}",
        *(f"answer: {line}" for line in served.known_answer),
        *(f"memory: {line}" for line in served.memory),
    ]
    skipped = [] if subject.host else ["host: --root HOST compares it with a recorded one"]
    if not subject.foundation:
        skipped.append("foundation: its digest is not known here")
    if not subject.max_age:
        skipped.append(f"age: it ended at {format_time(served.ended)}; --max-age DAYS limits its age")
    return shown, skipped


# --- the verbs ------------------------------------------------------------------------------------------------------


class ShownStatement(Record):
    """What `verify --statement --json` prints."""

    statement: Served
    shown: tuple[str, ...]
    not_shown: tuple[str, ...]


def verify_row_statement(
    project: Project, target: str, path: str, key: str, root: str, max_age: int = 0
) -> ShownStatement:
    """Verify a statement about the image that a row's record has. Builds nothing.

    Raises InputError if no digest is recorded, or without a key; UntrustedError.
    """
    job = prepare_job(project, target)
    if not job.recorded_digest:
        raise InputError(
            f"images/{job.variant.id} has no digest of an image of these inputs",
            hint=f"`./inv verify --target {job.variant.id} --record` writes it into record.json",
        )
    subject = ServedSubject(
        job.variant.id,
        {job.platform: (job.recorded_digest,)},
        {job.platform: job.inputs_sha256},
        job.lock.source_date_epoch,
        job.committed_foundation,
        max_age=max_age,
    )
    return _show_statement(project, job.variant, path, cosign.Trust(key), subject, root)


def verify_image_statement(
    project: Project, trusted: Trusted, path: str, trust: cosign.Trust, root: str, max_age: int = 0
) -> ShownStatement:
    """Verify a statement about an image in a registry that was verified. Raises InputError and UntrustedError."""
    hint = "run this in the project that the image was built from, or with --project DIR before the verb"
    variant = find_recorded_variant(project, trusted.variant, trusted.image, hint)
    images = {platform: (digest, trusted.digest) for platform, digest in trusted.platforms.items()}
    epoch = trusted.source_date_epoch
    subject = ServedSubject(trusted.variant, images, trusted.inputs, epoch, max_age=max_age)
    return _show_statement(project, variant, path, trust, subject, root)


def _show_statement(
    project: Project, variant: Variant, path: str, trust: cosign.Trust, subject: ServedSubject, root: str
) -> ShownStatement:
    if not trust.required:
        raise InputError(
            "--statement: found neither --verify-key nor --identity: nothing would say who saw this",
            hint="add --verify-key cosign.pub, the public key of who ran `./inv prove`",
        )
    host = reduce_facts(ask_entrypoint(project, variant, "facts", root)) if root else None
    subject = subject._replace(host=host)
    served = read_served(path, trust, subject)
    shown, not_shown = list_shown(served, subject)
    return ShownStatement(statement=served, shown=tuple(shown), not_shown=tuple(not_shown))


def format_shown_statement(statement: ShownStatement, trusted: Trusted | None = None, *, json: bool) -> str:
    """Return a verified statement, after the verified image that it is about."""
    if json:
        return format_json({**({"image": dump_record(trusted)} if trusted else {}), **dump_record(statement)})
    served = statement.statement
    lines = [f"statement about {served.variant} ({served.platform})"]
    lines += [f"  {line}" for line in statement.shown]
    lines += [f"  not checked: {line}" for line in statement.not_shown]
    return (format_trusted(trusted) if trusted else "") + as_lines(lines)
