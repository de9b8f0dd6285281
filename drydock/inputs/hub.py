"""What a hub has of a model at one revision: names, sizes and hashes of its files. IO.

Two hubs are known: Hugging Face, or a mirror of it (HF_ENDPOINT), and ModelScope. Sources: huggingface_hub
`HfApi.model_info(files_metadata=True)`; modelscope `HubApi.get_model_files`, which checks the same Sha256.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import requests

from drydock.config.server_access import Access, redact_url
from drydock.core import http
from drydock.core.errors import FetchError, InputError
from drydock.core.files import parse_json_object
from drydock.core.network_settings import is_loopback
from drydock.inputs.downloads import read_answer

MODELSCOPE = "modelscope:"
"""Before the id of a model on ModelScope, as for `serve`."""
LARGEST_ANSWER = 64 << 20
"""Bytes of a list of files, and of a file that no list gives a sha256 of: Hugging Face keeps larger ones in LFS."""
MOST_FILES = 20_000
LARGEST_FILE = 1 << 40
"""Bytes that a list may give for a file."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 255
"""Bytes of one part of a path, on Linux (NAME_MAX)."""


class HubFile(NamedTuple):
    """A file of a model; at least one hash is set."""

    path: str
    size: int
    sha256: str
    """Empty for a file that Hugging Face keeps in git itself."""
    blob: str
    """Git's name of its content; empty if the hub gives none."""
    url: str


class ModelListing(NamedTuple):
    """A model at one revision."""

    hub: str
    name: str
    revision: str
    """On Hugging Face the commit, whatever branch or tag was asked for. On ModelScope what was asked for."""
    files: tuple[HubFile, ...]


class HubAddress(NamedTuple):
    """Where a hub is asked, and how."""

    url: str = ""
    """Empty for the address in the environment, or else the hub's own."""
    insecure: bool = False
    """Whether a token or a password may go over plain http to another machine."""


USUAL = HubAddress()


def find_hub_endpoint(env: Mapping[str, str] = os.environ) -> str:
    """Return the address of Hugging Face, or of its mirror."""
    return env.get("HF_ENDPOINT") or "https://huggingface.co"


def read_hub_access(env: Mapping[str, str] = os.environ, where: HubAddress = USUAL) -> Access:
    """Return how Hugging Face or its mirror is reached: certificates, and the token, which only the endpoint gets.

    A hub on this machine is reached without a proxy, which would get the token too. Raises InputError for a token that
    no header can have, and for one that would go over plain http to another machine.
    """
    base, token = _base_url(where, find_hub_endpoint(env)), env.get("HF_TOKEN", "").strip()
    if not token:
        return anonymous_access(env)
    if not (token.isascii() and token.isprintable()):
        raise InputError("HF_TOKEN: expected printable ASCII, as a header requires", hint="set it again, or unset it")
    _check_plain(base, "HF_TOKEN", insecure=where.insecure)
    proxies = {"no_proxy": "*"} if is_loopback(urlsplit(base).hostname or "") else {}
    return anonymous_access(env)._replace(tokens={http.parse_origin(base): token}, proxies=proxies)


def anonymous_access(env: Mapping[str, str]) -> Access:
    """Return how a hub that gets no token is reached."""
    return Access(certificates=env.get("REQUESTS_CA_BUNDLE") or env.get("SSL_CERT_FILE"))


def read_listing(
    model: str, revision: str, where: HubAddress = USUAL, env: Mapping[str, str] = os.environ
) -> ModelListing:
    """Ask a hub for the files of a model.

    Raises InputError for a name that is no id, and for a secret that would go over plain http to another machine;
    FetchError if the hub does not answer, refuses, or gives an unsafe name.
    """
    name = model.removeprefix(MODELSCOPE)
    if not _ID.fullmatch(name):
        raise InputError(f"{model}: expected ORG/NAME or {MODELSCOPE}ORG/NAME", hint="such as Qwen/Qwen3-8B")
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise InputError(f"--revision {revision}: expected a branch, a tag or a commit")
    if model.startswith(MODELSCOPE):
        base = _base_url(where, env.get("MODELSCOPE_DOMAIN") or "www.modelscope.cn")
        listing = _list_modelscope(name, revision or "master", base, anonymous_access(env))
    else:
        listing = _list_hugging_face(
            name, revision or "main", _base_url(where, find_hub_endpoint(env)), read_hub_access(env, where)
        )
    _check_listing(listing)
    return listing


def _base_url(where: HubAddress, usual: str) -> str:
    """Return a hub's address without a slash at its end. Raises InputError, also for a password over plain http."""
    address = (where.url or usual).rstrip("/")
    address = address if "://" in address else f"https://{address}"
    if urlsplit(address).scheme not in ("http", "https"):
        raise InputError(f"{redact_url(address)}: expected an http:// or https:// address of a hub")
    if urlsplit(address).password:
        _check_plain(address, "its password", insecure=where.insecure)
    return address


def _check_plain(address: str, secret: str, *, insecure: bool) -> None:
    """Raise InputError if a secret would go to another machine without TLS: the rule of registries, for hubs."""
    parts = urlsplit(address)
    if parts.scheme == "http" and not (insecure or is_loopback(parts.hostname or "")):
        raise InputError(
            f"{redact_url(address)}: without TLS, others on the network can read {secret}",
            hint=f"use https, leave {secret} out, or `model pull --insecure` if you trust the network",
        )


def _list_hugging_face(name: str, revision: str, endpoint: str, reached: Access) -> ModelListing:
    url = f"{endpoint}/api/models/{name}/revision/{quote(revision, safe='')}?blobs=true"
    answer = _ask_hub(url, name, reached)
    commit = str(answer.get("sha", ""))
    if not _COMMIT.fullmatch(commit):
        raise FetchError(f"{name}: {redact_url(endpoint)} names no commit of revision {revision}")
    files = tuple(
        _of_hugging_face(item, f"{endpoint}/{name}/resolve/{commit}") for item in _read_items(answer, "siblings")
    )
    return ModelListing("Hugging Face", name, commit, files)


def _of_hugging_face(item: Mapping[str, Any], base: str) -> HubFile:
    path, lfs = str(item.get("rfilename", "")), item.get("lfs") or {}
    size, sha256 = lfs.get("size", item.get("size")), str(lfs.get("sha256", ""))
    return HubFile(
        path, _check_size(size, path), sha256, "" if lfs else str(item.get("blobId", "")), f"{base}/{quote(path)}"
    )


def _list_modelscope(name: str, revision: str, endpoint: str, reached: Access) -> ModelListing:
    base = f"{endpoint}/api/v1/models/{name}/repo"
    query = urlencode({"Revision": revision, "Recursive": "true"})
    data = _ask_hub(f"{base}/files?{query}", name, reached).get("Data")
    items = _read_items(data if isinstance(data, dict) else {}, "Files")
    files = tuple(_of_modelscope(item, base, revision) for item in items if item.get("Type") != "tree")
    return ModelListing("ModelScope", name, revision, files)


def _of_modelscope(item: Mapping[str, Any], base: str, revision: str) -> HubFile:
    path = str(item.get("Path", ""))
    url = f"{base}?{urlencode({'Revision': revision, 'FilePath': path})}"
    return HubFile(path, _check_size(item.get("Size"), path), str(item.get("Sha256", "")), "", url)


def _read_items(answer: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of objects of an answer. Raises FetchError."""
    items = answer.get(key)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise FetchError(f"the hub's answer has no list {key!r}")
    if len(items) > MOST_FILES:
        raise FetchError(f"the hub lists {len(items)} files, expected at most {MOST_FILES}")
    return items


def _check_size(value: Any, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_FILE:
        raise FetchError(f"{path!r}: the hub gives {value!r} as its size")
    return value


# --- what a hub may name --------------------------------------------------------------------------------------------


def _check_listing(listing: ModelListing) -> None:
    """Raise FetchError for an empty list, a file without a hash, and a name that is not a file's below one folder."""
    problems = [*unsafe_paths(file.path for file in listing.files), *_find_unhashed(listing.files)]
    if not listing.files:
        problems = [f"{listing.name}: the hub lists no files at revision {listing.revision}"]
    if problems:
        raise FetchError(*problems[:10], hint="nothing was downloaded")


def _find_unhashed(files: Iterable[HubFile]) -> Iterator[str]:
    for file in files:
        if not _SHA256.fullmatch(file.sha256) and not _COMMIT.fullmatch(file.blob):
            yield f"{file.path!r}: the hub gives no hash to check the file with"


def unsafe_paths(paths: Iterable[str]) -> list[str]:
    """Return what is wrong with names that someone else gave to the files below one folder; nothing if all is well."""
    all_paths = [*paths]
    return [
        *(f"{path!r}: not safe as a path" for path in all_paths if not _is_safe(path)),
        *_find_duplicates(all_paths),
    ]


def _is_safe(path: str) -> bool:
    parts = path.split("/")
    plain = path.isprintable() and "\\" not in path
    return plain and all(part not in ("", ".", "..") and len(part.encode()) <= _LONGEST_NAME for part in parts)


def _find_duplicates(paths: Iterable[str]) -> Iterator[str]:
    """Yield what cannot be in one folder: a name twice, or a name that is a file and a folder."""
    names: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        if path in names:
            yield f"{path!r}: given twice"
        names.add(path)
        parts = path.split("/")[:-1]
        folders.update("/".join(parts[: count + 1]) for count in range(len(parts)))
    yield from (f"{path!r}: given as a file and as a folder" for path in sorted(names & folders))


# --- requests -------------------------------------------------------------------------------------------------------


def _ask_hub(url: str, name: str, reached: Access) -> dict[str, Any]:
    return parse_json_object(read_small(url, name, reached), redact_url(url), FetchError)


def read_small(url: str, what: str, reached: Access) -> bytes:
    """Return the body of an answer that fits into memory; ask again after an error that may pass. Raises FetchError."""
    answer = read_answer(url, what, reached, LARGEST_ANSWER)
    if answer.status >= requests.codes.bad_request:
        raise _make_refused_error(answer.status, what, url, reached)
    return answer.body


def _make_refused_error(code: int, what: str, url: str, reached: Access) -> FetchError:
    hint = ""
    if code in (requests.codes.unauthorized, requests.codes.forbidden, requests.codes.not_found):
        token = "the token in HF_TOKEN has no access" if reached.tokens else "no token was sent (HF_TOKEN)"
        hint = f"the model or revision does not exist, or is private or gated; {token}"
    return FetchError(f"{what}: {redact_url(url)} answered {code}", hint=hint)
