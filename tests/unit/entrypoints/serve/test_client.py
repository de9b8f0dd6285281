"""The client of vLLM's server: its address from vLLM's flags, and errors."""

from __future__ import annotations

import pytest

from entrypoints.serve.client import Endpoint, Unreachable, find_flag_value, parse_endpoint, parse_url, send_request


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
    assert find_flag_value(argv, "--api-key") == value


@pytest.mark.parametrize(
    ("host", "address"), [("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("::", "::1"), ("10.1.2.3", "10.1.2.3")]
)
def test_a_wildcard_address_is_asked_on_the_loopback(host: str, address: str) -> None:
    assert parse_endpoint((), host, 8000, {}).host == address


def test_a_certificate_means_tls() -> None:
    endpoint = parse_endpoint(("--ssl-certfile", "c.pem", "--ssl-keyfile", "k.pem"), "::", 8000, {})
    assert str(endpoint) == "https://[::1]:8000"


def test_the_key_on_the_command_line_wins_over_the_environment() -> None:
    assert parse_endpoint(("--api-key", "flag"), "", 1, {"VLLM_API_KEY": "variable"}).key == "flag"
    assert parse_endpoint((), "", 1, {"VLLM_API_KEY": "\nfirst\nsecond"}).key == "first"


def test_a_unix_socket_goes_before_host_and_port() -> None:
    assert str(parse_endpoint(("--uds", "/run/vllm"), "", 1, {})) == "/run/vllm"


def test_a_missing_server_is_unreachable_and_named() -> None:
    with pytest.raises(Unreachable, match=r"/no/such/socket/health: .*No such file"):
        send_request(Endpoint("", 0, socket="/no/such/socket"), "/health")


def test_a_header_that_cannot_be_sent_is_unreachable_too() -> None:
    with pytest.raises(Unreachable):
        send_request(Endpoint("127.0.0.1", 1, key="a\nb"), "/health")


def test_an_address_that_no_host_can_have_is_unreachable_too() -> None:
    with pytest.raises(Unreachable, match="http://a b:1/health"):
        send_request(Endpoint("a b", 1), "/health")


def test_a_url_has_a_host_and_may_have_a_port_and_a_path() -> None:
    assert parse_url("http://h") == (Endpoint("h", 80), "/")
    assert parse_url("https://[::1]:8443/readyz@1") == (Endpoint("::1", 8443, tls=True), "/readyz@1")


@pytest.mark.parametrize(
    "url",
    [
        *("h:8000", "ftp://h/", "http://", "http://h:x/", "http://h:0/", "http://h:65536/", "http://[::1/"),
        *("http://a b/", "http://h/a b", " http://h/", "http://h\n/", "http://user:secret@h/", "http://u:se@cret@h/"),
    ],
)
def test_what_is_no_url_is_refused_with_the_form_and_without_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="expected http://HOST:PORT/PATH, without a user") as raised:
        parse_url(url)
    assert "cret" not in str(raised.value)
