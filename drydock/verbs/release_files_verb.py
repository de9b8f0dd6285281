"""The verb `release files`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drydock.cli.task_helpers import report_written
from drydock.cli.verb import Verb
from drydock.model.shared_options import JsonOption


class ReleaseFilesOptions(JsonOption):
    """Where the files of a release go, and how they are signed."""

    output: str
    """folder to write to"""
    sign_key: str = ""
    """sign with this cosign key: a file, env://NAME or a KMS URI [default: DRYDOCK_COSIGN_KEY, else keyless]"""
    unsigned: bool = False
    """do not sign: for a try"""
    upload: Literal["", "github", "gitlab"] = ""
    """github or gitlab: also upload them from a CI job, to the page of the release or its package"""


@Verb
def make_release_files(options: ReleaseFilesOptions) -> None:
    """Build the files of the release at this commit, twice, and sign them. CI runs it for a tag."""
    from drydock.ci import upload
    from drydock.config.project_choice import DRYDOCK
    from drydock.development import release_files

    if options.upload:
        upload.check_upload_server(options.upload)
    signer = release_files.choose_signer(options.sign_key, unsigned=options.unsigned)
    files = release_files.make_release_files(DRYDOCK, Path(options.output), signer)
    if options.upload:
        upload.upload_release_files(options.upload, files)
    report_written(files, json=options.json)
