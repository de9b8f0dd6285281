"""The client of vLLM's server: its address from vLLM's flags, and errors."""

from __future__ import annotations

import pytest

from entrypoints.serve.client import Endpoint, Unreachable, ask, flag, parse_endpoint


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (("--api-key", "a"), "a"),
        (("--api-key=a=b",), "a=b"),
        (("--api_key", "a"), "a"),
        (("--api-key", "a", "--api-key", "b"), "b"),
        (("--api-key",), ""),
        (("--other", "--api-keys", "x"), ""),
    ],
)
def test_a_flag_is_read_in_each_form(argv: tuple[str, ...], value: str) -> None:
    assert flag(argv, "--api-key") == value


@pytest.mark.parametrize(
    ("host", "asked"), [("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("::", "::1"), ("10.1.2.3", "10.1.2.3")]
)
def test_a_wildcard_address_is_asked_on_the_loopback(host: str, asked: str) -> None:
    assert parse_endpoint((), host, 8000, {}).host == asked


def test_a_certificate_means_tls() -> None:
    endpoint = parse_endpoint(("--ssl-certfile", "c.pem", "--ssl-keyfile", "k.pem"), "::", 8000, {})
    assert str(endpoint) == "https://[::1]:8000"


def test_the_key_on_the_command_line_wins_over_the_environment() -> None:
    assert parse_endpoint(("--api-key", "flag"), "", 1, {"VLLM_API_KEY": "variable"}).key == "flag"
    assert parse_endpoint((), "", 1, {"VLLM_API_KEY": "variable"}).key == "variable"


def test_a_unix_socket_goes_before_host_and_port() -> None:
    assert str(parse_endpoint(("--uds", "/run/vllm"), "", 1, {})) == "/run/vllm"


def test_a_missing_server_is_unreachable_and_named() -> None:
    with pytest.raises(Unreachable, match=r"/no/such/socket/health: .*No such file"):
        ask(Endpoint("", 0, socket="/no/such/socket"), "/health")


def test_a_header_that_cannot_be_sent_is_unreachable_too() -> None:
    with pytest.raises(Unreachable):
        ask(Endpoint("127.0.0.1", 1, key="a\nb"), "/health")
