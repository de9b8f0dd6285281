"""`version`: prints the image's variant, accelerator, stack, vLLM version and checked packages. IO."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.core.errors import OK
from entrypoints.core.output import emit_json
from entrypoints.core.text import emit_text
from entrypoints.facts.image_files import read_profile
from entrypoints.facts.packages import list_packages
from entrypoints.request.arguments import Arguments


def run_version(arguments: Arguments, env: Mapping[str, str]) -> int:
    """Print the versions. Raises USAGE."""
    profile = read_profile(env)
    identity = {name: profile[name] for name in ("variant", "accelerator", "stack", "vllm")}
    packages = list_packages(profile["python"])
    if arguments.options.json:
        emit_json({**identity, "packages": packages})
    else:  # a package may repeat a line of the identity, such as vllm's
        emit_text("".join(dict.fromkeys(f"{name} {value}\n" for name, value in (*identity.items(), *packages.items()))))
    return OK
