"""The extension loads and answers whatever its machine is like."""

from __future__ import annotations

import logging
import socket
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from horus_lab.errors import BrokerUnavailable
from jupyter_ext.app import HorusLab
from tests.server.conftest import API, TOKEN, Server
from tests.server.contract import check, routes

pytestmark = pytest.mark.server


def launcher(folder: Path, fault: str) -> Path:
    """A `jupyter server` in which `open_backend` of the extension is replaced."""
    script = folder / "launch.py"
    script.write_text(
        "from jupyter_server.serverapp import main\n"
        "from jupyter_ext.app import HorusLab\n"
        "from horus_lab.errors import *\n"
        "original = HorusLab.open_backend\n"
        + textwrap.dedent(fault)
        + "HorusLab.open_backend = open_backend\nmain()\n"
    )
    return script


def test_without_a_broker_every_route_says_why_and_jupyter_works(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server(
        launcher=launcher(
            tmp_path,
            """
            async def open_backend(self):
                raise DeviceUnavailable("The driver is not loaded.", hint="Run nvidia-smi.")
            """,
        )
    )
    bodies = {
        "confirm": {"fence": 1},
        "heartbeat": {"fence": 1, "sequence": 1},
        "release": {"fence": 1},
        "predict": {},
    }
    for method, path in routes():
        if path == "events":
            continue
        body = bodies.get(path.rsplit("/", 1)[-1])
        if (method, path) == ("POST", "jobs"):
            body = {
                "request_id": "r",
                "name": "n",
                "process": {"boot_id": "b", "pid_namespace": 1, "pid": 1, "start_ticks": 1},
            }
        answer = server.http.request(method, API + path, json=body)
        assert answer.status_code == 503, (method, path, answer.text)
        reply = check(answer, method, path)
        assert reply["code"] == "broker_unavailable"
        assert reply["message"] == "The driver is not loaded."
        assert reply["hint"] == "Run nvidia-smi."
    assert server.http.get("api/kernelspecs").status_code == 200
    assert server.log.count("The driver is not loaded.") == 1


def test_a_slow_start_is_waited_for_and_an_unexpected_error_is_500_with_an_id_of_the_log(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server(
        launcher=launcher(
            tmp_path,
            """
            import asyncio
            async def open_backend(self):
                await asyncio.sleep(2)
                backend = await original(self)
                async def broken():
                    raise ZeroDivisionError("a secret path")
                backend.devices = broken
                return backend
            """,
        )
    )
    answer = server.http.get(API + "devices")
    assert answer.status_code == 500
    reply = check(answer, "GET", "devices")
    assert reply["code"] == "internal"
    assert "a secret path" not in answer.text
    error_id = reply["message"].split("id ")[1].rstrip(").")
    assert f"unexpected error {error_id}" in server.log
    assert "ZeroDivisionError: a secret path" in server.log


def test_switched_off_it_says_so_and_publishes_nothing(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--HorusLab.enabled=False")
    answer = server.http.get(API + "health")
    assert answer.status_code == 503
    assert "switched off" in answer.json()["message"]
    kernel = server.kernel()
    assert kernel.run("import os; print([n for n in os.environ if n.startswith('HORUS_')])") == (
        "['HORUS_DEVICES']"
    )


async def reason_of(**settings: str) -> BrokerUnavailable:
    """Why an extension with these settings has no broker."""
    lab = HorusLab(**settings)
    lab.initialize_handlers()
    await lab._start_broker()
    with pytest.raises(BrokerUnavailable) as caught:
        await lab.wiring.backend()
    return caught.value


async def test_devices_that_cannot_be_understood_are_the_reason(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/horus.sqlite3"
    assert "lots" in (await reason_of(devices="sim:lots", store_url=store)).message


async def test_a_store_that_cannot_be_opened_is_the_reason(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder is needed")
    store = f"sqlite:///{blocked}/horus.sqlite3"
    assert str(blocked) in (await reason_of(devices="sim:1xT4", store_url=store)).message


async def test_an_unexpected_fault_at_start_is_a_reason_too_and_the_log_has_it_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def open_backend(self: HorusLab) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(HorusLab, "open_backend", open_backend)
    monkeypatch.setattr(logging.getLogger("HorusLab"), "propagate", True, raising=False)
    assert "ZeroDivisionError: planted" in (await reason_of()).message


def test_a_second_broker_on_the_same_store_refuses_and_names_the_first(
    server: Server, start_server: Callable[..., Server]
) -> None:
    assert server.http.get(API + "health").status_code == 200
    store = server.home / "data" / "horus" / "horus.sqlite3"
    second = start_server(f"--HorusLab.store_url=sqlite:///{store}")
    answer = second.http.get(API + "health")
    assert answer.status_code == 503
    assert server.process is not None
    assert str(server.process.pid) in check(answer, "GET", "health")["message"]
    assert server.http.get(API + "health").status_code == 200


def test_a_reader_that_stands_still_is_dropped_and_the_server_goes_on(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    server = start_server(
        launcher=launcher(
            tmp_path,
            f"""
            import msgspec, pathlib, jupyter_ext.events
            from horus_lab.records import BrokerEvent
            jupyter_ext.events.SEND_SECONDS = 1.0
            async def open_backend(self):
                backend = await original(self)
                async def events(after):
                    snapshot = (await anext(backend_events(None)))
                    try:
                        for number in range(10**9):
                            yield msgspec.structs.replace(snapshot, sequence=number)
                    finally:
                        pathlib.Path({str(closed)!r}).write_text(str(number))
                backend_events, backend.events = backend.events, events
                return backend
            """,
        )
    )
    assert server.http.get(API + "health").status_code == 200
    with socket.create_connection(("127.0.0.1", server.port)) as reader:
        lines = [
            f"GET /{API}events HTTP/1.1",
            f"Host: 127.0.0.1:{server.port}",
            f"Authorization: token {TOKEN}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ]
        reader.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        assert b"101" in reader.recv(20)
        deadline = time.monotonic() + 30  # and now it reads no more
        while not closed.exists():
            assert time.monotonic() < deadline
            assert server.http.get(API + "health").status_code == 200
            time.sleep(0.2)
    assert server.process is not None
    assert psutil.Process(server.process.pid).memory_info().rss < 2**30
