"""Any other first word, such as `docker run IMG bash`: a program of the image, in vLLM's environment. IO."""

from __future__ import annotations

import os
from collections.abc import Mapping

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.facts.image_files import make_program_environment, read_profile
from entrypoints.request.arguments import VERBS, Arguments
from entrypoints.request.flags import API_KEY_VARIABLE


def run_exec(arguments: Arguments, env: Mapping[str, str]) -> int:
    """Replace this process by another program, with the environment that vLLM gets from the base. Raises USAGE.

    vllm-router with a key stays below this process.
    """
    command = arguments.vllm
    if command[0] == "vllm-router" and API_KEY_VARIABLE in env:
        from entrypoints.serve.router import run_router

        return run_router(command[1:], make_program_environment(env), read_profile(env)["python"])
    try:
        os.execvpe(command[0], command, make_program_environment(env))  # noqa: S606 - the user's own command
    except (OSError, ValueError) as error:
        from difflib import get_close_matches

        close = get_close_matches(command[0], VERBS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"verbs: {', '.join(VERBS)}"
        reason = getattr(error, "strerror", "") or error
        message = f"unknown verb {command[0]!r}, and no such command can be run: {reason}"
        raise EntrypointError(USAGE, message, hint) from error
