from __future__ import annotations

import pytest

from horus_lab.client.discovery import parse_url
from jupyter_ext.address import Listening, Publication


@pytest.mark.parametrize(
    ("ip", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8888/"),
        ("localhost", "http://localhost:8888/"),
        ("", "http://127.0.0.1:8888/"),
        ("*", "http://127.0.0.1:8888/"),
        ("0.0.0.0", "http://127.0.0.1:8888/"),
        ("::", "http://[::1]:8888/"),
        ("::1", "http://[::1]:8888/"),
        ("192.0.2.7", "http://192.0.2.7:8888/"),
    ],
)
def test_an_address_that_means_all_is_published_as_the_loopback_one(ip: str, url: str) -> None:
    assert Listening(ip=ip, port=8888, base_url="/").url == url


@pytest.mark.parametrize("base_url", ["/user/x/named/", "user/x/named", "/user/x/named"])
def test_the_base_url_is_part_of_it_and_ends_in_one_slash(base_url: str) -> None:
    listening = Listening(ip="127.0.0.1", port=8888, base_url=base_url)
    assert listening.url == "http://127.0.0.1:8888/user/x/named/"


def test_what_is_published_for_a_unix_socket_is_what_a_kernel_understands() -> None:
    listening = Listening(ip="", port=0, base_url="/x/", socket_path="/run/a b/s.sock")
    found = parse_url(listening.url)
    assert (found.socket_path, found.url) == ("/run/a b/s.sock", "http://localhost/x/")


def test_with_a_certificate_it_is_https_and_the_certificate_is_named() -> None:
    environ: dict[str, str] = {}
    publication = Publication(environ)
    publication.publish(
        Listening(ip="127.0.0.1", port=1, base_url="/", certificate="/etc/ssl/me.pem"), "secret"
    )
    assert environ == {
        "HORUS_URL": "https://127.0.0.1:1/",
        "HORUS_CAPABILITY": "secret",
        "HORUS_CA_FILE": "/etc/ssl/me.pem",
    }


def test_an_outer_servers_variables_are_replaced_and_put_back() -> None:
    outer = {"HORUS_URL": "http://outer/", "HORUS_CAPABILITY": "o", "HORUS_CA_FILE": "/o.pem"}
    environ = dict(outer)
    publication = Publication(environ)
    publication.publish(Listening(ip="127.0.0.1", port=1, base_url="/"), "secret")
    assert environ == {"HORUS_URL": "http://127.0.0.1:1/", "HORUS_CAPABILITY": "secret"}
    publication.withdraw()
    assert environ == outer


def test_what_somebody_else_published_since_is_left_alone() -> None:
    environ: dict[str, str] = {}
    publication = Publication(environ)
    publication.publish(Listening(ip="127.0.0.1", port=1, base_url="/"), "secret")
    environ["HORUS_URL"] = "http://other/"
    publication.withdraw()
    assert environ == {"HORUS_URL": "http://other/"}


def test_on_a_shared_cpu_kernels_threads_sleep_while_they_wait() -> None:
    environ: dict[str, str] = {}
    publication = Publication(environ)
    publication.publish(Listening(ip="127.0.0.1", port=1, base_url="/"), "secret")
    publication.let_waiting_threads_sleep()
    assert environ["OMP_WAIT_POLICY"] == "PASSIVE"
    publication.let_waiting_threads_spin()
    assert "OMP_WAIT_POLICY" not in environ
    publication.let_waiting_threads_sleep()
    publication.withdraw()
    assert environ == {}


def test_a_wait_policy_of_the_users_own_stays() -> None:
    environ = {"OMP_WAIT_POLICY": "ACTIVE"}
    publication = Publication(environ)
    publication.publish(Listening(ip="127.0.0.1", port=1, base_url="/"), "secret")
    publication.let_waiting_threads_sleep()
    publication.withdraw()
    assert environ == {"OMP_WAIT_POLICY": "ACTIVE"}
