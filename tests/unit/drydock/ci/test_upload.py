"""The files of a release go to the server of the CI job, with the job's own token and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from drydock.ci.upload import check_upload_server, upload_release_files
from drydock.cli.version import read_own_version
from drydock.core.errors import CredentialsError, InputError, RegistryError
from tests.support.loopback import ThreadedServer


class GitLab:
    """A server that keeps what is put, or answers with a status."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, bytes]] = {}
        self.status = 201
        fake_gitlab = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fake_gitlab.kept[self.path] = (self.headers["JOB-TOKEN"], body)
                self.send_response(fake_gitlab.status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Do not log."""

        self.server = ThreadedServer(Handler)

    @property
    def variables(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server.server_port}"
        return {"CI_API_V4_URL": url, "CI_PROJECT_ID": "7", "CI_JOB_TOKEN": "secret-token"}


@pytest.fixture
def gitlab() -> Iterator[GitLab]:
    fake_gitlab = GitLab()
    with fake_gitlab.server:
        yield fake_gitlab


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "SHA256SUMS").write_bytes(b"sums")
    return tmp_path / "SHA256SUMS"


def test_gitlab_gets_a_package(gitlab: GitLab, file: Path) -> None:
    upload_release_files("gitlab", [file], gitlab.variables)
    path = f"/projects/7/packages/generic/drydock/{read_own_version()}/SHA256SUMS"
    assert gitlab.kept == {path: ("secret-token", b"sums")}


@pytest.mark.parametrize(("status", "error"), [(403, CredentialsError), (500, RegistryError), (302, RegistryError)])
def test_a_server_that_refuses_or_sends_elsewhere_is_an_error(
    gitlab: GitLab, file: Path, status: int, error: type[Exception]
) -> None:
    gitlab.status = status
    with pytest.raises(error, match=str(status)):
        upload_release_files("gitlab", [file], gitlab.variables)
    assert len(gitlab.kept) == 1


GITHUB = {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "acme/drydock", "GH_TOKEN": "t"}


@pytest.mark.parametrize("code", [0, 1])
def test_github_gets_a_release_of_the_tag(file: Path, tmp_path: Path, code: int) -> None:
    gh = tmp_path / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\necho no tag >&2\nexit {code}\n')
    gh.chmod(0o755)
    environment = {**GITHUB, "PATH": f"{gh.parent}:{os.environ['PATH']}"}
    if code:
        with pytest.raises(RegistryError, match="gh release create: exit 1: no tag"):
            upload_release_files("github", [file], environment)
    else:
        upload_release_files("github", [file], environment)
    words = (tmp_path / "words").read_text().split("\n")
    assert words[:6] == ["release", "create", f"v{read_own_version()}", "--repo", "acme/drydock", "--verify-tag"]
    assert words[7:-1] == [f"https://git.example/acme/drydock/blob/v{read_own_version()}/CHANGELOG.md", str(file)]


def test_what_is_missing_is_named_before_anything_is_built() -> None:
    with pytest.raises(InputError, match="--upload gitlab: CI_API_V4_URL, CI_JOB_TOKEN: not set"):
        check_upload_server("gitlab", {"CI_PROJECT_ID": "7"})
