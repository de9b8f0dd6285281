"""A model in a bucket, s3:// or gs:// → what a plan needs of it. IO.

vLLM's own streamer loads such a model. drydock signs no request: the client that the streamer brings does, in a process
of vLLM's Python (bucket_client.py), with the variables that vLLM reads too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from entrypoints.core.errors import HOST, MODEL, EntrypointError
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.core.redact import redact_value
from entrypoints.host.commands import NOT_FOUND, run_live
from entrypoints.model.hub import NotAnswered

SCHEMES = ("s3://", "gs://")
LOADED_BY = ("auto", "runai_streamer", "runai_streamer_sharded")
"""Values of --load-format for a bucket; with `auto`, vLLM takes runai_streamer. Source: vLLM config/vllm.py."""

ADDRESS = re.compile(r"(?:s3|gs)://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](?:/(?!\.\.?(?:/|$))[\w.@=+-]+)*/?", re.ASCII)
_URL_AT_MOST = 1024
_SECONDS = 60.0
_CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bucket_client.py")
_CHECK = {
    "s3": "AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS and GOOGLE_CLOUD_PROJECT",
}
_DOWNLOAD = {"s3": "aws s3 sync", "gs": "gcloud storage rsync --recursive"}


class Bucket(NamedTuple):
    """A model's folder in a bucket."""

    texts: Mapping[str, str]
    """Its small files by name."""
    weights: int
    """Bytes of all weights."""
    digest: str
    """Of the names, sizes and versions of all files."""

    def read(self, file: str) -> bytes | None:
        """Return a small file; None if there is none."""
        return self.texts[file].encode() if file in self.texts else None


ReadBucket = Callable[[str, str], Bucket]


def read_bucket(profile: Mapping[str, Any], url: str, load_format: str) -> Bucket:
    """Read a folder of a bucket.

    Raises HOST if the image has no streamer for it, MODEL for an address, a bucket or a folder that vLLM cannot load,
    and NotAnswered if this machine has no image's Python.
    """
    scheme = url.partition(":")[0]
    if len(url) > _URL_AT_MOST or not ADDRESS.fullmatch(url):
        expected = f"expected {scheme}://BUCKET/FOLDER: 3 to 222 of a-z 0-9 . _ -, then letters, digits and . _ - @ = +"
        raise EntrypointError(MODEL, f"{redact_value('', url[:200])}: {expected}", f"set {_CHECK[scheme]} instead")
    if scheme not in profile.get("buckets", ()):
        message = f"{url}: the image {profile['variant']} lacks vLLM's extra runai, which loads models from {scheme}://"
        hint = (
            f"`{_DOWNLOAD[scheme]} {url} FOLDER`, and mount the folder; `./inv run --model {url}` names other targets"
        )
        raise EntrypointError(HOST, message, hint)
    if load_format not in LOADED_BY:
        message = f"--load-format {load_format}: vLLM loads a bucket only with {' or '.join(LOADED_BY[1:])}"
        raise EntrypointError(MODEL, message, "leave --load-format out")
    result = run_live((profile["python"], "-I", _CLIENT, url), _SECONDS)
    if result.rc == NOT_FOUND:
        raise NotAnswered(f"only the image's {profile['python']} reads buckets")
    if result.rc:
        raise _make_bucket_error(url, " ".join(result.stderr.split())[-500:])
    answer = parse_untrusted_json(result.stdout)
    if "failed" in answer:
        raise _make_bucket_error(url, " ".join(answer["failed"].split()))
    return Bucket(**answer)


def _make_bucket_error(url: str, why: str) -> EntrypointError:
    return EntrypointError(MODEL, f"{url}: {why}", f"check the address, {_CHECK[url.partition(':')[0]]}")
