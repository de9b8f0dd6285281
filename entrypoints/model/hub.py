"""A hub id → the model's small files, from the local cache, or else from the hub or its mirror. IO.

The variables are those that vLLM's own libraries read: huggingface_hub's HF_HOME, HF_HUB_CACHE, HF_ENDPOINT,
HF_HUB_OFFLINE, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_ETAG_TIMEOUT, transformers' TRANSFORMERS_OFFLINE, and with
VLLM_USE_MODELSCOPE ModelScope's MODELSCOPE_CACHE and MODELSCOPE_DOMAIN. DRYDOCK_OFFLINE forbids requests too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from entrypoints.core.errors import MODEL, USAGE, EntrypointError
from entrypoints.core.folders import read_regular
from entrypoints.core.redact import redact_value
from entrypoints.model.files import FILE_AT_MOST

if TYPE_CHECKING:
    import ssl
    from urllib.request import Request

INSECURE = "DRYDOCK_INSECURE_HUB"
_OFFLINE = ("DRYDOCK_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = ("1", "on", "yes", "true")
_AT_MOST = 1 << 20
"""Bytes to request from the start of a weight file: the header of a model in one file is far smaller."""
_PATIENCE = 6
"""Timeouts of one request after which a file must be complete: a server may send a byte now and then without end."""
_SECONDS = 10.0
"""huggingface_hub's default timeout for its first request."""
_FORBIDDEN, _ABSENT = (401, 403), 404
_AUTHORITIES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
"""Variables that name certificates to trust, as requests and then httpx, with which vLLM asks the hub, read them."""


class Authorities(NamedTuple):
    """Certificates to trust, and the variable that names them; both empty for the system's own."""

    variable: str = ""
    path: str = ""
    """A file, or a folder that OpenSSL has indexed."""


class Hub(NamedTuple):
    """The hub that models come from, and how to reach it."""

    site: str
    """Its usual name."""
    endpoint: str
    revision: str
    caches: tuple[str, ...]
    """Folders that may hold models, most likely first."""
    offline: str
    """The variable that forbids requests; empty if they are allowed."""
    token: str
    insecure: bool
    """Whether the token may go over plain http to another machine."""
    seconds: float
    """Timeout of one request."""
    authorities: Authorities

    @property
    def modelscope(self) -> bool:
        """Return whether the hub is ModelScope."""
        return self.site == "ModelScope"

    @property
    def place(self) -> str:
        """Return the endpoint without secrets."""
        return redact_value("", self.endpoint)

    def url(self, name: str, file: str) -> str:
        """Return the address of a model's file."""
        from urllib.parse import quote, urlencode

        if self.modelscope:
            query = urlencode({"Revision": self.revision, "FilePath": file})
            return f"{self.endpoint}/api/v1/models/{quote(name)}/repo?{query}"
        return f"{self.endpoint}/{quote(name)}/resolve/{quote(self.revision, safe='')}/{quote(file)}"


class Refused(EntrypointError):  # noqa: N818 -- what the hub does
    """The hub has no such model, or does not give it to this user."""


class NotAnswered(Exception):  # noqa: N818 -- no error for `plan`, which can plan without an answer
    """The hub did not answer; the text says why."""


def parse_hub(env: Mapping[str, str], revision: str | None = None, download: str | None = None) -> Hub:
    """Return the hub that the variables, --revision and --download-dir select. Reads the token's file only."""
    offline = next((name for name in _OFFLINE if is_true(env.get(name))), "")
    set_authorities = (Authorities(name, path) for name in _AUTHORITIES if (path := env.get(name)))
    authorities = next(set_authorities, Authorities())
    download_folders = (download,) if download else ()
    cache = env.get("XDG_CACHE_HOME") or f"{env.get('HOME') or '/'}/.cache"
    if env.get("VLLM_USE_MODELSCOPE", "").lower() == "true":  # as vLLM reads it: no number
        base = env.get("MODELSCOPE_CACHE") or f"{env.get('HOME') or '/'}/.cache/modelscope/hub"
        roots = tuple(
            f"{root}{below}" for root in (*download_folders, base) for below in ("/models", "", "/hub/models", "/hub")
        )
        domain = (env.get("MODELSCOPE_DOMAIN") or "www.modelscope.cn").rstrip("/")
        endpoint = domain if "://" in domain else f"https://{domain}"
        return Hub("ModelScope", endpoint, revision or "master", roots, offline, "", False, _SECONDS, authorities)
    home = env.get("HF_HOME") or f"{cache}/huggingface"
    hub = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    endpoint = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    return Hub(
        "Hugging Face",
        endpoint,
        revision or "main",
        (*download_folders, hub),
        offline,
        _read_token(env, home),
        is_true(env.get(INSECURE)),
        _parse_timeout(env.get("HF_HUB_ETAG_TIMEOUT")),
        authorities,
    )


def is_true(value: str | None) -> bool:
    """Tell whether a variable is switched on, as huggingface_hub reads it."""
    return (value or "").strip().lower() in _TRUE


def _parse_timeout(text: str | None) -> float:
    try:
        return max(1.0, float(text or _SECONDS))
    except ValueError:
        return _SECONDS


def _read_token(env: Mapping[str, str], home: str) -> str:
    """Return the token that huggingface_hub would send; empty if there is none. An empty variable is none.

    It leaves out line ends (utils/_auth.py, _clean_token), also those within, which a header cannot have.
    """
    token = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN") or ""
    if not token and not is_true(env.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
        try:
            token = read_regular(env.get("HF_TOKEN_PATH") or f"{home}/token", 1024).decode("ascii")
        except (OSError, ValueError):  # no one logged in
            return ""
    return token.replace("\r", "").replace("\n", "").strip()


def check_token(hub: Hub) -> None:
    """Raise USAGE if the token would go over plain http to another machine, from here or from vLLM."""
    from urllib.parse import urlsplit

    host = urlsplit(hub.endpoint).hostname or ""
    if hub.token and not (hub.insecure or hub.endpoint.startswith("https:") or _is_loopback(host)):
        message = f"{hub.place}: without TLS, others on the network can read the token in HF_TOKEN"
        hint = f"set HF_ENDPOINT to an https:// address, unset HF_TOKEN, or set {INSECURE}=1 if you trust the network"
        raise EntrypointError(USAGE, message, hint)


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


# --- the local cache ------------------------------------------------------------------------------------------------

SNAPSHOTS = "snapshots"
_REPOSITORY = "models--"
"""How huggingface_hub's folder of a model begins: models--ORG--NAME, with a folder of snapshots by commit."""


def name_repository(folder: str) -> str:
    """Return the hub id of a model's folder in the cache, by the folder's name; empty for another folder."""
    return folder[len(_REPOSITORY) :].replace("--", "/", 1) if folder.startswith(_REPOSITORY) else ""


def find_snapshot(hub: Hub, name: str) -> str:
    """Return a model's folder in the local cache; empty if none holds a config.json."""
    find = _modelscope_folders if hub.modelscope else _list_snapshots
    folders = (folder for cache in hub.caches for folder in find(hub, cache, name))
    return next((folder for folder in folders if os.path.exists(f"{folder}/config.json")), "")


def _modelscope_folders(_: Hub, cache: str, name: str) -> tuple[str, ...]:
    """Return where ModelScope keeps a model: it writes a dot in a name as three underscores."""
    return (f"{cache}/{name.replace('.', '___')}", f"{cache}/{name}")


def _list_snapshots(hub: Hub, cache: str, name: str) -> tuple[str, ...]:
    """Return the folder of the revision: a commit itself, or the branch or tag that refs/ resolves."""
    repository = f"{cache}/{_REPOSITORY}{name.replace('/', '--')}"
    try:
        commit = read_regular(f"{repository}/refs/{hub.revision}", 100).decode("ascii").strip()
    except (OSError, ValueError):  # not a branch that was downloaded
        commit = hub.revision
    return (f"{repository}/{SNAPSHOTS}/{commit}",)


# --- the hub itself -------------------------------------------------------------------------------------------------


def fetch_hub_file(hub: Hub, name: str, file: str, *, beginning: bool = False) -> bytes | None:
    """Download one file, or its beginning; return None if the model has no such file.

    Raises NotAnswered, and Refused (MODEL) if the hub refuses access. The token is sent to the endpoint only, never to
    the target of a redirect.
    """
    from http.client import HTTPException, InvalidURL
    from urllib.error import HTTPError
    from urllib.request import Request

    url = hub.url(name, file)
    if not url.startswith(("http://", "https://")):
        raise EntrypointError(MODEL, f"{hub.place}: expected an http:// or https:// address", "correct HF_ENDPOINT")
    request = Request(url, headers={"User-Agent": "drydock"})  # noqa: S310 -- the scheme is checked above
    if beginning:
        request.add_header("Range", f"bytes=0-{_AT_MOST - 1}")
    if hub.token:
        request.add_unredirected_header("Authorization", f"Bearer {hub.token}")
    at_most = _AT_MOST if beginning else FILE_AT_MOST + 1
    try:
        return _in_time(lambda: _read_response(request, hub, at_most), hub.seconds * _PATIENCE)
    except HTTPError as error:
        if error.code == _ABSENT:
            return None
        if error.code in _FORBIDDEN:
            raise _make_access_error(hub, name, error.code) from error
        raise NotAnswered(f"{hub.place} returned {error.code}") from error
    except InvalidURL as error:  # its text has the password of an address that has one
        raise NotAnswered(f"{hub.place}: expected http(s)://HOST[:PORT], without a user") from error
    except (OSError, HTTPException, ValueError) as error:
        raise NotAnswered(f"{hub.place}: {getattr(error, 'reason', None) or error}") from error


def _read_response(request: Request, hub: Hub, at_most: int) -> bytes:
    from http.client import HTTPMessage
    from io import BytesIO
    from typing import IO
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, build_opener

    class Redirects(HTTPRedirectHandler):
        """Follows redirects without reading their bodies, which urllib would do to the end."""

        def http_error_302(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage) -> Any:
            fp.close()
            return super().http_error_302(req, BytesIO(), code, msg, headers)

        http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    with build_opener(Redirects, HTTPSHandler(context=_make_tls_context(hub))).open(
        request, timeout=hub.seconds
    ) as answer:
        body: bytes = answer.read(at_most)
    if len(body) > FILE_AT_MOST:
        raise NotAnswered(f"{hub.place} sends more than {FILE_AT_MOST} bytes")
    return body


def _in_time(read: Callable[[], bytes], seconds: float) -> bytes:
    """Run a request, and give it up after some seconds. Raises TimeoutError, and what the request raises."""
    from threading import Thread

    answers: list[bytes | Exception] = []

    def run() -> None:
        try:
            answers.append(read())
        except Exception as error:  # noqa: BLE001 -- raised again below
            answers.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    answer = answers[0] if answers else TimeoutError(f"no complete answer in {seconds:g} s")
    if isinstance(answer, Exception):
        raise answer
    return answer


def _make_tls_context(hub: Hub) -> ssl.SSLContext | None:
    """Return the certificates to trust; None for the system's own. Raises USAGE for those that cannot be read."""
    variable, path = hub.authorities
    if not path or not hub.endpoint.startswith("https:"):
        return None
    import ssl

    problem = ""
    try:
        if os.path.isdir(path):
            return ssl.create_default_context(capath=path)
        context = ssl.create_default_context(cafile=path)
        if context.cert_store_stats()["x509"]:
            return context
    except OSError as error:  # ssl.SSLError too, whose text has OpenSSL's numbers
        problem = "" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
    problem = problem or ("holds no certificate" if os.path.getsize(path) else "is empty")
    message = f"{variable}={path}: {problem}; expected a file of CA certificates (PEM)"
    raise EntrypointError(USAGE, message, f"mount the file into the container, or correct or unset {variable}")


def _make_access_error(hub: Hub, name: str, code: int) -> Refused:
    token = "HF_TOKEN has no access" if hub.token else "no token was sent"
    return Refused(
        MODEL,
        f"{name}: {hub.place} returned {code}: the model does not exist, or is private or gated",
        f"correct the id, or set HF_TOKEN to a token with access to it ({token})",
    )


def not_found(hub: Hub, name: str) -> Refused:
    """Return the error for a model that the hub does not have."""
    message = f"{name}: {hub.place} has no config.json at revision {hub.revision}"
    return Refused(MODEL, message, "correct the id or --revision")
