"""Where caches are written, and the key of an entry."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.cache.plan import (
    ROOM,
    choose_cache_folders,
    compute_image_factors,
    describe_changed_factors,
    drop_unchosen_home,
    make_cache_plan,
    make_cache_settings,
    shapes_code,
)
from entrypoints.core.records import CachePlan, Device, Mount, Value
from entrypoints.core.settings_precedence import COMMAND_LINE, DECISION, ENVIRONMENT, Chosen
from tests.support.hosts.host_models import SMOLLM2
from tests.support.sample import GIB, PROFILE, cache, facts

WRITABLE = Mount("/cache", exists=True, writable=True, free=100 * GIB, total=200 * GIB, filesystem="ext4")
READ_ONLY = WRITABLE._replace(writable=False)
DISK = Mount("/tmp", exists=True, writable=True, free=100 * GIB, total=100 * GIB, filesystem="ext4")


def setting(value: str, origin: str = DECISION) -> Chosen:
    return Chosen(Value(value, "because"), origin)


def planned(
    env: dict[str, str] | None = None, volume: Mount = WRITABLE, profile: dict[str, Any] | None = None, **chosen: Chosen
) -> CachePlan:
    mounts = {"cache": volume, "tmp": DISK._replace(filesystem="tmpfs")}
    settings = {name.replace("_", "-") if name.startswith("__") else name: item for name, item in chosen.items()}
    return make_cache_plan(profile or PROFILE, facts(mounts=mounts), SMOLLM2, env or {}, settings)


def name(plan: CachePlan) -> str:
    return plan.entries[1].name


def test_what_is_compiled_goes_below_its_entry_and_downloads_do_not() -> None:
    plan = planned()
    device, whole = plan.entries
    assert plan.folders["TRITON_CACHE_DIR"] == f"/cache/compiled/{device.name}/triton"
    assert plan.folders["VLLM_CACHE_ROOT"] == f"/cache/compiled/{whole.name}/vllm"
    assert plan.folders["HF_HOME"] == "/cache/hub"
    assert whole.name.startswith(f"{device.name}-")
    assert whole.carry == ("vllm/modelinfos",)


def test_the_key_is_image_device_model_and_plan() -> None:
    usual = planned(__dtype=setting("bfloat16"))
    assert name(usual) == name(planned(__dtype=setting("bfloat16")))
    assert name(usual) != name(planned(__dtype=setting("float16")))
    assert name(usual) != name(planned({"DRYDOCK_IMAGE_DIGEST": "sha256:ab"}, __dtype=setting("bfloat16")))
    other_plan = make_cache_plan(PROFILE, facts(mounts={"cache": WRITABLE}), SMOLLM2._replace(revision="2"), {}, {})
    assert other_plan.entries[0] == usual.entries[0]
    assert name(other_plan) != name(planned())


def test_builds_without_a_digest_differ_by_their_packages() -> None:
    one, other_factors = (
        compute_image_factors({**PROFILE, "packages": packages}, facts(), {}) for packages in ("1", "2")
    )
    assert one != other_factors
    digest = {"DRYDOCK_IMAGE_DIGEST": "sha256:ab"}
    assert compute_image_factors({**PROFILE, "packages": "1"}, facts(), digest)["image"] == "ab"


@pytest.mark.parametrize(
    "volatile",
    [
        *("--host", "--port", "--served-model-name", "--api-key", "--ssl-keyfile", "--uvicorn-log-level", "--model"),
        *("VLLM_HOST_IP", "VLLM_PORT", "HOME", "OMP_NUM_THREADS", "HF_TOKEN"),
        *("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME"),
    ],
)
def test_what_differs_between_pods_is_not_in_the_key(volatile: str) -> None:
    assert not shapes_code(volatile)


def test_an_accelerators_own_variables_can_stay_out_of_the_key() -> None:
    variables = {**PROFILE["variables"], "not_compiling": ["VLLM_CPU_KVCACHE_SPACE"]}
    bound = setting("8", ENVIRONMENT)
    assert name(planned(VLLM_CPU_KVCACHE_SPACE=bound)) != name(planned())
    cpu = {**PROFILE, "variables": variables}
    assert name(planned(profile=cpu, VLLM_CPU_KVCACHE_SPACE=bound)) == name(planned(profile=cpu))


@pytest.mark.parametrize(
    "shaping", ["--dtype", "--max-num-seqs", "--enforce-eager", "--never-heard-of", "VLLM_ROCM_USE_AITER", "HIP_X"]
)
def test_unknown_settings_are_in_the_key(shaping: str) -> None:
    assert shapes_code(shaping)


def test_no_secret_is_kept_among_the_factors() -> None:
    plan = planned(__hf_token=setting("hf_secret", COMMAND_LINE), X_PASSWORD=setting("hunter2", ENVIRONMENT))
    assert "hf_secret" not in str(plan)
    assert "hunter2" not in str(plan)


def test_a_cpu_is_identified_by_model_and_instructions() -> None:
    here = facts()
    flags = here.processor.flags
    patched = here._replace(processor=here.processor._replace(flags=(*flags, "md_clear", "ibrs")))
    masked = here._replace(processor=here.processor._replace(flags=flags[:-1]))
    assert compute_image_factors(PROFILE, here, {}) == compute_image_factors(PROFILE, patched, {})
    assert compute_image_factors(PROFILE, here, {}) != compute_image_factors(PROFILE, masked, {})


def test_accelerators_are_identified_by_kind_and_driver() -> None:
    card = Device(0, "HL-225", None, None, None, architecture="gaudi2")
    one = facts(devices=(card,), versions={"driver": "1.22.0"})
    eight = facts(devices=tuple(card._replace(number=number) for number in range(8)), versions={"driver": "1.22.0"})
    assert compute_image_factors(PROFILE, one, {}) == compute_image_factors(PROFILE, eight, {})
    assert compute_image_factors(PROFILE, one, {})["device"] == "HL-225 gaudi2"
    assert compute_image_factors(PROFILE, one._replace(versions={"driver": "1.23.0"}), {}) != compute_image_factors(
        PROFILE, one, {}
    )


def test_what_the_user_set_is_not_managed() -> None:
    plan = planned(VLLM_CACHE_ROOT=setting("/mine", ENVIRONMENT))
    assert "VLLM_CACHE_ROOT" not in plan.folders
    assert plan.entries[1].carry == ()


def test_a_variable_can_hold_more_than_a_folder() -> None:
    recipes = cache("recipes", "device", value="{path},false,{limit}", limit="recipe_mib")
    thresholds = {**PROFILE["thresholds"], "recipe_mib": {"value": 40960}}
    profile = {**PROFILE, "caches": {"RECIPES": recipes}, "thresholds": thresholds}
    for free, limit in ((100, 40960), (10, 5120)):
        volume = WRITABLE._replace(free=free * GIB)
        plan = planned(volume=volume, profile=profile)
        value = make_cache_settings(profile, plan, volume, {})["RECIPES"].value
        assert value == f"/cache/compiled/{plan.entries[0].name}/recipes,false,{limit}"


# --- where ----------------------------------------------------------------------------------------------------------


def where(volume: Mount, tmp: Mount = DISK, *, local: bool = True) -> tuple[str, str, str]:
    locations = choose_cache_folders({}, {"cache": volume, "tmp": tmp}, 12345, local_model=local)
    return locations.shared, locations.work, locations.why


def test_a_volume_that_cannot_be_written_is_replaced_and_each_reason_says_so() -> None:
    assert where(READ_ONLY) == ("/tmp/drydock-12345", "/tmp/drydock-12345", "/cache cannot be written")
    plan = planned(volume=READ_ONLY)
    reasons = make_cache_settings(PROFILE, plan, READ_ONLY, {})
    assert all("/cache cannot be written" in reasons[variable].because for variable in plan.folders)


def test_a_full_volume_keeps_its_downloads_and_takes_no_code() -> None:
    full = WRITABLE._replace(free=ROOM - 1)
    assert where(full, local=False) == (
        "/cache",
        "/tmp/drydock-12345",
        "/cache is full: 511 MiB free, expected 512 MiB",
    )
    assert where(full, local=True)[0] == "/tmp/drydock-12345"


def test_on_network_storage_code_is_compiled_on_a_local_disk_if_there_is_one() -> None:
    network = WRITABLE._replace(filesystem="nfs4")
    assert where(network) == ("/cache", "/tmp/drydock-12345", "/cache is network storage (nfs4)")
    assert where(network, DISK._replace(filesystem="tmpfs")) == ("/cache", "/cache", "")
    assert where(network, DISK._replace(free=GIB)) == ("/cache", "/cache", "")


# --- beside them ----------------------------------------------------------------------------------------------------


def values(env: dict[str, str]) -> dict[str, str | bool]:
    return {name: item.value for name, item in make_cache_settings(PROFILE, planned(env), WRITABLE, env).items()}


def test_a_uid_without_a_passwd_entry_gets_a_user_name() -> None:
    assert values({})["USER"] == "drydock"


def test_usage_reports_are_off_unless_the_user_enables_them() -> None:
    assert values({})["VLLM_NO_USAGE_STATS"] == values({})["DO_NOT_TRACK"] == "1"
    assert "DO_NOT_TRACK" not in values({"VLLM_NO_USAGE_STATS": "0"})


def test_offline_mode_is_off_by_default() -> None:
    assert "HF_HUB_OFFLINE" not in values({})
    assert values({"DRYDOCK_OFFLINE": "1"})["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("home", ["", "/", "/cache/home"])
def test_a_home_that_the_runtime_set_is_not_the_users(home: str) -> None:
    assert drop_unchosen_home({"HOME": home, "A": "b"}, READ_ONLY) == {"A": "b"}


def test_a_home_that_the_user_set_is_kept() -> None:
    assert drop_unchosen_home({"HOME": "/home/me"}, WRITABLE) == {"HOME": "/home/me"}


def test_changes_are_shown_with_both_values() -> None:
    changes = describe_changed_factors(
        {"--dtype": "float16", "model": "m"}, {"--dtype": "bfloat16", "model": "m", "revision": "1"}
    )
    assert changes == ("--dtype was float16, is bfloat16", "revision was not set, is 1")


@pytest.mark.parametrize("flag", ["--node-rank", "--headless", "--master-addr", "--data-parallel-start-rank"])
def test_hosts_of_one_server_share_what_is_compiled(flag: str) -> None:
    assert not shapes_code(flag)
    assert shapes_code("--data-parallel-size")
