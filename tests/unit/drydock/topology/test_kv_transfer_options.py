from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.version import Version

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.config.validation import make_record
from drydock.core.errors import InputError
from drydock.model.kv_transfer import KvTransfer
from drydock.model.variant import Variant
from drydock.topology import kv_transfer_options
from drydock.topology.topology_records import Group

VARIANTS = read_matrix(DRYDOCK)
PAIR = (Group(name="p", role="prefill"), Group(name="d", role="decode"))
NAMES: dict[str, int | str] = {
    **dict.fromkeys(("instance", "prefills", "decodes", "servers", "kv"), 7),
    **dict.fromkeys(("prefill_tp", "prefill_dp", "decode_tp", "decode_dp"), 7),
    "decode_addresses": "10.0.0.3,10.0.0.4",
}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_every_variant_says_how_prefill_and_decode_exchange_the_cache(variant: Variant) -> None:
    record = variant.kv_transfer
    assert record is not None
    if record.connector is None:
        with pytest.raises(InputError, match=rf"none published for {variant.id} .*: "):
            kv_transfer_options.choose_transfer(variant, PAIR)
        return
    for role in ("prefill", "decode"):
        words = json.loads(kv_transfer_options.format_transfer_config(record, role, {**NAMES, "role": role}, 90))
        assert words["kv_connector"] == record.connector
        assert words["kv_role"] in {"kv_producer" if role == "prefill" else "kv_consumer", "kv_both"}
        older = Version(variant.vllm.version) < Version("0.12")
        assert words.get("kv_load_failure_policy") == (None if older else "fail")
        assert "{" not in json.dumps(
            [*_texts(words), *kv_transfer_options.make_transfer_environment(record, {**NAMES, "role": role}).values()]
        )


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def test_variants_without_a_connector_are_known() -> None:
    none = {variant.id for variant in VARIANTS if variant.kv_transfer and variant.kv_transfer.connector is None}
    assert {"ascend9.1-310p-vllm0.23", "cpu-s390x-vllm0.27", "cuda12.1-vllm0.6", "openvino-vllm0.8"} < none
    assert {variant.id for variant in VARIANTS if variant.accelerator == "enflame"} < none
    assert none.isdisjoint({"cpu-vllm0.32", "cuda13.0-vllm0.33", "habana1.24-plugin0.26", "tpu-vllm0.32"})


def test_flags_that_prefill_and_decode_share_are_data() -> None:
    habana = find_variant(VARIANTS, "habana1.24-plugin0.26").kv_transfer
    assert habana is not None
    assert kv_transfer_options.list_transfer_flags(habana) == {"--block-size": "128"}


def test_servers_of_whole_requests_need_no_connector() -> None:
    assert kv_transfer_options.choose_transfer(find_variant(VARIANTS, "enflame"), (Group(name="g"),)) is None


def test_the_number_of_decode_servers_is_limited_where_the_connector_limits_it() -> None:
    omni = find_variant(VARIANTS, "omniinfer-2025.06")
    assert kv_transfer_options.choose_transfer(omni, PAIR) is omni.kv_transfer
    two = (PAIR[0], Group(name="d", role="decode", replicas=2))
    with pytest.raises(InputError, match="found 2 decode servers, expected at most 1: AscendHcclConnectorV1"):
        kv_transfer_options.choose_transfer(omni, two)


def test_names_become_numbers_of_the_plan() -> None:
    ascend = find_variant(VARIANTS, "ascend9.1-a3-vllm0.23").kv_transfer
    assert ascend is not None
    numbers = {**NAMES, "kv": 36000, "prefill_dp": 2, "prefill_tp": 8, "decode_dp": 32, "decode_tp": 1}
    assert json.loads(kv_transfer_options.format_transfer_config(ascend, "prefill", numbers, 90)) == {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_producer",
        "kv_load_failure_policy": "fail",
        "kv_port": 36000,
        "kv_connector_extra_config": {
            "prefill": {"dp_size": 2, "tp_size": 8},
            "decode": {"dp_size": 32, "tp_size": 1},
        },
    }


def test_an_unknown_name_is_an_error() -> None:
    record = KvTransfer(connector="X", config={"a": ["{nothing}"]}, because="b", source="s")
    with pytest.raises(InputError, match=r"unknown name \{nothing\}, expected one of kv"):
        kv_transfer_options.format_transfer_config(record, "prefill", {"kv": 1}, 90)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"vllm": "newer"}, 'kv: vllm: found "newer", expected versions such as >=0.12,<0.16'),
        ({"config": {"kv_role": "kv_both"}}, "expected config without kv_role"),
    ],
)
def test_what_is_wrong_in_the_data_is_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as raised:
        make_record(KvTransfer, "kv", {"because": "b", "source": "s", **values})
    assert problem in str(raised.value)


def test_an_image_without_the_package_is_a_finding() -> None:
    cpu = find_variant(VARIANTS, "cpu")
    assert cpu.kv_transfer is not None
    has = cpu.model_copy(update={"requirements": ("nixl==1.5.1",)})
    lacks = cpu.model_copy(update={"requirements": ("vllm",)})
    assert [*kv_transfer_options.check_transfer_support(cpu.kv_transfer, has)] == []
    assert [line[:9] for line in kv_transfer_options.check_transfer_support(cpu.kv_transfer, lacks)] == ["TOPO-004:"]
