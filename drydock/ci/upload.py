"""The files of a release → the server that CI runs on. IO."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import requests

from drydock.cli.version import read_own_version
from drydock.core.errors import CredentialsError, InputError, RegistryError

SERVERS = {
    "github": ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GH_TOKEN"),
    "gitlab": ("CI_API_V4_URL", "CI_PROJECT_ID", "CI_JOB_TOKEN"),
}
"""Server → variables that its jobs have."""
TIMEOUT = 300


def check_upload_server(form: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise InputError unless files can be uploaded from here: before minutes of work."""
    if missing := [name for name in SERVERS[form] if not env.get(name)]:
        raise InputError(f"--upload {form}: {', '.join(missing)}: not set", hint="only a CI job of a tag uploads files")


def upload_release_files(form: str, files: Sequence[Path], env: Mapping[str, str] = os.environ) -> None:
    """Make the page of the release on GitHub, or its package on GitLab. Raises RegistryError."""
    check_upload_server(form, env)
    place, project, token = (env[name] for name in SERVERS[form])
    if form == "github":
        _to_github(f"{place}/{project}/blob/v{read_own_version()}/CHANGELOG.md", project, files, env)
    else:
        for file in files:
            _to_gitlab(
                f"{place}/projects/{project}/packages/generic/drydock/{read_own_version()}/{file.name}", token, file
            )


def _to_github(notes: str, project: str, files: Sequence[Path], env: Mapping[str, str]) -> None:
    """Make a release of the tag, which must exist."""
    words = ["gh", "release", "create", f"v{read_own_version()}", "--repo", project, "--verify-tag", "--notes", notes]
    try:
        result = subprocess.run([*words, *map(str, files)], env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise InputError("gh: not found on PATH", hint="install GitHub's command line on the runner") from error
    if result.returncode:
        raise RegistryError(f"gh release create: exit {result.returncode}: {result.stderr.strip()}")


def _to_gitlab(url: str, token: str, file: Path) -> None:
    """Put a file. No redirect is followed, because the token would go there too."""
    try:
        with file.open("rb") as data:
            headers = {"JOB-TOKEN": token}
            answer = requests.put(url, data=data, headers=headers, timeout=TIMEOUT, allow_redirects=False)
    except requests.RequestException as error:
        raise RegistryError(f"{url}: {error}") from error
    if answer.status_code in (401, 403):
        raise CredentialsError(f"{url}: {answer.status_code}", hint="the job's token must be allowed to write packages")
    if not 200 <= answer.status_code < 300:  # noqa: PLR2004
        raise RegistryError(f"{url}: {answer.status_code} {answer.text[:200]}")
