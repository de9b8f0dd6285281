"""Certificates and proxies of a machine that cannot be used: one error that names the variable."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from drydock.core import network_settings
from drydock.core.errors import NetworkSettingsError
from drydock.core.http import Session
from drydock.core.network_settings import (
    check_all_certificates,
    check_certificates,
    check_client_certificate,
    check_proxy,
    check_request,
)

UNUSABLE = ("ftp://127.0.0.1:9", "http://[::1", "foo bar", "http://p.example:x", "http://:3128", "p.example:99999")
HTTPS = "https://127.0.0.1:9/"


def make_certificate(folder: Path, password: str = "") -> tuple[Path, Path]:
    """Write a self-signed certificate; return its file, and one with its key too."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    curve, hidden = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"), ("-passout", f"pass:{password}")
    files = ("-subj", "/CN=r.example", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/ca.pem")
    command = ("openssl", "req", "-x509", *curve, *(hidden if password else ("-nodes",)), *files)
    subprocess.run(command, check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "ca.pem").read_text() + (folder / "key.pem").read_text())
    return folder / "ca.pem", folder / "both.pem"


def test_certificates_that_can_be_read_are_accepted(tmp_path: Path) -> None:
    authority, certificate_and_key = make_certificate(tmp_path)
    check_request(HTTPS, {"verify": str(authority), "cert": str(certificate_and_key)}, {})
    check_request(HTTPS, {"verify": str(tmp_path)}, {})
    for unset in (True, False, None, ""):
        check_certificates(unset, {})
    check_all_certificates(
        {"PIP_CERT": str(authority), "SSL_CLIENT_CERT": str(certificate_and_key), "SSL_CERT_DIR": f"/no:{tmp_path}"}
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file or directory"), ("", "is empty"), ("garbage\n", "holds no certificate")],
)
@pytest.mark.parametrize("name", network_settings.CERTIFICATE_VARIABLES)
def test_a_file_without_certificates_is_named_with_its_variable(
    content: str | None, problem: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    env = {name: str(path), "PATH": "/bin"}
    with pytest.raises(NetworkSettingsError) as caught:
        check_certificates(str(path), env)
    assert caught.value.problems == (f"{name}={path}: {problem}; expected a file of CA certificates (PEM)",)
    assert f"unset {name}" in caught.value.hint
    with pytest.raises(NetworkSettingsError, match=f"{name}="):
        check_all_certificates(env)


def test_a_file_of_pips_own_configuration_is_no_variables(tmp_path: Path) -> None:
    with pytest.raises(NetworkSettingsError, match=rf"^{tmp_path}/none: No such file") as caught:
        check_certificates(f"{tmp_path}/none", {"PIP_CERT": "/other"})
    assert "pip config list" in caught.value.hint


def test_a_client_certificate_needs_a_key_without_a_password(tmp_path: Path) -> None:
    authority, encrypted = make_certificate(tmp_path, "secret")
    for path, problem in ((authority, "with its key"), (encrypted, "password"), (tmp_path, "Is a directory")):
        with pytest.raises(NetworkSettingsError, match=rf"PIP_CLIENT_CERT={path}: .*{problem}"):
            check_client_certificate(str(path), {"PIP_CLIENT_CERT": str(path)})


def test_folders_of_which_none_exists_are_named(tmp_path: Path) -> None:
    with pytest.raises(NetworkSettingsError, match=rf"SSL_CERT_DIR=/no:{tmp_path}/no: no such folder"):
        check_all_certificates({"SSL_CERT_DIR": f"/no:{tmp_path}/no"})


@pytest.mark.parametrize(
    ("proxy", "problem"),
    [
        ("socks5h://127.0.0.1:9", "a SOCKS proxy needs the package PySocks, which is not installed"),
        ("SOCKS5://127.0.0.1:9", "a SOCKS proxy needs the package PySocks"),
        ("socks://127.0.0.1:9", "names no version of SOCKS"),
        *((proxy, "expected an http:// or https:// address") for proxy in UNUSABLE),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_with_its_variable(proxy: str, problem: str) -> None:
    assert importlib.util.find_spec("socks") is None
    with pytest.raises(NetworkSettingsError, match=f"^all_proxy={re.escape(proxy)}: {problem}"):
        check_request("http://r.example/", {"proxies": {"all": proxy}}, {"all_proxy": proxy})


def test_usable_proxies_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy in ("", "http://p.example:3128", "HTTPS://p.example", "p.example:3128", "u:p@[::1]:8"):
        check_proxy(proxy, {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    check_proxy("socks5h://127.0.0.1:9", {})


def test_every_session_checks_before_it_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURL_CA_BUNDLE", f"{tmp_path}/none")
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("PIP_CERT", raising=False)
    for options in ({}, {"stream": True}):
        with Session() as session, pytest.raises(NetworkSettingsError, match="CURL_CA_BUNDLE="):
            session.get(HTTPS, **options)
