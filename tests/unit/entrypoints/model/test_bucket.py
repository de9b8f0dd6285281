"""Models in buckets: addresses, what the image's client answers, and what vLLM could not load."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from drydock.run.standin_run import CONFIG
from entrypoints.core.errors import HOST, MODEL, EntrypointError
from entrypoints.model import bucket, bucket_client
from entrypoints.model.bucket import Bucket, read_bucket
from entrypoints.model.read import read_model

PROFILE = {"variant": "test", "python": sys.executable, "buckets": ["s3"]}
URL = "s3://models/a/tiny"
SMALL = {"config.json": (10, "1"), "a.safetensors": (1000, "1")}


def refused(url: str, load_format: str = "auto", **profile: Any) -> EntrypointError:
    with pytest.raises(EntrypointError) as error:
        read_bucket(PROFILE | profile, url, load_format)
    return error.value


def program(path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a program in the place of the client."""
    path.write_text(text)
    monkeypatch.setattr(bucket, "_CLIENT", str(path))


@pytest.mark.parametrize(
    "url",
    ["s3://key:secret@b/m", "s3://models/../x", "s3://models/a/..", "s3://models/a\nb", "s3://models/a?b=1", "s3://",
     "s3://models//a", "s3://models/" + "a" * 1100, "s3://-x/m", "s3://models/a b"],
)  # fmt: skip
def test_an_address_with_anything_but_a_bucket_and_a_folder_is_refused(url: str) -> None:
    error = refused(url)

    assert (error.code, "secret" in error.message) == (MODEL, False)


@pytest.mark.parametrize("url", ["s3://models", "s3://models/", "s3://my.bucket-1/a/b_c@1=2+3/", "gs://models/a..b"])
def test_an_address_is_a_bucket_and_a_folder(url: str) -> None:
    assert bucket.ADDRESS.fullmatch(url)


def test_an_image_without_a_streamer_says_how_to_download() -> None:
    error = refused("gs://models/m")

    assert (error.code, "lacks vLLM's extra runai" in error.message) == (HOST, True)
    assert error.hint.startswith("`gcloud storage rsync --recursive gs://models/m FOLDER`")


def test_a_load_format_that_vllm_refuses_for_buckets_is_refused_at_once() -> None:
    assert "only with runai_streamer" in refused(URL, "gguf").message


def test_the_weights_and_the_configuration_come_from_the_clients_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"config.json": json.dumps(CONFIG | {"dtype": "bfloat16"}), "chat_template.jinja": "{{ x }}"}
    answer = {"texts": texts, "weights": 1000, "digest": "0123456789ab"}
    client_code = f"import sys\nassert sys.argv[1:] == [{URL!r}]\n"
    program(tmp_path / "client.py", monkeypatch, f"{client_code}print({json.dumps(answer)!r})")

    model = read_model(URL, bucket=lambda url, loads: read_bucket(PROFILE, url, loads))

    assert model.weights
    assert (model.weights.on_disk, model.weights.elements, model.revision) == (1000, 500, "0123456789ab")
    assert (model.short, model.local, model.elsewhere, model.template) == ("tiny", False, False, "{{ x }}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('print(\'{"failed": "NoSuchBucket:\\\\n not there"}\')', "s3://models/a/tiny: NoSuchBucket: not there"),
        ("raise SystemExit('broken')", "s3://models/a/tiny: broken"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
        ("while True: print('x' * 100_000)", "more than 4194304 bytes"),
    ],
)
def test_what_goes_wrong_is_an_error_that_names_what_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    program(tmp_path / "client.py", monkeypatch, text)
    monkeypatch.setattr(bucket, "_SECONDS", 30.0 if "1 s" not in message else 1.0)

    error = refused(URL)

    assert message in error.message
    assert "AWS_ENDPOINT_URL" in error.hint


def test_without_the_images_python_the_model_is_unknown() -> None:
    model = read_model(URL, bucket=lambda url, loads: read_bucket(PROFILE | {"python": "/absent/python"}, url, loads))

    assert (model.unanswered, model.weights) == ("only the image's /absent/python reads buckets", None)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_configuration_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(EntrypointError, match=r"s3://models/a/tiny/config\.json") as error:
        read_model(URL, bucket=lambda *_: Bucket({"config.json": text}, 1, ""))
    assert error.value.code == MODEL


# --- the program in vLLM's Python -----------------------------------------------------------------------------------


def listing(monkeypatch: pytest.MonkeyPatch, files: dict[str, tuple[int, str]], index: bytes = b"") -> dict[str, Any]:
    """Read a bucket with these files, each of which has the text of the index."""
    objects = [(f"a/tiny/{name}", size, version) for name, (size, version) in files.items()]
    monkeypatch.setattr(bucket_client, "open_s3", lambda _bucket, _prefix: (objects, lambda _key: index))
    return bucket_client.read_bucket_folder(URL)


def test_weights_are_those_of_the_folder_itself_and_the_digest_changes_with_a_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {**SMALL, "b.safetensors": (500, "1"), "original/c.safetensors": (9, "1")}
    first, second = (listing(monkeypatch, {**files, "b.safetensors": (500, version)}, b"{}") for version in "12")

    assert (first["weights"], first["texts"]) == (1500, {"config.json": "{}"})
    assert first["digest"] != second["digest"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "0 files, and no config.json"),
        ({"config.json": (10, "1")}, r"no \*.safetensors"),
        ({**SMALL, "../x.py": (1, "")}, "leads out of its folder"),
        ({**SMALL, "a/../../x.py": (1, "")}, "leads out of its folder"),
        ({**SMALL, "/etc/x": (1, "")}, "leads out of its folder"),
        ({**SMALL, "config.json": (3 << 20, "1")}, "config.json has 3145728 bytes"),
        ({**SMALL, "model.onnx": (2 << 30, "1")}, "which vLLM would download"),
        ({**SMALL, **{f"{number}.txt": (1, "") for number in range(10_000)}}, "more than 10000 files"),
        ({**SMALL, bucket_client.INDEX: (1, "")}, "1 files of model.safetensors.index.json are missing"),
    ],
)
def test_a_folder_that_vllm_could_not_load_is_an_error(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, tuple[int, str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        listing(monkeypatch, files, b'{"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}}')
