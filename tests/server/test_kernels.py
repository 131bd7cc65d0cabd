"""Real kernels of a real server, through the client."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import API, TOKEN, Server, free_port

pytestmark = pytest.mark.server

ACQUIRE = """
import uuid
from horus_lab.client import *
from horus_lab.records import *
client = HorusClient.discover()
def request(name, **constraints):
    return JobRequest(request_id=uuid.uuid4().hex, name=name, process=this_process(),
                      declared=DeclaredNeeds(memory_bytes=2**30, utilization=0.3),
                      constraints=Constraints(**constraints),
                      notebook=notebook_name(), kernel_id=kernel_id())
"""


def until(true: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return value


@pytest.mark.parametrize("base_url", ["/", "/user/x/named/"])
def test_a_kernel_finds_its_server_without_being_told(
    start_server: Callable[..., Server], base_url: str
) -> None:
    server = start_server(base_url=base_url, capability="")
    kernel = server.kernel()
    assert kernel.run(ACQUIRE + "print(client.health().probe, client.endpoint.url)") == (
        f"sim {server.url}"
    )


@pytest.mark.parametrize(
    ("arguments", "token"),
    [((), TOKEN), (("--ServerApp.disable_check_xsrf=False",), "")],
    ids=["token", "no-token"],
)
def test_a_kernel_trains_in_each_mode_and_the_job_names_it(
    start_server: Callable[..., Server], arguments: tuple[str, ...], token: str
) -> None:
    server = start_server(*arguments, token=token, capability="")
    if not token:
        server.http.get("tree")  # a browser's first page brings the XSRF cookie
    kernel = server.kernel("digits.ipynb")
    kernel.run(
        ACQUIRE
        + """
with acquire(client, request("training"), heartbeat_seconds=0.1) as lease:
    for step in range(20):
        lease.report_steps(step + 1)
"""
    )
    job = server.http.get(API + "history").json()["jobs"][0]
    assert job["state"] == "done"
    assert job["measured"]["steps"] == 20
    assert job["request"]["kernel_id"] == kernel.id
    assert job["request"]["notebook"].endswith("digits.ipynb")
    assert job["request"]["process"]["pid"] == kernel.pid


def test_a_server_with_a_password_serves_its_kernels(
    start_server: Callable[..., Server],
) -> None:
    from jupyter_server.auth.security import passwd

    hashed = passwd("a password", "sha1")
    server = start_server(
        f"--PasswordIdentityProvider.hashed_password={hashed}", token="", capability=""
    )
    assert server.http.get(API + "health").status_code == 401
    page = server.http.get("login")
    assert page.status_code == 200
    answer = server.http.post(
        "login", data={"password": "a password", "_xsrf": server.http.cookies["_xsrf"]}
    )
    assert answer.status_code == 302
    kernel = server.kernel()
    assert kernel.run(ACQUIRE + "print(acquire(client, request('t')).release().state)") == "done"


def test_with_the_port_taken_the_published_address_is_the_true_one(
    start_server: Callable[..., Server],
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start_server(port=port, capability="")
        assert server.port != port
        kernel = server.kernel()
        assert kernel.run("import os; print(os.environ['HORUS_URL'])") == server.url
        assert kernel.run(ACQUIRE + "print(client.health().probe)") == "sim"


def test_on_a_unix_socket_kernels_reach_their_server(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    server = start_server(
        f"--ServerApp.sock={path}",
        capability="",
        address="http://localhost",
        transport=httpx.HTTPTransport(uds=str(path)),
    )
    kernel = server.kernel()
    assert kernel.run(ACQUIRE + "print(acquire(client, request('t')).release().state)") == "done"


def test_with_a_certificate_made_out_to_another_name_kernels_trust_exactly_it(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=lab.example "
        f"-addext subjectAltName=DNS:lab.example -keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    port = free_port()
    server = start_server(
        f"--ServerApp.certfile={certificate}",
        f"--ServerApp.keyfile={key}",
        capability="",
        port=port,
        address=f"https://127.0.0.1:{port}",
        verify=context,
    )
    kernel = server.kernel()
    assert kernel.run(ACQUIRE + "print(acquire(client, request('t')).release().state)") == "done"
    # Another certificate at the same address is not believed.
    said = kernel.run(
        ACQUIRE
        + """
from horus_lab.errors import BrokerUnavailable
import os
os.environ.pop("HORUS_CA_FILE")
try:
    HorusClient.discover().health()
except BrokerUnavailable as error:
    print(error)
"""
    )
    assert "CERTIFICATE_VERIFY_FAILED" in said


def test_a_killed_kernels_slot_goes_to_the_next_in_the_queue(
    start_server: Callable[..., Server],
) -> None:
    server = start_server(devices="sim:1xA100-80GB", capability="")
    first, second = server.kernel("first.ipynb"), server.kernel("second.ipynb")
    first.run(
        ACQUIRE
        + "lease = acquire(client, request('first', exclusive=True), heartbeat_seconds=0.1)\n"
        + "lease.report_steps(5)\n"
    )
    second.run(ACQUIRE)
    second.begin("lease = acquire(client, request('second', exclusive=True))")

    def job(name: str) -> dict[str, Any]:
        jobs = server.http.get(API + "jobs").json()
        return next((job for job in jobs if job["request"]["name"] == name), {})

    waiting = until(lambda: job("second"))
    assert waiting["state"] == "queued"
    # Heartbeats are flowing, so no time-out is near: only the death itself can free the slot.
    until(lambda: job("first")["measured"]["steps"] == 5)
    first.kill()
    until(lambda: job("second").get("state") == "running")
    lost = job("first")
    assert lost["state"] in ("lost", "failed")
    assert lost["ended_at"] is not None
    assert second.run("print(lease.release().state)") == "done"


def test_an_interrupted_wait_leaves_the_queue_and_the_kernel_usable(
    start_server: Callable[..., Server],
) -> None:
    server = start_server(devices="sim:1xA100-80GB", capability="")
    first, second = server.kernel("first.ipynb"), server.kernel("second.ipynb")
    first.run(ACQUIRE + "lease = acquire(client, request('first', exclusive=True))")
    second.run(ACQUIRE)
    second.begin("acquire(client, request('second', exclusive=True))")

    def states(name: str) -> list[str]:
        jobs = server.http.get(API + "jobs").json()
        return [job["state"] for job in jobs if job["request"]["name"] == name]

    until(lambda: states("second") == ["queued"])
    server.http.post(f"api/kernels/{second.id}/interrupt")
    until(lambda: states("second") == ["cancelled"], 10)
    assert second.run("print(6 * 7)") == "42"
    assert first.run("print(lease.release().state)") == "done"
