"""A real JupyterLab with the built sidebar, in a process and a home of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
LABEXTENSION = ROOT / "jupyter_ext" / "labextension"
TOKEN = "a-jupyter-token"
CAPABILITY = "a-capability"
START_SECONDS = 120.0


class Lab:
    """JupyterLab on loopback; `stop` and `start` give the same address again.

    The sidebar is served from the tree as it was built last, whatever is installed.

    Args:
        home: an empty folder: HOME, notebooks, Jupyter's data and the store lie in it.
        base_url: the prefix that everything is served under.
        devices: as in `HORUS_DEVICES`.
        owner: the hub's name of the user, which jobs are kept under.
    """

    def __init__(
        self,
        home: Path,
        *,
        base_url: str = "/user/ana/lab-1/",
        devices: str = "sim:2xA100-80GB",
        owner: str = "ana",
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.home = home
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}{base_url}"
        self.page_url = f"{self.url}lab?token={TOKEN}&reset"
        self.capability = CAPABILITY
        extensions = home / "labextensions"
        extensions.mkdir(parents=True)
        (extensions / "horus-lab").symlink_to(LABEXTENSION)
        _write_settings(home / "config" / "lab" / "user-settings" / "@jupyterlab")
        self._log = home / "server.log"
        self._command = [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.base_url={base_url}",
            f"--ServerApp.root_dir={home}",
            "--ServerApp.jpserver_extensions=jupyter_ext=True",
            "--ServerApp.allow_unauthenticated_access=False",
            f"--LabApp.extra_labextensions_path={extensions}",
            f"--IdentityProvider.token={TOKEN}",
            f"--HorusLab.capability={CAPABILITY}",
            *arguments,
        ]
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HORUS_", "JUPYTER", "JPY_"))
        }
        self._environment = inherited | {
            "HOME": str(home),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "IPYTHONDIR": str(home / "ipython"),
            "HORUS_DEVICES": devices,
            "JUPYTERHUB_USER": owner,
            "PYTHONWARNINGS": "ignore",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._runs: list[subprocess.Popen[bytes]] = []
        self.http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"token {TOKEN}"},
            timeout=30,
            trust_env=False,
        )
        self.start()

    def start(self) -> None:
        """Start, and wait until the broker answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"the server ended:\n{self.log}"
            with contextlib.suppress(httpx.TransportError):
                if self.http.get("horus/api/v1/health").status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the server did not answer:\n{self.log}")

    def stop(self) -> None:
        """End the server; what runs beside it goes on."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def clear(self) -> None:
        """End every run, and wait until the broker has nobody left."""
        for run in self._runs:
            run.kill()
            run.wait()
        self._runs.clear()
        deadline = time.monotonic() + 60
        while self.jobs():
            assert time.monotonic() < deadline, f"jobs stay: {self.jobs()}"
            time.sleep(0.1)

    def jobs(self, state: str = "queued,granted,running,suspect,fenced") -> list[dict[str, Any]]:
        """The broker's jobs in these states."""
        answer = self.http.get("horus/api/v1/jobs", params={"state": state})
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()
        return found

    def close(self) -> None:
        """End the server and every run."""
        for run in self._runs:
            run.kill()
            run.wait()
        self.stop()
        self.http.close()

    @property
    def log(self) -> str:
        """What the server wrote."""
        return self._log.read_text(errors="replace")

    def train(
        self,
        name: str,
        *,
        gib: float | None = None,
        features: Path | None = None,
        utilization: float | None = None,
        notebook: str = "",
        rate: float = 20.0,
        steps: int = 0,
        devices: int = 1,
        max_slowdown: float = 1.25,
        exclusive: bool = False,
        priority: int = 0,
    ) -> subprocess.Popen[bytes]:
        """Start a run in a process of its own, as a kernel of this server would.

        It needs what `gib` and `utilization` declare, or what the `features` in a file say.
        """
        options = {
            "--name": name,
            "--gib": gib,
            "--features": features,
            "--utilization": utilization,
            "--notebook": notebook,
            "--rate": rate,
            "--steps": steps,
            "--devices": devices,
            "--max-slowdown": max_slowdown,
            "--priority": priority,
        }
        arguments = [f"{option}={value}" for option, value in options.items() if value is not None]
        with (self.home / "runs.log").open("ab") as log:
            run = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("training_run.py")),
                    *arguments,
                    *(["--exclusive"] if exclusive else []),
                ],
                env=self._environment
                | {
                    "HORUS_URL": self.url,
                    "HORUS_CAPABILITY": CAPABILITY,
                    "PYTHONPATH": str(ROOT),
                },
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._runs.append(run)
        return run


def _write_settings(folder: Path) -> None:
    """No questions about news, nothing asked of the outside."""
    (folder / "apputils-extension").mkdir(parents=True)
    (folder / "apputils-extension" / "notification.jupyterlab-settings").write_text(
        '{"fetchNews": "false", "checkForUpdates": false}'
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
