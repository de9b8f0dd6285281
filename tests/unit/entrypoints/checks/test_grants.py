"""Findings on what a container lacks for its accelerator, with the option that adds it."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.accelerators import ACCELERATORS
from entrypoints.checks.grants import examine_facts, explain_no_device, find_missing_grants, parse_docker_size
from entrypoints.core.errors import HOST
from entrypoints.core.records import Facts, Failure, Finding, Limits, Mount
from tests.support.fit_hosts import device
from tests.support.hosts import expect
from tests.support.sample import GIB, KNOWN, check, facts, told

MIB = 1 << 20


def word(value: str, **more: Any) -> dict[str, Any]:
    return {"value": value, "because": f"{value} is needed", "source": "a manual", **more}


def node(path: str, *, per_card: bool = False, optional: bool = False) -> dict[str, Any]:
    return {"path": path, "each": per_card, "optional": optional, "because": "it is opened", "source": "a manual"}


def shm(size: int) -> dict[str, Mount]:
    return {"shm": Mount("/dev/shm", exists=True, writable=True, free=size, total=size, filesystem="tmpfs")}


def only(run: dict[str, Any], host: Facts) -> Finding:
    (finding,) = told(find_missing_grants(run, host))
    return finding


def test_a_record_that_asks_for_nothing_and_a_profile_without_one_find_nothing() -> None:
    assert find_missing_grants({}, facts()) == ()
    assert [finding.id for finding in examine_facts({"checks": [check()]}, facts())] == ["CPU-001"]


def test_what_is_missing_follows_the_checks() -> None:
    profile = {"checks": [check()], "findings": KNOWN, "run": {"user": word("0:0")}}

    assert [finding.id for finding in examine_facts(profile, facts())] == ["CPU-001", "RUN-007"]


def test_a_device_that_cards_share_is_named_with_its_flag() -> None:
    finding = only({"devices": [node("/dev/kfd")]}, facts(grants={"/dev/kfd": False}))

    assert (finding.id, finding.severity, finding.scope) == ("RUN-001", "FAIL", "container")
    assert finding.remediation == "docker run --device /dev/kfd …"
    assert finding.source == "a manual"


@pytest.mark.parametrize("granted", [{"/dev/kfd": True}, {}])
def test_a_device_that_is_there_or_was_not_looked_for_is_no_finding(granted: dict[str, bool]) -> None:
    assert find_missing_grants({"devices": [node("/dev/kfd")]}, facts(grants=granted)) == ()


def test_a_device_or_file_that_some_machines_lack_is_no_finding() -> None:
    run = {"devices": [node("/dev/a", optional=True)], "mounts": [node("/etc/b", optional=True)]}

    assert find_missing_grants(run, facts(grants={"/dev/a": False, "/etc/b": False})) == ()


@pytest.mark.parametrize(("first", "second", "count"), [(False, False, 1), (True, False, 0), (False, True, 0)])
def test_of_the_kinds_of_file_that_cards_have_one_is_enough(first: bool, second: bool, count: int) -> None:
    run = {"devices": [node("/dev/accel[0-9]*", per_card=True), node("/dev/vfio/[0-9]*", per_card=True, optional=True)]}
    missing_grants = find_missing_grants(run, facts(grants={"/dev/accel[0-9]*": first, "/dev/vfio/[0-9]*": second}))

    assert len(missing_grants) == count


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        ({}, "--device /dev/davinci0"),
        ({"groups": [word("render")]}, "--device /dev/davinci0 --group-add (number of render on the host)"),
        ({"gpus": word("all")}, "--gpus all"),
        ({"runtime": word("habana"), "visible": word("CARDS=all")}, "--runtime habana --env CARDS=all"),
        ({"runtime": word("habana"), "visible": word("CARDS")}, "--runtime habana --env CARDS=all"),
    ],
)
def test_cards_are_given_as_the_accelerator_gives_them(more: dict[str, Any], flag: str) -> None:
    run = {"devices": [node("/dev/davinci[0-9]*", per_card=True)], **more}
    finding = only(run, facts(grants={"/dev/davinci[0-9]*": False}))

    assert finding.remediation == f"docker run {flag} …"


def test_a_file_of_the_driver_is_named_with_its_mount() -> None:
    finding = only({"mounts": [node("/usr/local/dcmi")]}, facts(grants={"/usr/local/dcmi": False}))

    assert finding.id == "RUN-002"
    assert finding.remediation == (
        "docker run --mount type=bind,source=/usr/local/dcmi,target=/usr/local/dcmi,readonly …"
    )


@pytest.mark.parametrize("name", ["SYS_NICE", "cap_sys_nice"])
def test_a_capability_that_was_not_given_is_named(name: str) -> None:
    finding = only({"capabilities": [word(name)]}, facts(capabilities=("IPC_LOCK",)))

    assert (finding.id, finding.severity, finding.found) == ("RUN-003", "WARN", "capabilities: IPC_LOCK")
    assert finding.remediation == "docker run --cap-add SYS_NICE …"
    assert find_missing_grants({"capabilities": [word(name)]}, facts(capabilities=("SYS_NICE",))) == ()


def test_a_capability_that_is_not_read_is_not_judged() -> None:
    assert find_missing_grants({"capabilities": [word("NET_RAW")]}, facts()) == ()


@pytest.mark.parametrize(
    ("limit", "limits", "expected"),
    [
        ("memlock=-1:-1", Limits(1024, 8 * MIB, None), "unlimited"),
        ("nofile=65536:65536", Limits(1024, None, None), "at least 65536"),
        ("nofile=1024", Limits(1024, None, None), ""),
        ("memlock=-1", Limits(1024, None, None), ""),
        ("core=-1", Limits(1024, 0, 0), ""),  # not read
        ("count=1", Limits(0, 0, 0), ""),  # no name of a limit
    ],
)
def test_a_limit_that_is_too_low_is_named(limit: str, limits: Limits, expected: str) -> None:
    limit_findings = told(find_missing_grants({"ulimits": [word(limit)]}, facts(limits=limits)))

    assert [item.expected for item in limit_findings] == ([expected] if expected else [])
    assert all((item.id, item.remediation) == ("RUN-004", f"docker run --ulimit {limit} …") for item in limit_findings)


@pytest.mark.parametrize(
    ("run", "size", "remediation"),
    [
        ({"shm": word("16g")}, 64 * MIB, "docker run --shm-size 16g …"),
        ({"shm": word("16g")}, 16 * GIB, ""),
        ({"ipc": word("host"), "shm": word("16g")}, 64 * MIB, "docker run --ipc host …"),
        ({"ipc": word("host"), "shm": word("16g")}, 8 * GIB, ""),  # the host's, however large
    ],
)
def test_shared_memory_that_is_too_small_is_named(run: dict[str, Any], size: int, remediation: str) -> None:
    size_findings = told(find_missing_grants(run, facts(mounts=shm(size))))

    assert [item.remediation for item in size_findings] == ([remediation] if remediation else [])


def test_shared_memory_that_does_not_exist_is_too_small() -> None:
    missing = shm(0)["shm"]._replace(exists=False, writable=False)

    (finding,) = told(find_missing_grants({"ipc": word("host")}, facts(mounts={"shm": missing})))

    assert (finding.id, finding.found) == ("RUN-005", "no /dev/shm")


def test_shared_memory_that_was_not_looked_at_is_not_judged() -> None:
    assert find_missing_grants({"shm": word("16g")}, facts(mounts={})) == ()


@pytest.mark.parametrize(
    ("option", "seccomp", "count"),
    [("seccomp=unconfined", "filter", 1), ("seccomp=unconfined", "disabled", 0), ("label=disable", "filter", 0)],
)
def test_a_filter_of_system_calls_that_must_not_be_is_named(option: str, seccomp: str, count: int) -> None:
    assert len(find_missing_grants({"security": [word(option)]}, facts(kernel={"seccomp": seccomp}))) == count


@pytest.mark.parametrize(("user", "count"), [("0:0", 1), ("10001:0", 0), ("root", 0)])
def test_a_user_who_may_not_open_the_devices_is_named(user: str, count: int) -> None:
    assert len(find_missing_grants({"user": word(user)}, facts())) == count


def test_a_container_that_should_be_privileged_and_is_not_is_reported() -> None:
    run = {"privileged": {"because": "the driver maps memory", "instead": "nothing less does", "source": "a manual"}}

    assert only(run, facts()).remediation == "docker run --privileged …"
    assert find_missing_grants(run, facts(capabilities=("SYS_ADMIN",))) == ()


def test_a_word_that_a_check_of_its_own_judges_is_left_to_it() -> None:
    run = {"capabilities": [word("SYS_NICE", check="CPU-010")], "shm": word("4g", check="CPU-011")}

    assert find_missing_grants(run, facts(mounts=shm(64 * MIB))) == ()


@pytest.mark.parametrize(
    ("text", "size"), [("16g", 16 * GIB), ("512m", 512 * MIB), ("1gb", GIB), ("64", 64), ("2T", 2 << 40)]
)
def test_a_size_as_docker_writes_it(text: str, size: int) -> None:
    assert parse_docker_size(text) == size


def test_a_limit_that_serving_raises_by_itself_is_not_missed() -> None:
    run = {"ulimits": [word("nofile=65536:65536")]}

    assert find_missing_grants(run, facts(limits=Limits(1024, None, None, 524288, None))) == ()
    assert only(run, facts(limits=Limits(1024, None, None, 4096, None))).found == "nofile = 4096"


def test_a_device_without_permission_is_reported_with_its_group() -> None:
    host = facts(grants={"/dev/dri/renderD[0-9]*": False}, refused={"/dev/dri/renderD128": "crw-rw---- 0:110"})
    finding = only({"devices": [node("/dev/dri/renderD[0-9]*", per_card=True)]}, host)

    assert finding.found == "/dev/dri/renderD128: crw-rw---- 0:110, and this process is user 10001"
    assert finding.remediation == "docker run --group-add 110 …"


def test_the_error_without_a_device_names_what_was_examined_and_the_options() -> None:
    run = {"devices": [node("/dev/kfd"), node("/dev/dri/renderD[0-9]*", per_card=True)], "groups": [word("render")]}
    error = explain_no_device({"accelerator": "rocm", "run": run}, facts(grants={"/dev/dri/renderD[0-9]*": False}), {})

    assert error is not None
    assert error.code == HOST
    assert "no rocm device found: /dev/dri/renderD[0-9]*: none to open" in str(error)
    assert (
        "docker run --device /dev/dri/renderD128 --group-add (number of render on the host) --device /dev/kfd"
        in str(error)
    )


def test_the_error_names_unusable_files_and_failures_and_variables_that_hide_devices() -> None:
    run = {"devices": [node("/dev/nvidia[0-9]*", per_card=True)], "gpus": word("all")}
    host = facts(grants={"/dev/nvidia[0-9]*": True}, failures=(Failure("nvidia-smi", "hung", "an answer"),))
    env = {"CUDA_VISIBLE_DEVICES": "9", "NVIDIA_VISIBLE_DEVICES": "all"}
    profile = {"accelerator": "cuda", "run": run, "variables": {"devices": ["CUDA_VISIBLE_", "NVIDIA_VISIBLE_"]}}
    error_text = str(explain_no_device(profile, host, env))

    assert "no usable device behind /dev/nvidia[0-9]*; CUDA_VISIBLE_DEVICES=9; nvidia-smi: hung" in error_text
    assert "docker run --gpus all …" in error_text


def test_the_runtime_is_asked_for_all_cards() -> None:
    run = {
        "devices": [node("/dev/accel/accel[0-9]*", per_card=True)],
        "runtime": word("habana"),
        "visible": word("HABANA_VISIBLE_DEVICES"),
    }
    error_text = str(explain_no_device({"accelerator": "habana", "run": run}, facts(), {}))

    assert "docker run --runtime habana --env HABANA_VISIBLE_DEVICES=all …" in error_text


def test_an_image_for_the_processor_needs_no_device() -> None:
    assert explain_no_device({"accelerator": "cpu", "run": {}}, facts(), {}) is None


NICS = {
    "names": ["HL-288E"],
    "cards": 5,
    "hosts": 1,
    "devices": [node("/dev/infiniband/uverbs[0-9]*")],
    "capabilities": [word("IPC_LOCK")],
}


@pytest.mark.parametrize(
    ("count", "more", "finding_ids"),
    [(8, {}, ["RUN-001", "RUN-003"]), (4, {}, []), (8, {"names": ["HL-225"]}, []), (8, {"hosts": 2}, [])],
)
def test_what_only_many_cards_of_a_kind_need_is_missed_only_by_them(
    count: int, more: dict[str, Any], finding_ids: list[str]
) -> None:
    cards = tuple(device(number, name="HL-288E") for number in range(count))
    host = facts(devices=cards, grants={"/dev/infiniband/uverbs[0-9]*": False})

    assert [finding.id for finding in told(find_missing_grants({"more": [{**NICS, **more}]}, host))] == finding_ids


# --- files that a killed server left --------------------------------------------------------------------------------


@pytest.mark.parametrize("accelerator", sorted(set(ACCELERATORS) - {"router", "openvino"}))
@pytest.mark.parametrize(
    ("free", "total", "full"),
    [
        (30 * MIB, 64 * GIB, True),
        (900 * MIB, 16 * GIB, True),
        (0, 4 * GIB, True),
        (2 * GIB, 64 * GIB, False),
        (600 * MIB, 1 * GIB, False),
        (10 * MIB, 64 * MIB, False),  # too small, whatever is free: RUN-005 and CPU-011
    ],
)
def test_what_is_free_of_the_shared_memory_counts(accelerator: str, free: int, total: int, full: bool) -> None:
    mounts = {"shm": shm(total)["shm"]._replace(free=free)}
    run = expect.profile_in(accelerator)["run"]
    findings = {notice.id: notice.found for notice in find_missing_grants(run, facts(mounts=mounts))}

    assert ("RUN-009" in findings) == full
    assert findings.get("RUN-009", f"{free // MIB} MiB free").startswith(f"{free // MIB} MiB free")
