"""Requests to one registry: connection, authentication and retries. IO.

Only `Client` speaks HTTP. Every answer is bounded in size and time, since a registry may be hostile. A transient
failure is retried after growing pauses, or after the time that the server asks for; any other failure is raised with
the registry's own message.
"""

from __future__ import annotations

import base64
import functools
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import requests
import requests.auth

from drydock.config.server_access import Access, redact_url
from drydock.core import http
from drydock.core.errors import CredentialsError, FetchError, InputError, RegistryError
from drydock.core.files import SLOWEST, parse_any_json, parse_byte_count
from drydock.core.http import TransientRequestError
from drydock.core.network_settings import is_loopback
from drydock.core.threads import start_daemon
from drydock.oci.reference import DOCKER_HUB, DOCKER_HUB_API, Reference
from drydock.registry.credentials import Credentials, read_credentials

ATTEMPTS = 8
"""Attempts in a row without progress before a request fails."""
CERTIFICATES = Path("/etc/docker/certs.d")
"""HOST/ca.crt below it is the CA certificate that docker uses for a private registry
(https://docs.docker.com/engine/security/certificates/)."""
LARGEST = 4 << 20
"""Bytes of an answer that is kept in memory: the manifest size that the specification requires of a registry."""
LONGEST_HEADER = 8192
"""Characters of a WWW-Authenticate header that are parsed."""
LONGEST_TOKEN = 32_768
"""Characters of a token: servers accept no longer headers."""
SHOWN = 5
"""Error messages of one answer that are shown."""
NO_TLS = "its token service must have an https:// address; without TLS, it must be on the registry's own host"
BAD_REALM = "its operator must set `realm` to an absolute address"
NO_SCHEME = "is it the address of a registry? A proxy in front of one may have taken the header away"
TOO_LARGE = (
    "raise its limit, such as `client_max_body_size 0` of nginx, or the annotation proxy-body-size of an ingress in"
    " Kubernetes"
)
Body = Callable[[], Any]
"""Makes the request body, once for each attempt."""


class HttpRequest(NamedTuple):
    """One request."""

    method: str
    url: str
    """Absolute, or relative to the registry's root."""
    action: str = "pull"
    """Access that the token must grant: pull or pull,push."""
    headers: Mapping[str, str] = {}
    body: Body | None = None
    stream: bool = False
    extra_scopes: tuple[str, ...] = ()
    """Scopes in addition to the repository's own, such as that of a repository to mount from."""


class _Header(requests.auth.AuthBase):
    """Sets the Authorization header, if there is one. Its presence keeps requests from reading ~/.netrc."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value:
            request.headers["Authorization"] = self._value
        return request


class Client:
    """HTTP access to one repository of a registry."""

    def __init__(
        self, where: Reference, access: Access, *, insecure: bool = False, env: Mapping[str, str] = os.environ
    ) -> None:
        self.where = where
        self.access = access
        self._env = env
        self._scheme = _choose_scheme(where, insecure=insecure)
        self._insecure = insecure or is_loopback(where.host)
        self._has_answered = False
        self._root = f"{self._scheme}://{DOCKER_HUB_API if where.host == DOCKER_HUB else where.host}"
        self._local = threading.local()
        self._lock = threading.Lock()
        self._authorization: dict[tuple[str, ...], str] = {}

    def path(self, rest: str) -> str:
        """Return the API path of a resource of the repository."""
        return f"/v2/{self.where.repository}/{rest}"

    def absolute(self, location: str, base: str) -> str:
        """Return the absolute URL of a Location header.

        A registry behind a proxy that terminates TLS often answers with http URLs; they are changed to https.
        """
        try:
            parts = urlsplit(urljoin(urljoin(self._root, base), location))
        except ValueError as error:
            raise RegistryError(f"{self.where.host}: names an invalid address: {error}") from error
        if self._scheme == "https" and parts.scheme == "http" and not self._insecure:
            parts = parts._replace(scheme="https")
        return urlunsplit(parts)

    def request(self, request: HttpRequest, expected: tuple[int, ...]) -> requests.Response:
        """Make a request, with retries, and return a response with one of the expected statuses.

        Raises RegistryError or CredentialsError.
        """
        failures, waited = 0, 0.0
        while True:
            started = time.monotonic()
            try:
                return self.attempt(request, expected)
            except TransientRequestError as error:
                failures, waited = failures + 1, waited + time.monotonic() - started
                is_absent = http.is_absent_here(error, has_answered=self._has_answered)
                if failures == ATTEMPTS or waited > self.access.patience or is_absent:
                    raise self.unanswered(self._describe(request), error, failures, waited) from error
                self.pause(failures, error)

    def attempt(self, request: HttpRequest, expected: tuple[int, ...]) -> requests.Response:
        """Make a request without retries, but again with credentials if the registry requires them.

        Raises TransientRequestError if a retry may succeed, otherwise RegistryError or CredentialsError.
        """
        response = self._send(request)
        if response.status_code == requests.codes.unauthorized and self._is_registry(request.url):
            unchanged = self._authorize(request, response)
            response = self._send(request)
            if response.status_code == requests.codes.unauthorized:
                raise self._unauthorized(request, response, unchanged=unchanged)
        if response.status_code in expected:
            return response
        message = format_registry_errors(response)
        http.refuse_transient_status(response, "the registry", f"({message})" if message else "")
        raise self._refused(request, response)

    def pause(self, failures: int, error: TransientRequestError) -> None:
        """Wait before the next attempt: as long as the server asks for, else longer each time, with random jitter.

        Raises RegistryError if it asks for too long.
        """
        try:
            http.pause_before_retry(failures, error, self.access.pause, self.where.host)
        except FetchError as too_long:
            raise RegistryError(*too_long.problems, hint=too_long.hint) from error

    def unanswered(self, what: str, error: TransientRequestError, failures: int, waited: float) -> RegistryError:
        """Return the error of a request that is not made again, after so many failures and seconds of waiting."""
        if waited > self.access.patience:
            return RegistryError(
                f"{what}: no complete answer in {self.access.patience:g} s: {error}", hint="try again later"
            )
        if error.is_refused_here:
            return RegistryError(f"{what}: {error}", hint=f"start the registry, or correct {self.where.host}")
        return RegistryError(
            f"{what}: {error} (asked {failures} times)", hint="try again later; `./inv doctor` asks each server once"
        )

    # --- one request ------------------------------------------------------------------------------------------------

    def _send(self, request: HttpRequest) -> requests.Response:
        url = urljoin(self._root, request.url)
        authorization = self._authorization.get(self._scopes(request), "") if self._is_registry(url) else ""
        return self._call(request, url, _Header(authorization))

    def _call(self, request: HttpRequest, url: str, auth: requests.auth.AuthBase) -> requests.Response:
        session = self._session()

        def send() -> requests.Response:
            return session.request(
                request.method,
                url,
                headers={"Accept-Encoding": "identity", **request.headers},
                data=request.body() if request.body else None,
                auth=auth,
                stream=request.stream,
                allow_redirects=request.method == "GET",
                timeout=self.access.timeout,
                verify=self._ca_certificates(),
                cert=self.access.client_certificate,
                proxies={} if is_loopback(self.where.host) else dict(self.access.proxies),
                hooks={"response": _read_limited_body},
            )

        try:
            response = self._in_time(request, send)
        except requests.exceptions.SSLError as error:
            raise RegistryError(
                f"{self.where.host}: this machine does not trust the registry's certificate",
                hint=f"copy its CA certificate to {CERTIFICATES / self.where.host / 'ca.crt'}",
            ) from error
        except http.TRANSIENT as error:
            raise http.make_transient_error(error) from error
        except requests.RequestException as error:
            raise RegistryError(f"{self._describe(request)}: {http.explain_request_error(error)}") from error
        self._has_answered = True
        return self._refuse_downgrade(response)

    def _in_time(self, request: HttpRequest, send: Callable[[], requests.Response]) -> requests.Response:
        """Run a request for at most the access's `patience`, and the time to send its body. Raises RegistryError.

        The timeout of requests starts again with each byte, so a slow server could keep it waiting without end.
        """
        seconds = self.access.patience + (parse_byte_count(request.headers.get("Content-Length", "")) or 0) / SLOWEST
        answer = start_daemon(send)
        try:
            return answer.result(seconds)
        except TimeoutError as error:
            del self._local.session  # the thread still uses it
            raise RegistryError(
                f"{self._describe(request)}: no complete answer in {seconds:.0f} s", hint="try again later"
            ) from error

    def _refuse_downgrade(self, response: requests.Response) -> requests.Response:
        if self._scheme == "https" and urlsplit(response.url).scheme == "http" and not self._insecure:
            raise RegistryError(f"{self.where.host}: redirects to {redact_url(response.url)} without TLS")
        return response

    def _session(self) -> requests.Session:
        """Return this thread's session; sessions are not thread-safe."""
        if not hasattr(self._local, "session"):
            self._local.session = http.Session()
            self._local.session.trust_env = not is_loopback(self.where.host)
            self._local.session.longest_wait = min(http.LONGEST_WAIT, self.access.patience)
        session: requests.Session = self._local.session
        return session

    def _ca_certificates(self) -> str | bool:
        """Return the file of CA certificates; True for the system's, False to accept any certificate."""
        host_certificate = CERTIFICATES / self.where.host / "ca.crt"
        if host_certificate.is_file():
            return str(host_certificate)
        if self.where.host.partition(":")[0] in self.access.insecure_hosts:
            return False
        return self.access.certificates or True

    def _is_registry(self, url: str) -> bool:
        """Tell whether a URL is the registry's own, so that it may receive credentials; uploads may go elsewhere."""
        parts, root = urlsplit(urljoin(self._root, url)), urlsplit(self._root)
        return (parts.scheme, parts.netloc) == (root.scheme, root.netloc)

    # --- authentication ---------------------------------------------------------------------------------------------

    def _scopes(self, request: HttpRequest) -> tuple[str, ...]:
        return (f"repository:{self.where.repository}:{request.action}", *request.extra_scopes)

    def _authorize(self, request: HttpRequest, response: requests.Response) -> bool:
        """Prepare the Authorization header that a 401 response asks for; return whether it was already the same.

        Raises CredentialsError.
        """
        challenges = parse_challenges(response.headers.get("WWW-Authenticate", ""))
        scopes = self._scopes(request)
        credentials = self._credentials
        with self._lock:
            before = self._authorization.get(scopes)
            if "bearer" in challenges:
                value = f"Bearer {self._token(challenges['bearer'], scopes, credentials)}"
            elif "basic" not in challenges:
                schemes = ", ".join(sorted(challenges)) or "none"
                text = f"{self.where.host}: the registry answered 401; its way to log in: found {schemes:.100}"
                raise CredentialsError(f"{text}, expected Bearer or Basic in WWW-Authenticate", hint=NO_SCHEME)
            elif credentials is None:
                raise CredentialsError(f"{self.where.host}: the registry requires credentials", hint=self._login())
            else:
                value = _encode_basic_auth(credentials)
            self._authorization[scopes] = value
        return before == value

    @functools.cached_property
    def _credentials(self) -> Credentials | None:
        return read_credentials(self.where.host, self._env)

    def _token(self, challenge: Mapping[str, str], scopes: tuple[str, ...], credentials: Credentials | None) -> str:
        """Get a token from the registry's token service (https://distribution.github.io/distribution/spec/auth/)."""
        realm = challenge.get("realm", "")
        if "://" not in realm:
            text = f"{self.where.host}: names the token service {realm!a:.100}, expected its whole address, https://…"
            raise CredentialsError(text, hint=BAD_REALM)
        try:
            safe = self._is_safe(realm)
        except ValueError as error:
            text = f"{self.where.host}: names a token service with an invalid address: {error}"
            raise CredentialsError(text, hint=BAD_REALM) from error
        if not safe:
            raise CredentialsError(
                f"{self.where.host}: asks to send credentials to {redact_url(realm)} without TLS", hint=NO_TLS
            )
        service = {"service": challenge["service"]} if "service" in challenge else {}
        response = self._ask_token(realm, service, scopes, credentials)
        server = urlsplit(realm).hostname
        if response.status_code in (401, 403):
            who = "the credentials" if credentials else "anonymous access"
            raise CredentialsError(
                f"{self.where.host}: {server} rejected {who}: {response.status_code}", hint=self._login()
            )
        if not response.ok:
            raise TransientRequestError(
                f"{server} answered {response.status_code} instead of a token", http.retry_after(response)
            )
        answer = _parse_json_object(response)
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or len(token) > LONGEST_TOKEN or not re.fullmatch(r"[!-~]+", token):
            raise CredentialsError(f"{self.where.host}: the answer of {server} contains no token")
        return token

    def _is_safe(self, realm: str) -> bool:
        """Tell whether a token service has TLS, or is on the machine of a registry that is used without TLS."""
        scheme, host, registry_host = (
            urlsplit(realm).scheme,
            urlsplit(realm).hostname or "",
            urlsplit(self._root).hostname or "",
        )
        here = host == registry_host or (is_loopback(host) and is_loopback(registry_host))
        return scheme == "https" or (scheme == "http" and self._insecure and here)

    def _ask_token(
        self, realm: str, service: Mapping[str, str], scopes: tuple[str, ...], credentials: Credentials | None
    ) -> requests.Response:
        if credentials and credentials.token:
            form = {**service, "grant_type": "refresh_token", "refresh_token": credentials.token}
            form |= {"client_id": "drydock", "scope": " ".join(scopes)}
            return self._call(HttpRequest("POST", realm, body=lambda: form), realm, _Header(""))
        query = urlencode([*service.items(), *(("scope", scope) for scope in scopes)])
        url = f"{realm}{'&' if urlsplit(realm).query else '?'}{query}"
        return self._call(HttpRequest("GET", url), url, _Header(_encode_basic_auth(credentials) if credentials else ""))

    # --- errors -----------------------------------------------------------------------------------------------------

    def _unauthorized(self, request: HttpRequest, response: requests.Response, *, unchanged: bool) -> CredentialsError:
        message = format_registry_errors(response) or "401"
        if self._credentials is None:
            problem = "the registry rejected anonymous access"
        elif unchanged:
            problem = f"the registry no longer accepts the credentials of {self._credentials.user!r}"
        else:
            problem = f"the registry rejected the credentials of {self._credentials.user!r}"
        return CredentialsError(f"{self._describe(request)}: {problem} ({message})", hint=self._login())

    def _refused(self, request: HttpRequest, response: requests.Response) -> RegistryError:
        message = format_registry_errors(response)
        text = f"{self._describe(request)}: the registry answered {response.status_code}"
        if message:
            text += f": {message}"
        if response.status_code in (401, 403):
            return CredentialsError(text, hint=self._login())
        if response.status_code == requests.codes.request_entity_too_large:
            size = request.headers.get("Content-Length", "these")
            text += f": a proxy in front of the registry, or the registry, takes no request of {size} bytes"
            return RefusedError(text, hint=TOO_LARGE, status=response.status_code)
        return RefusedError(text, status=response.status_code)

    def _describe(self, request: HttpRequest) -> str:
        return f"{self.where.host}: {request.method} {urlsplit(redact_url(request.url)).path}"

    def _login(self) -> str:
        return f"run `docker login {self.where.host}` with an account that has access"


class RefusedError(RegistryError):
    """The registry answered with an error status that a retry would not change."""

    def __init__(self, *problems: str, hint: str = "", status: int) -> None:
        super().__init__(*problems, hint=hint)
        self.status = status


_CHALLENGE = re.compile(
    r'(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^\s,"]++))|([A-Za-z][A-Za-z0-9-]*+)',
    re.DOTALL,
)
"""A parameter or a scheme. Nothing is tried twice (`++`), which would take hours for a long run of spaces."""


def parse_challenges(header: str) -> dict[str, dict[str, str]]:
    """Parse WWW-Authenticate (RFC 9110, 11.6.1) into lower-case scheme → its parameters. Pure."""
    challenges: dict[str, dict[str, str]] = {}
    parameters: dict[str, str] = {}
    for match in _CHALLENGE.finditer(header[:LONGEST_HEADER]):
        key, quoted, bare, scheme = match.groups()
        if scheme:
            parameters = challenges.setdefault(scheme.lower(), {})
        elif key:
            parameters[key.lower()] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare
    return challenges


def format_registry_errors(response: requests.Response) -> str:
    """Return the registry's error messages (distribution-spec 1.1, "Error codes") in one line; "" if there are none."""
    errors = _parse_json_object(response).get("errors")
    if not isinstance(errors, list):
        return ""
    error_objects = [error for error in errors[:SHOWN] if isinstance(error, dict)]
    texts = [f"{error.get('code', '')} {error.get('message', '')}" for error in error_objects]
    lines = [" ".join(text[:1000].split())[:200] for text in texts]
    return "; ".join(line for line in lines if line)


def _choose_scheme(where: Reference, *, insecure: bool) -> str:
    plain_allowed = insecure or is_loopback(where.host)
    if where.scheme == "http" and not plain_allowed:
        raise InputError(
            f"http://{where.host}: without TLS, others on the network can read and change the data",
            hint="use https, or --insecure if you trust the network",
        )
    return where.scheme or ("http" if plain_allowed else "https")


def _encode_basic_auth(credentials: Credentials) -> str:
    """Return the Authorization header for a user and password, in UTF-8 (RFC 7617)."""
    return f"Basic {base64.b64encode(f'{credentials.user}:{credentials.secret}'.encode()).decode()}"


def _parse_json_object(response: requests.Response) -> dict[str, Any]:
    try:
        value = parse_any_json(response.content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _read_limited_body(response: requests.Response, **options: Any) -> None:
    """Read the body of an answer, unless the caller requested a stream and this is not a redirect on the way to it.

    Raises RegistryError for a body that is larger than LARGEST; of an error, the beginning is enough.
    """
    if options.get("stream") and not response.is_redirect:
        return
    body = bytearray()
    for chunk in () if response.is_redirect else http.read_pieces(response):
        body += chunk
        if len(body) > LARGEST:
            if response.ok:
                response.close()
                raise RegistryError(f"{redact_url(response.url)}: the answer is larger than {LARGEST} bytes")
            break
    response.close()
    response._content = bytes(body)  # noqa: SLF001 - requests has no other way to limit a body
