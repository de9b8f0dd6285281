"""The options of a container: what its record lists on this machine, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.model.running import Run
from drydock.model.variant import Variant
from drydock.run.container import FROM_THE_SHELL, is_native, name_of, parse_numbers
from drydock.run.option_reasons import list_record_options
from tests.support.cases import for_each
from tests.support.containers import GPUS, NODES, PRIVILEGED, RUNTIME, machine, made, node

CARDS = [f"/dev/davinci{number}" for number in range(4)]
SHARED = ["/dev/davinci_manager", "/dev/devmm_svm"]
DRIVER = ["/usr/local/Ascend/driver/version.info"]


def test_all_device_files_of_this_machine_are_passed_and_nothing_is_missing(tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path, [*CARDS, *SHARED, *DRIVER], "HwHiAiUser:x:1000:\n"))

    assert container.devices == (*CARDS, *SHARED)
    assert container.count == 4
    assert container.groups == ("1000",)
    assert [mount.target for mount in container.mounts] == ["/usr/local/Ascend/driver"]  # the optional one is not there
    assert container.missing_parts == ()
    assert container.env == {"HCCL_OP": "1"}
    assert (
        container.runtime,
        container.gpus,
        container.privileged,
        container.network,
        container.ipc,
        container.user,
    ) == ("", "", False, "", "", "")


def test_only_the_chosen_cards_are_passed_and_no_variable_selects_them(tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path, [*CARDS, *SHARED, *DRIVER]), devices="1,3")

    assert container.devices == ("/dev/davinci1", "/dev/davinci3", *SHARED)
    assert container.count == 2
    assert container.visible == {}  # 1 and 3 would name cards that are not there inside


def test_what_a_machine_with_the_accelerator_lacks_is_listed(tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path, [*CARDS[:1], "/dev/davinci_manager"]), devices="0,7")

    assert container.missing_parts == (
        "no device 7 among /dev/davinci[0-9]*",
        "no device /dev/devmm_svm",
        "no file or folder /usr/local/Ascend/driver",
    )


@pytest.mark.parametrize("record", [RUNTIME, GPUS])
def test_cards_that_are_not_there_are_refused_also_where_a_runtime_passes_them(tmp_path: Path, record: Run) -> None:
    counted = record.model_copy(update={"devices": NODES.devices[:1]})
    here = machine(tmp_path, CARDS)

    assert made(counted, here, devices="3,4").missing_parts == ("no device 4 among /dev/davinci[0-9]*",)
    assert made(counted, here, devices="3,4").absent_cards == ("no device 4 among /dev/davinci[0-9]*",)
    assert made(counted, here, devices="0-3").missing_parts == ()
    assert made(counted, machine(tmp_path / "other"), devices="9").absent_cards == ()  # printed for another machine


def test_an_accelerator_without_cards_takes_no_device_numbers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--devices 0: cpu-vllm0\.32 runs on no device that has a number"):
        made(Run(), machine(tmp_path), devices="0")


def test_a_machine_without_its_cards_lacks_devices(tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path, [*SHARED, *DRIVER]))

    assert container.missing_parts == ("no device /dev/davinci[0-9]*",)


def test_an_optional_device_is_not_missing(tmp_path: Path) -> None:
    record = Run.model_validate({"devices": [node("/dev/a"), node("/dev/b", optional=True)]})

    assert made(record, machine(tmp_path, ["/dev/a"])).missing_parts == ()


def test_for_another_machine_the_usual_cards_and_all_mounts_are_assumed(tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path, groups="HwHiAiUser:x:1:\n"))  # another machine's number may be another

    assert container.devices == (*(f"/dev/davinci{number}" for number in range(8)), *SHARED)
    assert len(container.mounts) == 2
    assert container.groups == ("HwHiAiUser",)
    assert "this machine has none of these devices; assuming 8 with the usual device files" in container.notes
    assert not is_native(NODES, machine(tmp_path))


def test_of_two_kinds_of_device_files_the_existing_one_is_passed(tmp_path: Path) -> None:
    record = Run.model_validate({
        "devices": [node("/dev/vfio/[0-9]*", each=True), node("/dev/accel[0-9]*", each=True, optional=True)],
        "usual": 2,
    })  # fmt: skip
    here = made(record, machine(tmp_path / "v5e", ["/dev/accel0", "/dev/accel1"]))

    assert (here.devices, here.count, here.missing_parts) == (("/dev/accel0", "/dev/accel1"), 2, ())
    assert made(record, machine(tmp_path / "other")).devices == ("/dev/vfio/0", "/dev/vfio/1")


@pytest.mark.parametrize(("devices", "visible"), [("", "all"), ("2,3", "2,3"), ("0-3", "0,1,2,3")])
def test_a_runtime_gets_the_cards_in_its_variable(tmp_path: Path, devices: str, visible: str) -> None:
    assert made(RUNTIME, machine(tmp_path), devices=devices).visible == {"HABANA_VISIBLE_DEVICES": visible}


def test_a_runtime_passes_the_cards_and_drydock_the_other_files(tmp_path: Path) -> None:
    record = RUNTIME.model_copy(update={"devices": NODES.devices})
    here = machine(tmp_path, [*CARDS, *SHARED])

    assert made(record, here).devices == tuple(SHARED)
    assert made(record, here, devices="1").visible == {"HABANA_VISIBLE_DEVICES": "1"}
    assert made(record, here).count == 4
    assert made(record, machine(tmp_path / "other")).devices == tuple(SHARED)


@pytest.mark.parametrize(("devices", "gpus"), [("", "all"), ("1,2", "device=1,2")])
def test_gpus_are_selected_by_dockers_option(tmp_path: Path, devices: str, gpus: str) -> None:
    container = made(GPUS, machine(tmp_path), devices=devices)

    assert (container.gpus, container.visible) == (gpus, {})
    with_files = GPUS.model_copy(update={"devices": NODES.devices})
    assert made(with_files, machine(tmp_path), devices=devices).devices == ()  # Docker's option gives them all


def test_a_privileged_container_sees_every_device_so_a_variable_selects(tmp_path: Path) -> None:
    here = machine(tmp_path, [f"/dev/accel{number}" for number in range(4)])
    container = made(PRIVILEGED, here, devices="0,1")

    assert (container.privileged, container.devices, container.visible) == (True, (), {"TPU_VISIBLE_CHIPS": "0,1"})
    assert made(PRIVILEGED, here).visible == {}


def test_with_the_hosts_ipc_no_size_of_shared_memory_is_set(tmp_path: Path) -> None:
    container = made(RUNTIME, machine(tmp_path))

    assert (container.ipc, container.shm) == ("host", "")


def test_new_privileges_are_denied_unless_the_record_allows_them(tmp_path: Path) -> None:
    contrary = Run.model_validate({
        "security": [{"value": "no-new-privileges=false", "because": "sudo", "source": "a manual"}]
    })  # fmt: skip

    assert made(RUNTIME, machine(tmp_path)).security == ("no-new-privileges", "seccomp=unconfined")
    assert made(contrary, machine(tmp_path)).security == ("no-new-privileges=false",)


# --- model, arguments, names ----------------------------------------------------------------------------------------


def test_a_folder_is_mounted_and_a_hub_id_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    local, hub = (
        made(Run(), machine(tmp_path), model=str(folder)),
        made(Run(), machine(tmp_path), model="Qwen/Qwen3-8B"),
    )

    assert local.model is not None
    assert (local.model.source, local.model.target) == (str(folder), "/models/m")
    assert local.arguments == ("serve", "--model", "/models/m")
    assert (hub.model, hub.downloads, hub.arguments[2]) == (None, FROM_THE_SHELL, "Qwen/Qwen3-8B")


def test_a_model_of_modelscope_is_passed_on_as_it_is(tmp_path: Path) -> None:
    spec = made(Run(), machine(tmp_path), model="modelscope:Qwen/Qwen3-8B")

    assert (spec.model, spec.downloads, spec.arguments[2]) == (None, FROM_THE_SHELL, "modelscope:Qwen/Qwen3-8B")
    with pytest.raises(InputError, match="expected an existing folder or a hub id"):
        made(Run(), machine(tmp_path), model="modelscope:Qwen3-8B")


@pytest.mark.parametrize("model", ["./absent", "~no-such-user/x", "a/b/c", "http://hub/x", "-v"])
def test_a_model_is_an_existing_folder_or_a_hub_id(tmp_path: Path, model: str) -> None:
    with pytest.raises(InputError, match="expected an existing folder or a hub id"):
        made(Run(), machine(tmp_path), model=model)


def test_a_missing_model_folder_is_only_an_error_at_start(tmp_path: Path) -> None:
    container = made(Run(), machine(tmp_path), model="/data/of/another/machine")

    assert container.missing_parts == ("no folder /data/of/another/machine",)


def test_a_hub_id_may_be_longer_than_a_file_name(tmp_path: Path) -> None:
    assert made(Run(), machine(tmp_path), model="x" * 400).downloads


def test_a_cache_is_a_volume_name_or_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    caches = [made(Run(), machine(tmp_path), cache=cache).cache for cache in ("", "fast", "./here", "/a,b c")]
    assert caches == ["drydock-cpu-cache", "fast", str(tmp_path / "here"), "/a,b c"]
    with pytest.raises(InputError, match="expected a volume name, or a path with a slash"):
        made(Run(), machine(tmp_path), cache="a b")


@pytest.mark.parametrize(
    "image",
    [
        *("-v", "x y", "x;y", "$(x)", "user:password@r.example/a:1"),
        *("a@sha256:1234", f"a@sha256:{'0' * 65}", f"a@sha256:{'A' * 64}", f"a@sha512:{'0' * 64}", "a@"),
    ],
)
def test_an_image_is_a_reference(tmp_path: Path, image: str) -> None:
    assert made(Run(), machine(tmp_path), image=f"[::1]:5000/a/b:1@sha256:{'0' * 64}").image.startswith("[::1]")
    with pytest.raises(InputError, match="expected a reference"):
        made(Run(), machine(tmp_path), image=image)


def test_with_the_hosts_network_the_ports_are_arguments(tmp_path: Path) -> None:
    moved = made(RUNTIME, machine(tmp_path), port=9000, arguments=("--dtype", "bfloat16"))

    ports = ("--port", "9000", "--status-port", "9001")
    assert moved.arguments[3:] == ("--host", "127.0.0.1", *ports, "--dtype", "bfloat16")
    assert made(RUNTIME, machine(tmp_path)).arguments[3:] == ("--host", "127.0.0.1")
    spec = made(RUNTIME, machine(tmp_path), arguments=("--host=10.0.0.1",))
    assert (spec.arguments[3:], spec.address, spec.key_required) == (("--host=10.0.0.1",), "10.0.0.1", True)
    assert made(Run(), machine(tmp_path), port=9000).arguments[3:] == ()


@pytest.mark.parametrize(("text", "numbers"), [("0", (0,)), ("0,1", (0, 1)), ("2-4,0", (2, 3, 4, 0)), ("1,1", (1,))])
def test_devices_are_numbers_and_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_numbers(text) == numbers


@pytest.mark.parametrize("text", ["a", "0,,1", "3-1", "-1", "0;1", "99999"])
def test_an_invalid_device_number_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="expected numbers such as 0,1 or 0-3"):
        parse_numbers(text)


@pytest.mark.parametrize(("text", "name"), [("cpu-vllm0.32", "cpu-vllm0-32"), ("A_b", "a-b"), ("7b", "vllm-7b")])
def test_a_name_is_valid_for_docker_and_kubernetes(text: str, name: str) -> None:
    assert name_of(text) == name
    with pytest.raises(InputError, match="--name"):
        name_of("a b")


def test_each_option_has_a_reason_and_a_source() -> None:
    option_words = [
        *list_record_options(NODES),
        *list_record_options(RUNTIME),
        *list_record_options(PRIVILEGED),
        *list_record_options(GPUS),
    ]

    assert all(because and source for _, because, source in option_words)
    assert [option for option, _, _ in list_record_options(PRIVILEGED)] == [
        "--privileged",
        "--device /dev/accel[0-9]*",
        "--env TPU_VISIBLE_CHIPS",
        "--cap-add SYS_ADMIN",
        "--user 0:0",
    ]
    assert "--mount /etc/ascend_install.info (where it is)" in [option for option, _, _ in list_record_options(NODES)]


@for_each(read_matrix(DRYDOCK), lambda variant: variant.id)
def test_an_option_left_to_a_check_names_an_existing_check(variant: Variant) -> None:
    run = variant.run
    option_values = [*run.capabilities, *run.security, *run.ulimits, run.shm, run.ipc, run.user]

    assert {word.check for word in option_values if word and word.check} <= {check.id for check in variant.checks}


def test_a_users_name_stays_as_docker_takes_it(tmp_path: Path) -> None:
    assert made(RUNTIME, machine(tmp_path), name="gaudi_server").name == "gaudi_server"
    with pytest.raises(InputError, match="--name a b"):
        made(RUNTIME, machine(tmp_path), name="a b")
