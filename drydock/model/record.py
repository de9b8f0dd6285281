"""The base of all build-side records, and the types they share: names, digests, settings with reasons. Pure."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from drydock.model.names import OneLine, make_text_constraint

IDENTIFIER_AT_MOST = 63
"""Characters, as many as a label in DNS and Kubernetes has (RFC 1123)."""
IDENTIFIER = rf"^[a-z0-9][a-z0-9._-]{{0,{IDENTIFIER_AT_MOST - 1}}}$"
Identifier = Annotated[
    str,
    make_text_constraint(
        IDENTIFIER, "a name of lower-case letters, digits and . _ - that begins with a letter or digit"
    ),
]
Sha256 = Annotated[str, make_text_constraint(r"^[0-9a-f]{64}$", "a sha256: 64 hexadecimal digits in lower case")]
Digest = Annotated[
    str, make_text_constraint(r"^sha256:[0-9a-f]{64}$", "a digest: sha256: and 64 hexadecimal digits in lower case")
]
Platform = Annotated[
    str,
    make_text_constraint(
        r"^linux/(amd64|arm64|s390x|ppc64le|riscv64)$",
        "linux/amd64, linux/arm64, linux/s390x, linux/ppc64le or linux/riscv64",
    ),
]
Scalar = bool | int | float | OneLine
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Epoch = Annotated[int, Field(ge=0, lt=1 << 32)]
Because = Annotated[OneLine, Field(description="Why, in one sentence, shown to operators.")]
Source = Annotated[OneLine, Field(description="Manual, vendor page or measurement that supports it.")]


class Record(BaseModel):
    """Immutable; unknown keys are errors. The text below a field becomes its description in the JSON Schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class Setting(Record):
    """A value for one vLLM flag or environment variable, with its reason."""

    value: Scalar
    """For a flag, true passes it without a value and false leaves it out."""
    because: Because
    source: Source


def get_inherited_fields(kind: type[Record], record: Record) -> dict[str, Any]:
    """Return the fields of a record that it inherits from `kind`."""
    return {name: getattr(record, name) for name in kind.model_fields}


def dump_record(record: Record) -> dict[str, Any]:
    """Turn a record into plain JSON values, under the names used in files (`schema`, not `schema_`)."""
    return record.model_dump(mode="json", by_alias=True)
