"""The plugin's copy of what vLLM logs of its memory."""

from __future__ import annotations

import logging
import logging.config
from collections.abc import Iterator
from pathlib import Path

import pytest

from entrypoints.plugin.drydock_plugin import memory_report
from entrypoints.serve import measured


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    vllm_logger = logging.getLogger("vllm")
    before, level, factory = list(vllm_logger.handlers), vllm_logger.level, logging.getLogRecordFactory()
    vllm_logger.setLevel(logging.INFO)
    memory_report._begun.clear()
    yield vllm_logger
    memory_report._begun.clear()
    logging.setLogRecordFactory(factory)
    vllm_logger.handlers[:] = before
    vllm_logger.setLevel(level)


def test_lines_of_the_memory_are_appended_and_no_others(
    tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines"
    file.touch()
    monkeypatch.setenv(memory_report.VARIABLE, str(file))
    memory_report.start()
    memory_report.start()
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
    monkeypatch.setenv(memory_report.VARIABLE, path)
    memory_report.start()
    logger.info("Available KV cache memory: %s GiB", "19.53")


def test_the_file_is_bounded_and_no_link_is_followed(
    tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch()
    link.symlink_to(target)
    monkeypatch.setenv(memory_report.VARIABLE, str(link))
    memory_report.start()
    logger.info("Model loading took 1 GiB")
    assert target.read_text() == ""

    logging.setLogRecordFactory(memory_report.CopyingFactory(str(target), logging.LogRecord))
    for _ in range(100):
        logger.info("Model loading took %s", "x" * 2000)
    assert target.stat().st_size <= memory_report.FILE_AT_MOST + memory_report.LINE_AT_MOST + 1


def test_the_supervisor_and_the_plugin_name_the_same_variable() -> None:
    assert memory_report.VARIABLE == measured.MEASURED_VARIABLE
    assert all(
        any(mark in line for mark in memory_report.MARKS)
        for line in (
            "Model loading took 1 GiB",
            "CPU KV cache size: 1 tokens, Maximum",
            "# GPU blocks: 1, # CPU blocks: 1",
        )
    )
