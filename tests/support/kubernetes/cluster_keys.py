"""Certificates, tokens and kubeconfig files of the test cluster. IO."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.kubernetes.cluster_network import Network

SERVICE = "10.96.0.1"
"""Address of the service `kubernetes`: the first of the range of services."""
DAYS = "2"
ADMIN = "admin"
CONFIGURATION = "openssl.cnf"
EXTENSIONS = """\
[req]
distinguished_name = named_by_an_option
[named_by_an_option]
[authority]
basicConstraints = critical, CA:TRUE
[server]
basicConstraints = critical, CA:FALSE
subjectAltName = {names}
"""
"""A server's certificate is no authority's: Go accepts that, but rustls, which vllm-router uses, does not."""
SIGNED = ("-CA", "ca.crt", "-CAkey", "ca.key", "-extensions", "server")


def make_keys(folder: Path, nodes: Sequence[Network]) -> None:
    """Write the cluster's authority, the API server's certificates, tokens, and a kubeconfig for each user."""
    folder.mkdir()
    names = ",".join(f"IP:{address}" for address in ("127.0.0.1", SERVICE, nodes[0].address))
    (folder / CONFIGURATION).write_text(EXTENSIONS.format(names=names))
    _openssl(folder, *_request("ca", "/CN=drydock-test"), "-extensions", "authority")
    _openssl(folder, *_request("api", "/CN=kube-apiserver"), *SIGNED)
    _openssl(folder, *_request("kubelet-client", "/O=system:masters/CN=kube-apiserver"), *SIGNED)
    _openssl(folder, "genrsa", "-out", "accounts.key", "2048")
    _openssl(folder, "rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")
    users = {ADMIN: (ADMIN, "system:masters")}
    users |= {f"node{node.number}": (f"system:node:node{node.number}", "system:nodes") for node in nodes}
    tokens = {user: secrets.token_hex(16) for user in users}
    rows = [f'{tokens[user]},{name},{user},"{group}"\n' for user, (name, group) in users.items()]
    (folder / "tokens.csv").write_text("".join(rows))
    for user in users:
        (folder / f"{user}.kubeconfig").write_text(json.dumps(_kubeconfig(folder, nodes[0].address, tokens[user])))


def _request(name: str, subject: str) -> tuple[str, ...]:
    key_options = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.crt")
    return "req", "-x509", "-config", CONFIGURATION, *key_options, "-days", DAYS, "-subj", subject


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def _kubeconfig(folder: Path, address: str, token: str) -> dict[str, object]:
    cluster = {"server": f"https://{address}:6443", "certificate-authority": str(folder / "ca.crt")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
