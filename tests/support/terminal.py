"""A terminal of 80 columns, to run a command on and read what it draws."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COLOURS = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
CURSOR_SHOWN, CURSOR_HIDDEN = "\x1b[?25h", "\x1b[?25l"


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    awaited: str = "",
    then: Callable[[subprocess.Popen[bytes]], None] | None = None,
    within: float = 60,
) -> tuple[int, str]:
    """Run a command to its end; return its exit code and all that it wrote, with escapes.

    `then` is called once `awaited` was written.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "", **env},
    )  # fmt: skip
    os.close(follower)
    output, end = b"", time.monotonic() + within
    try:
        while piece := _piece(leader):
            output += piece
            assert time.monotonic() < end, output
            if then and awaited.encode() in output:
                then(process)
                then = None
        return process.wait(within), output.decode()
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def _piece(leader: int) -> bytes:
    try:
        return os.read(leader, 1 << 16)
    except OSError:  # no process has the terminal open any more
        return b""


def lines(output: str) -> list[str]:
    """Return the lines that stay on the screen: without escapes, and without what was drawn over."""
    visible_lines = [line.rpartition("\x1b[2K")[2] for line in output.replace("\r\n", "\n").split("\n")]
    return [text for line in visible_lines if (text := ESCAPES.sub("", line).replace("\r", "").rstrip())]
