"""Who may call, on a real server with `allow_unauthenticated_access = False`."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from jupyter_ext.access import server_owner
from tests.server.conftest import API, CAPABILITY, TOKEN, Server
from tests.server.contract import check, routes

pytestmark = pytest.mark.server

ROUTES = pytest.mark.parametrize(("method", "path"), routes())


@ROUTES
def test_no_route_answers_without_credentials(server: Server, method: str, path: str) -> None:
    with server.bare() as nobody:
        answer = nobody.request(method, API + path, json={} if method == "POST" else None)
    assert check(answer, method, path)["code"] == "not_authenticated"
    assert answer.status_code == 401


@ROUTES
def test_no_route_answers_a_wrong_capability(server: Server, method: str, path: str) -> None:
    for headers in (
        {"Authorization": f"Horus {CAPABILITY}x"},
        {"Authorization": "Horus"},
        {"Authorization": "Horus \xff"},
        {"X-Horus-Capability": ""},
    ):
        with server.bare(headers=[(k, v.encode("latin-1")) for k, v in headers.items()]) as liar:
            answer = liar.request(method, API + path, json={} if method == "POST" else None)
        assert answer.status_code == 401, headers
        check(answer, method, path)


@ROUTES
def test_no_route_answers_a_wrong_token(server: Server, method: str, path: str) -> None:
    with server.bare(headers={"Authorization": "token wrong"}) as liar:
        answer = liar.request(method, API + path, json={} if method == "POST" else None)
    assert answer.status_code == 401
    check(answer, method, path)


def test_what_is_no_route_is_authenticated_too(server: Server) -> None:
    with server.bare() as nobody:
        assert nobody.get("horus/api/v2/health").status_code == 401
        assert nobody.get("horus/api").status_code == 401
    answer = server.http.get("horus/api/v2/health")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("size", [0, 10, 3 * 2**20])
def test_a_refusal_leaves_the_connection_usable_and_is_always_read(
    server: Server, size: int
) -> None:
    with server.bare() as nobody:
        for _ in range(20):
            nobody.cookies.clear()
            answer = nobody.post(API + "jobs", content=b" " * size)
            assert answer.status_code == 401
            assert "Connection" not in answer.headers
            with_token = nobody.get(API + "health", headers={"Authorization": f"token {TOKEN}"})
            assert with_token.status_code == 200


def test_a_method_that_a_route_lacks_is_405_in_json(server: Server) -> None:
    answer = server.http.put(API + "jobs", json={})
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


def test_a_wrong_capability_is_not_mended_by_a_right_token(server: Server) -> None:
    answer = server.http.get(API + "health", headers={"X-Horus-Capability": "wrong"})
    assert answer.status_code == 401


def test_the_capability_opens_horus_in_both_of_its_headers(server: Server) -> None:
    for headers in (server.capability, {"X-Horus-Capability": CAPABILITY}):
        with server.bare(headers=headers) as kernel:
            assert kernel.get(API + "health").status_code == 200


@pytest.mark.parametrize("path", ["api/contents", "api/kernels", "api/sessions", "view/x"])
def test_the_capability_opens_nothing_else_of_jupyter(server: Server, path: str) -> None:
    for headers in (server.capability, {"X-Horus-Capability": CAPABILITY}):
        with server.bare(headers=headers, follow_redirects=False) as kernel:
            answer = kernel.get(path)
        assert answer.status_code in (302, 403, 404)
        assert "login" in answer.headers.get("Location", "login")


def test_the_capability_does_not_open_the_browsers_event_stream(server: Server) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    with server.bare(headers=server.capability | upgrade) as kernel:
        assert kernel.get(API + "events").status_code == 401


def test_a_token_in_the_query_is_jupyters_own_and_works(server: Server) -> None:
    with server.bare() as browser:
        assert browser.get(API + "health", params={"token": TOKEN}).status_code == 200


def logged_in(server: Server) -> httpx.Client:
    browser = server.bare()
    browser.get("tree", params={"token": TOKEN})
    browser.get("api/me")
    assert browser.cookies
    return browser


def test_a_cookie_may_read_and_may_change_only_with_its_xsrf_token(server: Server) -> None:
    with closing(logged_in(server)) as browser:
        assert browser.get(API + "devices").status_code == 200
        answer = browser.delete(API + "jobs/no-such-job")
        assert answer.status_code == 403
        assert "X-XSRFToken" in check(answer, "DELETE", "jobs/no-such-job")["hint"]
        with_token = browser.delete(
            API + "jobs/no-such-job", headers={"X-XSRFToken": browser.cookies["_xsrf"]}
        )
        assert with_token.status_code == 404


def test_another_sites_page_cannot_use_the_cookie(server: Server) -> None:
    with closing(logged_in(server)) as browser:
        answer = browser.get(API + "devices", headers={"Origin": "https://elsewhere.example"})
        assert answer.status_code == 403
        assert "another site" in check(answer, "GET", "devices")["message"]


def test_a_foreign_host_name_is_refused_for_kernels_too(server: Server) -> None:
    with server.bare(headers=server.capability | {"Host": "elsewhere.example"}) as kernel:
        assert kernel.get(API + "health").status_code == 403


def test_an_authorizer_can_keep_people_out_and_kernels_in(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "readers.py").write_text(
        "from jupyter_server.auth import Authorizer\n"
        "class Readers(Authorizer):\n"
        "    def is_authorized(self, handler, user, action, resource):\n"
        "        return resource != 'horus' or action == 'read'\n"
    )
    server = start_server(
        "--ServerApp.authorizer_class=readers.Readers",
        environment={"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert server.http.get(API + "devices").status_code == 200
    answer = server.http.delete(API + "jobs/no-such-job")
    assert answer.status_code == 403
    assert check(answer, "DELETE", "jobs/no-such-job")["code"] == "forbidden"
    with server.bare(headers=server.capability) as kernel:
        assert kernel.delete(API + "jobs/no-such-job").status_code == 404


def test_the_owner_is_the_systems_user_and_not_what_the_environment_says() -> None:
    assert server_owner({"USER": "root2", "LOGNAME": "x"}) == pwd.getpwuid(os.getuid()).pw_name


def test_on_a_hub_the_owner_is_the_hubs_user() -> None:
    assert server_owner({"JUPYTERHUB_USER": "ada"}) == "ada"
