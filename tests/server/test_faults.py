"""The extension loads and answers whatever its machine is like."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.conftest import API, Server
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


def test_an_unexpected_fault_at_start_is_a_reason_too_and_the_log_has_it_all(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server(
        launcher=launcher(
            tmp_path,
            """
            async def open_backend(self):
                raise ZeroDivisionError("planted")
            """,
        )
    )
    answer = server.http.get(API + "health")
    assert answer.status_code == 503
    assert "ZeroDivisionError: planted" in check(answer, "GET", "health")["message"]
    assert "Traceback" not in answer.text
    assert "Traceback" in server.log


def test_an_unexpected_error_in_a_call_is_500_with_an_id_that_the_log_has(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server(
        launcher=launcher(
            tmp_path,
            """
            async def open_backend(self):
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


def test_a_broker_that_starts_slowly_is_waited_for(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server(
        launcher=launcher(
            tmp_path,
            """
            import asyncio
            async def open_backend(self):
                await asyncio.sleep(2)
                return await original(self)
            """,
        )
    )
    assert server.http.get(API + "health").status_code == 200


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


def test_devices_that_cannot_be_understood_are_told_and_jupyter_works(
    start_server: Callable[..., Server],
) -> None:
    server = start_server(devices="sim:lots")
    answer = server.http.get(API + "health")
    assert answer.status_code == 503
    assert "sim:lots" in answer.text
    assert server.http.get("api/kernelspecs").status_code == 200


def test_a_store_that_cannot_be_opened_is_told_and_jupyter_works(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder is needed")
    server = start_server(f"--HorusLab.store_url=sqlite:///{blocked}/horus.sqlite3")
    answer = server.http.get(API + "health")
    assert answer.status_code == 503
    assert check(answer, "GET", "health")["message"]
    assert server.http.get("api/kernelspecs").status_code == 200


def test_a_second_broker_on_the_same_store_refuses_and_names_the_first(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    store = f"--HorusLab.store_url=sqlite:///{tmp_path / 'shared' / 'horus.sqlite3'}"
    first = start_server(store)
    assert first.http.get(API + "health").status_code == 200
    second = start_server(store)
    answer = second.http.get(API + "health")
    assert answer.status_code == 503
    assert check(answer, "GET", "health")["message"]
    assert first.http.get(API + "health").status_code == 200
