"""Whom a cluster trusts, as a policy for its admission controller. IO: reads the key's file.

The policies read the older form of a signature, the tag sha256-….sig: no released version of policy-controller, and not
every version of Kyverno, takes a bundle that was signed with a key. docs/publish.md has the versions and the sources.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from drydock.core.errors import InputError
from drydock.core.yaml_writer import write_yaml
from drydock.oci.reference import DOCKER_HUB, Reference, parse_reference

KEY = re.compile(r"-----BEGIN PUBLIC KEY-----\n(?:[A-Za-z0-9+/=]+\n)+-----END PUBLIC KEY-----\n?")
LONGEST_KEY = 1 << 14
"""Bytes."""
LONGEST_NAME = 63
"""Characters of an object: a label of DNS (RFC 1123), which any kind of name may be."""
NOTE = "# Reads the signatures' tags: publish with --signature-tags. The versions that accept it: docs/publish.md\n"


def make_admission_policy(kind: str, reference: str, key: str) -> str:
    """Return the policy that admits an image's repository only with a signature by a key, as YAML.

    Raises InputError for an unknown kind, or if the key is not a public key's file.
    """
    if kind not in KINDS:
        raise InputError(f"policy {kind}: expected {' or '.join(KINDS)}")
    manifest = KINDS[kind](parse_reference(reference)._replace(tag="", digest="", scheme=""), _public_key(key))
    return NOTE + write_yaml(manifest)


def _public_key(file: str) -> str:
    hint = "cosign public-key --key cosign.key > cosign.pub; then --verify-key cosign.pub"
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(LONGEST_KEY).decode()
    except (OSError, ValueError) as error:
        raise InputError(f"--verify-key {file!r}: {error}", hint=hint) from error
    if not KEY.fullmatch(text):
        raise InputError(f"--verify-key {file}: expected a public key in PEM", hint=hint)
    return text


def _make_kyverno_policy(repository: Reference, key: str) -> dict[str, Any]:
    """Return a ClusterPolicy (https://kyverno.io/docs/policy-types/cluster-policy/verify-images/sigstore/)."""
    keys = {"publicKeys": key, "rekor": {"ignoreTlog": True}, "ctlog": {"ignoreSCT": True}}
    rule = {
        "name": "signature",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "verifyImages": [
            {
                "imageReferences": [f"{repository}:*", f"{repository}@*"],
                "failureAction": "Enforce",
                "attestors": [{"entries": [{"keys": keys}]}],
            }
        ],
    }
    webhook = {"failurePolicy": "Fail", "timeoutSeconds": 30}
    spec = {"background": False, "webhookConfiguration": webhook, "rules": [rule]}
    return _make_policy_manifest("kyverno.io/v1", "ClusterPolicy", repository, spec)


def _make_sigstore_policy(repository: Reference, key: str) -> dict[str, Any]:
    """Return a ClusterImagePolicy (https://docs.sigstore.dev/policy-controller/overview/).

    Without `ctlog`, no transparency log is asked. Docker Hub has another name there (pkg/apis/glob/glob.go).
    """
    where = repository._replace(host="index.docker.io") if repository.host == DOCKER_HUB else repository
    images = [{"glob": f"{where}:**"}, {"glob": f"{where}@**"}]
    authority = {"name": "publisher", "key": {"data": key, "hashAlgorithm": "sha256"}}
    spec = {"images": images, "authorities": [authority]}
    return _make_policy_manifest("policy.sigstore.dev/v1beta1", "ClusterImagePolicy", repository, spec)


KINDS = {"kyverno": _make_kyverno_policy, "sigstore": _make_sigstore_policy}


def _make_policy_manifest(version: str, kind: str, repository: Reference, spec: dict[str, Any]) -> dict[str, Any]:
    name = re.sub(r"[^a-z0-9]+", "-", f"signed-{repository}".lower())[:LONGEST_NAME].strip("-")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
