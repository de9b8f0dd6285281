"""What a row is built of, served on this machine under its real names, over TLS, with stand-in content.

A proxy takes the place of the network: it leads the name of an index or git host to a web server here, and refuses all
others. The engine pulls a base itself, without that proxy, so the vendor's registry is a mirror (mirrors.yaml).
"""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import ssl
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import docker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from drydock.build import build, standins
from drydock.build.build_job import prepare_job
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.inputs.indexes import pips_default
from drydock.inputs.store import default_store
from drydock.lock import lockfile
from drydock.model.bases import ImageBase
from drydock.model.locked import Lock
from drydock.model.variant import Variant
from drydock.oci.reference import parse_reference
from tests.support import pushed
from tests.support.git import git
from tests.support.hashes import sha256
from tests.support.loopback import Handler, Loopback, ThreadedServer
from tests.support.servers import Registry

ENGINE_CERTIFICATES = Path("/etc/docker/certs.d")
PLUGIN_NEEDS = ("torch", "torchvision", "torchaudio")
"""What the wheel of a plugin requires, which is why a row's overrides have an effect."""


def make_certificates(folder: Path, hosts: set[str], address: str) -> tuple[Path, Path]:
    """Make an authority, and a certificate of these names.

    Return the file of the authority, and that of the certificate with its key.
    """
    names = ",".join((*(f"DNS:{host}" for host in sorted(hosts)), f"IP:{address}"))
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    extensions = ("-addext", "basicConstraints=CA:FALSE", "-addext", f"subjectAltName={names}")
    issued = ("-CA", "ca.pem", "-CAkey", "ca.key", *extensions)
    for words in (
        ("-keyout", "ca.key", "-out", "ca.pem", "-subj", "/O=rehearsal"),
        ("-keyout", "server.key", "-out", "server.crt", "-subj", "/O=rehearsal/CN=server", *issued),
    ):
        subprocess.run(["openssl", "req", "-x509", *key, *words], cwd=folder, check=True, capture_output=True)
    (folder / "server.pem").write_text((folder / "server.key").read_text() + (folder / "server.crt").read_text())
    return folder / "ca.pem", folder / "server.pem"


@contextmanager
def trusted_by_engine(host: str, authority: Path) -> Iterator[None]:
    """Let the engine trust a registry's certificate (https://docs.docker.com/engine/security/certificates/)."""
    folder = ENGINE_CERTIFICATES / host
    folder.mkdir(parents=True)
    try:
        shutil.copy(authority, folder / "ca.crt")
        yield
    finally:
        shutil.rmtree(folder)


class Web(Loopback):
    """Serves pages of indexes and files over TLS, and the repositories of a folder as git hosts do."""

    def __init__(self, certificate: Path, repositories: Path) -> None:
        super().__init__()
        self.RequestHandlerClass = WebHandler
        self.repositories = repositories
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)


class WebHandler(Handler):
    server: Web

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        if "/info/refs" in self.path:
            self._answer_git(b"")
        else:
            self.path = f"//{self.headers['Host']}{self.path}"
            super().do_GET()

    def do_HEAD(self) -> None:  # noqa: N802 - as above
        self.path = f"//{self.headers['Host']}{self.path}"
        super().do_HEAD()

    def do_POST(self) -> None:  # noqa: N802 - as above
        self._answer_git(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer_git(self, body: bytes) -> None:
        """Let git's own server answer (git-http-backend(1))."""
        url = urlsplit(self.path)
        variables = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.repositories),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH_INFO": url.path,
            "QUERY_STRING": url.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers["Content-Type"] or "",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers["Content-Encoding"] or "",
            "GIT_PROTOCOL": self.headers["Git-Protocol"] or "",
        }
        answer = subprocess.run(["git", "http-backend"], input=body, env=variables, capture_output=True, check=False)
        head, _, content = answer.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in {**fields, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


class Proxy(ThreadedServer):
    """Leads a name to a port of this machine, and refuses any other."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.ports = ports
        super().__init__(ProxyHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class ProxyHandler(BaseHTTPRequestHandler):
    server: Proxy

    def do_CONNECT(self) -> None:
        port = self.server.ports.get(self.path.rpartition(":")[0])
        if port is None:
            self.send_error(502, "not reachable")
            return
        with socket.create_connection(("127.0.0.1", port)) as far:
            self.send_response(200)
            self.end_headers()
            _copy_both_ways(self.connection, far)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Do not log."""


def _copy_both_ways(near: socket.socket, far: socket.socket) -> None:
    others = {near: far, far: near}
    while True:
        for ready in select.select([*others], [], [])[0]:
            data = ready.recv(1 << 16)
            if not data:
                return
            others[ready].sendall(data)


class Vendors:
    """Serves all that a row is built of, and a registry to publish to, which requires credentials."""

    def __init__(self, folder: Path, variant: Variant) -> None:
        folder.mkdir()
        assert isinstance(variant.base, ImageBase)
        self.variant, self.folder = variant, folder
        self.base = parse_reference(variant.base.reference)
        self.committed = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, variant.id))
        self.names = {self.base.host, *(urlsplit(index.url).netloc for index in variant.indexes)}
        sources = {urlsplit(source.repository or source.url).netloc for source in variant.sources}
        hosts = {*self.names, *sources, urlsplit(pips_default()).netloc}
        address = docker.from_env().networks.get("bridge").attrs["IPAM"]["Config"][0]["Gateway"]
        self.authority, self.certificate = make_certificates(folder, hosts, address)
        self.registry = Registry(folder / "registry", address=address, certificate=self.certificate)
        self.target = Registry(folder / "target", users=True, address=address, certificate=self.certificate)
        self.web = Web(self.certificate, folder / "repositories")
        web_port = self.web.server_address[1]
        self._ports = dict.fromkeys(hosts, web_port)
        self.proxy = Proxy({name: port for name, port in self._ports.items() if name not in self.names})
        self.replaced: dict[str, str] = {}
        """Commits and hashes in the row's stacks, and those of the stand-ins."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.web)
            stack.enter_context(self.proxy)
            self._serve_content()
            for server in (self.registry, self.target):
                stack.enter_context(trusted_by_engine(server.host, self.authority))
            stack.enter_context(self.target)
            self._servers = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def _serve_content(self) -> None:
        stubs = standins.make_stubs(self.variant)
        self.supplied = [stubs[item.name] for item in self.variant.supplied]
        for source in self.variant.sources:
            tree = self.folder / "trees" / source.name
            shutil.copytree(stubs[source.name], tree)
            if source.sha256:
                self._serve_archive(source.url, source.sha256, tree)
            elif source.commit:
                self._serve_repository(source.repository, source.commit, tree)
        self._serve_wheels()
        self._push_base()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of a machine whose network is the proxy, and which trusts the authority."""
        trust = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "GIT_SSL_CAINFO")
        mirrors = self.folder / "mirrors.yaml"
        mirrors.write_text(f"registries: {{{self.base.host}: '{self.registry.host}'}}\n")
        return {
            **dict.fromkeys(trust, str(self.authority)),
            "HTTPS_PROXY": self.proxy.url,
            "NO_PROXY": self.registry.host.partition(":")[0],
            "DRYDOCK_MIRRORS": str(mirrors),
            "PIP_CONFIG_FILE": os.devnull,
        }

    def open(self) -> None:
        """Let the vendors be reached, too."""
        self.proxy.ports |= self._ports
        self._servers.enter_context(self.registry)

    def rewrite_stacks(self, templates: Path) -> None:
        """Let stacks name the commits and hashes of the stand-ins, and the Python of their base."""
        python = find_variant(read_matrix(DRYDOCK), standins.ROOT_OF).python
        for path in templates.glob("*/stacks/*.yaml"):
            text = re.sub(r'^python: ".*"$', f'python: "{python}"', path.read_text(), flags=re.MULTILINE)
            for old, new in self.replaced.items():
                text = text.replace(old, new)
            path.write_text(text)

    # --- content ----------------------------------------------------------------------------------------------------

    def _serve_archive(self, url: str, old: str, tree: Path) -> None:
        archive = self.folder / "archive"
        with tarfile.open(archive, f"w:{url.rpartition('.')[2]}") as tar:
            tar.add(tree, tree.name)
        data = archive.read_bytes()
        self.web.files[url.removeprefix("https:")] = data
        self.replaced[old] = sha256(data)

    def _serve_repository(self, address: str, old: str, tree: Path) -> None:
        repository = self.web.repositories / urlsplit(address).path.removeprefix("/")
        if not repository.is_dir():
            git(self.folder, "init", "--quiet", "--bare", str(repository))
        git(tree, "init", "--quiet")
        git(tree, "add", "--all")
        git(tree, "commit", "--quiet", "--allow-empty", f"--message={tree.name}")
        git(tree, "push", "--quiet", str(repository), f"HEAD:refs/heads/{tree.name}")
        self.replaced[old] = git(tree, "rev-parse", "HEAD")

    def _serve_wheels(self) -> None:
        public = {name: index.url for index in self.variant.indexes for name in index.packages}
        wheels = [(canonicalize_name(name), wheel) for name, wheel in self._make_wheels()]
        for name, (filename, data) in wheels:
            page = f"{public.get(name, pips_default())}/{name}/".removeprefix("https:")
            self.web.files[f"{page}{filename}"] = data
            link = f'<a href="{filename}#sha256={sha256(data)}">{filename}</a>\n'
            self.web.files[page] = self.web.files.get(page, b"") + link.encode()

    def _make_wheels(self) -> Iterator[tuple[str, tuple[str, bytes]]]:
        """Yield a stand-in of each distribution that the row names, and uv, which runs in the build, as it is."""
        versions = dict(_list_versions(self.variant, self.committed))
        uv = prepare_job(DRYDOCK, "cpu").pins.tools[0]
        build.fetch_contexts(prepare_job(DRYDOCK, "cpu"), without={"base", "wheels"})
        yield uv.name, (uv.filename, default_store().path(uv.sha256).read_bytes())
        carrier = standins.find_vllm_carrier(self.variant)
        for name, version in versions.items():
            is_vllm = name == self.variant.vllm.distribution and carrier == "layers"
            module = {f"{name.replace('-', '_')}.py": "A = 1\n"}
            modules = standins.stub_vllm(self.variant.module) if is_vllm else module
            needs = [need for need in PLUGIN_NEEDS if name == "vllm-ascend" and need in versions]
            yield name, standins.make_stub_wheel(name, version, modules, needs)

    def _push_base(self) -> None:
        context = standins.make_stand_in_base(self.variant, prepare_job(DRYDOCK, "cpu"))
        layout = Path(context.removeprefix("oci-layout://").partition("@")[0])
        with Registry(self.registry.folder) as plain:
            pushed.push(layout, plain.host, self.base.repository, tag=self.base.tag)


def _list_versions(variant: Variant, lock: Lock) -> Iterator[tuple[str, str]]:
    """Yield each distribution that a row names with a version that its requirements allow."""
    texts = (*variant.requirements, *variant.build_requirements, *(item.requirement for item in variant.overrides))
    for requirement in map(Requirement, texts):
        if not requirement.marker or requirement.marker.evaluate({"platform_machine": "x86_64"}):
            yield canonicalize_name(requirement.name), _choose_version(requirement, lock)


def _choose_version(requirement: Requirement, lock: Lock) -> str:
    """Return the locked version if there is one, else the first that the requirement names and allows."""
    wheels = [wheel for pins in lock.platforms.values() for layer in pins.layers.values() for wheel in layer]
    versions = [wheel.version for wheel in wheels if wheel.name == canonicalize_name(requirement.name)]
    versions += [item.version for item in requirement.specifier]
    return next((version for version in versions if version in requirement.specifier), "1.0")
