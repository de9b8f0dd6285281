"""The bill of a model: each file, and of licence and origin only what somebody said."""

from __future__ import annotations

import json

import pytest

from drydock.attest import model_bom
from drydock.inputs.models import ModelFile, ModelFolder

DIGEST = f"sha256:{'1' * 64}"
FILES = {"b.safetensors": ModelFile(sha256="b" * 64, size=7), "a.json": ModelFile(sha256="a" * 64, size=2)}
PULLED = ModelFolder(schema_=1, hub="Hugging Face", name="org/Tiny", revision="0" * 40, files=FILES)
OWN = ModelFolder(schema_=1, hub="", name="", revision="", files=FILES)


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\n", "Apache-2.0"),
        ("---\r\nlanguage: en\r\nlicense: 'mit'\r\n---\r\n", "MIT"),
        ("---\nlicense: other\nlicense_name: qwen-research\n---\n", "qwen-research"),
        ("---\nlicense: llama3.1\n---\n", "llama3.1"),
        ("---\nlicense: other\n---\n", "unknown"),
        ("---\nlicense:\n- mit\n- gpl\n---\n", "unknown"),
        ("---\nlicense: \x1b]0;x\n---\n", "unknown"),
        ("---\ntags: x\n---\nlicense: mit\n", "unknown"),
        ("license: mit\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_licence_is_what_the_card_says(card: str, licence: str) -> None:
    assert model_bom.licence_of(card) == licence


def test_a_pulled_model_is_named_with_its_origin_and_files() -> None:
    data = model_bom.make_model_bom("m/tiny", DIGEST, PULLED, "Apache-2.0")
    document = json.loads(data)
    model = document["metadata"]["component"]
    assert data == model_bom.make_model_bom("m/tiny", DIGEST, PULLED, "Apache-2.0")
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert (model["name"], model["version"], model["licenses"]) == (
        "org/Tiny", "0" * 40, [{"license": {"id": "Apache-2.0"}}],
    )  # fmt: skip
    assert model["purl"] == f"pkg:huggingface/org/Tiny@{'0' * 40}"
    assert [(part["name"], part["hashes"][0]["content"], part["properties"][0]["value"]) for part in document[
        "components"
    ]] == [("a.json", "a" * 64, "2"), ("b.safetensors", "b" * 64, "7")]  # fmt: skip


def test_what_nobody_says_is_unknown() -> None:
    model = json.loads(model_bom.make_model_bom("m/tiny", DIGEST, OWN, "unknown"))["metadata"]["component"]
    assert {model_property["name"]: model_property["value"] for model_property in model["properties"]} == {
        "io.drydock:licence": "unknown",
        "io.drydock:origin": "unknown",
    }
    assert not {"licenses", "purl", "version"} & model.keys()
    part = json.loads(model_bom.make_model_bom("m/tiny", DIGEST, OWN, "llama3.1"))["metadata"]["component"]
    assert part["licenses"] == [{"license": {"name": "llama3.1"}}]
