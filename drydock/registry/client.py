"""Requests to one registry: how it is reached, who asks, what is tried again. IO.

Only `Client` speaks HTTP. A failure that another attempt may mend is tried again with growing pauses, or after as long
as the server says; one that has no such hope is raised with the registry's own words.
"""

from __future__ import annotations

import base64
import datetime as dt
import email.utils
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import requests
import requests.auth

from drydock.config.access import RETRIED, Access, redact
from drydock.core.console import log
from drydock.core.errors import CredentialsError, InputError, RegistryError
from drydock.oci.reference import DOCKER_HUB, DOCKER_HUB_API, Reference, is_loopback
from drydock.registry.credentials import Credentials, read_credentials

ATTEMPTS = 8
"""Attempts in a row that bring nothing."""
LONGEST_PAUSE = 60.0
"""Seconds, also where a server asks for more."""
CERTIFICATES = Path("/etc/docker/certs.d")
"""HOST/ca.crt: where docker looks for a private registry's authority
(https://docs.docker.com/engine/security/certificates/)."""
OFFERS = ("bearer", "basic")
Body = Callable[[], Any]
"""Makes what is sent, anew for each attempt."""


class RetryableRequest(Exception):  # noqa: N818  (a signal to try again, not an error that people see)
    """An attempt failed in a way that another may mend."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause
        """Seconds that the server asked for."""


class HttpRequest(NamedTuple):
    """One request."""

    method: str
    url: str
    """Whole, or from the registry's root on."""
    action: str = "pull"
    """What the token must allow: pull or pull,push."""
    headers: Mapping[str, str] = {}
    body: Body | None = None
    stream: bool = False
    also: tuple[str, ...] = ()
    """Scopes beside the repository's own, such as that of one to mount from."""


class _Header(requests.auth.AuthBase):
    """Sets the header, or nothing; that there is an auth at all keeps requests from reading ~/.netrc."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value:
            request.headers["Authorization"] = self._value
        return request


class Client:
    """A registry's repository."""

    def __init__(
        self, where: Reference, access: Access, *, insecure: bool = False, env: Mapping[str, str] = os.environ
    ) -> None:
        self.where = where
        self.access = access
        self._env = env
        self._scheme = _scheme(where, insecure=insecure)
        self._insecure = insecure or is_loopback(where.host)
        self._root = f"{self._scheme}://{DOCKER_HUB_API if where.host == DOCKER_HUB else where.host}"
        self._local = threading.local()
        self._lock = threading.Lock()
        self._authorization: dict[tuple[str, ...], str] = {}
        self._credentials: tuple[Credentials | None] | None = None

    def path(self, rest: str) -> str:
        """Return the API's path of something of the repository."""
        return f"/v2/{self.where.repository}/{rest}"

    def absolute(self, location: str, base: str) -> str:
        """Return the URL that a Location header means.

        A registry behind a proxy that ends TLS often answers with its own http: the scheme stays that of the asking.
        """
        parts = urlsplit(urljoin(urljoin(self._root, base), location))
        if self._scheme == "https" and parts.scheme == "http" and not self._insecure:
            parts = parts._replace(scheme="https")
        return urlunsplit(parts)

    def request(self, asked: HttpRequest, expected: tuple[int, ...]) -> requests.Response:
        """Return the answer to a request that may be made again: one of the expected statuses.

        Raises RegistryError or CredentialsError.
        """
        for failures in range(1, ATTEMPTS + 1):
            try:
                return self.attempt(asked, expected)
            except RetryableRequest as cut:
                reason = cut
                if failures < ATTEMPTS:
                    self.pause(failures, cut)
        raise RegistryError(f"{self._what(asked)}: {reason}, {ATTEMPTS} times in a row", hint="try again later")

    def attempt(self, asked: HttpRequest, expected: tuple[int, ...]) -> requests.Response:
        """Make a request once, twice where the registry wants to know who asks; raise Cut where it may be repeated."""
        response = self._send(asked)
        if response.status_code == requests.codes.unauthorized and self._ours(asked.url):
            refused = self._authorize(asked, response)
            response = self._send(asked)
            if response.status_code == requests.codes.unauthorized:
                raise self._unauthorized(asked, response, refused=refused)
        if response.status_code in expected:
            return response
        if response.status_code in RETRIED:
            words = explain(response)
            raise RetryableRequest(
                f"the registry answered {response.status_code}{f' ({words})' if words else ''}", _retry_after(response)
            )
        raise self._refused(asked, response)

    def pause(self, failures: int, cut: RetryableRequest) -> None:
        """Wait before another attempt: as long as the server asked, else longer each time, never all at once."""
        seconds = self.access.pause * 2.0 ** (failures - 1) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load
        seconds = min(cut.pause if cut.pause is not None else seconds, LONGEST_PAUSE)
        if seconds > 5:  # noqa: PLR2004 - seconds that people wonder about
            log(f"{self.where.host}: {cut}; trying again in {seconds:.0f} s")
        time.sleep(seconds)

    # --- one request ------------------------------------------------------------------------------------------------

    def _send(self, asked: HttpRequest) -> requests.Response:
        url = urljoin(self._root, asked.url)
        ours = self._ours(url)
        authorization = self._authorization.get(self._scopes(asked), "") if ours else ""
        return self._call(asked, url, _Header(authorization))

    def _call(self, asked: HttpRequest, url: str, auth: requests.auth.AuthBase) -> requests.Response:
        try:
            response = self._session().request(
                asked.method,
                url,
                headers={"Accept-Encoding": "identity", **asked.headers},
                data=asked.body() if asked.body else None,
                auth=auth,
                stream=asked.stream,
                allow_redirects=asked.method == "GET",
                timeout=self.access.timeout,
                verify=self._authority(),
                cert=self.access.client_certificate,
                proxies={} if is_loopback(self.where.host) else dict(self.access.proxies),
            )
        except requests.exceptions.SSLError as error:
            raise RegistryError(
                f"{self.where.host}: its certificate is not one that this machine trusts",
                hint=f"put its authority's certificate into {CERTIFICATES / self.where.host / 'ca.crt'}",
            ) from error
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
            raise RetryableRequest(reason(error)) from error
        except requests.RequestException as error:
            raise RegistryError(f"{self._what(asked)}: {reason(error)}") from error
        return self._no_downgrade(response)

    def _no_downgrade(self, response: requests.Response) -> requests.Response:
        if self._scheme == "https" and urlsplit(response.url).scheme == "http" and not self._insecure:
            raise RegistryError(f"{self.where.host}: sends on to {redact(response.url)}, without TLS")
        return response

    def _session(self) -> requests.Session:
        """Return this thread's session: sessions are not made to be shared."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = not is_loopback(self.where.host)
        session: requests.Session = self._local.session
        return session

    def _authority(self) -> str | bool:
        own = CERTIFICATES / self.where.host / "ca.crt"
        if own.is_file():
            return str(own)
        bare = self.where.host.partition(":")[0]
        return bare not in self.access.insecure_hosts and (self.access.certificates or True)

    def _ours(self, url: str) -> bool:
        """Tell whether credentials may go there: uploads may lead to another server."""
        parts, root = urlsplit(urljoin(self._root, url)), urlsplit(self._root)
        return (parts.scheme, parts.netloc) == (root.scheme, root.netloc)

    # --- who asks ---------------------------------------------------------------------------------------------------

    def _scopes(self, asked: HttpRequest) -> tuple[str, ...]:
        return (f"repository:{self.where.repository}:{asked.action}", *asked.also)

    def _authorize(self, asked: HttpRequest, response: requests.Response) -> bool:
        """Get what the registry wants to see; tell whether something that it took before is no longer taken."""
        challenges = parse_challenges(response.headers.get("WWW-Authenticate", ""))
        kind = next((kind for kind in OFFERS if kind in challenges), "")
        if not kind:
            raise CredentialsError(f"{self.where.host}: wants to know who asks, and not how", hint=self._login())
        known = self._known()
        with self._lock:
            had = self._authorization.get(self._scopes(asked))
            if kind == "basic":
                if known is None:
                    raise CredentialsError(f"{self.where.host}: wants credentials", hint=self._login())
                value = _basic(known)
            else:
                value = f"Bearer {self._token(challenges[kind], self._scopes(asked), known)}"
            self._authorization[self._scopes(asked)] = value
        return had == value

    def _known(self) -> Credentials | None:
        if self._credentials is None:
            self._credentials = (read_credentials(self.where.host, self._env),)
        return self._credentials[0]

    def _token(self, challenge: Mapping[str, str], scopes: tuple[str, ...], known: Credentials | None) -> str:
        """Ask the registry's token service (https://distribution.github.io/distribution/spec/auth/)."""
        realm = challenge.get("realm", "")
        if urlsplit(realm).scheme != "https" and not self._insecure:
            raise CredentialsError(f"{self.where.host}: wants credentials sent to {redact(realm)}, without TLS")
        service = {"service": challenge["service"]} if "service" in challenge else {}
        response = self._ask_token(realm, service, scopes, known)
        if response.status_code in (401, 403):
            who = "the credentials" if known else "an unnamed user"
            raise CredentialsError(
                f"{self.where.host}: {urlsplit(realm).hostname} does not take {who}: {response.status_code}",
                hint=self._login(),
            )
        if not response.ok:
            raise RetryableRequest(
                f"{urlsplit(realm).hostname} gave no token: {response.status_code}", _retry_after(response)
            )
        answer = _json(response)
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str):
            raise CredentialsError(f"{self.where.host}: {urlsplit(realm).hostname} answered without a token")
        return token

    def _ask_token(
        self, realm: str, service: Mapping[str, str], scopes: tuple[str, ...], known: Credentials | None
    ) -> requests.Response:
        if known and known.token:
            form = {**service, "grant_type": "refresh_token", "refresh_token": known.token, "client_id": "drydock"}
            form["scope"] = " ".join(scopes)
            return self._call(HttpRequest("POST", realm, body=lambda: form), realm, _Header(""))
        query = urlencode([*service.items(), *(("scope", scope) for scope in scopes)])
        joined = f"{realm}{'&' if urlsplit(realm).query else '?'}{query}"
        return self._call(HttpRequest("GET", joined), joined, _Header(_basic(known) if known else ""))

    # --- what went wrong --------------------------------------------------------------------------------------------

    def _unauthorized(self, asked: HttpRequest, response: requests.Response, *, refused: bool) -> CredentialsError:
        had = "expired or wrong: it no longer takes them" if refused else "it does not take them"
        words = explain(response) or "401"
        who = f"the credentials of {self._known().user!r}" if self._known() else "no credentials"  # type: ignore[union-attr]
        return CredentialsError(f"{self._what(asked)}: {who}: {had} ({words})", hint=self._login())

    def _refused(self, asked: HttpRequest, response: requests.Response) -> RegistryError:
        words = explain(response)
        text = f"{self._what(asked)}: the registry answered {response.status_code}{f': {words}' if words else ''}"
        if response.status_code in (401, 403):
            return CredentialsError(text, hint=self._login())
        return RefusedError(text, status=response.status_code)

    def _what(self, asked: HttpRequest) -> str:
        return f"{self.where.host}: {asked.method} {urlsplit(redact(asked.url)).path}"

    def _login(self) -> str:
        return f"docker login {self.where.host}, with an account that may do this"


class RefusedError(RegistryError):
    """The registry answered with a status that no other attempt changes."""

    def __init__(self, *problems: str, hint: str = "", status: int) -> None:
        super().__init__(*problems, hint=hint)
        self.status = status


def parse_challenges(header: str) -> dict[str, dict[str, str]]:
    """Turn WWW-Authenticate (RFC 9110, 11.6.1) into scheme in lower case → its parameters. Pure."""
    found: dict[str, dict[str, str]] = {}
    parameters: dict[str, str] = {}
    token = re.compile(
        r'\s*,?\s*(?:([A-Za-z0-9_.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))|([A-Za-z][A-Za-z0-9-]*))'
    )
    for match in token.finditer(header):
        key, quoted, bare, scheme = match.groups()
        if scheme:
            parameters = found.setdefault(scheme.lower(), {})
        elif key:
            parameters[key.lower()] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare
    return found


def explain(response: requests.Response) -> str:
    """Return what a registry says is wrong (distribution-spec 1.1, "Error codes"), in one line; "" for nothing."""
    errors = _json(response).get("errors")
    found = errors if isinstance(errors, list) else []
    lines = (
        f"{error.get('code', '')} {error.get('message', '')}".strip() for error in found if isinstance(error, dict)
    )
    return "; ".join(" ".join(line.split())[:200] for line in lines if line)


def reason(error: Exception) -> str:
    """Say what went wrong without the URL, which may hold credentials."""
    cause = error.__cause__ or error.__context__ or error
    return f"{type(error).__name__} ({type(cause).__name__})"


def _scheme(where: Reference, *, insecure: bool) -> str:
    plain_allowed = insecure or is_loopback(where.host)
    if where.scheme == "http" and not plain_allowed:
        raise InputError(f"http://{where.host}: without TLS anybody on the way can read and change what is sent",
                         hint="https, or --insecure where you know the way")  # fmt: skip
    return where.scheme or ("http" if plain_allowed else "https")


def _basic(known: Credentials) -> str:
    """Return the header's value for user and password, in UTF-8 (RFC 7617)."""
    return f"Basic {base64.b64encode(f'{known.user}:{known.secret}'.encode()).decode()}"


def _retry_after(response: requests.Response) -> float | None:
    """Return the seconds a server asks for: a number, or a date (RFC 9110, 10.2.3)."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdigit():
        return float(value)
    try:
        until = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    aware = until if until.tzinfo else until.replace(tzinfo=dt.UTC)
    return max(0.0, (aware - dt.datetime.now(dt.UTC)).total_seconds())


def _json(response: requests.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except (ValueError, requests.RequestException):
        return {}
    return value if isinstance(value, dict) else {}
