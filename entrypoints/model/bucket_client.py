"""A folder of a bucket → its small files, the size of its weights and a digest, as JSON on standard output.

This is a program for vLLM's Python: `read_bucket` starts it. The clients are those that vLLM's extra `runai` brings,
with the variables by which its streamer finds credentials. Nothing of the bucket is stored, and no name in it printed.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import islice
from typing import Any

SMALL_FILES = (
    *("config.json", "params.json", "chat_template.jinja", "chat_template.json", "tokenizer_config.json"),
    "modules.json",
)
INDEX = "model.safetensors.index.json"
SMALL, LARGE = 2 << 20, 64 << 20
"""Most bytes of a small file, and of the index. The largest published ones have 1.2 MB and 20 MB."""
FILES_AT_MOST = 10_000
PULLED_AT_MOST = 1 << 30
"""Most bytes of other files than weights, all of which vLLM downloads into its cache."""
LEFT_OUT = (".pt", ".safetensors", ".bin", ".tensors", ".pth")
"""What vLLM does not download. Source: vLLM 0.33 config/model.py, maybe_pull_model_tokenizer_for_runai."""
WAIT = 10
"""Seconds for a connection or an answer."""
Files = Iterable[tuple[str, int, str]]
"""Key, bytes and version of each file."""
Opened = tuple[Files, Callable[[str], bytes]]


def open_s3(bucket: str, prefix: str) -> Opened:
    """Open a bucket as runai_model_streamer_s3 0.17 does (files/files.py, _build_client_config)."""
    botocore, config = import_module("botocore"), import_module("botocore.config")
    more: dict[str, Any] = {}
    if os.environ.get("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING") == "0":
        more["s3"] = {"addressing_style": "path"}
    if os.environ.get("RUNAI_STREAMER_S3_UNSIGNED") == "1":
        more["signature_version"] = botocore.UNSIGNED
    wait = config.Config(connect_timeout=WAIT, read_timeout=WAIT, retries={"total_max_attempts": 2}, **more)
    client = import_module("boto3").client("s3", config=wait)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return (
        ((entry["Key"], entry["Size"], entry.get("ETag", "")) for page in pages for entry in page.get("Contents", ())),
        lambda key: client.get_object(Bucket=bucket, Key=key)["Body"].read(LARGE),
    )


def open_gs(bucket: str, prefix: str) -> Opened:
    """Open a bucket as runai_model_streamer_gcs 0.17 does (files/files.py, _create_client)."""
    credentials = import_module("runai_model_streamer_gcs.credentials.credentials").get_credentials()
    client = import_module("google.cloud.storage").Client(credentials=credentials.gcp_credentials())
    blobs = client.list_blobs(bucket, prefix=prefix, timeout=WAIT, retry=None)
    return (
        ((blob.name, blob.size, str(blob.generation)) for blob in blobs),
        lambda key: client.bucket(bucket).blob(key).download_as_bytes(end=LARGE, timeout=WAIT, retry=None),
    )


def read_bucket_folder(url: str) -> dict[str, Any]:
    """Return what a plan needs. Raises ValueError for a folder that vLLM cannot load, and the client's errors."""
    scheme, _, rest = url.partition("://")
    bucket, _, folder = rest.partition("/")
    prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
    files, get = {"s3": open_s3, "gs": open_gs}[scheme](bucket, prefix)
    listed = {key[len(prefix) :]: (size, version) for key, size, version in islice(files, FILES_AT_MOST + 1)}
    check_bucket_listing(listed)
    texts = {name: get(prefix + name).decode(errors="replace") for name in SMALL_FILES if name in listed}
    index = json.loads(get(prefix + INDEX)) if INDEX in listed else {"weight_map": {}}
    missing = set(index["weight_map"].values()) - listed.keys()
    if missing:
        raise ValueError(f"{len(missing)} files of {INDEX} are missing")
    shards = [size for name, (size, _) in listed.items() if name.endswith(".safetensors") and "/" not in name]
    if not shards:
        raise ValueError("no *.safetensors, which is all that vLLM loads from a bucket")
    digest = hashlib.sha256(json.dumps(sorted(listed.items())).encode()).hexdigest()[:12]
    return {"texts": texts, "weights": sum(shards), "digest": digest}


def check_bucket_listing(listed: dict[str, tuple[int, str]]) -> None:
    """Raise ValueError if there is no model, more than one, or a file that must not be read or downloaded."""
    if len(listed) > FILES_AT_MOST:
        raise ValueError(f"more than {FILES_AT_MOST} files: expected the folder of one model")
    if not listed.keys() & {"config.json", "params.json"}:
        raise ValueError(f"{len(listed)} files, and no config.json")
    if any(".." in name.split("/") or name.startswith("/") for name in listed):
        raise ValueError("a file whose name leads out of its folder")
    for name in (*SMALL_FILES, INDEX):
        size, most = listed.get(name, (0, ""))[0], LARGE if name == INDEX else SMALL
        if size > most:
            raise ValueError(f"{name} has {size} bytes, expected at most {most}")
    pulled = sum(size for name, (size, _) in listed.items() if not name.endswith(LEFT_OUT))
    if pulled > PULLED_AT_MOST:
        raise ValueError(
            f"{pulled} bytes of other files than weights, which vLLM would download: expected at most {PULLED_AT_MOST}"
        )


def main() -> None:
    """Print the answer, or why there is none."""
    try:
        answer = read_bucket_folder(sys.argv[1])
    except Exception as error:  # noqa: BLE001 -- the clients' own, which only this program can name
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        answer = {"failed": f"{name}{error}"[:500]}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
