"""The image's record `run` and facts → a finding for each thing that the container should have and lacks. Pure.

What cannot be seen from inside (the container runtime, the host's network, groups, environment) is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from entrypoints.checks.causes import tell_unread
from entrypoints.checks.findings import evaluate_checks, make_finding, make_notice
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


def examine_facts(profile: Mapping[str, Any], facts: Facts) -> tuple[Finding, ...]:
    """Return every finding: unreadable facts, the profile's checks, and what the container lacks."""
    texts = profile.get("findings") or {}
    return (
        *tell_unread(profile, facts),
        *evaluate_checks(profile["checks"], facts, profile.get("facts") or {}, profile.get("words") or {}),
        *(
            make_finding(texts, notice, words=profile.get("words") or {})
            for notice in find_missing_grants(profile.get("run") or {}, facts)
        ),
    )


def find_missing_grants(run: Run, facts: Facts) -> tuple[Notice, ...]:
    """Return a notice for each thing of the record that the container lacks."""
    run = _extend_run_record(run, facts)
    kinds = (
        _check_privileged,
        _check_devices,
        _check_mounts,
        _check_capabilities,
        _check_limits,
        _check_shared_memory,
        _check_left_files,
        _check_security,
        _check_user,
    )
    return tuple(finding for kind in kinds for finding in kind(run, facts))


def _extend_run_record(run: Run, facts: Facts) -> Run:
    """Add what the record lists for containers with as many cards of this kind; not what several hosts need."""
    card_names = {device.name for device in facts.devices}
    for more in run.get("more", ()):
        if card_names & {*more["names"]} and len(facts.devices) >= more["cards"] and more["hosts"] == 1:
            run = {**run, **{field: [*run.get(field, ()), *more[field]] for field in ("devices", "capabilities")}}
    return run


def explain_no_device(profile: Mapping[str, Any], facts: Facts, env: Mapping[str, str]) -> EntrypointError | None:
    """Return the error that no device was found: what was examined, and the options to start the container with.

    None if there are devices, or if the image needs none.
    """
    run = profile.get("run") or {}
    cards = [node["path"] for node in run.get("devices", ()) if node["each"]]
    if facts.devices or not cards:
        return None
    name = profile["accelerator"]
    granted_paths = [path for path in cards if facts.grants.get(path)]
    files = (
        f"no usable device behind {' and '.join(granted_paths)}"
        if granted_paths
        else f"{' or '.join(cards)}: none to open"
    )
    failures = [f"{failure.where}: {failure.found}" for failure in facts.failures[:_NAMED]]
    failures += ["…"] if len(facts.failures) > _NAMED else []
    selecting = tuple((profile.get("variables") or {}).get("devices", ()))
    narrowed = [f"{name}={env[name]}" for name in sorted(env) if name.startswith(selecting) and env[name] != "all"]
    looked = "; ".join((files, *narrowed, *failures))
    unset = "".join(f"unset {word.partition('=')[0]}, or " for word in narrowed)
    flags = f"{_format_cards_flag(run, cards[0])}{_format_file_options(run)}"
    hint = f"{unset}docker run {flags} …; run `check` to see what else the container lacks"
    return EntrypointError(HOST, f"no {name} device found: {looked}", hint)


def _format_file_options(run: Run) -> str:
    """Return the options for files that all cards share; --gpus and --runtime include them."""
    if run.get("gpus") or run.get("runtime"):
        return ""
    nodes = (node for node in run.get("devices", ()) if not node["each"] and not node.get("optional"))
    return "".join(f" --device {node['path']}" for node in nodes)


def _make_notice_values(word: Mapping[str, Any], option: str) -> dict[str, str]:
    """Return the values for a finding's text: the option that adds what is missing, and why it is needed."""
    return {"because": word["because"], "source": word["source"], "option": option}


def _list_unchecked_words(run: Run, field: str) -> list[Mapping[str, Any]]:
    """Return the words of a field, one or several, that have no check of their own."""
    value = run.get(field)
    words = value if isinstance(value, (list, tuple)) else [value] if value else []
    return [word for word in words if not word.get("check")]


def _check_privileged(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield a notice if the container must be privileged and is not."""
    word = run.get("privileged")
    if word and "SYS_ADMIN" not in facts.capabilities:
        yield make_notice(
            "RUN-008", "no CAP_SYS_ADMIN", "a privileged container", **_make_notice_values(word, "--privileged")
        )


def _check_devices(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield each device file that is missing or cannot be opened; of the files of a card, one kind is enough."""
    nodes = run.get("devices", ())
    cards = [node for node in nodes if node["each"]]
    shared = [node for node in nodes if not node["each"] and not node.get("optional")]
    for node in (node for node in shared if facts.grants.get(node["path"]) is False):
        yield _make_device_notice(node, [node], facts, f"--device {node['path']}")
    if cards and all(facts.grants.get(node["path"]) is False for node in cards):
        yield _make_device_notice(cards[0], cards, facts, _format_cards_flag(run, cards[0]["path"]))


def _make_device_notice(word: Mapping[str, Any], nodes: list[Mapping[str, Any]], facts: Facts, flag: str) -> Notice:
    """Make a notice of device files that are missing, or belong to a group that this user is not in."""
    from fnmatch import fnmatchcase

    refused = next(
        (pair for pair in facts.refused.items() if any(fnmatchcase(pair[0], node["path"]) for node in nodes)), None
    )
    if refused:
        path, rights = refused
        observed = f"{path}: {rights}, and this process is user {facts.user[0]}"
        return make_notice(
            "RUN-001", observed, _OPENABLE, **_make_notice_values(word, f"--group-add {rights.rpartition(':')[2]}")
        )
    observed = f"{' or '.join(node['path'] for node in nodes)}: not there"
    return make_notice("RUN-001", observed, _OPENABLE, **_make_notice_values(word, flag))


_OPENABLE = "readable and writable for this user"


def _format_cards_flag(run: Run, pattern: str) -> str:
    """Return docker's option for cards: --gpus, --runtime, or their device files."""
    if run.get("gpus"):
        return f"--gpus {run['gpus']['value']}"
    if run.get("runtime"):
        visible = run.get("visible")
        device_option = f" --env {visible['value']}{'' if '=' in visible['value'] else '=all'}" if visible else ""
        return f"--runtime {run['runtime']['value']}{device_option}"
    groups = "".join(f" --group-add (number of {word['value']} on the host)" for word in run.get("groups", ()))
    first = pattern.replace("renderD[0-9]*", "renderD128")  # the kernel's first number
    first = first.replace("[0-9]*", "0").replace("[0-9]", "0").replace("*", "0")
    return f"--device {first}{groups}"


def _check_mounts(run: Run, facts: Facts) -> Iterable[Notice]:
    for mount in run.get("mounts", ()):
        path = mount["path"]
        if not mount["optional"] and facts.grants.get(path) is False:
            flag = f"--mount type=bind,source={path},target={path},readonly"
            yield make_notice("RUN-002", f"{path}: not there", "the host's own", **_make_notice_values(mount, flag))


def _check_capabilities(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield each missing capability, of those that the probe reads."""
    for word in _list_unchecked_words(run, "capabilities"):
        name = word["value"].upper().removeprefix("CAP_")
        if name in CAPABILITIES.values() and name not in facts.capabilities:
            capabilities = ", ".join(facts.capabilities) or "none of those that accelerators need"
            yield make_notice(
                "RUN-003", f"capabilities: {capabilities}", name, **_make_notice_values(word, f"--cap-add {name}")
            )


def _check_limits(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield each resource limit that `serve` cannot raise to the required value, of those that the probe reads."""
    for word in _list_unchecked_words(run, "ulimits"):
        name, _, limits = word["value"].partition("=")
        soft = limits.partition(":")[0]
        actual = facts.limits.reachable(name) if name in Limits._fields else None
        if actual is not None and (soft == "-1" or not is_number(soft) or actual < int(soft)):
            expected = "unlimited" if soft == "-1" else f"at least {soft}"
            yield make_notice(
                "RUN-004", f"{name} = {actual}", expected, **_make_notice_values(word, f"--ulimit {word['value']}")
            )


def _check_shared_memory(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield a notice if /dev/shm is absent or too small, or is Docker's default where the host's is required."""
    shm = facts.mounts.get("shm")
    if not shm:
        return
    observed = f"{shm.path} of {shm.total / GIB:.1f} GiB" if shm.exists else f"no {shm.path}"
    if run.get("ipc"):
        small = _list_unchecked_words(run, "ipc") if shm.total <= USUAL_SHM else ()
        for word in small:
            yield make_notice(
                "RUN-005", observed, "the host's own", **_make_notice_values(word, f"--ipc {word['value']}")
            )
        return
    for word in _list_unchecked_words(run, "shm"):
        required_bytes = parse_docker_size(word["value"])
        if shm.total < required_bytes:
            expected = f"at least {required_bytes / GIB:.1f} GiB"
            yield make_notice("RUN-005", observed, expected, **_make_notice_values(word, f"--shm-size {word['value']}"))


def _check_left_files(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield a notice if /dev/shm is large enough and full: a server that was killed leaves its files there."""
    shm = facts.mounts.get("shm")
    if not (run.get("ipc") or run.get("shm")) or not shm or not shm.exists or shm.total <= USUAL_SHM:
        return
    required_bytes = min(FREE_SHM, shm.total // 2)
    if shm.free < required_bytes:
        observed = f"{shm.free // MIB} MiB free of {shm.total / GIB:.1f} GiB in {shm.path}"
        yield make_notice("RUN-009", observed, f"at least {required_bytes / GIB:.1f} GiB free")


def parse_docker_size(text: str) -> int:
    """Parse a docker size such as 16g or 512m into bytes; raises ValueError."""
    number = text.lower().removesuffix("b").rstrip("kmgt")
    return int(number) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[text.lower().removesuffix("b")[len(number) :]]


def _check_security(run: Run, facts: Facts) -> Iterable[Notice]:
    """Yield a notice if system calls are filtered and must not be; other options cannot be seen from inside."""
    for word in _list_unchecked_words(run, "security"):
        if word["value"] == "seccomp=unconfined" and facts.kernel.get("seccomp") == "filter":
            option = f"--security-opt {word['value']}"
            yield make_notice("RUN-006", "kernel.seccomp = filter", "disabled", **_make_notice_values(word, option))


def _check_user(run: Run, facts: Facts) -> Iterable[Notice]:
    for word in _list_unchecked_words(run, "user"):
        user = word["value"].partition(":")[0]
        if is_number(user) and facts.user[0] not in (-1, int(user)):
            option = f"--user {word['value']}"
            yield make_notice("RUN-007", f"user {facts.user[0]}", f"user {user}", **_make_notice_values(word, option))
