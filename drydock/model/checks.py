"""Records of checks and findings: the condition, the message and the fix. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, computed_field, model_validator

from drydock.model.caches import Caches
from drydock.model.names import Line, OneLine, Word, make_text_constraint
from drydock.model.record import Record, Scalar, Source
from drydock.model.variables import Variables

FactPath = Annotated[
    str, make_text_constraint(r"^[a-z_]+(\.[a-z0-9_]+)*$", "a path into the facts, such as kernel.governor")
]
KernelPath = Annotated[str, StringConstraints(pattern=r"^/(sys|proc)(/\.?[A-Za-z0-9_*:-][A-Za-z0-9_.*:-]*)+$")]
Knob = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+(\.[a-z0-9_-]+)+$")]

Language = Annotated[str, StringConstraints(pattern=r"^[a-z]{2}$")]
FindingId = Annotated[str, make_text_constraint(r"^[A-Z]{2,8}-[0-9]{3}$", "an id such as CPU-001")]

Places = Annotated[
    Mapping[FactPath, OneLine],
    Field(description="Fact that checks use → the file or tool that provides it in a container."),
]


class Condition(Record):
    """A comparison of a fact with an expected value."""

    fact: FactPath
    """A dotted path into the image's facts, such as kernel.governor."""
    operator: Literal[
        "eq", "ne", "in", "not_in", "gte", "lte", "contains", "absent", "present", "version_gte", "version_lt"
    ]
    """How the fact is compared; version_* compares number by number: 1.9 comes before 1.10."""
    expected: Scalar | tuple[Scalar, ...] | None = None
    """Expected value; left out for absent and present."""


class Command(Record):
    """A host command, for settings that are not a file of the kernel."""

    run: Line = Field(description="Required: one line of POSIX shell.")
    unless: Line = Field(description="Required: a command that succeeds if there is nothing left to do.")
    each_boot: bool = False
    """Whether a reboot undoes it."""


class Fix(Record):
    """How to fix a host setting; `check --fix-script` turns it into a script for a person to read and run."""

    sysctl: Mapping[Knob, int | Line] = {}
    """Name → value; set immediately, and at each boot by /etc/sysctl.d."""
    write: Mapping[KernelPath, Line] = {}
    """File below /sys or /proc, or a pattern → value; written immediately, and at each boot by /etc/tmpfiles.d."""
    commands: tuple[Command, ...] = ()
    """Run immediately, and at each boot where `each_boot` is true."""
    parameters: tuple[Word, ...] = ()
    """Kernel command-line parameters, such as intel_idle.max_cstate=0; they take effect after a reboot."""
    firmware: OneLine = Field(default="", description="Optional: what to set in the BIOS, which no script can do.")
    caution: OneLine = Field(default="", description="Optional: side effects, for the person who reads the script.")

    @computed_field  # type: ignore[prop-decorator]  # as pydantic's manual has it
    @property
    def permanent(self) -> str:
        """Return in words what makes the fix survive a reboot; empty if nothing is needed."""
        words = [f"{name} = {value} in /etc/sysctl.d" for name, value in self.sysctl.items()]
        words += [f"{path} = {value} in /etc/tmpfiles.d" for path, value in self.write.items()]
        words += [f"`{command.run}` in a systemd unit" for command in self.commands if command.each_boot]
        if self.parameters:
            words.append(f"{' '.join(self.parameters)} on the kernel's command line, and a restart")
        if self.firmware:
            words.append(f"in the BIOS, {self.firmware}")
        return "; ".join(words)

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not (self.sysctl or self.write or self.commands or self.parameters or self.firmware):
            raise ValueError("at least one change; leave `fix` out if no script can make it")
        return self


def list_placeholders(template: str) -> set[str]:
    """Return the names in braces that code fills in. Raises ValueError for anything else in braces."""
    names = set()
    for _, name, spec, conversion in Formatter().parse(template):
        if name is not None and (not name.isidentifier() or spec or conversion):
            raise ValueError("a plain name in braces, such as {device}; a brace itself is written twice")
        names |= {name} if name else set()
    return names


def _check_template(text: str) -> str:
    list_placeholders(text)
    return text


Template = Annotated[OneLine, AfterValidator(_check_template)]


Translations = Annotated[
    Mapping[Language, Mapping[OneLine, OneLine]],
    Field(description="Language → text that operators read → the same in that language; accelerator.zh.yaml has them."),
]


class Check(Condition):
    """One tuning check: a condition, and what to say when it is not met, and when it is."""

    id: FindingId
    """Stable name, such as CPU-001; never reused for another check."""
    severity: Literal["INFO", "WARN", "FAIL"]
    """Severity of the finding if the condition is not met."""
    stops: bool = False
    """Whether the server does not start, or ends, with it: of two findings of one severity it is named first."""
    scope: Literal["host", "container"]
    """Where it is fixed: on the host, or in the options of the container."""
    text: Template = Field(
        description="Required: what is the case if the condition is not met, and why it matters, one or two sentences; "
        "{found} and {expected} are the values."
    )
    passed: OneLine = Field(description="Required: what is the case if the condition is met, one sentence.")
    remediation: OneLine = Field(description="Required: the command or setting that fixes it.")
    source: Source
    when: tuple[Condition, ...] = Field(
        default=(), description="Optional: checked only if all of these conditions are met."
    )
    fix: Fix | None = None
    """The remediation as data, if a script on the host can apply it."""

    @model_validator(mode="after")
    def _fix_is_for_the_host(self) -> Self:
        if self.fix and self.scope != "host":
            raise ValueError("`scope: host`, because a fix changes the host; or no `fix`")
        return self

    @model_validator(mode="after")
    def _values_exist(self) -> Self:
        value_names = {"present": set(), "absent": {"found"}}.get(self.operator, {"found", "expected"})
        if unknown := list_placeholders(self.text) - value_names:
            names_text = " and ".join(f"{{{name}}}" for name in sorted(value_names)) or "no name in braces"
            raise ValueError(f"{names_text} in the text of a check with {self.operator}, not {{{min(unknown)}}}")
        return self


Topic = Literal["container", "asker", "rendered", "one-host", "clients", "unconfirmed", "tight", "figure"]


class KnownFinding(Record):
    """What a finding says that code makes; the code gives the id, what it found and expected, and names in braces."""

    severity: Literal["INFO", "WARN", "FAIL"]
    """What it is called."""
    stops: bool = False
    """Whether the server does not start, or ends, with it: of two findings of one severity it is named first."""
    scope: Literal["host", "container"]
    """Who can change it."""
    about: tuple[Topic, ...] = Field(
        default=(),
        description="Optional: container (the container and its network, not the plan), asker (the container, the "
        "cache or the network in which someone happens to ask: told last, and no headline), rendered (what every "
        "rendered container has), one-host (what a plan of one host cannot know of several), clients (who may ask the "
        "server), unconfirmed (no list of vLLM's confirms the plan), tight (the model nearly does not fit), figure (a "
        "measurement, told even if nothing is wrong).",
    )
    text: Template = Field(description="Required: what is the matter, one or two sentences.")
    passed: Template = Field(
        default="", description="Optional: what to say where code reports that nothing is the matter."
    )
    remediation: Template = Field(description="Required: what to do about it.")
    source: Annotated[Template, Field(description="Required: manual, vendor page, source file or measurement.")]

    @property
    def placeholders(self) -> set[str]:
        """Return the names that code fills in."""
        return set().union(*map(list_placeholders, (self.text, self.passed, self.remediation, self.source)))


Findings = Annotated[
    Mapping[FindingId, KnownFinding], Field(description="Findings that code makes, by id; an id has one meaning.")
]


def list_findings_about(findings: Mapping[str, KnownFinding], topic: Topic) -> frozenset[str]:
    """Return the ids of the findings about a topic."""
    return frozenset(number for number, finding in findings.items() if topic in finding.about)


SHORTEST = 6
"""Characters of a pattern; a shorter one would be in lines that mean something else."""


def _check_searchable(pattern: str) -> str:
    if len(pattern) < SHORTEST or not all(pattern.split("*")):
        raise ValueError(f"at least {SHORTEST} characters, with text before, between and after each *")
    return pattern


Pattern = Annotated[Line, AfterValidator(_check_searchable)]
FailureName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class Failure(Record):
    """A failure by its symptom: how it shows in a log, why, and what to do. `explain` and docs/failures.md show it."""

    symptom: Line = Field(description="Required: the line as it is printed.")
    patterns: tuple[Pattern, ...] = ()
    """Texts that a line with this symptom contains; * stands for any text."""
    codes: Mapping[FailureName, tuple[int, ...]] = {}
    """Numbers of a vendor's table that mean it, by the table, whose forms the file has."""
    exits: tuple[Annotated[int, Field(ge=0, le=255)], ...] = ()
    """Exit codes that mean it."""
    kind: Literal["cause", "consequence", "note"] = "cause"
    """`explain` shows causes first. A consequence only repeats that something failed; a healthy start has notes too."""
    explains: tuple[FailureName, ...] = ()
    """Names of failures that are moot in a log with this one: it is why they happened, so they are not shown."""
    cause: Line = Field(description="Required: what is the matter, one or two sentences.")
    remedy: Line = Field(description="Required: what to do about it, with the command or setting.")
    check: FindingId | None = None
    """The finding that tells it before."""
    scope: Literal["host", "container"] = "container"
    """Where the remedy is applied: on the host, or in the options of the container."""
    source: Annotated[str, StringConstraints(pattern=r"^(https://[^\s<>()]+|docs/[a-z0-9/.#-]+)$")]
    """Address of the vendor's page, issue or file that it is from, or a page of ours."""


class FindingElsewhere(Record):
    """A finding that no check of an image makes, but that its user may read: failures.json of an image has them."""

    text: Line
    remediation: Line
    source: Line


class Failures(Record):
    """templates/failures.yaml and templates/<accelerator>/failures.yaml, and failures.json in an image."""

    failures: Mapping[FailureName, Failure] = {}
    """By name."""
    code_forms: Mapping[FailureName, tuple[Pattern, ...]] = {}
    """Texts after which lines print a number of a vendor's table, by the table; * stands for any text."""
    translations: Translations = {}

    @model_validator(mode="after")
    def _has_forms_and_one_owner_of_each_code(self) -> Failures:
        owners: dict[tuple[str, int], str] = {}
        for name, failure in self.failures.items():
            for table, codes in failure.codes.items():
                if table not in self.code_forms:
                    raise ValueError(f"failures.{name}.codes.{table}: code_forms does not say how lines print it")
                for code in codes:
                    if owners.setdefault((table, code), name) != name:
                        raise ValueError(f"failures.{name}.codes.{table}: {owners[table, code]} has {code} too")
        return self


class Retired(Record):
    """A meaning of an id that is no longer used; the id is never used again."""

    id: FindingId
    meaning: OneLine = Field(description="Required: what the id meant.")
    replaced_by: FindingId | None = None
    """The id that has this meaning now; nothing where no finding has it."""


class AnyHost(Record):
    """templates/host.yaml: defaults for every accelerator; an entry of the same id or name in accelerator.yaml wins."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's format."""
    facts: Places = {}
    checks: tuple[Check, ...]
    """Tuning checks of any host."""
    findings: Findings = {}
    retired: tuple[Retired, ...] = ()
    """Ids that had several meanings, one entry for each meaning."""
    variables: Variables = Variables()
    """Environment variables that mean the same on every accelerator."""
    caches: Caches = {}
    translations: Translations = {}
