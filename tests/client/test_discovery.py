from __future__ import annotations

import socket
from pathlib import Path

import pytest

from horus_lab.client import discover
from horus_lab.client.discovery import parse_url
from horus_lab.errors import BrokerUnavailable, InvalidRequest


@pytest.fixture
def machine_socket(tmp_path: Path) -> str:
    path = str(tmp_path / "horus.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
    return path


def test_an_explicit_address_goes_before_everything_else(machine_socket: str) -> None:
    environ = {"HORUS_URL": "http://127.0.0.1:1/", "HORUS_SOCKET": machine_socket}
    found = discover("http://127.0.0.1:2/base", "mine", environ=environ)
    assert (found.url, found.capability) == ("http://127.0.0.1:2/base/", "mine")


def test_an_explicit_address_takes_the_capability_of_the_environment() -> None:
    environ = {"HORUS_CAPABILITY": "secret"}
    assert discover("http://127.0.0.1:2/", environ=environ).capability == "secret"


def test_the_environment_goes_before_the_machines_socket(machine_socket: str) -> None:
    environ = {
        "HORUS_URL": "http://127.0.0.1:1/user/x/",
        "HORUS_CAPABILITY": "secret",
        "HORUS_SOCKET": machine_socket,
    }
    found = discover(environ=environ)
    assert (found.url, found.capability) == ("http://127.0.0.1:1/user/x/", "secret")
    assert found.found_by == "HORUS_URL"


def test_the_machines_socket_is_found_where_no_server_is_named(machine_socket: str) -> None:
    found = discover(environ={"HORUS_SOCKET": machine_socket})
    assert found.socket_path == machine_socket
    assert found.capability == ""


def test_without_any_broker_the_error_lists_what_was_tried(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.sock")
    with pytest.raises(BrokerUnavailable) as caught:
        discover(environ={"HORUS_SOCKET": missing})
    assert "no address was given" in caught.value.message
    assert "HORUS_URL is not set" in caught.value.message
    assert f"HORUS_SOCKET={missing}" in caught.value.message
    assert "HORUS_CAPABILITY" in caught.value.hint


def test_a_plain_file_is_no_machine_broker(tmp_path: Path) -> None:
    plain = tmp_path / "horus.sock"
    plain.write_text("")
    with pytest.raises(BrokerUnavailable):
        discover(environ={"HORUS_SOCKET": str(plain)})


def test_a_servers_unix_socket_is_read_from_its_url() -> None:
    found = parse_url("http+unix://%2Frun%2Fjupyter%2Fs.sock/user/x/", capability="secret")
    assert (found.socket_path, found.url) == ("/run/jupyter/s.sock", "http://localhost/user/x/")


@pytest.mark.parametrize(
    "url", ["", "   ", "127.0.0.1:8888", "ftp://127.0.0.1/", "http://", "http://127.0.0.1:none/"]
)
def test_an_address_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_url(url)
    assert "http://127.0.0.1:8888/" in caught.value.hint


def test_an_endpoint_does_not_print_its_secrets() -> None:
    found = parse_url("http://127.0.0.1:2/", capability="secret-capability", token="secret-token")
    assert "secret" not in repr(found)
