"""What each part of a command becomes in another version of vLLM: removals that operators have reported, and others."""

from __future__ import annotations

import shlex

import pytest

from drydock.compare.comparison import Comparison, compare_command
from drydock.compare.judgment import Judgment, Verdict
from drydock.compare.pasted_command import parse_command_words
from drydock.compare.vllm_version import find_served_version
from drydock.config.project_choice import DRYDOCK
from drydock.core.differences import find_differences

MODEL = "Qwen/Qwen3-8B"


@pytest.fixture(autouse=True)
def without_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def compared(command: str, old: str = "0.18", new: str = "0.33") -> Comparison:
    versions = find_served_version(DRYDOCK, "--from", old), find_served_version(DRYDOCK, "--to", new)
    return compare_command(DRYDOCK, parse_command_words(shlex.split(command)), *versions, hosts=())


def judgment(flags: str, old: str = "0.18", new: str = "0.33") -> Judgment:
    """Return the judgment of what a command has in addition to the model."""
    before, _, after = flags.rpartition(";")
    judged = compared(f"{before} vllm serve {MODEL} {after}", old, new)
    setting_judgments = [item for item in judged.judgments if item.kind != "model"]
    assert len(setting_judgments) == 1, setting_judgments
    assert judged.verdict is setting_judgments[0].verdict
    return setting_judgments[0]


@pytest.mark.parametrize(
    ("flags", "old", "instead"),
    [
        # runpod-workers/worker-vllm#259, kserve#4989, gpustack#3991, opendatahub-io/kserve#1005, InferenceX#273
        ("--task=embed", "0.8.5", "--runner generate or pooling"),
        ("--disable-log-requests", "0.9.2", "leave it out"),
        ("--num-scheduler-steps 8", "0.8.5", "leave it out"),
        ("--guided-decoding-backend outlines", "0.11", "--structured-outputs-config.backend"),
        ("--swap-space 4", "0.11", "--kv-offloading-size"),
        ("--use-v2-block-manager", "0.8.5", "leave it out"),
        ("--preemption-mode swap", "0.8.5", "leave it out"),
        ("--speculative-model x", "0.6.1", "--speculative-config"),
        ("--num-speculative-tokens 5", "0.6.1", "--speculative-config"),
        ('--rope-scaling \'{"rope_type": "yarn"}\'', "0.11", "--hf-overrides"),
        ("--cuda-graph-sizes 2048", "0.11", "--cudagraph-capture-sizes"),
        ("--compilation-config 3", "0.8.5", "--compilation-config.mode 3"),
        ("--compilation-config '{\"level\": 3}'", "0.11", "--compilation-config.mode"),
        ("--compilation-config.level 3", "0.16", "--compilation-config.mode"),
        ("-O3", "0.11", "--compilation-config.mode 3"),
        ("--enable-reasoning", "0.8.5", "--reasoning-parser alone"),
        ("VLLM_USE_V1=0;", "0.11", "leave it out"),
        ("VLLM_ATTENTION_BACKEND=FLASHINFER;", "0.11", "--attention-backend"),
        ("VLLM_FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB='{}';", "0.18", "leave it out"),
        # what changed its form
        ("--enable-chunked-prefill=False", "0.6.1", "--no-enable-chunked-prefill"),
        ("--enable-chunked-prefill False", "0.6.1", "--no-enable-chunked-prefill"),
        ("--limit-mm-per-prompt image=2,video=1", "0.7.2", """--limit-mm-per-prompt '{"image": 2, "video": 1}'"""),
        ("--max-num-seqs 1k", "0.18", "in digits"),
        ("VLLM_USE_MODELSCOPE=1;", "0.18", "check that the value means the same"),
    ],
)
def test_what_changed_has_to_be_decided_and_says_what_to_write(flags: str, old: str, instead: str) -> None:
    flag_judgment = judgment(flags, old)

    assert flag_judgment.verdict is Verdict.MANUAL
    assert instead in flag_judgment.instead


@pytest.mark.parametrize(
    ("flags", "because"),
    [
        ("-q bitsandbytes", "--quantization bitsandbytes: expected one of auto_awq"),
        ("--quantization gguf", "--quantization gguf: expected one of auto_awq"),
        ("--tool-call-parser minimax", "--tool-call-parser minimax: expected a name such as minimax_m3"),
        ("--override-attention-dtype float32", "removed, and no successor is known"),
        ("--all2all-backend mori", "the new version refuses this value"),
        ("--attention-backend XFORMERS_X", "vLLM's own names do not have"),
        ('--kv-transfer-config \'{"kv_connector": "P2pNcclConnector"}\'', "connector P2pNcclConnector"),
        ("--kv-transfer-config.kv_rank 0", "removed: the new version refuses keys"),
        ("--compilation-config '{\"pass_config\": 3}'", "expected object"),
        ("--frobnicate 1", "neither version has this flag: no flag has a name like it"),
        ("--tensor-paralel-size 2", "did you mean --tensor-parallel-size?"),
        ("--dtype fp8", "the new version refuses this value"),
        ("-tp", "expected a value"),
        ("--enforce-eager x y", "takes nothing"),
    ],
)
def test_what_the_new_version_refuses_is_blocked(flags: str, because: str) -> None:
    flag_judgment = judgment(flags)

    assert flag_judgment.verdict is (Verdict.UNKNOWN if "XFORMERS" in flags else Verdict.BLOCKED)
    assert because in flag_judgment.because


@pytest.mark.parametrize(
    "flags",
    [
        "-tp 2",
        "-tp=2",
        "-n2",
        "-O3",
        "--max_model_len=32K",
        "--max-model 4096",
        "--no-enable-prefix-caching",
        "--disable-log-stats",
        "--served-model-name a b",
        "--limit-mm-per-prompt '{\"image\": 2}'",
        '--speculative-config \'{"method": "eagle3", "model": "x", "num_speculative_tokens": 3}\'',
        "--speculative-config.num_speculative_tokens 3",
        '--compilation-config \'{"cudagraph_mode": "FULL", "custom_ops": ["+rms_norm"], "mode": 3}\'',
        "--tool-call-parser hermes",
        "--attention-backend flash_attn",
        "--max-num-batched-tokens 8k",
        "VLLM_LOGGING_LEVEL=DEBUG;",
    ],
)
def test_what_parses_in_both_and_means_the_same_is_safe(flags: str) -> None:
    assert judgment(flags).verdict is Verdict.SAFE


@pytest.mark.parametrize(
    "flags",
    [
        "--hf-overrides '{\"a\": 1}'",
        "--additional-config '{\"a\": 1}'",
        "--port $PORT",
        "--config serve.yaml",
        "--middleware my.module.Class",
        "--lora-modules a=b",
        "--optimize latency",
        "VLLM_ASCEND_ENABLE_NZ=1;",
    ],
)
def test_what_lists_cannot_know_is_unknown(flags: str) -> None:
    assert judgment(flags).verdict is Verdict.UNKNOWN


def test_a_form_that_only_the_new_parser_takes_still_says_to_leave_it_out() -> None:
    flag_judgment = judgment("--disable-log-requests")

    assert flag_judgment.because == "the new version takes it as the off form of --enable-log-requests"
    assert flag_judgment.verdict is Verdict.MANUAL


def test_a_variable_is_refused_if_the_command_asks_for_that() -> None:
    judged = compared(f"VLLM_RPC_TIMEOUT=1 vllm serve {MODEL} --fail-on-environ-validation")

    assert {item.verdict for item in judged.judgments if item.kind == "variable"} == {Verdict.BLOCKED}


def test_the_model_counts_and_other_variables_are_named() -> None:
    judged = compared("HF_TOKEN=hf_x NCCL_DEBUG=INFO DRYDOCK_OFFLINE=1 vllm serve openai/gpt-oss-120b", "0.8.5", "0.33")

    assert judged.judgments[0] == Judgment(
        "model", "openai/gpt-oss-120b", Verdict.SAFE, "only the new version has GptOssForCausalLM, mxfp4"
    )
    assert judged.notes == ("not vLLM's, and not judged: HF_TOKEN, NCCL_DEBUG", "drydock's own: DRYDOCK_OFFLINE")
    assert compared("vllm serve openai/gpt-oss-120b", "0.33", "0.8.5").verdict is Verdict.BLOCKED
    assert compared("vllm serve no/such-model").verdict is Verdict.UNKNOWN


def test_every_default_that_changed_is_listed_unless_the_command_states_it() -> None:
    defaults = {change.name: (change.old, change.new) for change in compared(f"vllm serve {MODEL}").defaults}
    stated = compared(f"VLLM_ALLREDUCE_USE_FLASHINFER=0 vllm serve {MODEL} --gpu-memory-utilization 0.8").defaults

    assert next(iter(defaults)) == "--gpu-memory-utilization"  # what changes memory comes first
    assert defaults["--gpu-memory-utilization"] == ("0.9", "0.92")
    assert defaults["--eplb-config.use_async"] == ("False", "True")
    assert defaults["VLLM_ALLREDUCE_USE_FLASHINFER"] == ("0", "1")
    names = {change.name for change in stated}
    assert defaults.keys() - names == {"--gpu-memory-utilization", "VLLM_ALLREDUCE_USE_FLASHINFER"}


def test_a_default_that_vllm_computes_is_not_listed() -> None:
    names = {change.name for change in compared(f"vllm serve {MODEL}", "0.27.1", "0.33").defaults}

    assert "--attention-config.indexer_kv_dtype" in names
    assert names & {"--log-config-file", "--disable-cascade-attn"} == set()  # argparse.SUPPRESS, True → None


def test_secrets_are_hidden() -> None:
    judged = compared(f"VLLM_API_KEY=verysecret vllm serve {MODEL} --api-key topsecret")

    assert "secret" not in " ".join(item.name for item in judged.judgments)


def test_lists_that_are_assumed_prove_nothing_and_refuse_nothing() -> None:
    judged = compared(f"vllm serve {MODEL} --max-model-len 4096 --frobnicate 1", "cuda12.9-vllm0.18", "rocm")
    verdicts = {item.name: item.verdict for item in judged.judgments}

    assert verdicts == {
        MODEL: Verdict.UNKNOWN,
        "--max-model-len 4096": Verdict.UNKNOWN,
        "--frobnicate 1": Verdict.MANUAL,
    }
    assert judged.notes[0].startswith("--to rocm7.2-vllm0.27: the lists are assumed, of vLLM's release 0.27.1")
    assert judged.plans == ()


def test_each_name_that_differs_comes_with_both_values_in_the_order_of_the_records() -> None:
    old, new = {"b": 1, "same": 2, "a": None}, {"c": 3, "b": 4, "same": 2}
    assert [*find_differences(old, new)] == [("b", 1, 4), ("c", None, 3)]
