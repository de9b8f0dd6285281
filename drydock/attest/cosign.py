"""Sign and verify with cosign (https://docs.sigstore.dev/cosign/), with a key or with an identity (keyless). IO.

With a key, cosign contacts only the registry: no transparency log is used. Keyless signing uses Sigstore's public
services as configured in cosign, or the services in a signing configuration. With a trusted root in a file, keyless
signatures can be verified without a network.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from drydock.core.errors import InputError, RegistryError, UntrustedError
from drydock.core.files import parse_any_json, refuse_duplicate_keys
from drydock.core.network_settings import is_loopback
from drydock.model.shared_options import SignOptions, TrustOptions
from drydock.oci.reference import Reference

INSTALL_HINT = "install it: apt-get install -t testing cosign, or from https://github.com/sigstore/cosign/releases"
PASSWORD_HINT = "set COSIGN_PASSWORD to the key's password"  # noqa: S105 - a hint
KEY_HINT = (
    "expected cosign's private key: a file that `cosign generate-key-pair` makes, env://NAME, or a key service URI"
)
PUBLIC_KEY_HINT = "`cosign public-key --key cosign.key > cosign.pub` writes the public key of a private one"
_UNREADABLE_KEY = re.compile(r"loading (?:verifier|public key)")
"""How cosign begins what it says of a public key that it cannot read, before it looks at any signature."""
IN_TOTO = "application/vnd.in-toto+json"
"""Type of an envelope's payload (in-toto attestation specification, "Envelope")."""
TIMEOUT = 300
"""Seconds for one call: keyless signing may wait for a login in a browser."""


class Signer(NamedTuple):
    """The key to sign with; if it is empty, sign keyless with the identity from the identity provider."""

    key: str
    insecure: bool = False
    config: str = ""
    """Signing configuration: a file that names the services to use instead of cosign's defaults."""
    claims: Mapping[str, str] = MappingProxyType({})
    """What the signatures say in addition to the digest: cosign's annotations."""
    as_tag: bool = False
    """Whether the signature is a tag (sha256-….sig) instead of a bundle that refers to the digest: with a key only."""


class Trust(NamedTuple):
    """The accepted signer: the owner of a public key, or an identity confirmed by an issuer."""

    key: str = ""
    identity: str = ""
    issuer: str = ""
    insecure: bool = False
    root: str = ""
    """Trusted root: a file that names the trusted authorities and logs, instead of those that cosign fetches."""
    claims: Mapping[str, str] = MappingProxyType({})
    """What a signature must say in addition to the digest."""
    patience: float = TIMEOUT
    """Seconds for one signature."""
    as_tag: bool = False
    """Whether the signature must be a tag, as of `Signer`."""

    @property
    def required(self) -> bool:
        """Whether signatures must be verified."""
        return bool(self.key or self.identity)


def trust_of(options: TrustOptions) -> Trust:
    """Return whom the options accept. Raises InputError if options that require each other are incomplete."""
    if bool(options.identity) != bool(options.issuer):
        raise InputError("--identity and --issuer require each other")
    if options.verify_key and options.identity:
        raise InputError("--verify-key and --identity exclude each other: the image is verified with one of them")
    if options.trusted_root and not options.identity:
        raise InputError("--trusted-root requires --identity and --issuer")
    return Trust(options.verify_key, options.identity, options.issuer, options.insecure, options.trusted_root)


def choose_signer(options: SignOptions, *, insecure: bool = False, signing_config: str = "") -> Signer | None:
    """Return who signs, or None if nothing is signed. Raises InputError."""
    if options.sign_key and options.keyless:
        raise InputError("--sign-key and --sign-keyless exclude each other")
    return Signer(options.sign_key, insecure, signing_config) if options.sign_key or options.keyless else None


def require_signer(signer: Signer | None, env: Mapping[str, str] = os.environ) -> None:
    """Raise InputError if a signer cannot sign: without cosign, with a key that does not open, without its services.

    To be called before anything is made or sent that is signed at last. Whether an identity provider answers is seen
    only when something is signed.
    """
    if signer is None:
        return
    if signer.key:
        _public_key(signer, env)
        return
    _find_program(env)
    if signer.config and not Path(signer.config).is_file():
        hint = "`cosign signing-config create` makes such a file"
        raise InputError(f"--signing-config {signer.config}: no such file", hint=hint)


def sign_digests(digests: Sequence[Reference], signer: Signer, env: Mapping[str, str] = os.environ) -> None:
    """Sign digests of one repository, except those that this key has already signed.

    cosign is called once, so that keyless signing needs one login. Raises RegistryError with cosign's error.
    """
    done_before = signed_by(digests, signer, env) if signer.key else ()
    missing = [where for where in digests if where not in done_before]
    if not missing:
        return
    options = (*_transport_options(missing[0], insecure=signer.insecure), *_make_annotation_options(signer.claims))
    result = _run_cosign(("sign", "--yes", *_signer_options(signer), *options, *map(_without_scheme, missing)), env)
    if result.returncode:
        raise RegistryError(f"cosign sign {missing[0]}: exit {result.returncode}: {_find_cosign_error(result.stderr)}")


def check_digest_signature(where: Reference, trust: Trust, env: Mapping[str, str] = os.environ) -> None:
    """Raise UntrustedError unless a digest has a valid signature by the accepted signer."""
    options = (*_trust_options(trust), *(_choose_bundle_format(as_tag=trust.as_tag) if trust.key else ()))
    options += (*_transport_options(where, insecure=trust.insecure), *_make_annotation_options(trust.claims))
    result = _run_cosign(("verify", *options, _without_scheme(where)), env, trust.patience)
    if result.returncode:
        _refuse_public_key(trust.key, _find_cosign_error(result.stderr))
        raise UntrustedError(f"{where}: no valid signature: {_find_cosign_error(result.stderr)}")
    if where.digest not in _signed_digests(result.stdout):
        raise UntrustedError(f"{where}: the signature that cosign verified is for another digest")


def _trust_options(trust: Trust) -> tuple[str, ...]:
    """Return cosign's options to verify with a key or an identity. Raises InputError if there is neither."""
    if trust.key:
        return ("--key", trust.key, "--insecure-ignore-tlog=true")
    if trust.identity and trust.issuer:
        identity = ("--certificate-identity", trust.identity, "--certificate-oidc-issuer", trust.issuer)
        return (*identity, *_root_options(trust.root))
    raise InputError("--identity requires --issuer", hint="such as https://token.actions.githubusercontent.com")


def sign_data(data: bytes, signer: Signer, env: Mapping[str, str] = os.environ) -> bytes:
    """Return the signature of these bytes, as a Sigstore bundle. Works offline with a key that is a file.

    Raises InputError if the key cannot be read, or not with this password; RegistryError if no identity was given.
    """
    return _sign_file(("sign-blob",), data, signer, env)


def sign_statement(statement: bytes, signer: Signer, env: Mapping[str, str] = os.environ) -> bytes:
    """Return an in-toto statement in a signed envelope (DSSE), as a Sigstore bundle. Otherwise like `sign_data`."""
    return _sign_file(("attest-blob", "--statement"), statement, signer, env)


def _sign_file(verb: tuple[str, ...], data: bytes, signer: Signer, env: Mapping[str, str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="drydock-") as folder:
        data_file, signature_file = Path(folder, "data"), Path(folder, "signature")
        data_file.write_bytes(data)
        name, *before = verb
        options = ("--yes", *_signer_options(signer), "--bundle", str(signature_file))
        result = _run_cosign((name, *options, *before, str(data_file)), env)
        if result.returncode and signer.key:
            raise InputError(f"signing with {signer.key}: {_find_cosign_error(result.stderr)}", hint=PASSWORD_HINT)
        if result.returncode:
            raise RegistryError(f"cosign {name}: exit {result.returncode}: {_find_cosign_error(result.stderr)}")
        return signature_file.read_bytes()


def check_data(data: bytes, signature: bytes, key: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise UntrustedError unless this is a signature of these bytes by a public key's owner. Works offline."""
    with tempfile.TemporaryDirectory(prefix="drydock-") as folder:
        data_file = Path(folder, "data")
        data_file.write_bytes(data)
        _check_bundle(("verify-blob",), signature, str(data_file), Trust(key), env)


def check_statement(bundle: bytes, predicate: str, trust: Trust, env: Mapping[str, str] = os.environ) -> Any:
    """Return the in-toto statement in a signed envelope. Works offline with a key. What it is about is not compared.

    Raises UntrustedError unless the accepted signer has signed it, with this type of predicate.
    """
    verb = ("verify-blob-attestation", "--check-claims=false", "--type", predicate)
    _check_bundle(verb, bundle, os.devnull, trust, env)
    return _read_payload(bundle)


def _read_payload(bundle: bytes) -> Any:
    """Return what cosign verified: the envelope's payload. Raises UntrustedError.

    cosign's parser and this one must read the same: so each name is there once and no other, and base64 is the standard
    one, of which Python leaves out what it does not know.
    """
    try:
        envelope = parse_any_json(bundle.decode(), refuse_duplicate_keys)["dsseEnvelope"]
        if {*envelope} != {"payload", "payloadType", "signatures"}:
            raise UntrustedError(f"the signed envelope has {', '.join(map(ascii, sorted(envelope)))}")
        if envelope["payloadType"] != IN_TOTO or len(envelope["signatures"]) != 1:
            text = f"expected one signature of {IN_TOTO}, found {len(envelope['signatures'])} of"
            raise UntrustedError(f"{text} {envelope['payloadType']!a:.100}")
        payload = base64.b64decode(envelope["payload"], validate=True).decode()
        return parse_any_json(payload, refuse_duplicate_keys)
    except (LookupError, TypeError, ValueError) as error:
        raise UntrustedError(f"no statement in the signed envelope: {error!r}") from error


def _check_bundle(verb: tuple[str, ...], bundle: bytes, file: str, trust: Trust, env: Mapping[str, str]) -> None:
    with tempfile.NamedTemporaryFile(prefix="drydock-") as bundle_file:
        bundle_file.write(bundle)
        bundle_file.flush()
        result = _run_cosign((*verb, *_trust_options(trust), "--bundle", bundle_file.name, file), env)
    if result.returncode:
        _refuse_public_key(trust.key, _find_cosign_error(result.stderr))
        raise UntrustedError(f"no valid signature: {_find_cosign_error(result.stderr)}")


def _refuse_public_key(key: str, message: str) -> None:
    """Raise InputError if cosign's error is about the key, which then says nothing of the signature."""
    if key and _UNREADABLE_KEY.search(message):
        raise InputError(f"--key {key}: {message.rpartition('public key: ')[2]}", hint=PUBLIC_KEY_HINT)


def _signer_options(signer: Signer) -> tuple[str, ...]:
    """Return cosign's options to sign; with a key without a transparency log, which would publish the name."""
    if signer.key:
        return (
            "--key",
            signer.key,
            "--use-signing-config=false",
            "--tlog-upload=false",
            *_choose_bundle_format(as_tag=signer.as_tag),
        )
    return ("--signing-config", signer.config) if signer.config else ()


def _choose_bundle_format(*, as_tag: bool) -> tuple[str, ...]:
    return ("--new-bundle-format=false",) if as_tag else ()


def _root_options(file: str) -> tuple[str, ...]:
    """Return cosign's options to verify with a trusted root; checks that the root has no service for are skipped.

    Raises InputError if the root has no service for the time of a signature: certificates are valid for minutes only.
    """
    if not file:
        return ()
    try:
        root = parse_any_json(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"--trusted-root {file}: {error}", hint="`cosign trusted-root create` makes such a file"
        ) from error
    if not root.get("tlogs") and not root.get("timestampAuthorities"):
        raise InputError(f"--trusted-root {file}: expected tlogs or timestampAuthorities, found neither")
    options = ["--trusted-root", file]
    if not root.get("tlogs"):
        options += ["--use-signed-timestamps", "--insecure-ignore-tlog"]
    if not root.get("ctlogs"):
        options.append("--insecure-ignore-sct")
    return tuple(options)


def signed_by(
    digests: Sequence[Reference], signer: Signer, env: Mapping[str, str] = os.environ
) -> tuple[Reference, ...]:
    """Return the digests that a key has signed.

    Raises InputError if the key cannot be read, or not with this password.
    """
    public_key = _public_key(signer, env)
    with tempfile.NamedTemporaryFile("w", prefix="drydock-", suffix=".pub") as file:
        file.write(public_key)
        file.flush()
        trust = Trust(key=file.name, insecure=signer.insecure, claims=signer.claims, as_tag=signer.as_tag)
        return tuple(where for where in digests if _is_signed(where, trust, env))


def _public_key(signer: Signer, env: Mapping[str, str]) -> str:
    """Return the public key of a private one. Raises InputError if that cannot be read, or not with this password."""
    result = _run_cosign(("public-key", "--key", signer.key), env)
    if result.returncode:
        message = _find_cosign_error(result.stderr)
        raise InputError(
            f"signing with {signer.key}: {message}", hint=PASSWORD_HINT if "decrypt" in message else KEY_HINT
        )
    return result.stdout


def _is_signed(where: Reference, trust: Trust, env: Mapping[str, str]) -> bool:
    try:
        check_digest_signature(where, trust, env)
    except UntrustedError:
        return False
    return True


def _signed_digests(text: str) -> set[str]:
    """Return the signed digests in cosign's output."""
    try:
        claims = parse_any_json(text)
        return {claim["critical"]["image"]["docker-manifest-digest"] for claim in claims}
    except (ValueError, KeyError, TypeError):
        return set(re.findall(r"sha256:[0-9a-f]{64}", text))


def _transport_options(where: Reference, *, insecure: bool) -> tuple[str, ...]:
    return ("--allow-http-registry",) if insecure or is_loopback(where.host) else ()


def _make_annotation_options(claims: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"--annotations={name}={value}" for name, value in claims.items())


def _without_scheme(where: Reference) -> str:
    return str(where._replace(scheme=""))


def _run_cosign(
    arguments: tuple[str, ...], env: Mapping[str, str], patience: float = TIMEOUT
) -> subprocess.CompletedProcess[str]:
    program = _find_program(env)
    # Without COSIGN_PASSWORD, cosign reads the password from a terminal, which a CI does not have.
    environment = {"COSIGN_PASSWORD": "", **env}
    try:
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=patience
        )
    except subprocess.TimeoutExpired as error:
        raise RegistryError(f"cosign {arguments[0]}: timed out after {patience:g} seconds") from error


def _find_program(env: Mapping[str, str]) -> str:
    program = shutil.which("cosign", path=env.get("PATH"))
    if not program:
        raise InputError("cosign: not found on PATH", hint=INSTALL_HINT)
    return program


def _find_cosign_error(text: str) -> str:
    """Return cosign's last error line, or its last line if no line is marked as an error."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error:")]
    return (errors or lines or ["(no output)"])[-1].removeprefix("Error: ")
