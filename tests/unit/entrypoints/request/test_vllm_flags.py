"""vLLM's flags in every form that vLLM takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import event, example, given
from hypothesis import strategies as st

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.request.vllm_flags import parse_config, parse_count, parse_user_flags

KNOWN = (
    "--model",
    "--max-model-len",
    "--max-num-seqs",
    "--enforce-eager",
    "--no-enforce-eager",
    "-tp",
    "-O",
    "--config",
)


@pytest.mark.parametrize(
    "tokens",
    [
        ("--tensor-parallel-size", "2"),
        ("--tensor-parallel-size=2",),
        ("--tensor_parallel_size", "2"),
        ("-tp", "2"),
        ("-tp=2",),
    ],
)
def test_every_spelling_is_one_flag(tokens: tuple[str, ...]) -> None:
    user_flags = parse_user_flags(tokens, {})

    assert user_flags.number("--tensor-parallel-size") == 2
    assert user_flags.tokens == tokens


def test_a_first_word_is_the_model_and_later_words_belong_to_flags() -> None:
    user_flags = parse_user_flags(("/m", "--served-model-name", "a", "b", "--seed", "-1"), {})

    assert user_flags.flag("--model") == "/m"
    assert user_flags.flag("--served-model-name") == "a b"
    assert user_flags.flag("--seed") == "-1"
    assert user_flags.tokens[:2] == ("--model", "/m")


@pytest.mark.parametrize(
    "tokens",
    [
        ("modelscope:Qwen/Qwen3-8B", "--port", "1"),
        ("--model=modelscope:Qwen/Qwen3-8B", "--port", "1"),
        ("--port", "1", "--model", "modelscope:Qwen/Qwen3-8B"),
    ],
)
def test_a_model_of_modelscope_reaches_vllm_by_its_plain_name(tokens: tuple[str, ...]) -> None:
    user_flags = parse_user_flags(tokens, {})

    assert (user_flags.modelscope, user_flags.flag("--model")) == (True, "Qwen/Qwen3-8B")
    assert user_flags.tokens == ("--model", "Qwen/Qwen3-8B", "--port", "1")
    assert not parse_user_flags(("Qwen/Qwen3-8B",), {}).modelscope


def test_a_config_files_model_of_modelscope_is_given_to_vllm_as_a_flag(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model: modelscope:Qwen/Qwen3-8B\n")
    user_flags = parse_user_flags(("--config", str(tmp_path / "c.yaml")), {})

    assert user_flags.tokens[:2] == ("--model", "Qwen/Qwen3-8B")


@pytest.mark.parametrize("name", ["", "Qwen", "Qwen/", "/models/x", "../x", "a/b/c"])
def test_modelscope_needs_an_organisation_and_a_name(name: str) -> None:
    with pytest.raises(EntrypointError, match="expected modelscope:ORG/NAME") as error:
        parse_user_flags((f"modelscope:{name}",), {})
    assert error.value.code == USAGE


def test_a_bare_flag_is_true_and_no_flag_is_its_opposite() -> None:
    flags = parse_user_flags(("--enforce-eager", "--no-enable-prefix-caching"), {}).flags

    assert flags["--enforce-eager"].value is True
    assert flags["--enable-prefix-caching"].value is False


def test_the_last_of_two_wins_as_in_vllm() -> None:
    assert parse_user_flags(("--port", "1", "--port", "2"), {}).flag("--port") == "2"


def test_an_optimisation_level_may_stick_to_its_letter() -> None:
    assert parse_user_flags(("-O3",), {}, KNOWN).flag("--optimization-level") == "3"


def test_json_values_and_dotted_fields_pass() -> None:
    user_flags = parse_user_flags(("--kv-transfer-config", '{"a": 1}', "--kv_transfer_config.b_c", "2"), {})

    assert user_flags.flag("--kv-transfer-config") == '{"a": 1}'
    assert user_flags.flag("--kv-transfer-config.b_c") == "2"


def test_an_unknown_flag_names_the_nearest() -> None:
    with pytest.raises(EntrypointError, match="did you mean --max-model-len") as refused:
        parse_user_flags(("--max-modle-len", "9"), {}, KNOWN)
    assert refused.value.code == USAGE
    with pytest.raises(EntrypointError, match="did you mean --drain-timeout"):
        parse_user_flags(("--drain-timout", "9"), {}, KNOWN)
    with pytest.raises(EntrypointError, match="unknown flag -Z") as short:
        parse_user_flags(("-Z", "3"), {}, KNOWN)
    assert "did you mean" not in str(short.value.hint)


def test_the_beginning_of_one_flag_is_that_flag_and_of_two_is_refused() -> None:
    assert parse_user_flags(("--max-model", "9"), {}, KNOWN).flag("--max-model-len") == "9"
    with pytest.raises(EntrypointError, match="--max-model-len, --max-num-seqs"):
        parse_user_flags(("--max", "9"), {}, KNOWN)


def test_an_unknown_short_flag_is_refused_and_a_known_one_passes() -> None:
    assert parse_user_flags(("-tp", "2"), {}, KNOWN).number("--tensor-parallel-size") == 2
    with pytest.raises(EntrypointError, match="-xyz"):
        parse_user_flags(("-xyz", "2"), {}, KNOWN)


def test_a_config_files_keys_are_flags_that_the_command_line_overrides(tmp_path: Path) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text(
        "# mine\nmodel: /m\nmax_model_len: 4096  # short\nport: '1'\nenforce-eager: true\nlist:\n  - a: b\n"
    )
    user_flags = parse_user_flags(("--config", str(config), "--port", "2"), {})

    assert user_flags.flag("--model") == "/m"
    assert user_flags.number("--max-model-len") == 4096
    assert user_flags.flag("--port") == "2"
    assert user_flags.flags["--enforce-eager"].value is True
    assert "--a" not in user_flags.flags
    assert user_flags.tokens == ("--config", str(config), "--port", "2")


def test_a_config_file_that_is_missing_or_in_one_word_is_refused() -> None:
    with pytest.raises(EntrypointError, match="No such file"):
        parse_user_flags(("--config", "/none.yaml"), {})
    with pytest.raises(EntrypointError, match="two words"):
        parse_user_flags(("--config=/none.yaml",), {})


@pytest.mark.parametrize(
    ("text", "number"), [("4096", 4096), ("4K", 4096), ("4k", 4000), ("2.5k", 2500), ("1M", 1 << 20)]
)
def test_numbers_are_written_as_vllm_allows(text: str, number: int) -> None:
    assert parse_count(text, "--x") == number


@pytest.mark.parametrize("text", ["", "x", "2.5", "2.5K", "-3", "0", "1e3"])
def test_invalid_numbers_are_refused(text: str) -> None:
    with pytest.raises(EntrypointError, match="--x"):
        parse_count(text, "--x")


@pytest.mark.parametrize("share", ["0", "1.5", "5", "-0.1", "nan", "inf", "half"])
def test_a_share_of_memory_that_cannot_be_is_refused(share: str) -> None:
    with pytest.raises(EntrypointError, match="at most 1"):
        parse_user_flags(("--gpu-memory-utilization", share), {})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-tp 0", "a whole number of devices, at least 1"),
        ("-tp -1", "at least 1"),
        ("-tp auto", "at least 1"),
        ("--max-model-len -5", "a whole number of tokens, at least 1"),
        ("--max-num-seqs 0", "a whole number of requests, at least 1"),
        ("--cpu-offload-gb -3", "a number of GiB, at least 0"),
        ("--swap-space=-1", "a number of GiB, at least 0"),
        ("--swap-space inf", "a number of GiB, at least 0"),
        ("--kv-offloading-size 1e400", "a number of GiB, at least 0"),
        ("--max-logprobs -2", "at least 0"),
        ("--max-loras 0 --enable-lora", "a whole number of adapters, at least 1"),
        ("--data-parallel-rpc-port 65536", "a whole number from 1 to 65535"),
        ("--watermark 1", "a share at least 0, below 1"),
        ("--kv-cache-metrics-sample 0", "a share above 0, at most 1"),
        ("--decode-context-parallel-size 0", "a whole number of devices, at least 1"),
        ("--stream-interval x", "a whole number of tokens, at least 1"),
        ("--block-size 1.5", "expected a whole number"),
    ],
)
def test_a_number_out_of_its_range_is_one_line_that_names_the_range(words: str, expected: str) -> None:
    """The ranges of vllm/config/*.py: vLLM ends with a traceback after half a minute."""
    with pytest.raises(EntrypointError) as error:
        parse_user_flags(tuple(words.split()), {})

    assert (error.value.code, "\n" in error.value.message) == (USAGE, False)
    assert error.value.message.startswith(words.partition("=")[0].partition(" --")[0])
    assert expected in error.value.message


def test_a_number_that_vllm_does_not_read_is_not_judged() -> None:
    """Without --enable-lora there is no LoRAConfig, whose ranges these are."""
    assert parse_user_flags(("--max-loras", "0"), {}).flag("--max-loras") == "0"


@pytest.mark.parametrize(
    "words",
    [
        *("--max-model-len -1", "--max-model-len auto", "--max-model-len 4K", "--max-logprobs -1"),
        *("--cpu-offload-gb 0.5", "--swap-space 0", "--node-rank 0", "--watermark 0", "--kv-cache-metrics-sample 1"),
        "--data-parallel-size-local 0",
    ],
)
def test_numbers_at_the_ends_of_a_range_are_taken(words: str) -> None:
    assert parse_user_flags(tuple(words.split()), {}).tokens == tuple(words.split())


@pytest.mark.parametrize("words", ["-tp", "--no-max-num-seqs"])
def test_a_number_that_is_missing_is_asked_for(words: str) -> None:
    with pytest.raises(EntrypointError, match=f"{words}: expected a value"):
        parse_user_flags((words,), {})


@pytest.mark.parametrize("number", ["9" * 5000, f"{'9' * 400}.0k"])
def test_a_number_without_end_is_refused(number: str) -> None:
    with pytest.raises(EntrypointError, match="expected a whole number"):
        parse_user_flags(("--max-model-len", number), {})


def test_an_empty_variable_is_not_set() -> None:
    assert parse_user_flags((), {"A": "", "B": "1"}).variable("A") is None
    assert parse_user_flags((), {"A": "", "B": "1"}).variable("B") == "1"


@given(st.lists(st.text()))
@example(["-tp"])
@example(["-tp", "9" * 5000])
@example(["--max-model-len", f"{'9' * 400}.0k"])
def test_no_words_give_a_traceback_and_all_reach_vllm(words: list[str]) -> None:
    tokens = tuple(word for word in words if not word.startswith("--config"))
    try:
        user_flags = parse_user_flags(tokens, {})
    except EntrypointError as error:  # its own error, no traceback: a number that vLLM would refuse, such as in ["-tp"]
        event(error.message)
        return
    assert user_flags.tokens[len(user_flags.tokens) - len(tokens) :] == tokens


@given(st.text())
def test_no_config_file_gives_a_traceback(text: str) -> None:
    try:
        flags = parse_config(text, "f")
    except EntrypointError as error:
        event(error.message.rpartition(": ")[2])
        return
    assert all(name.startswith("--") for name in flags)


_KEYS = st.text(st.sampled_from("sk-1 ~#:|>&*!{}[]'\"\\\t"), max_size=8)


@given(
    key=_KEYS, name=st.sampled_from(("api-key", "api_key", '"api-key"', "api-k", "? api-key", "  api-key", "{api-key"))
)
@example(key="|\n  sk-1", name="api-key")
@example(key="sk-1\n\n  sk-1", name="api-key")
@example(key="&a sk-1", name="api-key")
@example(key="on", name="api-key")
@example(key="0123", name="api-key")
@example(key='"sk-1"  # mine', name="api-key")
@example(key="on-call", name='"api-key"')
def test_a_key_of_a_config_file_is_the_one_that_yaml_has_or_is_refused(key: str, name: str) -> None:
    text = f"{name}: {key}\nport: 9\n"
    try:
        api_key = parse_config(text, "f")["--api-key"].value
    except EntrypointError as error:
        event(error.message)
        return
    assert api_key == {key.replace("_", "-"): value for key, value in yaml.safe_load(text).items()}["api-key"]


@pytest.mark.parametrize(
    "text", ["{port: 9}\n", "? port\n: 9\n", "a: &b\n  port: 9\n<<: *b\n", "  port: 9\n", "\ufeffport: 9\n"]
)
def test_settings_that_vllm_would_read_and_drydock_would_not_are_refused(text: str) -> None:
    assert "9" in str(yaml.safe_load(text))
    with pytest.raises(EntrypointError, match=r"f: line \d: expected KEY: VALUE") as caught:
        parse_config(text, "f")
    assert caught.value.code == USAGE


def test_a_refused_key_is_not_shown() -> None:
    with pytest.raises(EntrypointError, match="f: api-key: expected api-key: and one key") as caught:
        parse_config("api-key: |\n  sk-1\n", "f")
    assert caught.value.code == USAGE
    assert "sk-1" not in str(caught.value)


def test_what_yaml_writes_at_the_beginning_of_a_line_is_read() -> None:
    text = '---\n# a\n\n"port": 9\nlora-modules:\n- a=b\ncompilation-config: {\n  "level": 3\n}\n...\n'
    assert parse_config(text, "f")["--port"].value == "9"
