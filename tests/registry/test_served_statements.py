"""A statement of `prove`, signed with a real key: what verify accepts, and what it refuses."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from drydock.attest import cosign
from drydock.core.errors import InputError, UntrustedError
from drydock.core.project import Project
from drydock.prove import served_statement
from drydock.verbs import image_verify_verb, verify_verb
from tests.support.hosts import expect
from tests.support.local_registry import VARIANT, LocalRepository
from tests.support.signed_image import AMD64, Signed
from tests.support.sigstore import key_pair
from tests.unit.drydock.prove.test_served_statement import facts_of, served

HOST = "cpu-xeon8380-2s"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRepository]:
    """A repository whose record has the digest of an image; nothing here changes it."""
    folder = tmp_path_factory.mktemp("row")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRYDOCK_CACHE", str(folder / "cache"))
        yield LocalRepository(folder, platforms=(AMD64,))


def write_statement(folder: Path, local: LocalRepository, key: Path, digest: str = "", **changes: Any) -> Path:
    """Sign what `prove` could have seen of the row's image, now or at another time."""
    began = local.lock.source_date_epoch + 1000
    host = served_statement.reduce_facts(facts_of(HOST))
    times = {"began": began, "ready": began + 20, "ended": began + 30}
    inputs = local.job(AMD64).inputs_sha256
    record = served(variant=VARIANT, host=host, foundation=None, inputs_sha256=inputs, **times).model_copy(
        update=changes
    )
    path = folder / "statement.sigstore.json"
    path.write_bytes(served_statement.sign_served(record, digest or digest_of(local), cosign.Signer(str(key))))
    return path


def digest_of(local: LocalRepository) -> str:
    digest = local.job(AMD64).recorded_digest
    assert digest
    return digest


def verify(local: LocalRepository, path: Path, key: Path, root: str = "") -> served_statement.ShownStatement:
    words = (str(path), str(key.with_suffix(".pub")), root)
    return served_statement.verify_row_statement(Project(local.root), VARIANT, *words)


def refused(local: LocalRepository, path: Path, key: Path, root: str = "") -> str:
    with pytest.raises(UntrustedError) as caught:
        verify(local, path, key, root)
    return str(caught.value)


def test_a_statement_about_the_recorded_image_and_the_host_is_accepted(
    tmp_path: Path, local: LocalRepository, key: Path
) -> None:
    shown = verify(local, write_statement(tmp_path, local, key), key, str(expect.HOSTS / HOST))

    assert any("served on no device, " in line for line in shown.shown)
    assert "memory: Available KV cache memory: 61.25 GiB" in shown.shown
    assert [line.partition(":")[0] for line in shown.not_shown] == ["foundation", "age"]


def alter(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the payload of the envelope, as somebody without the key can."""
    bundle = json.loads(path.read_bytes())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    change(statement["predicate"])
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    path.write_text(json.dumps(bundle))


def test_altered_facts_are_refused(tmp_path: Path, local: LocalRepository, key: Path) -> None:
    path = write_statement(tmp_path, local, key)
    alter(path, lambda predicate: predicate["host"].update(memory_total=1 << 50))

    assert "no valid signature: " in refused(local, path, key)


def test_another_key_is_refused(tmp_path: Path, local: LocalRepository, key: Path) -> None:
    (tmp_path / "other").mkdir()
    path = write_statement(tmp_path, local, key_pair(tmp_path / "other"))

    assert "no valid signature: " in refused(local, path, key)


def test_a_statement_about_another_image_is_refused(tmp_path: Path, local: LocalRepository, key: Path) -> None:
    digest = f"sha256:{'d' * 64}"
    text = refused(local, write_statement(tmp_path, local, key, digest), key)

    assert f"it is about the image {digest}, expected {digest_of(local)}" in text
    assert f"`./inv prove --target {VARIANT} --sign-key …`" in text


def test_a_statement_about_another_host_is_refused(tmp_path: Path, local: LocalRepository, key: Path) -> None:
    text = refused(local, write_statement(tmp_path, local, key), key, str(expect.HOSTS / "cpu-kunpeng920-4s"))

    assert "it is about another host: architecture: found x86_64, expected aarch64" in text


def test_a_statement_that_is_older_than_the_image_is_refused(tmp_path: Path, local: LocalRepository, key: Path) -> None:
    path = write_statement(tmp_path, local, key, began=local.lock.source_date_epoch - 1)

    assert "older than the image's inputs of " in refused(local, path, key)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"known_answer": ("token 3: decode chose 7, prefill 9",)}, "does not say that the known answer was given"),
        ({"checks": {"CPU-001": "FAIL"}}, "checks of its host failed: CPU-001"),
        ({"checks": {"CPU-001": "ERROR"}}, "predicate.checks.CPU-001: "),
        ({"variant": "cuda13.0-vllm0.33"}, "it is about the variant cuda13.0-vllm0.33, expected "),
        ({"platform": "linux/arm64"}, "it is about linux/arm64, expected linux/amd64"),
        ({"inputs_sha256": "d" * 64}, "of the inputs dddd"),
        ({"commit": "\x1b[2Jmain"}, "predicate.commit: "),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_the_signers_own_word_that_it_did_not_work_is_no_proof(
    tmp_path: Path, local: LocalRepository, key: Path, changes: dict[str, Any], expected: str
) -> None:
    error_text = refused(local, write_statement(tmp_path, local, key, **changes), key)

    assert expected in error_text
    assert "\x1b" not in error_text


def test_an_old_statement_is_refused_if_an_age_is_given(tmp_path: Path, local: LocalRepository, key: Path) -> None:
    path, project = write_statement(tmp_path, local, key), Project(local.root)
    words = (VARIANT, str(path), str(key.with_suffix(".pub")), "")

    assert served_statement.verify_row_statement(project, *words, 36_500).statement.variant == VARIANT
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served_statement.time, "time", lambda: local.lock.source_date_epoch + 3 * 86_400)
        with pytest.raises(UntrustedError, match=r"more than 2 days ago \(--max-age\)"):
            served_statement.verify_row_statement(project, *words, 2)


# --- envelopes ------------------------------------------------------------------------------------------------------


class OwnKey(NamedTuple):
    """A key with which anything can be signed, since openssl does not read what it signs."""

    private: Path
    public: Path

    def sign(self, payload: bytes, kind: str = cosign.IN_TOTO) -> dict[str, Any]:
        """Return a DSSE envelope (https://github.com/secure-systems-lab/dsse, protocol.md) of a payload."""
        encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
        command = ["openssl", "dgst", "-sha256", "-sign", str(self.private)]
        signature = subprocess.run(command, input=encoded, capture_output=True, check=True).stdout
        text = base64.b64encode(payload).decode()
        return {"payload": text, "payloadType": kind, "signatures": [{"sig": base64.b64encode(signature).decode()}]}


@pytest.fixture(scope="module")
def own_key(tmp_path_factory: pytest.TempPathFactory) -> OwnKey:
    folder = tmp_path_factory.mktemp("own")
    private, public = folder / "own.key", folder / "own.pub"
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(private)], check=True)
    subprocess.run(["openssl", "ec", "-in", str(private), "-pubout", "-out", str(public)], check=True)
    return OwnKey(private, public)


def read_payload(path: Path) -> bytes:
    return base64.b64decode(json.loads(path.read_bytes())["dsseEnvelope"]["payload"])


def change_envelope(path: Path, envelope: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "dsseEnvelope": envelope}))


def test_what_another_tool_signs_is_read_and_each_trick_with_its_envelope_is_refused(
    tmp_path: Path, local: LocalRepository, key: Path, own_key: OwnKey
) -> None:
    path = write_statement(tmp_path, local, key)
    payload, own = read_payload(path), own_key.private
    bundle, envelope = json.loads(path.read_bytes()), own_key.sign(payload)
    bundle["verificationMaterial"] = {"publicKey": {"hint": "own"}}
    path.write_text(json.dumps({**bundle, "dsseEnvelope": envelope}))
    assert verify(local, path, own).statement.variant == VARIANT

    other = envelope | {"signatures": [*bundle["dsseEnvelope"]["signatures"], *envelope["signatures"]]}
    twice = payload[:-1] + b',"predicateType":"urn:drydock:served:v1"}'
    tricks = {
        "two signatures, the other's first": other,
        "two of its own": envelope | {"signatures": 2 * envelope["signatures"]},
        "none": envelope | {"signatures": []},
        "another type": own_key.sign(payload, "application/json"),
        "a type that was changed": envelope | {"payloadType": "application/json"},
        "a key that is there twice": own_key.sign(twice),
        "a key that no statement has": own_key.sign(payload[:-1] + b',"verdict":"wrong answers"}'),
        "a field that no envelope has": envelope | {"payload_type": "text/plain"},
        "characters that Python leaves out": envelope | {"payload": "\n" + envelope["payload"]},
        "no JSON": own_key.sign(payload + b"x"),
        "another's envelope": bundle["dsseEnvelope"],
    }
    for name, trick in tricks.items():
        change_envelope(path, trick)
        assert refused(local, path, own), name


def test_a_bundle_with_two_envelopes_is_refused(
    tmp_path: Path, local: LocalRepository, key: Path, own_key: OwnKey
) -> None:
    path = write_statement(tmp_path, local, key)
    mine = json.dumps(json.loads(path.read_bytes())["dsseEnvelope"])
    changed = own_key.sign(read_payload(path).replace(b'"PASS"', b'"WARN"'))
    for first, second in (("dsseEnvelope", "dsseEnvelope"), ("dsse_envelope", "dsseEnvelope")):
        for envelopes in ((mine, json.dumps(changed)), (json.dumps(changed), mine)):
            bundle = json.loads(write_statement(tmp_path, local, key).read_bytes())
            del bundle["dsseEnvelope"]
            text = json.dumps(bundle)[:-1] + f', "{first}": {envelopes[0]}, "{second}": {envelopes[1]}}}'
            path.write_text(text)
            assert refused(local, path, key)


def test_a_private_key_a_certificate_or_another_key_is_no_public_key(
    tmp_path: Path, local: LocalRepository, key: Path
) -> None:
    path, project = write_statement(tmp_path, local, key), Project(local.root)
    (tmp_path / "empty").write_text("")
    for name in (str(key), str(tmp_path / "empty"), str(path), "/absent", "env://NO_SUCH_NAME"):
        with pytest.raises((InputError, UntrustedError)):
            served_statement.verify_row_statement(project, VARIANT, str(path), name, "")


def test_a_signed_document_of_another_kind_is_no_statement(tmp_path: Path, local: LocalRepository, key: Path) -> None:
    statement = served_statement.make_statement(served(), digest_of(local))
    statement["predicateType"] = "https://slsa.dev/provenance/v1"
    path = tmp_path / "provenance.sigstore.json"
    path.write_bytes(cosign.sign_statement(json.dumps(statement).encode(), cosign.Signer(str(key))))

    with pytest.raises(UntrustedError, match=r"slsa|predicate"):
        verify(local, path, key)
    path.write_bytes(cosign.sign_data(b"data", cosign.Signer(str(key))))
    with pytest.raises(UntrustedError):
        verify(local, path, key)


def test_without_a_key_or_a_file_nothing_is_shown(tmp_path: Path, local: LocalRepository, key: Path) -> None:
    project, path = Project(local.root), write_statement(tmp_path, local, key)

    with pytest.raises(InputError, match="nothing would say who saw this"):
        served_statement.verify_row_statement(project, VARIANT, str(path), "", "")
    with pytest.raises(InputError, match="--statement /absent"):
        verify(local, Path("/absent"), key)
    (tmp_path / "large").write_bytes(b"{" * (served_statement.SIZE_AT_MOST + 1))
    with pytest.raises(InputError, match="larger than 1 MiB"):
        verify(local, tmp_path / "large", key)


def test_the_verb_prints_what_a_statement_says(
    tmp_path: Path,
    local: LocalRepository,
    key: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(verify_verb, "here", lambda: Project(local.root))
    options = {"target": VARIANT, "verify_key": str(key.with_suffix(".pub"))}
    path = str(write_statement(tmp_path, local, key))
    verify_verb.rebuild_row.function(verify_verb.RebuildOptions(**options, statement=path))

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"statement about {VARIANT} ({AMD64})"
    assert "  not checked: host: --root HOST compares it with a recorded one" in lines


@pytest.mark.parametrize(
    "options", [{"root": "h"}, {"max_age": 3}, {"verify_key": "k"}, {"statement": "s", "record": True}]
)
def test_an_option_that_would_be_ignored_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--statement"):
        verify_verb.rebuild_row.function(verify_verb.RebuildOptions(target=VARIANT, **options))


def test_the_statement_of_a_published_image_is_shown_with_it(
    signed: Signed, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_statement(tmp_path, signed.local, key, signed.digest)
    monkeypatch.setattr(image_verify_verb, "here", lambda: Project(signed.local.root))
    options = {"reference": signed.image, "registry_only": True, "verify_key": signed.public, "statement": str(path)}
    image_verify_verb.verify_image.function(image_verify_verb.ImageVerifyOptions(**options, json=True))

    answer = json.loads(capsys.readouterr().out)
    assert answer["image"]["digest"] == signed.done.digest
    assert answer["statement"]["variant"] == VARIANT
    write_statement(tmp_path, signed.local, key, f"sha256:{'e' * 64}")
    with pytest.raises(UntrustedError, match="it is about the image"):
        image_verify_verb.verify_image.function(image_verify_verb.ImageVerifyOptions(**options))
    write_statement(tmp_path, signed.local, key, signed.digest, inputs_sha256="d" * 64)
    with pytest.raises(UntrustedError, match="of the inputs dddd"):
        image_verify_verb.verify_image.function(image_verify_verb.ImageVerifyOptions(**options))
