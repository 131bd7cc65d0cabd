"""Real kernels of a real server, through the client."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jupyter_server.auth.security import passwd

from tests.server.conftest import API, Server, free_port

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


TRAIN = (
    ACQUIRE
    + """
with acquire(client, request("training"), heartbeat_seconds=0.1) as lease:
    for step in range(20):
        lease.report_steps(step + 1)
"""
)


def test_a_kernel_under_a_prefix_finds_its_server_and_its_job_names_it(server: Server) -> None:
    kernel = server.kernel("digits.ipynb")
    kernel.run(TRAIN)
    job = server.http.get(API + "history").json()["jobs"][0]
    assert job["state"] == "done"
    assert job["measured"]["steps"] == 20
    assert job["request"]["kernel_id"] == kernel.id
    assert job["request"]["notebook"].endswith("digits.ipynb")
    assert job["request"]["process"]["pid"] == kernel.pid
    wait_policy = kernel.run("import os; print(os.environ['OMP_WAIT_POLICY'])")
    assert wait_policy == os.environ.get("OMP_WAIT_POLICY", "PASSIVE")


def test_without_a_token_and_with_the_port_taken_kernels_get_the_true_address(
    start_server: Callable[..., Server],
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start_server("--ServerApp.ip=127.0.0.1", port=port, token="", capability="")
        assert server.port != port
        server.http.get("a-page")  # as a browser's first page, it brings the XSRF cookie
        kernel = server.kernel()
        assert kernel.run("import os; print(os.environ['HORUS_URL'])") == server.url
        assert kernel.run(TRAIN + "print(client.job(lease.job_id).state)") == "done"


def test_with_a_password_and_on_a_unix_socket_kernels_reach_their_server(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    server = start_server(
        f"--ServerApp.sock={path}",
        f"--PasswordIdentityProvider.hashed_password={passwd('a password', 'sha1')}",
        token="",
        capability="",
        address="http://localhost",
        transport=httpx.HTTPTransport(uds=str(path)),
    )
    assert server.http.get(API + "health").status_code == 401
    assert server.http.get("login").status_code == 200
    form = {"password": "a password", "_xsrf": server.http.cookies["_xsrf"]}
    assert server.http.post("login", data=form).status_code == 302
    assert server.http.get(API + "health").status_code == 200
    kernel = server.kernel()
    assert kernel.run(TRAIN + "print(client.job(lease.job_id).state)") == "done"


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
    assert kernel.run(TRAIN + "print(client.job(lease.job_id).state)") == "done"
    # Without it, the same server is not believed.
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


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("one"), devices="sim:1xA100-80GB", capability="")
    yield server
    server.close()


def jobs_named(server: Server, name: str) -> list[dict[str, Any]]:
    jobs = server.http.get(API + "jobs").json()
    return [job for job in jobs if job["request"]["name"] == name]


def test_a_killed_kernels_slot_goes_to_the_next_in_the_queue(one_device: Server) -> None:
    first, second = one_device.kernel("first.ipynb"), one_device.kernel("second.ipynb")
    first.run(
        ACQUIRE
        + "lease = acquire(client, request('first', exclusive=True), heartbeat_seconds=0.1)\n"
        + "lease.report_steps(5)\n"
    )
    begun = second.begin(ACQUIRE + "lease = acquire(client, request('second', exclusive=True))")
    waiting = until(lambda: jobs_named(one_device, "second"))[0]
    assert waiting["state"] == "queued"
    # Heartbeats are flowing, so no time-out is near: only the death itself can free the slot.
    until(lambda: jobs_named(one_device, "first")[0]["measured"]["steps"] == 5)
    first.kill()
    until(lambda: jobs_named(one_device, "second")[0]["state"] == "running")
    gone = jobs_named(one_device, "first")[0]
    assert gone["state"] in ("lost", "failed")
    assert gone["ended_at"] is not None
    assert second.end(begun) == "ok"
    assert second.run("print(lease.release().state)") == "done"


def test_an_interrupted_wait_leaves_the_queue_and_the_kernel_usable(one_device: Server) -> None:
    first, second = one_device.kernel("third.ipynb"), one_device.kernel("fourth.ipynb")
    first.run(ACQUIRE + "lease = acquire(client, request('third', exclusive=True))")
    begun = second.begin(ACQUIRE + "acquire(client, request('fourth', exclusive=True))")
    until(lambda: [job["state"] for job in jobs_named(one_device, "fourth")] == ["queued"])
    one_device.http.post(f"api/kernels/{second.id}/interrupt")
    assert second.end(begun) == "KeyboardInterrupt"
    assert jobs_named(one_device, "fourth")[0]["state"] == "cancelled"
    assert second.run("print(6 * 7)") == "42"
    assert first.run("print(lease.release().state)") == "done"
