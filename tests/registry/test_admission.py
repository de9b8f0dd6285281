"""Policies for admission controllers, against a published image. Their engines are not at hand: cosign stands in.

Both engines call cosign's library with what the policy says: these images, this key, no log, the signature as a tag.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from drydock.attest.cosign import Trust, check_digest_signature
from drydock.core.errors import InputError, UntrustedError
from drydock.examine.admission import make_admission_policy
from tests.support.local_registry import publish
from tests.support.signed_image import Signed
from tests.support.sigstore import key_pair


def trusted(text: str) -> tuple[list[str], str]:
    """Return the image patterns and the key of a policy."""
    spec: dict[str, Any] = yaml.safe_load(text)["spec"]
    if "authorities" in spec:
        return [item["glob"].replace("**", "*") for item in spec["images"]], spec["authorities"][0]["key"]["data"]
    rule = spec["rules"][0]["verifyImages"][0]
    keys = rule["attestors"][0]["entries"][0]["keys"]
    assert (keys["rekor"], rule["failureAction"]) == ({"ignoreTlog": True}, "Enforce")
    return rule["imageReferences"], keys["publicKeys"]


@pytest.mark.parametrize("kind", ["kyverno", "sigstore"])
def test_a_policy_admits_what_publish_signed_as_a_tag_and_nothing_else(
    signed: Signed, key: Path, tmp_path: Path, kind: str
) -> None:
    patterns, public = trusted(make_admission_policy(kind, signed.image, signed.public))
    _, stranger = trusted(make_admission_policy(kind, signed.image, str(key_pair(tmp_path).with_suffix(".pub"))))
    files = tmp_path / "ours.pub", tmp_path / "theirs.pub"
    for file, text in zip(files, (public, stranger), strict=True):
        file.write_text(text)
    ours, theirs = (Trust(key=str(file), as_tag=True) for file in files)
    image = signed.repository.where.at(signed.digest)
    names = (signed.image, str(image), f"{signed.where}-other:1.0.0")
    assert [any(fnmatchcase(name, pattern) for pattern in patterns) for name in names] == [True, True, False]

    with pytest.raises(UntrustedError, match="no signatures found"):
        check_digest_signature(image, ours)  # a bundle alone is not what the engines read
    options = {
        "registry": signed.where.rpartition("/")[0],
        "release": "1.0.0",
        "sign_key": str(key),
        "signature_tags": True,
    }
    publish(signed.local.root, **options)
    tags = signed.repository.manifests.tags()
    assert f"{signed.digest.replace(':', '-')}.sig" in tags
    check_digest_signature(image, ours)
    with pytest.raises(UntrustedError, match="no matching signatures"):
        check_digest_signature(image, theirs)
    publish(signed.local.root, **options)
    assert signed.repository.manifests.tags() == tags
    signed.verify()


def test_docker_hub_has_the_name_that_each_engine_gives_it(signed: Signed) -> None:
    first = [trusted(make_admission_policy(kind, "acme/cpu", signed.public))[0][0] for kind in ("kyverno", "sigstore")]
    assert first == ["docker.io/acme/cpu:*", "index.docker.io/acme/cpu:*"]


def test_a_key_that_is_not_public_is_refused(key: Path, tmp_path: Path) -> None:
    for file in (key, tmp_path / "missing", tmp_path):
        with pytest.raises(InputError, match="--verify-key") as caught:
            make_admission_policy("kyverno", "ghcr.io/acme/cpu", str(file))
        assert "cosign public-key" in caught.value.hint
    with pytest.raises(InputError, match="expected kyverno or sigstore"):
        make_admission_policy("opa", "ghcr.io/acme/cpu", "cosign.pub")
