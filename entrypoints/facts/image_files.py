"""The files that are written when an image is built, and what they say of it: profile.json and those next to it. IO."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.folders import compute_short_digest
from entrypoints.core.language import ENGLISH, translate_profile
from entrypoints.core.text import VARIABLE_NAME
from entrypoints.request.arguments import Arguments
from entrypoints.request.vllm_lists import VllmLists

Env = Mapping[str, str]

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder entrypoints/."""


def locate_image_file(env: Env, name: str) -> str:
    """Return the path of one of the image's files, which are in the folder of the profile."""
    return os.path.join(os.path.dirname(_locate_profile(env)), name)


def _locate_profile(env: Env) -> str:
    """Return the path of the profile: DRYDOCK_PROFILE, or else next to the package."""
    return env.get("DRYDOCK_PROFILE") or os.path.join(os.path.dirname(PACKAGE), "profile.json")


def read_image_json(env: Env, name: str) -> dict[str, Any]:
    """Return the content of one of the image's JSON files; empty if the image has no such file."""
    try:
        with open(locate_image_file(env, name), encoding="utf-8") as file:
            return json.loads(file.read()) or {}
    except FileNotFoundError:
        return {}


def read_profile(env: Env) -> dict[str, Any]:
    """Read the image's profile, environment and packages. Raises USAGE if there is no profile."""
    path = _locate_profile(env)
    try:
        with open(path, encoding="utf-8") as file:
            profile: dict[str, Any] = json.loads(file.read())
    except (OSError, ValueError) as error:
        message = f"{path}: {error}, expected the image's profile"
        raise EntrypointError(USAGE, message, "unset DRYDOCK_PROFILE") from error
    environment = read_image_json(env, "environment.json")
    return {**profile, "environment": environment, "packages": digest_packages(profile["python"])}


def read_localized_profile(arguments: Arguments, env: Env) -> dict[str, Any]:
    """Read the profile, with texts in the user's language. Raises USAGE."""
    return localize_profile(read_profile(env), arguments, env)


def localize_profile(profile: dict[str, Any], arguments: Arguments, env: Env) -> dict[str, Any]:
    """Return a profile with texts in the user's language; what programs read is English unless --lang says otherwise.

    Raises USAGE.
    """
    for_programs = arguments.options.json or arguments.options.fix_script or arguments.junit
    return translate_profile(profile, arguments.language or (ENGLISH if for_programs else ""), env)


def digest_packages(python: str) -> str:
    """Return a digest of the names and versions of an interpreter's packages, which differs between builds.

    Empty if there are none, or they cannot be listed.
    """
    names = list_dist_folders(python)
    return compute_short_digest("\n".join(names)) if names else ""


def list_dist_folders(python: str) -> list[str]:
    """Return the sorted names of an interpreter's folders NAME-VERSION.dist-info; none if they cannot be listed."""
    lib = os.path.join(os.path.dirname(os.path.dirname(python)), "lib")
    try:
        folders = [os.path.join(lib, name, "site-packages") for name in os.listdir(lib) if name.startswith("python3.")]
        return sorted(name for folder in folders for name in os.listdir(folder) if name.endswith("-info"))
    except OSError:
        return []


def make_program_environment(env: Env) -> dict[str, str]:
    """Return the environment of a program that runs without a plan; what the user set stays.

    It has the variables that the base image's scripts export, and a home folder that no other user can write to.
    """
    from entrypoints.core.folders import choose_private_home

    saved = read_image_json(env, "environment.json")
    return {**env, "HOME": choose_private_home(env), **choose_exported_variables(saved, env)}


def choose_exported_variables(saved: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, str]:
    """Return what a base image's scripts export (set_env.sh, setvars.sh), except what the user changed.

    `templates/tools/environment.py` writes it: variable → [value before the scripts, value after them].
    A variable with another value than before the scripts was set by the user. A function that bash exports, such as
    BASH_FUNC_f%%, is left out.
    """
    variables: Mapping[str, tuple[str, str]] = saved.get("variables", {})
    return {
        name: after
        for name, (before, after) in variables.items()
        if env.get(name, "") == before and VARIABLE_NAME.fullmatch(name)
    }


def read_vllm_lists(env: Env) -> VllmLists:
    """Read what this image's vLLM says of itself, recorded when the image was built; empty if it is not known."""
    recorded = read_image_json(env, "vllm.json")
    assumed = recorded.pop("assumed", "")
    return VllmLists(recorded, assumed)
