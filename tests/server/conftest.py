"""Real Jupyter servers on loopback, in processes of their own, with real kernels."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from horus_lab.client import HorusClient

TOKEN = "a-jupyter-token"
CAPABILITY = "a-capability"
API = "horus/api/v1/"
START_SECONDS = 90.0
_NOT_NEEDED = ("jupyterlab", "jupyter_lsp", "jupyter_server_terminals", "notebook_shim")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One `jupyter server` with the extension, and a home of its own.

    `launcher` replaces `python -m jupyter_server` by a script that plants a fault.
    """

    def __init__(
        self,
        home: Path,
        *arguments: str,
        base_url: str = "/",
        token: str | None = TOKEN,
        capability: str = CAPABILITY,
        port: int | None = None,
        devices: str = "sim:2xA100-80GB",
        launcher: Path | None = None,
        address: str | None = None,
        transport: httpx.HTTPTransport | None = None,
        verify: Any = True,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.home = home
        self.port = port or free_port()
        self.url = (address or f"http://127.0.0.1:{self.port}") + base_url
        self.log_file = home / "server.log"
        program = [str(launcher)] if launcher else ["-m", "jupyter_server"]
        self.command = [
            sys.executable,
            *program,
            "--no-browser",
            "--allow-root",
            *([] if transport else [f"--ServerApp.port={self.port}"]),
            f"--ServerApp.base_url={base_url}",
            f"--ServerApp.root_dir={home}",
            "--ServerApp.jpserver_extensions=jupyter_ext=True",
            *(f"--ServerApp.jpserver_extensions={name}=False" for name in _NOT_NEEDED),
            "--ServerApp.allow_unauthenticated_access=False",
            *([f"--IdentityProvider.token={token}"] if token is not None else []),
            *([f"--HorusLab.capability={capability}"] if capability else []),
            *arguments,
        ]
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HORUS_", "JUPYTER", "JPY_"))
        } | {
            "HOME": str(home),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "IPYTHONDIR": str(home / "ipython"),
            "HORUS_DEVICES": devices,
            "PYTHONWARNINGS": "ignore",
            **(environment or {}),
        }
        headers = {"Authorization": f"token {token}"} if token else {}
        self.http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=60,
            trust_env=False,
            transport=transport,
            verify=verify,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended:\n{self.log}"
            with contextlib.suppress(httpx.TransportError, OSError, ValueError):
                self._take_true_port()
                if self.http.get("api/status").status_code in (200, 403):
                    return
            time.sleep(0.05)
        raise AssertionError(f"the server did not answer:\n{self.log}")

    def _take_true_port(self) -> None:
        """The port that Jupyter says it got: the asked one may have been taken."""
        assert self.process is not None
        written = self.home / "runtime" / f"jpserver-{self.process.pid}.json"
        port = json.loads(written.read_text())["port"]
        if port and port != self.port and f":{self.port}/" in self.url:
            self.url = self.url.replace(f":{self.port}/", f":{port}/")
            self.port = port
            self.http.base_url = httpx.URL(self.url)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def capability(self) -> dict[str, str]:
        return {"Authorization": f"Horus {CAPABILITY}"}

    def client(self, **options: Any) -> HorusClient:
        return HorusClient(self.url, CAPABILITY, **options)

    def bare(self, **options: Any) -> httpx.Client:
        """A client without any credentials."""
        return httpx.Client(base_url=self.url, trust_env=False, timeout=60, **options)

    def kernel(self, notebook: str = "notebook.ipynb") -> Kernel:
        return Kernel(self, notebook)

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        self.stop()
        self.http.close()


class Kernel:
    """A kernel that the server started for a notebook, spoken to over its own sockets."""

    def __init__(self, server: Server, notebook: str) -> None:
        body = {
            "path": notebook,
            "name": notebook,
            "type": "notebook",
            "kernel": {"name": "python3"},
        }
        headers = {}
        if "_xsrf" in server.http.cookies:
            headers["X-XSRFToken"] = server.http.cookies["_xsrf"]
        answer = server.http.post("api/sessions", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        self.id: str = answer.json()["kernel"]["id"]
        self._client = BlockingKernelClient()
        self._client.load_connection_file(str(server.home / "runtime" / f"kernel-{self.id}.json"))
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)
        self.pid = int(self.run("import os; print(os.getpid())"))

    def run(self, code: str) -> str:
        """What the code printed; a raised exception fails the test."""
        printed: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                printed.append(content["text"])
            elif message["msg_type"] == "error":
                printed.append("\n".join(content["traceback"]))

        reply = self._client.execute_interactive(code, output_hook=hear, timeout=90)
        text = "".join(printed).strip()
        assert reply["content"]["status"] == "ok", text
        return text

    def begin(self, code: str) -> str:
        """Send code and do not wait for it; `end` does."""
        message_id: str = self._client.execute(code)
        return message_id

    def end(self, message_id: str) -> str:
        """Wait for begun code; `ok`, or the name of what it raised."""
        while True:
            reply = self._client.get_shell_msg(timeout=90)
            if reply["parent_header"]["msg_id"] == message_id:
                content = reply["content"]
                return str(content.get("ename") or content["status"])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._client.stop_channels()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers and stops them at the end."""
    started: list[Server] = []

    def start(*arguments: str, **options: Any) -> Server:
        home = tmp_path / f"home-{len(started)}"
        home.mkdir()
        server = Server(options.pop("home", home), *arguments, **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that leave it as they found it, under a long prefix."""
    shared = Server(tmp_path_factory.mktemp("server"), base_url="/user/x/named/")
    yield shared
    shared.close()
