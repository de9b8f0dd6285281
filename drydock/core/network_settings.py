"""Checks certificates and proxies that this machine's own configuration names, before a library reads them. IO.

requests raises OSError for a file that is not there, urllib3 a bare SSLError for one without a certificate, and uv goes
on with no certificates at all. None of them names the variable.
"""

from __future__ import annotations

import functools
import importlib.util
import ipaddress
import os
import re
import ssl
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from drydock.core.errors import NetworkSettingsError

CERTIFICATE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
"""Variables that name a file of CA certificates: of pip, requests (two) and uv."""
CLIENT_VARIABLES = ("PIP_CLIENT_CERT", "SSL_CLIENT_CERT")
"""Variables that name this machine's own certificate and its key: of pip and uv."""
FOLDERS_VARIABLE = "SSL_CERT_DIR"
"""Variable of uv and OpenSSL that names folders of CA certificates, with a colon between them."""
PROXY_VARIABLES = ("PIP_PROXY", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
SOCKS_SCHEMES = ("socks4", "socks4a", "socks5", "socks5h")
"""Schemes that requests accepts if PySocks is installed (https://requests.readthedocs.io/en/latest/user/advanced/)."""
DEBIAN_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
ENCRYPTED = "its key has a password, which cannot be asked for here"


def check_request(url: str, options: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> None:
    """Check what requests is about to use for a URL. Raises NetworkSettingsError."""
    check_proxy(requests.utils.select_proxy(url, options.get("proxies")) or "", env)
    if url.lower().startswith("https:"):
        check_certificates(options.get("verify"), env)
        check_client_certificate(options.get("cert"), env)


def check_all_certificates(env: Mapping[str, str]) -> None:
    """Check each variable for certificates that is set. Raises one NetworkSettingsError for all."""
    checks = [partial(check_certificates, env.get(name), env) for name in CERTIFICATE_VARIABLES]
    checks += [partial(check_client_certificate, env.get(name), env) for name in CLIENT_VARIABLES]
    checks += [partial(check_certificate_folders, env)]
    hints: dict[str, str] = {}
    for check in checks:
        try:
            check()
        except NetworkSettingsError as error:
            hints |= dict.fromkeys(error.problems, error.hint)
    if hints:
        raise NetworkSettingsError(*hints, hint="; ".join(dict.fromkeys(hints.values())))


def check_certificates(path: str | bool | None, env: Mapping[str, str]) -> None:
    """Check a file or folder of CA certificates. Raises NetworkSettingsError that names its variables."""
    if isinstance(path, str) and path and (problem := _certificate_problem(path)):
        problem += "; expected a file of CA certificates (PEM)"
        raise _refuse_setting(path, problem, CERTIFICATE_VARIABLES, env, f"Debian's certificates are {DEBIAN_BUNDLE}")


def check_client_certificate(path: str | None, env: Mapping[str, str]) -> None:
    """Check the file of this machine's own certificate and key. Raises NetworkSettingsError."""
    if path and (problem := _client_problem(path)):
        problem += "; expected a file with a client certificate and its key (PEM)"
        raise _refuse_setting(path, problem, CLIENT_VARIABLES, env)


def check_certificate_folders(env: Mapping[str, str]) -> None:
    """Check folders of CA certificates, of which one must exist. Raises NetworkSettingsError."""
    folders = env.get(FOLDERS_VARIABLE)
    if folders and not any(Path(folder).is_dir() for folder in folders.split(":")):
        problem = "no such folder; expected a folder of CA certificates (PEM)"
        raise _refuse_setting(folders, problem, (FOLDERS_VARIABLE,), env)


def check_proxy(proxy: str, env: Mapping[str, str]) -> None:
    """Check that requests can use a proxy. Raises NetworkSettingsError."""
    scheme, separator, _ = proxy.partition("://")
    scheme = scheme.lower()
    is_http = not separator or scheme in ("http", "https")
    if not proxy or (is_http and _has_host(proxy if separator else f"http://{proxy}")):
        return
    if is_http or not scheme.startswith("socks"):
        problem, advice = "expected an http:// or https:// address of a proxy", ""
    elif scheme not in SOCKS_SCHEMES:
        problem, advice = "names no version of SOCKS", "write socks5h://HOST:PORT"
    elif importlib.util.find_spec("socks") is None:
        problem = "a SOCKS proxy needs the package PySocks, which is not installed"
        advice = f"an http:// proxy needs no package; else run `{sys.executable} -m pip install PySocks`"
    else:
        return
    raise _refuse_setting(proxy, problem, PROXY_VARIABLES, env, advice)


def _has_host(url: str) -> bool:
    """Tell whether requests can find a host in the address of a proxy, and a port if it has one."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", url.strip())
    except ValueError:
        return False


def _refuse_setting(
    value: str, problem: str, variables: tuple[str, ...], env: Mapping[str, str], advice: str = ""
) -> NetworkSettingsError:
    """Return the error for a value, with the variables that have it; without one, a file of pip's or apt's has it."""
    names = " and ".join(name for name in variables if _expand_home(env.get(name, "")) == value)
    hint = f"correct or unset {names}" if names else "correct it in the configuration of pip (`pip config list`) or apt"
    text = f"{names}={value}: {problem}" if names else f"{value}: {problem}"
    return NetworkSettingsError(text, hint=f"{hint}; {advice}" if advice else hint)


def _expand_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - a proxy is no path


@functools.cache
def _certificate_problem(path: str) -> str:
    """Say what is wrong with a file or folder of CA certificates; "" if nothing is. Of a folder, it may be empty."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if Path(path).is_dir():
            context.load_verify_locations(capath=path)
            return ""
        context.load_verify_locations(cafile=path)
    except OSError as error:  # ssl.SSLError too
        return _explain_file(path, error, "holds no certificate")
    return "" if context.cert_store_stats()["x509"] else "holds no certificate"


@functools.cache
def _client_problem(path: str) -> str:
    """Say what is wrong with a file of a certificate and its key; "" if nothing is."""
    password_requests: list[str] = []

    def note_password() -> str:
        password_requests.append(path)
        return ""

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path, password=note_password)
    except OSError as error:  # ssl.SSLError too
        return ENCRYPTED if password_requests else _explain_file(path, error, "holds no certificate with its key")
    return ENCRYPTED if password_requests else ""


def _explain_file(path: str, error: OSError, unreadable: str) -> str:
    """Say why a file was refused, which OpenSSL tells in numbers."""
    try:
        size = Path(path).stat().st_size
        Path(path).open("rb").close()
    except OSError as reason:
        return str(reason.strerror)
    if not isinstance(error, ssl.SSLError):
        return str(error.strerror)
    return unreadable if size else "is empty"


def is_loopback(host: str) -> bool:
    """Tell whether a host, with or without a port, is this machine (RFC 6761, 6.3)."""
    bare = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    try:
        return ipaddress.ip_address(bare.strip("[]")).is_loopback
    except ValueError:
        return bare == "localhost" or bare.endswith(".localhost")
