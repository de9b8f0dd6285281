"""What signing needs: a key pair; and for keyless signing two services, on a loopback address.

A certificate authority that accepts every token (Fulcio's API: https://github.com/sigstore/fulcio, fulcio.proto,
CreateSigningCertificate) and a timestamp authority (RFC 3161), both implemented with openssl. There is no transparency
log.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.needed_programs import require_program

ISSUER = "https://issuer.example"
SINCE = "start-time=2024-01-01T00:00:00Z"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
AUTHORITY = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
STAMP_EXTENSIONS = "keyUsage=critical,digitalSignature\nextendedKeyUsage=critical,timeStamping\n"
STAMP_CONFIG = """[tsa]
default_tsa=authority
[authority]
serial=serial
default_policy=1.2.3.4
digests=sha256,sha384,sha512
signer_digest=sha256
ess_cert_id_alg=sha256
"""


def key_pair(folder: Path) -> Path:
    """Create a cosign key pair and return the private key's file; cosign is installed if needed."""
    cosign = require_program("cosign", minimum=(2, 6))
    environment = {**os.environ, "COSIGN_PASSWORD": ""}
    subprocess.run([cosign, "generate-key-pair"], cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "cosign.key"


class Sigstore:
    """Both services; cosign needs the file `config` to sign and the file `root` to verify."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._authorities()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._describe(f"http://127.0.0.1:{self._server.server_port}")
        self.config, self.root = str(folder / "config.json"), str(folder / "root.json")

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def openssl(self, *arguments: str) -> bytes:
        return subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True).stdout

    def _authorities(self) -> None:
        extensions = [word for text in AUTHORITY for word in ("-addext", text)]
        self.openssl("req", "-x509", *CURVE, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/O=tests",
                     *extensions)  # fmt: skip
        self.openssl("req", *CURVE, "-keyout", "stamps.key", "-out", "stamps.csr", "-subj", "/O=tests/CN=stamps")
        self._write("stamps.ext", STAMP_EXTENSIONS)
        self._issue("-req", "-in", "stamps.csr", "-extfile", "stamps.ext", "-out", "stamps.pem")
        self._write("stamping.cnf", STAMP_CONFIG)
        self._write("serial", "01\n")
        self._write("chain.pem", self._read("stamps.pem") + self._read("ca.pem"))

    def _issue(self, *arguments: str) -> bytes:
        return self.openssl("x509", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "1", *arguments)

    def _describe(self, url: str) -> None:
        ca, stamps = f"--fulcio=url={url},{SINCE}", f"--tsa=url={url}/stamps"
        self._cosign(
            "trusted-root", "root.json", f"{ca},certificate-chain=ca.pem", f"{stamps},certificate-chain=chain.pem"
        )
        more = "api-version=1,operator=tests"
        self._cosign(
            "signing-config", "config.json", f"{ca},{more}", f"{stamps},{SINCE},{more}", "--tsa-config=EXACT:1"
        )

    def _cosign(self, kind: str, out: str, *arguments: str) -> None:
        command = ["cosign", kind, "create", *arguments, "--out", out]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def certificate(self, token: str, request: dict[str, Any]) -> bytes:
        """Return a certificate for the requested key and the identity in the token."""
        claims = json.loads(base64.urlsafe_b64decode(f"{token.split('.')[1]}=="))
        self._write("leaf.pub", request["publicKeyRequest"]["publicKey"]["content"])
        self._write(
            "leaf.ext",
            f"subjectAltName=critical,email:{claims['email']}\nkeyUsage=critical,digitalSignature\n"
            f"extendedKeyUsage=codeSigning\n1.3.6.1.4.1.57264.1.8=ASN1:UTF8String:{claims['iss']}\n",
        )
        leaf = self._issue("-new", "-subj", "/", "-force_pubkey", "leaf.pub", "-extfile", "leaf.ext").decode()
        chain = {"certificates": [leaf, self._read("ca.pem")]}
        return json.dumps({"signedCertificateEmbeddedSct": {"chain": chain}}).encode()

    def stamp(self, query: bytes) -> bytes:
        """Return a timestamp."""
        (self.folder / "query").write_bytes(query)
        self.openssl("ts", "-reply", "-config", "stamping.cnf", "-queryfile", "query", "-signer", "stamps.pem",
                     "-inkey", "stamps.key", "-out", "answer")  # fmt: skip
        return (self.folder / "answer").read_bytes()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        def answer(path: str, token: str, body: bytes) -> bytes:
            with self._lock:
                return self.stamp(body) if path == "/stamps" else self.certificate(token, json.loads(body))

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                data = answer(self.path, token, self.rfile.read(int(self.headers["Content-Length"])))
                stamps = self.path == "/stamps"
                self.send_response(201 if stamps else 200)
                self.send_header("Content-Type", "application/timestamp-reply" if stamps else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Do not log."""

        return Handler

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text()


def token(email: str) -> str:
    """Return an identity token with an empty signature."""
    claims = {"iss": ISSUER, "sub": email, "email": email, "email_verified": True, "aud": "sigstore"}
    claims |= {"iat": int(time.time()), "exp": int(time.time()) + 600}
    return ".".join(_part(value) for value in ({"alg": "RS256", "typ": "JWT"}, claims, {}))


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
