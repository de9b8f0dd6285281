"""The image's record `run` and facts → a finding for each thing that the container should have and lacks. Pure.

What cannot be seen from inside (the container runtime, the host's network, groups, environment) is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from entrypoints.checks.causes import tell_unread
from entrypoints.checks.findings import evaluate, notice, tell
from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.parse import is_number
from entrypoints.core.records import Facts, Finding, Limits, Notice
from entrypoints.core.units import GIB, MIB
from entrypoints.facts.probes.common.system import CAPABILITIES

USUAL_SHM = 64 * MIB
"""Docker's default without --shm-size and --ipc."""

FREE_SHM = 1 * GIB
"""What ranks and NCCL need at least (NCCL troubleshooting guide: --shm-size=1g)."""

_NAMED = 4
"""How many failures of the probe the error names; `check` shows all."""

Run = Mapping[str, Any]


def examine(profile: Mapping[str, Any], facts: Facts) -> tuple[Finding, ...]:
    """Return every finding: unreadable facts, the profile's checks, and what the container lacks."""
    known = profile.get("findings") or {}
    return (
        *tell_unread(profile, facts),
        *evaluate(profile["checks"], facts, profile.get("facts") or {}, profile.get("words") or {}),
        *(tell(known, each, words=profile.get("words") or {}) for each in missing(profile.get("run") or {}, facts)),
    )


def missing(run: Run, facts: Facts) -> tuple[Notice, ...]:
    """Return a notice for each thing of the record that the container lacks."""
    run = _whole(run, facts)
    kinds = (_privileged, _devices, _mounts, _capabilities, _limits, _shared_memory, _left_files, _security, _user)
    return tuple(finding for kind in kinds for finding in kind(run, facts))


def _whole(run: Run, facts: Facts) -> Run:
    """Add what the record lists for containers with as many cards of this kind; not what several hosts need."""
    found = {device.name for device in facts.devices}
    for more in run.get("more", ()):
        if found & {*more["names"]} and len(facts.devices) >= more["cards"] and more["hosts"] == 1:
            run = {**run, **{field: [*run.get(field, ()), *more[field]] for field in ("devices", "capabilities")}}
    return run


def none_here(profile: Mapping[str, Any], facts: Facts, env: Mapping[str, str]) -> EntrypointError | None:
    """Return the error that no device was found: what was examined, and the options to start the container with.

    None if there are devices, or if the image needs none.
    """
    run = profile.get("run") or {}
    cards = [node["path"] for node in run.get("devices", ()) if node["each"]]
    if facts.devices or not cards:
        return None
    name = profile["accelerator"]
    there = [path for path in cards if facts.grants.get(path)]
    files = f"no usable device behind {' and '.join(there)}" if there else f"{' or '.join(cards)}: none to open"
    failures = [f"{failure.where}: {failure.found}" for failure in facts.failures[:_NAMED]]
    failures += ["…"] if len(facts.failures) > _NAMED else []
    selecting = tuple((profile.get("variables") or {}).get("devices", ()))
    narrowed = [f"{name}={env[name]}" for name in sorted(env) if name.startswith(selecting) and env[name] != "all"]
    looked = "; ".join((files, *narrowed, *failures))
    unset = "".join(f"unset {word.partition('=')[0]}, or " for word in narrowed)
    flags = f"{_cards_flag(run, cards[0])}{_own_files(run)}"
    hint = f"{unset}docker run {flags} …; run `check` to see what else the container lacks"
    return EntrypointError(HOST, f"no {name} device found: {looked}", hint)


def _own_files(run: Run) -> str:
    """Return the options for files that all cards share; --gpus and --runtime include them."""
    if run.get("gpus") or run.get("runtime"):
        return ""
    nodes = (node for node in run.get("devices", ()) if not node["each"] and not node.get("optional"))
    return "".join(f" --device {node['path']}" for node in nodes)


def _values(word: Mapping[str, Any], option: str) -> dict[str, str]:
    """Return the values for a finding's text: the option that adds what is missing, and why it is needed."""
    return {"because": word["because"], "source": word["source"], "option": option}


def _words(run: Run, field: str) -> list[Mapping[str, Any]]:
    """Return the words of a field, one or several, that have no check of their own."""
    value = run.get(field)
    words = value if isinstance(value, (list, tuple)) else [value] if value else []
    return [word for word in words if not word.get("check")]


def _privileged(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield a notice if the container must be privileged and is not."""
    word = run.get("privileged")
    if word and "SYS_ADMIN" not in facts.capabilities:
        yield notice("RUN-008", "no CAP_SYS_ADMIN", "a privileged container", **_values(word, "--privileged"))


def _devices(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield each device file that is missing or cannot be opened; of the files of a card, one kind is enough."""
    nodes = run.get("devices", ())
    cards = [node for node in nodes if node["each"]]
    shared = [node for node in nodes if not node["each"] and not node.get("optional")]
    for node in (node for node in shared if facts.grants.get(node["path"]) is False):
        yield _device(node, [node], facts, f"--device {node['path']}")
    if cards and all(facts.grants.get(node["path"]) is False for node in cards):
        yield _device(cards[0], cards, facts, _cards_flag(run, cards[0]["path"]))


def _device(word: Mapping[str, Any], nodes: list[Mapping[str, Any]], facts: Facts, flag: str) -> Notice:
    """Make a notice of device files that are missing, or belong to a group that this user is not in."""
    from fnmatch import fnmatchcase

    refused = next(
        (pair for pair in facts.refused.items() if any(fnmatchcase(pair[0], node["path"]) for node in nodes)), None
    )
    if refused:
        path, rights = refused
        found = f"{path}: {rights}, and this process is user {facts.user[0]}"
        return notice("RUN-001", found, _OPENABLE, **_values(word, f"--group-add {rights.rpartition(':')[2]}"))
    found = f"{' or '.join(node['path'] for node in nodes)}: not there"
    return notice("RUN-001", found, _OPENABLE, **_values(word, flag))


_OPENABLE = "readable and writable for this user"


def _cards_flag(run: Run, pattern: str) -> str:
    """Return docker's option for cards: --gpus, --runtime, or their device files."""
    if run.get("gpus"):
        return f"--gpus {run['gpus']['value']}"
    if run.get("runtime"):
        visible = run.get("visible")
        chosen = f" --env {visible['value']}{'' if '=' in visible['value'] else '=all'}" if visible else ""
        return f"--runtime {run['runtime']['value']}{chosen}"
    groups = "".join(f" --group-add (number of {word['value']} on the host)" for word in run.get("groups", ()))
    first = pattern.replace("renderD[0-9]*", "renderD128")  # the kernel's first number
    first = first.replace("[0-9]*", "0").replace("[0-9]", "0").replace("*", "0")
    return f"--device {first}{groups}"


def _mounts(run: Run, facts: Facts) -> Iterable[Notice]:
    for mount in run.get("mounts", ()):
        path = mount["path"]
        if not mount["optional"] and facts.grants.get(path) is False:
            flag = f"--mount type=bind,source={path},target={path},readonly"
            yield notice("RUN-002", f"{path}: not there", "the host's own", **_values(mount, flag))


def _capabilities(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield each missing capability, of those that the probe reads."""
    for word in _words(run, "capabilities"):
        name = word["value"].upper().removeprefix("CAP_")
        if name in CAPABILITIES.values() and name not in facts.capabilities:
            given = ", ".join(facts.capabilities) or "none of those that accelerators need"
            yield notice("RUN-003", f"capabilities: {given}", name, **_values(word, f"--cap-add {name}"))


def _limits(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield each resource limit that `serve` cannot raise to the required value, of those that the probe reads."""
    for word in _words(run, "ulimits"):
        name, _, limits = word["value"].partition("=")
        soft = limits.partition(":")[0]
        found = facts.limits.reachable(name) if name in Limits._fields else None
        if found is not None and (soft == "-1" or not is_number(soft) or found < int(soft)):
            expected = "unlimited" if soft == "-1" else f"at least {soft}"
            yield notice("RUN-004", f"{name} = {found}", expected, **_values(word, f"--ulimit {word['value']}"))


def _shared_memory(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield a notice if /dev/shm is too small, or is Docker's default where the host's is required."""
    shm = facts.mounts.get("shm")
    if not shm or not shm.exists:
        return
    found = f"{shm.path} of {shm.total / GIB:.1f} GiB"
    if run.get("ipc"):
        small = _words(run, "ipc") if shm.total <= USUAL_SHM else ()
        for word in small:
            yield notice("RUN-005", found, "the host's own", **_values(word, f"--ipc {word['value']}"))
        return
    for word in _words(run, "shm"):
        needed = parse_size(word["value"])
        if shm.total < needed:
            expected = f"at least {needed / GIB:.1f} GiB"
            yield notice("RUN-005", found, expected, **_values(word, f"--shm-size {word['value']}"))


def _left_files(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield a notice if /dev/shm is large enough and full: a server that was killed leaves its files there."""
    shm = facts.mounts.get("shm")
    if not (run.get("ipc") or run.get("shm")) or not shm or not shm.exists or shm.total <= USUAL_SHM:
        return
    needed = min(FREE_SHM, shm.total // 2)
    if shm.free < needed:
        found = f"{shm.free // MIB} MiB free of {shm.total / GIB:.1f} GiB in {shm.path}"
        yield notice("RUN-009", found, f"at least {needed / GIB:.1f} GiB free")


def parse_size(text: str) -> int:
    """Parse a docker size such as 16g or 512m into bytes; raises ValueError."""
    number = text.lower().removesuffix("b").rstrip("kmgt")
    return int(number) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[text.lower().removesuffix("b")[len(number) :]]


def _security(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield a notice if system calls are filtered and must not be; other options cannot be seen from inside."""
    for word in _words(run, "security"):
        if word["value"] == "seccomp=unconfined" and facts.kernel.get("seccomp") == "filter":
            option = f"--security-opt {word['value']}"
            yield notice("RUN-006", "kernel.seccomp = filter", "disabled", **_values(word, option))


def _user(run: Run, facts: Facts) -> Iterable[Notice]:
    for word in _words(run, "user"):
        user = word["value"].partition(":")[0]
        if is_number(user) and facts.user[0] not in (-1, int(user)):
            option = f"--user {word['value']}"
            yield notice("RUN-007", f"user {facts.user[0]}", f"user {user}", **_values(word, option))
