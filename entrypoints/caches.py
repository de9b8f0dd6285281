"""Where everything that is written at run time goes: one volume, a folder for each purpose, a key for each image.

`cache_settings` is pure and says which variables do that; `prepare` makes the folders. IO.

The key keeps one image's compiled code from another's: variant, vLLM's version, the image's digest when it is known.
Downloads are found by content and need none. vLLM 0.32's own key below VLLM_CACHE_ROOT leaves out what changes from
pod to pod (VLLM_HOST_IP, HOME, ports: `vllm.envs.compile_factors`), so no variable is neutralised here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from entrypoints.errors import HOST, EntrypointError
from entrypoints.model import Mount

FOLDERS = (
    "HOME",
    "XDG_CACHE_HOME",
    "VLLM_CACHE_ROOT",
    "VLLM_CONFIG_ROOT",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "HF_HOME",
)
"""The settings whose value is a folder that must exist and take files."""

DECIDED = ("PT_HPU_RECIPE_CACHE_CONFIG",)
"""What an accelerator's decisions add to them; the folder ends at the first comma."""

SHARED = 0o770
"""Group-writable: an arbitrary UID comes with group 0, and the next start may have another UID."""
PRIVATE = 0o700
DIGEST_CHARACTERS = 12
"""Of the image's digest, in a folder's name: enough to tell images apart, short enough to read."""


def cache_settings(
    profile: Mapping[str, Any], env: Mapping[str, str], cache: Mount, uid: int
) -> list[tuple[str, str, str]]:
    """Return (variable, value, because) for each place that vLLM and its libraries write to."""
    root = cache_root(env, cache, uid)
    key = cache_key(profile, env)
    lost = "" if root == cache.path else f" ({cache.path} cannot be written; gone when the container ends)"
    settings = [
        ("HOME", f"{root}/home", f"the home folder must be writable for any UID{lost}"),
        ("XDG_CACHE_HOME", f"{root}/xdg/{key}", f"libraries' caches, kept per stack{lost}"),
        (
            "VLLM_CACHE_ROOT",
            f"{root}/vllm/{key}",
            f"compiled graphs and model inspection, kept per stack{lost}",
        ),
        ("VLLM_CONFIG_ROOT", f"{root}/config", f"vLLM's settings folder must be writable{lost}"),
        (
            "TORCHINDUCTOR_CACHE_DIR",
            f"{root}/inductor/{key}",
            f"compiled kernels, kept per stack{lost}",
        ),
        ("TRITON_CACHE_DIR", f"{root}/triton/{key}", f"compiled kernels, kept per stack{lost}"),
        ("HF_HOME", f"{root}/hub", f"downloaded models, shared by all images{lost}"),
        ("USER", "drydock", "libraries ask for a user name, which a UID without a passwd entry lacks"),
        ("VLLM_NO_USAGE_STATS", "1", "a server reports nothing about its use unless told to"),
    ]
    if "VLLM_NO_USAGE_STATS" not in env:
        settings.append(("DO_NOT_TRACK", "1", "as VLLM_NO_USAGE_STATS, for the libraries"))
    if env.get("DRYDOCK_OFFLINE") == "1":
        because = "DRYDOCK_OFFLINE=1: what is not in the cache is an error, not a download"
        settings += [("HF_HUB_OFFLINE", "1", because), ("TRANSFORMERS_OFFLINE", "1", because)]
    return settings


def chosen_environment(env: Mapping[str, str], cache: Mount) -> dict[str, str]:
    """Return the environment without what nobody chose: HOME as the image or the container runtime filled it in."""
    filled_in = ("", "/", f"{cache.path}/home", "/cache/home")
    return {name: value for name, value in env.items() if name != "HOME" or value not in filled_in}


def cache_root(env: Mapping[str, str], cache: Mount, uid: int) -> str:
    """Return the cache volume, or a private folder below TMPDIR when the volume cannot be written."""
    return cache.path if cache.writable else f"{env.get('TMPDIR') or '/tmp'}/drydock-{uid}"  # noqa: S108 -- made 0700, its owner checked


def cache_key(profile: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return the name that this image's compiled code is kept under."""
    digest = env.get("DRYDOCK_IMAGE_DIGEST", "").removeprefix("sha256:")[:DIGEST_CHARACTERS]
    return "-".join(part for part in (profile["variant"], profile["vllm"], digest) if part)


def prepare(settings: Mapping[str, str], root: str, *, private: bool) -> None:
    """Make the cache folders that `settings` name, below `root`; a private root must be ours alone.

    Raises HOST for the first folder that cannot be made or written.
    """
    if private:
        _make(root, PRIVATE)
        _refuse_a_stranger(root)
    for folder in _folders(settings):
        _make(folder, SHARED)


def _folders(settings: Mapping[str, str]) -> Iterable[str]:
    return (settings[name].partition(",")[0] for name in (*FOLDERS, *DECIDED) if name in settings)


def write(path: str, text: str) -> None:
    """Write a file below the cache, whole or not at all. Raises HOST."""
    _make(os.path.dirname(path), SHARED)
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise EntrypointError(HOST, f"{path}: cannot be written: {error.strerror}", _HINT) from error


def _make(folder: str, mode: int) -> None:
    """Make a folder and what is missing above it. mkdir is atomic: two starts at once both find it made."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    target = missing[0] if missing else folder
    try:
        for each in reversed(missing):
            _make_one(each, mode)
    except OSError as error:
        raise EntrypointError(HOST, f"{target}: cannot make this folder: {error.strerror}", _HINT) from error
    if not os.path.isdir(target):
        raise EntrypointError(HOST, f"{target}: expected a folder, found a file", _HINT)
    if not os.access(target, os.W_OK | os.X_OK):
        found = f"uid {os.getuid()}, gid {os.getgid()} may not write there"
        raise EntrypointError(HOST, f"{target}: {found}", _HINT)


def _make_one(folder: str, mode: int) -> None:
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    os.chmod(folder, mode)  # the umask does not apply to chmod


def _refuse_a_stranger(folder: str) -> None:
    """Raise HOST unless the folder is a real one and ours: anyone may have made that name in a shared /tmp."""
    status = os.lstat(folder)
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.getuid()
        or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise EntrypointError(
            HOST, f"{folder}: expected a folder of uid {os.getuid()} that nobody else writes to", _HINT
        )


_HINT = "mount a volume that uid or group 0 can write at /cache, such as -v drydock:/cache, or --tmpfs /tmp for a try"
