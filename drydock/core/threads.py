"""Work in a thread that nothing waits for at the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def start_daemon(work: Callable[[], T]) -> Future[T]:
    """Start work in a thread of its own and return its answer to come.

    An executor's threads are joined when the interpreter ends: a server that never answers would hold the process.
    """
    future: Future[T] = Future()

    def fulfil() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is awaited
            future.set_exception(error)

    threading.Thread(target=fulfil, daemon=True).start()
    return future
