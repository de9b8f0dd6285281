"""Records of drydock/attest/vex.yaml: what this project states about known vulnerabilities. Pure data."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from drydock.model.record import Identifier, Record

VULNERABILITY = r"^[A-Za-z][A-Za-z0-9]*-[A-Za-z0-9._:-]{1,80}$"
"""CVE-2026-1234, GHSA-aaaa-bbbb-cccc, PYSEC-2026-7."""
VulnerabilityId = Annotated[str, StringConstraints(pattern=VULNERABILITY)]
VersionText = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+~:!_-]{0,199}$")]
Status = Literal["not_affected", "affected", "fixed", "under_investigation"]
Justification = Literal[
    "component_not_present",
    "vulnerable_code_not_present",
    "vulnerable_code_not_in_execute_path",
    "vulnerable_code_cannot_be_controlled_by_adversary",
    "inline_mitigations_already_exist",
]


class VexStatement(Record):
    """One statement about one vulnerability in one package, with the words of OpenVEX."""

    vulnerability: VulnerabilityId
    """Its id, or an alias that the databases list."""
    package: Annotated[str, StringConstraints(pattern=r"^pkg:(pypi|deb/debian)/[a-z0-9][a-z0-9.+-]*$")]
    """Package URL without version; for Debian, of the source package."""
    versions: tuple[VersionText, ...] = Field(min_length=1)
    """The versions that were examined, as the lock has them. The statement says nothing about others."""
    status: Status
    justification: Justification | None = None
    """Required for not_affected."""
    statement: str = Field(min_length=1, max_length=2000)
    """Why; for affected, what a user should do."""
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$")]
    """The day it was made or last changed."""
    products: tuple[Identifier, ...] = ()
    """Variants that it is about; all variants if empty."""

    @model_validator(mode="after")
    def _justified(self) -> Self:
        if (self.status == "not_affected") != (self.justification is not None):
            raise ValueError("a justification if, and only if, the status is not_affected")
        return self

    @property
    def settles(self) -> bool:
        """Return whether the vulnerability needs no further action."""
        return self.status in ("not_affected", "fixed")


class VexFile(Record):
    """vex.yaml as written."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of the file format."""
    author: str = Field(min_length=1)
    """Who makes the statements."""
    statements: tuple[VexStatement, ...]
