"""A folder as a bucket of S3 and of Google on the loopback address, for the real clients of vLLM's streamer.

It answers what they ask: lists and ranges of objects. For S3, a known key signs requests (AWS Signature Version 4); for
Google, they are anonymous, as those to its emulator are.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.loopback import ThreadedServer

BUCKET, KEY, SECRET = "models", "AKIDRYDOCK", "correct-horse"


class Bucket(ThreadedServer):
    """Serves a folder as s3://models and gs://models."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(_Handler)

    @property
    def env(self) -> dict[str, str]:
        """The variables with which a container on this machine's network reads it."""
        url = f"http://127.0.0.1:{self.server_port}"
        return {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "STORAGE_EMULATOR_HOST": url,  # of the client in Python
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": url,  # of that in C++
            "RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS": "true",
            "GOOGLE_CLOUD_PROJECT": "none",
        }


class _Handler(BaseHTTPRequestHandler):
    server: Bucket
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        google = re.fullmatch(r"(?:/download)?/storage/v1/b/(\w+)(?:/o(?:/(.+))?)?", path)
        bucket, _, key = path.lstrip("/").partition("/") if not google else (google[1], "", unquote(google[2] or ""))
        file = self.server.folder / key
        if not google and not self._signed():
            self._send(403, _error("SignatureDoesNotMatch"))
        elif bucket != BUCKET:
            self._send(404, _error("NoSuchBucket"))
        elif not key:
            listed = self._listed_by_google if google else self._listed
            self._send(200, listed(parse_qs(urlsplit(self.path).query)))
        elif file.is_file():
            self._send_range(file)
        else:
            self._send(404, _error("NoSuchKey"))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _listed(self, query: dict[str, list[str]]) -> bytes:
        """Return the objects, two a page, so that clients have to turn pages."""
        page, more = self._page(query, "continuation-token")
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{(self.server.folder / key).stat().st_size}</Size>"
            f'<ETag>"{hashlib.sha256(key.encode()).hexdigest()}"</ETag></Contents>'
            for key in page
        )
        following = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        cut = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{following}"
        return f"<ListBucketResult><Name>{BUCKET}</Name>{cut}{entries}</ListBucketResult>".encode()

    def _listed_by_google(self, query: dict[str, list[str]]) -> bytes:
        page, more = self._page(query, "pageToken")
        items = [
            {"name": key, "size": str((self.server.folder / key).stat().st_size), "generation": "1"} for key in page
        ]
        return json.dumps({"name": BUCKET, "items": items, **({"nextPageToken": page[-1]} if more else {})}).encode()

    def _page(self, query: dict[str, list[str]], token: str) -> tuple[list[str], list[str]]:
        """Return two keys after a page's token, and the others."""
        (prefix,), (after,) = query.get("prefix", [""]), query.get(token, [""])
        root = self.server.folder
        keys = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        direct = [key for key in keys if key.startswith(prefix) and key > after]
        if "delimiter" in query:
            direct = [key for key in direct if "/" not in key.removeprefix(prefix)]
        return direct[:2], direct[2:]

    def _send_range(self, file: Path) -> None:
        size = file.stat().st_size
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = (int(byte_range[1]), min(int(byte_range[2] or size), size - 1)) if byte_range else (0, size - 1)
        with file.open("rb") as opened:
            opened.seek(start)
            data = opened.read(end - start + 1)
        self._send(
            206 if byte_range else 200, data, {"Content-Range": f"bytes {start}-{end}/{size}"} if byte_range else {}
        )

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), "ETag": '"1"', **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _signed(self) -> bool:
        """Tell whether the request's signature is that of the key. Source: AWS, Signature Version 4."""
        authorization = re.search(
            r"Credential=(\w+)/((\d+)/([\w-]+)/s3/aws4_request), ?SignedHeaders=([^,]+), ?Signature=(\w+)",
            self.headers.get("Authorization", ""),
        )
        if not authorization or authorization[1] != KEY:
            return False
        split = urlsplit(self.path)
        query = sorted(parse_qs(split.query, keep_blank_values=True).items())
        canonical_query = "&".join(
            f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, (value, *_) in query
        )
        names = authorization[5].split(";")
        headers = "".join(f"{name}:{' '.join(self.headers.get(name, '').split())}\n" for name in names)
        whole = (
            self.command,
            split.path,
            canonical_query,
            headers,
            authorization[5],
            self.headers["x-amz-content-sha256"],
        )
        digest = hashlib.sha256("\n".join(whole).encode()).hexdigest()
        key = f"AWS4{SECRET}".encode()
        text = f"AWS4-HMAC-SHA256\n{self.headers['x-amz-date']}\n{authorization[2]}\n{digest}"
        for part in (authorization[3], authorization[4], "s3", "aws4_request", text):
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.compare_digest(key.hex(), authorization[6])

    def log_message(self, *_: Any) -> None:
        """Do not log."""


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
