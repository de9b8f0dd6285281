"""Signatures, made and checked by cosign (https://docs.sigstore.dev/cosign/), with a key or with an identity. IO.

With a key nothing but the registry is asked, so that a signature can be checked without a network beyond it: no
transparency log takes part. Keyless uses Sigstore's public services as cosign itself is configured, or those that a
signing configuration names; a trusted root in a file lets such signatures be checked without a network, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.core.errors import InputError, RegistryError, UntrustedError
from drydock.oci.reference import Reference, is_loopback

HOW = "install it: apt-get install -t testing cosign, or from https://github.com/sigstore/cosign/releases"
PASSWORD = "COSIGN_PASSWORD holds its password"  # noqa: S105 - a hint
TIMEOUT = 300
"""Seconds for one call: keyless signing may wait for a person's browser."""


class Signer(NamedTuple):
    """Who signs: a key, or with an empty one whoever the identity provider says it is."""

    key: str
    insecure: bool = False
    config: str = ""
    """File: which authorities vouch for the identity and the time, instead of those that cosign knows."""


class Trust(NamedTuple):
    """Whose signatures count: those of a public key, or of an identity that an issuer vouches for."""

    key: str = ""
    identity: str = ""
    issuer: str = ""
    insecure: bool = False
    root: str = ""
    """File: the authorities and logs that are trusted, instead of those that cosign fetches."""

    @property
    def asked(self) -> bool:
        """Tell whether signatures are wanted at all."""
        return bool(self.key or self.identity)


def sign(digests: Sequence[Reference], signer: Signer, env: Mapping[str, str] = os.environ) -> None:
    """Sign digests of one repository, but those that this key signed before; each signature refers to its digest.

    cosign is called once for all, so that a person is asked once. Raises RegistryError with cosign's last line.
    """
    missing = _unsigned(digests, signer, env) if signer.key else tuple(digests)
    if not missing:
        return
    who: tuple[str, ...] = ("--signing-config", signer.config) if signer.config else ()
    if signer.key:
        who = _with_key(signer.key)
    plain = _plain(missing[0], insecure=signer.insecure)
    done = _cosign(("sign", "--yes", *who, *plain, *map(_bare, missing)), env)
    if done.returncode:
        raise RegistryError(f"cosign sign {missing[0]}: exit {done.returncode}: {_last(done.stderr)}")


def check(where: Reference, trust: Trust, env: Mapping[str, str] = os.environ) -> None:
    """Raise UntrustedError unless a digest carries a signature that counts."""
    if trust.key:
        who: tuple[str, ...] = ("--key", trust.key, "--insecure-ignore-tlog=true")
    elif trust.identity and trust.issuer:
        who = ("--certificate-identity", trust.identity, "--certificate-oidc-issuer", trust.issuer, *_root(trust.root))
    else:
        raise InputError(
            "--identity: wants --issuer beside it", hint="such as https://token.actions.githubusercontent.com"
        )
    done = _cosign(("verify", *who, *_plain(where, insecure=trust.insecure), _bare(where)), env)
    if done.returncode:
        raise UntrustedError(f"{where}: no signature that counts: {_last(done.stderr)}")
    if where.digest not in _signed(done.stdout):
        raise UntrustedError(f"{where}: cosign found a signature of something else")


def sign_data(data: bytes, key: str, env: Mapping[str, str] = os.environ) -> bytes:
    """Return the signature of these bytes, as a Sigstore bundle. Needs no network.

    Raises InputError where it is no key, or not with this password.
    """
    with tempfile.TemporaryDirectory(prefix="drydock-") as folder:
        signed, signature = Path(folder, "data"), Path(folder, "signature")
        signed.write_bytes(data)
        done = _cosign(("sign-blob", "--yes", *_with_key(key), "--bundle", str(signature), str(signed)), env)
        if done.returncode:
            raise InputError(f"--sign {key}: {_last(done.stderr)}", hint=PASSWORD)
        return signature.read_bytes()


def check_data(data: bytes, signature: bytes, key: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise UntrustedError unless this is a signature of these bytes by a public key's owner. Needs no network."""
    with tempfile.TemporaryDirectory(prefix="drydock-") as folder:
        signed, beside = Path(folder, "data"), Path(folder, "signature")
        signed.write_bytes(data)
        beside.write_bytes(signature)
        who = ("--key", key, "--insecure-ignore-tlog=true")
        done = _cosign(("verify-blob", *who, "--bundle", str(beside), str(signed)), env)
        if done.returncode:
            raise UntrustedError(f"no signature that counts: {_last(done.stderr)}")


def _with_key(key: str) -> tuple[str, ...]:
    """Return how cosign signs with a key: no transparency log is told the name, since a key needs none."""
    return ("--key", key, "--use-signing-config=false", "--tlog-upload=false")


def _root(file: str) -> tuple[str, ...]:
    """Return how cosign uses a trusted root: a log or an authority that it does not name cannot be asked for.

    Raises InputError for a root by which nobody vouches for the time of a signature, whose certificate is short-lived.
    """
    if not file:
        return ()
    try:
        root = json.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"--trusted-root {file}: {error}", hint="cosign trusted-root create makes one") from error
    if not root.get("tlogs") and not root.get("timestampAuthorities"):
        raise InputError(f"--trusted-root {file}: names neither tlogs nor timestampAuthorities")
    time = () if root.get("tlogs") else ("--use-signed-timestamps", "--insecure-ignore-tlog")
    return ("--trusted-root", file, *time, *(() if root.get("ctlogs") else ("--insecure-ignore-sct",)))


def _unsigned(digests: Sequence[Reference], signer: Signer, env: Mapping[str, str]) -> tuple[Reference, ...]:
    """Return those that the key has not signed. Raises InputError where it is no key, or not with this password."""
    public = _cosign(("public-key", "--key", signer.key), env)
    if public.returncode:
        raise InputError(f"--key {signer.key}: {_last(public.stderr)}", hint=PASSWORD)
    with tempfile.NamedTemporaryFile("w", prefix="drydock-", suffix=".pub") as file:
        file.write(public.stdout)
        file.flush()
        trust = Trust(key=file.name, insecure=signer.insecure)
        return tuple(where for where in digests if not _holds(where, trust, env))


def _holds(where: Reference, trust: Trust, env: Mapping[str, str]) -> bool:
    try:
        check(where, trust, env)
    except UntrustedError:
        return False
    return True


def _signed(text: str) -> set[str]:
    """Return the digests that cosign's answer says were signed."""
    try:
        claims = json.loads(text)
        return {claim["critical"]["image"]["docker-manifest-digest"] for claim in claims}
    except (ValueError, KeyError, TypeError):
        return set(re.findall(r"sha256:[0-9a-f]{64}", text))


def _plain(where: Reference, *, insecure: bool) -> tuple[str, ...]:
    return ("--allow-http-registry",) if insecure or is_loopback(where.host) else ()


def _bare(where: Reference) -> str:
    return str(where._replace(scheme=""))


def _cosign(arguments: tuple[str, ...], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    program = shutil.which("cosign", path=env.get("PATH"))
    if not program:
        raise InputError("cosign: not found on PATH", hint=HOW)
    # an empty password is a password: without this cosign asks a terminal that a CI does not have
    environment = {"COSIGN_PASSWORD": "", **env}
    try:
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise RegistryError(f"cosign {arguments[0]}: no answer within {TIMEOUT} seconds") from error


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    useful = [line for line in lines if line.startswith("Error:")]
    return (useful or lines or ["(it said nothing)"])[-1].removeprefix("Error: ")
