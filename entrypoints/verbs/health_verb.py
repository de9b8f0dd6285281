"""`health [--status-port N | --url URL | --topology JSON]`: is the server ready? For HEALTHCHECK and probes. IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from entrypoints.core.errors import NOT_READY, OK, WRONG_ANSWER, EntrypointError
from entrypoints.core.text import print_message
from entrypoints.host.processes import command_line
from entrypoints.request.arguments import Arguments
from entrypoints.request.flags import ADDRESS, PORT
from entrypoints.request.network import parse_port
from entrypoints.serve.client import Endpoint, Unreachable, find_flag_value, parse_endpoint, parse_url, send_request
from entrypoints.serve.known_answer import HTTP_OK, VLLM_PORT, parse_reply_object

STATUS_PORT = 8001


def run_health(arguments: Arguments, env: Mapping[str, str]) -> int:
    """Return OK if the server in this container is ready, else NOT_READY or WRONG_ANSWER; print the reason on stderr.

    With --topology, ask the servers that it names instead.
    """
    words = arguments.vllm
    if find_flag_value(words, "--topology"):
        from entrypoints.serve import topology_answer  # it is also sent to images that lack it, as a program

        return topology_answer.main(words, env)
    code, reason = check_health(words, command_line(1), env)
    if reason:
        print_message(reason)
    return code


def check_health(argv: Sequence[str], first: Sequence[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Return exit code and reason; `first` is the command line of process 1, which has the port options."""
    try:
        reply = send_request(*_endpoint_of(argv, first, env))
    except (Unreachable, ValueError, EntrypointError) as error:
        return NOT_READY, f"not ready: {error}"
    if reply.status == HTTP_OK:
        return OK, ""
    state = parse_reply_object(reply)
    return (WRONG_ANSWER if state.get("wrong") else NOT_READY), f"not ready: {state.get('reason') or reply.status}"


def _endpoint_of(argv: Sequence[str], first: Sequence[str], env: Mapping[str, str]) -> tuple[Endpoint, str]:
    """Return whom to ask, and the path. Raises ValueError for what is no URL, USAGE for no port."""
    if find_flag_value(argv, "--url"):  # of the router, which requires its key for every path
        endpoint, path = parse_url(find_flag_value(argv, "--url"))
        return endpoint._replace(key=env.get("VLLM_API_KEY", "")), path
    port = find_flag_value(argv, "--status-port")
    if not port and ("--exec" in first or "-m" in first):  # no supervisor: vLLM is process 1, or below a small init
        return parse_endpoint(
            first, find_flag_value(first, ADDRESS), int(find_flag_value(first, PORT) or VLLM_PORT), env
        ), "/health"
    port = port or find_flag_value(first, "--status-port") or str(STATUS_PORT)
    return Endpoint("127.0.0.1", parse_port(port, "--status-port", least=1)), "/readyz"
