"""Where everything is written at run time: one volume, with these folders. Pure.

    hub, modelscope, config            downloads and settings, for all images
    compiled/<image>-<device>/         kernels, which their libraries find by content
    compiled/<image>-<device>-<plan>/  what is valid for one model and one plan only
    quarantine/                        entries that made a start fail

The two folders below `compiled` are entries: each is filled, copied and quarantined as a whole (entries.py). `caches`
in templates/host.yaml, in accelerators and stacks says which variable names which folder.

vLLM 0.32's own key below VLLM_CACHE_ROOT excludes what changes from pod to pod (VLLM_HOST_IP, HOME, ports:
`vllm.envs.compile_factors`). So does this key, and paths are the same at every start, for releases that hash them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from entrypoints.core.folders import UNCHOSEN_HOMES, compute_short_digest, locate_private_root
from entrypoints.core.records import CachePlan, Entry, Facts, Mount, Value
from entrypoints.core.redact import is_secret, redact_value
from entrypoints.core.settings_precedence import ENVIRONMENT, Chosen
from entrypoints.core.units import MIB
from entrypoints.model.hub import is_true
from entrypoints.model.read import ModelFacts

ROOM = 512 * MIB
"""Bytes of a small model's compiled code. With less free space, a start would fill the volume and fail."""
LOCAL_ROOM = 16 << 30
"""Free bytes that a disk at TMPDIR needs before it is used instead of network storage."""
NETWORK = ("9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "smb", "virtiofs")
"""Prefixes of file system types with slow small files and unreliable locks."""

ISA = ("amx", "asimd", "avx", "bf16", "bmi", "f16c", "fma", "i8mm", "neon", "sse", "sve", "sme", "vnni", "vsx", "vxe")
"""Prefixes of processor flags that name instructions; the other flags change with the kernel's version."""

_SERVER = (
    *("--allow", "--api-", "--chat-template", "--disable-fastapi", "--disable-log", "--disable-uvicorn", "--drain"),
    *("--enable-auto-tool", "--enable-log", "--enable-prompt-tokens", "--enable-request", "--enable-server"),
    *("--exclude-tools", "--fingerprint", "--h11", "--host", "--log-", "--max-log", "--middleware", "--model-name"),
    *("--port", "--reasoning-parser", "--response-role", "--return-tokens", "--root-path", "--served-model-name"),
    *("--shutdown-timeout", "--ssl-", "--tokens-only", "--tool-", "--uds", "--uvicorn", "--config", "--otlp"),
)
"""Prefixes of flags of vLLM's HTTP server and its logs, which change no compiled code."""
_HOSTS = (
    "--data-parallel-address",
    "--data-parallel-rpc",
    "--data-parallel-start",
    "--headless",
    "--master-",
    "--node-rank",
)
"""Prefixes of flags that differ between the hosts of one server, or between its starts, and change no compiled code."""
_VOLATILE = (
    *("DO_NOT_TRACK", "DRYDOCK_", "GOMP_", "HF_", "HOME", "HUGGING", "KMP_", "LD_PRELOAD", "OMP_", "TRANSFORMERS_"),
    *("USER", "VLLM_HOST", "VLLM_LOG", "VLLM_NO_USAGE", "VLLM_PORT", "VLLM_RPC"),
    *("MASTER_", "VLLM_API_KEY", "VLLM_NIXL_SIDE", "VLLM_DP_MASTER", "VLLM_KEEP", "VLLM_HTTP"),
)
"""Prefixes of variables that differ between pods or starts and change no compiled code."""
_VOLATILE_PARTS = ("_VISIBLE_", "_IFNAME", "VISIBLE_DEVICES")
"""Substrings of such names: choice of devices, choice of network interface."""


class CacheFolders(NamedTuple):
    """Where a start writes. Each is a folder that this process can use."""

    shared: str
    """For downloads and settings."""
    work: str
    """For entries, while vLLM runs."""
    why: str = ""
    """Why `work` is not on the volume; empty if it is."""
    publish: bool = False
    """Whether new files in `work` are copied to the volume, which is too slow to work on."""


def choose_cache_folders(
    env: Mapping[str, str], mounts: Mapping[str, Mount], uid: int, *, local_model: bool
) -> CacheFolders:
    """Choose between the volume and a private folder below TMPDIR."""
    cache, private = mounts["cache"], locate_private_root(env, uid)
    if not cache.writable:
        return CacheFolders(private, private, f"{cache.path} cannot be written")
    if cache.total and cache.free < ROOM:
        why = f"{cache.path} is full: {cache.free // MIB} MiB free, expected {ROOM // MIB} MiB"
        return CacheFolders(private if local_model else cache.path, private, why)
    tmp = mounts.get("tmp")
    disk = tmp is not None and tmp.writable and tmp.filesystem not in ("tmpfs", "") and tmp.free >= LOCAL_ROOM
    if disk and cache.filesystem.startswith(NETWORK):
        return CacheFolders(cache.path, private, f"{cache.path} is network storage ({cache.filesystem})", publish=True)
    return CacheFolders(cache.path, cache.path)


def drop_unchosen_home(env: Mapping[str, str], cache: Mount) -> dict[str, str]:
    """Return the environment without HOME where the image or the container runtime set it."""
    unchosen = (*UNCHOSEN_HOMES, f"{cache.path}/home")
    return {name: value for name, value in env.items() if name != "HOME" or value not in unchosen}


def make_cache_plan(
    profile: Mapping[str, Any], facts: Facts, model: ModelFacts, env: Mapping[str, str], chosen: Mapping[str, Chosen]
) -> CachePlan:
    """Return which entries a start uses and where each cache's folder is. `chosen` are all other settings."""
    volume = facts.mounts["cache"]
    locations = choose_cache_folders(env, facts.mounts, facts.user[0], local_model=model.local)
    image = compute_image_factors(profile, facts, env)
    plan = image | compute_plan_factors(model, chosen, profile)
    entries = {
        "device": Entry(make_entry_name(profile, image, {}), image),
        "plan": Entry(make_entry_name(profile, image, plan), plan),
    }
    folders = {"shared": locations.shared} | {
        scope: f"{locations.work}/compiled/{entry.name}" for scope, entry in entries.items()
    }
    set_by_user = {name for name, item in chosen.items() if item.origin == ENVIRONMENT}
    caches = {name: cache for name, cache in profile["caches"].items() if name not in set_by_user}
    carried = tuple(f"{cache['folder']}/{name}" for cache in caches.values() for name in cache["carry"])
    return CachePlan(
        volume=volume.path,
        work=locations.work,
        why=locations.why,
        entries=(entries["device"], entries["plan"]._replace(carry=carried)),
        folders={name: f"{folders[cache['scope']]}/{cache['folder']}" for name, cache in caches.items()},
        sources=tuple(path for path in env.get("DRYDOCK_CACHE_FROM", "").split(":") if path),
        publish=locations.publish,
    )


def make_hub_environment(profile: Mapping[str, Any], env: Mapping[str, str], facts: Facts) -> dict[str, str]:
    """Return the environment that vLLM will see, as far as it does not depend on a plan: the folders of downloads."""
    cache = facts.mounts.get("cache")
    if cache is None:
        return dict(env)
    folders = make_download_plan(profile, env, facts.mounts, facts.user[0]).folders
    values = {name: profile["caches"][name]["value"].replace("{path}", folder) for name, folder in folders.items()}
    constants = {name: value for name, value, _ in _list_constant_settings(env)}
    return values | constants | drop_unchosen_home(env, cache)


def make_download_plan(
    profile: Mapping[str, Any], env: Mapping[str, str], mounts: Mapping[str, Mount], uid: int
) -> CachePlan:
    """Return the folders of downloads, for a program that runs no plan and so has no entries."""
    locations = choose_cache_folders(env, mounts, uid, local_model=False)
    shared = {name: cache for name, cache in profile["caches"].items() if cache["scope"] == "shared"}
    return CachePlan(
        volume=mounts["cache"].path,
        work=locations.work,
        why=locations.why,
        folders={name: f"{locations.shared}/{cache['folder']}" for name, cache in shared.items()},
    )


def make_cache_settings(
    profile: Mapping[str, Any], plan: CachePlan, volume: Mount, env: Mapping[str, str]
) -> dict[str, Value]:
    """Return the variables that make vLLM and its libraries write where the plan says."""
    suffix = f" ({plan.why})" if plan.why else ""
    values = {
        name: Value(_format_cache_value(profile, name, folder, volume), f"{profile['caches'][name]['because']}{suffix}")
        for name, folder in plan.folders.items()
    }
    return values | {name: Value(value, because) for name, value, because in _list_constant_settings(env)}


def _format_cache_value(profile: Mapping[str, Any], name: str, folder: str, volume: Mount) -> str:
    """Insert a folder, and a limit in MiB, into a variable's value. The limit is at most half of the free space."""
    cache = profile["caches"][name]
    if not cache["limit"]:
        return str(cache["value"]).replace("{path}", folder)
    limit = int(profile["thresholds"][cache["limit"]]["value"])
    if 0 < volume.free < limit * MIB:
        limit = volume.free // (2 * MIB)
    return str(cache["value"]).replace("{path}", folder).replace("{limit}", str(limit))


def _list_constant_settings(env: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    yield "USER", "drydock", "libraries ask for a user name, which a UID without a passwd entry lacks"
    yield "VLLM_NO_USAGE_STATS", "1", "usage reports are sent only if you enable them"
    if "VLLM_NO_USAGE_STATS" not in env:
        yield "DO_NOT_TRACK", "1", "as VLLM_NO_USAGE_STATS, for the libraries"
    if is_true(env.get("DRYDOCK_OFFLINE")):
        because = "DRYDOCK_OFFLINE=1: what is not in the cache is an error, not a download"
        yield "HF_HUB_OFFLINE", "1", because
        yield "TRANSFORMERS_OFFLINE", "1", because


# --- what names an entry --------------------------------------------------------------------------------------------


def compute_image_factors(profile: Mapping[str, Any], facts: Facts, env: Mapping[str, str]) -> dict[str, str]:
    """Return what compiled kernels depend on, the image and the device, as text that can be compared and shown."""
    digest = env.get("DRYDOCK_IMAGE_DIGEST", "").removeprefix("sha256:")
    image = digest or profile.get("packages") or "unknown"
    factors = {"variant": profile["variant"], "vllm": profile["vllm"], "image": image}
    if not facts.devices:
        return factors | {"device": _format_processor(facts)}
    kinds = sorted({f"{device.name} {device.architecture}".strip() for device in facts.devices})
    machine = facts.processor.architecture
    return factors | {"device": ", ".join(kinds), "machine": machine, "driver": facts.versions.get("driver", "")}


def _format_processor(facts: Facts) -> str:
    processor = facts.processor
    instructions = " ".join(sorted(flag for flag in processor.flags if flag.startswith(ISA)))
    return f"{processor.architecture} {processor.vendor} {processor.model} {compute_short_digest(instructions)}"


def compute_plan_factors(model: ModelFacts, chosen: Mapping[str, Chosen], profile: Mapping[str, Any]) -> dict[str, str]:
    """Return what a compiled model depends on: the model, its revision and every setting that can change code."""
    volatile = tuple(profile["variables"]["not_compiling"])
    setting_factors = {
        name: redact_value(name, str(item.value.value))
        for name, item in sorted(chosen.items())
        if name not in profile["caches"] and shapes_code(name, volatile)
    }
    return {"model": model.name, "revision": model.revision or "unknown", **setting_factors}


def shapes_code(setting: str, volatile: tuple[str, ...] = ()) -> bool:
    """Tell whether a flag or variable can change compiled code; unknown ones can.

    `volatile` are the prefixes of the accelerator's own variables that cannot.
    """
    if is_secret(setting) or setting == "--model":
        return False
    if setting.startswith("-"):
        return not setting.startswith((*_SERVER, *_HOSTS))
    return not setting.startswith((*_VOLATILE, *volatile)) and not any(part in setting for part in _VOLATILE_PARTS)


def make_entry_name(profile: Mapping[str, Any], image: Mapping[str, str], plan: Mapping[str, str]) -> str:
    """Return the folder's name: the variant, and digests of the image's and the plan's factors."""
    return "-".join([profile["variant"], *(_hash_factors(factors) for factors in (image, plan) if factors)])


def _hash_factors(factors: Mapping[str, str]) -> str:
    return compute_short_digest("\n".join(f"{name}={value}" for name, value in sorted(factors.items())))


def describe_changed_factors(actual: Mapping[str, str], expected: Mapping[str, str]) -> tuple[str, ...]:
    """Return one phrase for each factor that differs between an entry and this start."""
    names = [name for name in {**expected, **actual} if actual.get(name) != expected.get(name)]
    return tuple(f"{name} was {actual.get(name, 'not set')}, is {expected.get(name, 'not set')}" for name in names)
