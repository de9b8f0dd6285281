"""The error and the exit codes of the image side."""

from __future__ import annotations

OK = 0
USAGE = 2
"""Invalid verb, flag or value."""
CHECK_FAILED = 3
"""`check`, `fabric` or `serve --strict` found a FAIL, or requests of `bench` failed."""
MODEL = 4
"""The model folder is missing, broken or unreadable."""
DOES_NOT_FIT = 5
"""The model does not fit the available memory."""
HOST = 6
"""The host or container does not meet a requirement: port in use, cache not writable, device missing."""
NOT_READY = 7
"""`health`, `bench`: the server is not ready. `warm`: the server did not become ready."""
WRONG_ANSWER = 8
"""The server gives wrong tokens: they differ from the known answer, or between prefill and decode."""
DIED = 9
"""vLLM, or one of its processes, ended without being asked to."""
LIMITED = 10
"""The container's limit of memory or of processes ended vLLM."""
STALLED = 11
"""vLLM was stopped while it made no progress, so requests were lost."""
GROUP_ENDED = 12
"""Another of the hosts that serve together ended, or did not start."""
NOT_KNOWN = 13
"""`explain` knows nothing about what it read."""
REFUSED = 14
"""This image's vLLM refuses the configuration: its lists lack something, or vLLM itself refuses the command."""
INTERNAL = 70
"""A defect in drydock's entrypoint: EX_SOFTWARE of sysexits.h. Not 1, with which vLLM ends after most errors."""

EXIT_CODES = {
    OK: "success; check passed or only warned",
    USAGE: "unknown verb, flag or value",
    CHECK_FAILED: "a check failed (check, fabric, serve --strict), or requests of bench",
    MODEL: "the model is missing, broken or unreadable",
    DOES_NOT_FIT: "the model does not fit the memory that is there",
    HOST: "the host or container lacks what serving needs",
    NOT_READY: "the server is not ready, or never became ready",
    WRONG_ANSWER: "the server answers wrongly",
    DIED: "vLLM or one of its processes ended without being asked to",
    LIMITED: "the container's limit of memory or of processes ended vLLM",
    STALLED: "stopped while vLLM made no progress",
    GROUP_ENDED: "another of the hosts that serve together ended, or did not start",
    NOT_KNOWN: "explain knows no failure with these lines",
    REFUSED: "this vLLM refuses the configuration: architecture, quantisation, parser, connector or package",
    INTERNAL: "a defect of drydock's entrypoint",
}
"""Any other code is vLLM's own, passed on. 128 + n means that signal n ended it."""


class EntrypointError(Exception):
    """An error for the user: what was found, what was expected, where, and what to do."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message
