"""The verb `policy`."""

from __future__ import annotations

from typing import Literal

from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.verb_options import VerbOptions


class PolicyOptions(VerbOptions):
    """Which policy is printed, and what it admits."""

    kind: Literal["kyverno", "sigstore"]
    """kyverno or sigstore"""
    reference: str
    """HOST/REPOSITORY of the images that the policy is about"""
    verify_key: str
    """file with the public key whose signatures are admitted"""


@Verb
def print_policy(options: PolicyOptions) -> None:
    """Print the admission policy of a cluster that admits only what a key signed."""
    from drydock.examine import admission

    write_output(admission.make_admission_policy(options.kind, options.reference, options.verify_key))
