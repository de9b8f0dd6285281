"""Runs a container to its end. IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drydock.core.errors import BuildError
from drydock.engine.connection import UNPACKED_WITHIN, connect_engine


def run_to_end(image: str, words: Sequence[str], **options: Any) -> bytes:
    """Run a container, remove it, and return its standard output. `options` are those of docker's containers.run.

    The engine makes a volume without a name for each VOLUME of the image. It is removed too: `remove=True` would keep
    it. Raises BuildError with the exit code and the last line that the container wrote.
    """
    container = connect_engine(seconds=UNPACKED_WITHIN).containers.run(image, [*words], detach=True, **options)
    try:
        code = container.wait()["StatusCode"]
        output: bytes = container.logs(stderr=False)
        lines = container.logs().decode(errors="replace").split("\n") if code else []
    finally:
        container.remove(force=True, v=True)
    if code:
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        raise BuildError(f"{' '.join(words)} in {image}: exit {code}: {last}")
    return output
