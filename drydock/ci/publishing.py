"""Publishing from CI: a git ref → release and channel; log in to the registry. IO."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from drydock.attest.cosign import choose_signer
from drydock.ci.workflow import BRANCH
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.errors import CredentialsError, InputError
from drydock.core.project import Project
from drydock.model.shared_options import SignOptions
from drydock.oci.reference import parse_reference
from drydock.publish import foundations

USER, PASSWORD = "DRYDOCK_REGISTRY_USER", "DRYDOCK_REGISTRY_PASSWORD"
SECRET = (PASSWORD, "CI_REGISTRY_PASSWORD")
"""Variables removed from the environment of `docker login`."""
STABLE, EDGE, CANDIDATE = "stable", "edge", "rc"
REFS = f"refs/heads/{BRANCH} is published as {EDGE}, refs/tags/v1.4.0 as release 1.4.0 and {STABLE}"


def tags_of(ref: str) -> tuple[str, str]:
    """Return the release and the channel of a git ref. Raises InputError if the ref is not published. Pure."""
    if ref == f"refs/heads/{BRANCH}":
        return "", EDGE
    match = re.fullmatch(r"refs/tags/v(\d+\.\d+\.\d+(-rc\.\d+)?)", ref)
    if not match:
        raise InputError(f"--ref {ref}: not published", hint=REFS)
    return match[1], CANDIDATE if match[2] else STABLE


def choose_ci_signing(key: str, env: Mapping[str, str] = os.environ) -> SignOptions:
    """Return who signs: `key`, else the key in DRYDOCK_COSIGN_KEY, else the CI job's OIDC identity."""
    key = key or env.get("DRYDOCK_COSIGN_KEY", "")
    return SignOptions(sign_key=key, keyless=not key)


def push_foundation(
    project: Project, target: str, registry: str, key: str, env: Mapping[str, str] = os.environ
) -> None:
    """Push the foundation of a built image, signed as the image is."""
    login_to_registry(registry, env)
    signer = choose_signer(choose_ci_signing(key, env))
    foundations.push_foundations(
        project, [find_variant(read_matrix(project), target)], registry, signer, insecure=False
    )


def login_to_registry(registry: str, env: Mapping[str, str] = os.environ) -> bool:
    """Log docker in with credentials from the environment; return whether there were any.

    The password is written to standard input. Raises CredentialsError if the registry rejects it.
    """
    host = parse_reference(f"{registry.lower()}/x").host
    user, password = choose_credentials(host, env)
    if not (user and password):
        return False
    command = ["docker", "login", host, "--username", user, "--password-stdin"]
    outside = {name: value for name, value in env.items() if name not in SECRET}
    result = subprocess.run(command, input=password, env=outside, capture_output=True, text=True, check=False)
    if result.returncode:
        last_line = next(iter(result.stderr.strip().splitlines()[-1:]), "").replace(password, "***")
        raise CredentialsError(
            f"docker login {host}: exit {result.returncode}: {last_line}", hint=f"check {USER}, {PASSWORD}"
        )
    return True


def choose_credentials(host: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Return user and password for a registry: drydock's variables, else GitLab's, for GitLab's registry only. Pure."""
    if env.get(USER) and env.get(PASSWORD):
        return env[USER], env[PASSWORD]
    if host == env.get("CI_REGISTRY"):
        return env.get("CI_REGISTRY_USER", ""), env.get("CI_REGISTRY_PASSWORD", "")
    return "", ""
