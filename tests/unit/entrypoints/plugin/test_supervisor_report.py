"""What the plug-in reports to the supervisor: vLLM's lines on its memory, and what vLLM refuses."""

from __future__ import annotations

import logging
import logging.config
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from entrypoints.plugin.drydock_plugin import supervisor_report
from entrypoints.serve import plugin_files
from tests.support.stub_vllm import create_engine_config, of_vllm


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    vllm_logger = logging.getLogger("vllm")
    before, level, factory = list(vllm_logger.handlers), vllm_logger.level, logging.getLogRecordFactory()
    vllm_logger.setLevel(logging.INFO)
    supervisor_report._begun.clear()
    yield vllm_logger
    supervisor_report._begun.clear()
    logging.setLogRecordFactory(factory)
    vllm_logger.handlers[:] = before
    vllm_logger.setLevel(level)


def test_lines_of_the_memory_are_appended_and_no_others(
    tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines"
    file.touch()
    monkeypatch.setenv(supervisor_report.VARIABLE, str(file))
    supervisor_report.start()
    supervisor_report.start()
    # vLLM configures its logger after it has loaded plugins
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "loggers": {"vllm": {"level": "INFO"}}})
    part = logger.getChild("v1.worker.gpu_worker")
    part.info("Available KV cache memory: %s GiB", "19.53")
    part.info("Using max model len 8192")
    part.info("GPU KV cache size: %s tokens, Maximum concurrency for %s tokens per request: %.2fx", "9", "8", 1.1)
    part.info("Model loading took %s", *[])

    assert file.read_text().splitlines() == [
        "Available KV cache memory: 19.53 GiB",
        "GPU KV cache size: 9 tokens, Maximum concurrency for 8 tokens per request: 1.10x",
        "Model loading took %s",
    ]


@pytest.mark.parametrize("path", ["", "/proc/none/file"])
def test_without_the_file_vllm_logs_as_before(
    path: str, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(supervisor_report.VARIABLE, path)
    supervisor_report.start()
    logger.info("Available KV cache memory: %s GiB", "19.53")


def test_the_file_is_bounded_and_no_link_is_followed(
    tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch()
    link.symlink_to(target)
    monkeypatch.setenv(supervisor_report.VARIABLE, str(link))
    supervisor_report.start()
    logger.info("Model loading took 1 GiB")
    assert target.read_text() == ""

    logging.setLogRecordFactory(supervisor_report.CopyingFactory(str(target), logging.LogRecord))
    for _ in range(100):
        logger.info("Model loading took %s", "x" * 2000)
    assert target.stat().st_size <= supervisor_report.FILE_AT_MOST + supervisor_report.LINE_AT_MOST + 1


def test_the_supervisor_and_the_plugin_name_the_same_variable() -> None:
    assert supervisor_report.VARIABLE == plugin_files.REPORT_VARIABLE
    assert all(
        any(mark in line for mark in supervisor_report.MARKS)
        for line in (
            "Model loading took 1 GiB",
            "CPU KV cache size: 1 tokens, Maximum",
            "# GPU blocks: 1, # CPU blocks: 1",
        )
    )


# --- what vLLM refuses ----------------------------------------------------------------------------------------------


def initialize_cache(error: Exception) -> None:
    raise error


def initialize_model(layers: dict[int, int]) -> None:
    for layer in layers:
        layers[layer + 1] = 0  # RuntimeError, without a `raise`, as PyTorch and drivers have it


def caught(function: Callable[..., None], *arguments: Any) -> Exception:
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


LIBRARY = ImportError("libcuda.so.1: cannot open shared object file", path="/site-packages/vllm/_C.so")


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (ValueError("tp_size=1 must be divisible by dcp_size=3"), True),
        (NotImplementedError("prefill context parallel"), True),
        (AssertionError(), True),
        (ImportError("Please install bitsandbytes"), True),
        (RuntimeError("Failed to load the model config"), True),
        (LIBRARY, False),
        (FileNotFoundError("config.json"), False),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), False),
    ],
    ids=str,
)
def test_what_vllm_raises_while_it_checks_its_configuration_is_a_refusal(error: Exception, is_refused: bool) -> None:
    assert supervisor_report.is_refusal(caught(of_vllm(create_engine_config), error)) is is_refused


def test_an_error_of_another_place_a_network_a_device_or_a_driver_is_no_refusal() -> None:
    refused = ValueError("no config.json")
    errors = (
        caught(create_engine_config, ValueError("of a user's own program")),
        caught(of_vllm(initialize_cache, "vllm.v1.engine.core"), ValueError("no memory for the cache blocks")),
        caught(of_vllm(create_engine_config), refused, ConnectionError("the hub does not answer")),
        caught(of_vllm(create_engine_config, "vllm.config.device"), RuntimeError("Failed to infer device type")),
        caught(of_vllm(initialize_model), {0: 0}),
    )

    assert [supervisor_report.is_refusal(error) for error in errors] == [False] * len(errors)


def test_a_refusal_that_a_process_logs_is_reported(
    tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines"
    file.touch()
    monkeypatch.setenv(supervisor_report.VARIABLE, str(file))
    supervisor_report.start()
    for function in (create_engine_config, of_vllm(create_engine_config)):
        try:
            function(ValueError("Unsupported activation: banana"), KeyError("banana"))
        except ValueError:
            logger.exception("EngineCore failed to start.")

    (line,) = file.read_text().splitlines()
    assert plugin_files.parse_refusal(line) == ("Unsupported activation: banana", "KeyError 'banana'")


def test_a_report_that_another_process_has_spoilt_says_nothing() -> None:
    line = '{"refused": '
    spoilt = (line, f"{line}3}}", f'{line}"', f"{line}{'[' * 10_000}", f"{line}null}}", "Model loading took 1 GiB")

    assert [plugin_files.parse_refusal(text) for text in spoilt] == [()] * len(spoilt)
    assert plugin_files.parse_refusal(f'{line}["first"]}}\n{line}["last", 3]}}\n') == ("last",)
    assert sum(map(len, plugin_files.parse_refusal(line + str(["x" * 9000] * 9).replace("'", '"') + "}"))) == 2000
