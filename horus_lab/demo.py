"""The main job without a browser: notebooks train at once through one broker.

A real Jupyter server starts on loopback with a store of its own; each notebook gets a real kernel
through the server's sessions, and its cells run in it as they stand. Afterwards each notebook
runs once more alone (`exclusive`), so that the slowdown through neighbours is measured against
the same model's speed alone. Nothing of the user's own Jupyter set-up or store is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.live import Live
from rich.text import Text

from horus_lab.client import HorusClient
from horus_lab.client.discovery import parse_url
from horus_lab.errors import BrokerUnavailable, ConfigurationError, HorusError
from horus_lab.notebook import tables, wording
from horus_lab.records import DeviceState, Job, JobState

NOTEBOOKS = ("mlp.ipynb", "cnn.ipynb", "rnn.ipynb", "transformer.ipynb")
_START_SECONDS = 60.0
_CELL_SECONDS = 600.0


class Row(Struct, frozen=True, kw_only=True):
    """One line of the demonstration's result."""

    job: str
    notebook: str
    device: str
    simulated: bool
    predicted_utilization: str
    measured_utilization: str
    predicted_memory: str
    measured_memory: str
    waited: str
    neighbours: int
    predicted_slowdown: str
    measured_slowdown: str
    outcome: str


class KernelRun:
    """One notebook in one real kernel, its cells run from the top in a thread of their own."""

    def __init__(self, server: Server, path: Path, *, exclusive: bool, epochs: int | None) -> None:
        self.name = path.name
        self._server = server
        self._path = path
        self._parameters = ["exclusive = True"] if exclusive else []
        if epochs is not None:
            self._parameters.append(f"epochs = {epochs}")
        self._thread = threading.Thread(target=self._run, name=f"demo-{path.stem}", daemon=True)
        self.error = ""
        self.printed: list[str] = []

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            session = self._server.start_session(self.name)
            try:
                self._execute(session["kernel"]["id"])
            finally:
                self._server.end_session(session["id"])
        except Exception as error:  # noqa: BLE001 - shown in the table; the others go on
            self.error = f"{type(error).__name__}: {error}"

    def _execute(self, kernel_id: str) -> None:
        from jupyter_client.blocking.client import BlockingKernelClient

        file = self._server.runtime / f"kernel-{kernel_id}.json"
        client = BlockingKernelClient(connection_file=str(file))
        client.load_connection_file()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=_START_SECONDS)
            for source in self._cells():
                if not self._cell(client, source):
                    return
        finally:
            client.stop_channels()

    def _cells(self) -> Iterator[str]:
        notebook = json.loads(self._path.read_text())
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            yield "".join(cell["source"])
            if "parameters" in cell["metadata"].get("tags", []):
                yield from self._parameters

    def _cell(self, client: Any, source: str) -> bool:
        reply = client.execute_interactive(
            source, timeout=_CELL_SECONDS, output_hook=self._output, allow_stdin=False
        )
        if reply["content"]["status"] == "ok":
            return True
        self.error = f"{reply['content']['ename']}: {reply['content']['evalue']}"
        return False

    def _output(self, message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            self.printed.append(content["text"])
        elif message["msg_type"] in ("display_data", "execute_result", "update_display_data"):
            self.printed.append(content["data"].get("text/plain", ""))
        elif message["msg_type"] == "error":
            self.printed.append("\n".join(content["traceback"]))


class Server:
    """A real Jupyter server of the demonstration's own, on loopback."""

    def __init__(self, *, root: Path, home: Path, devices: str) -> None:
        self.runtime = home / "runtime"
        self._log = home / "server.log"
        self._token = secrets.token_urlsafe(24)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        environment = os.environ | {
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_TOKEN": self._token,
            "IPYTHONDIR": str(home / "ipython"),
            "HORUS_DEVICES": devices,
            "PYTHONWARNINGS": "ignore",
        }
        for variable in ("HORUS_URL", "HORUS_CAPABILITY", "JUPYTER_CONFIG_PATH"):
            environment.pop(variable, None)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "jupyter_server",
                    "--no-browser",
                    "--ServerApp.ip=127.0.0.1",
                    f"--ServerApp.port={port}",
                    "--ServerApp.port_retries=0",
                    f"--ServerApp.root_dir={root}",
                    "--ServerApp.jpserver_extensions=jupyter_ext=True",
                    *(["--allow-root"] if os.geteuid() == 0 else []),
                ],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"token {self._token}"}, timeout=30
        )

    def wait(self) -> HorusClient:
        """A client, once the server answers and the broker has seen its devices."""
        deadline = time.monotonic() + _START_SECONDS
        last = ""
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BrokerUnavailable(
                    f"The demonstration's server ended at once:\n{self.log_tail()}"
                )
            with contextlib.suppress(httpx.HTTPError):
                answer = self._http.get("horus/api/v1/devices")
                if answer.status_code == 200 and answer.json():
                    return HorusClient(
                        parse_url(self.url, token=self._token, found_by="the demonstration")
                    )
                last = answer.text[:500]
            time.sleep(0.2)
        raise BrokerUnavailable(
            f"The demonstration's server did not answer within {_START_SECONDS:.0f} s: {last}",
            hint=f"Its log: {self.log_tail()}",
        )

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def start_session(self, name: str) -> dict[str, Any]:
        body = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3"}}
        answer = self._http.post("api/sessions", json=body)
        answer.raise_for_status()
        session: dict[str, Any] = answer.json()
        return session

    def end_session(self, session_id: str) -> None:
        with contextlib.suppress(httpx.HTTPError):
            self._http.delete(f"api/sessions/{session_id}")

    def stop(self) -> None:
        self._http.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def run_demo(
    *, devices: str, examples: str, reference: bool, as_json: bool, epochs: int | None = None
) -> int:
    """Run the demonstration. Returns the exit code: 0 if every notebook finished its training.

    Raises:
        ConfigurationError: the folder lacks a notebook.
        BrokerUnavailable: the server did not come up.
    """
    root = Path(examples).resolve()
    missing = [name for name in NOTEBOOKS if not (root / name).is_file()]
    if missing:
        raise ConfigurationError(
            f"{root} lacks {', '.join(missing)}.", hint="Name the folder with --examples."
        )
    console = Console(stderr=as_json, markup=False, highlight=False)
    with tempfile.TemporaryDirectory(prefix="horus-demo-") as home:
        server = Server(root=root, home=Path(home), devices=devices)
        try:
            client = server.wait()
            shared = _phase(
                client,
                [
                    KernelRun(server, root / name, exclusive=False, epochs=epochs)
                    for name in NOTEBOOKS
                ],
                console,
                "Four notebooks train at once",
            )
            alone: dict[str, float] = {}
            if reference and not any(run.error for run in shared):
                for name in NOTEBOOKS:
                    _phase(
                        client,
                        [KernelRun(server, root / name, exclusive=True, epochs=epochs)],
                        console,
                        f"{name} runs alone, to know its speed without neighbours",
                    )
                alone = _solo_rates(client)
            rows = _rows(client, alone)
        finally:
            server.stop()
    if as_json:
        print(msgspec.json.encode(rows).decode())  # noqa: T201 - the answer on standard output
    else:
        console.print(_result_table(rows), soft_wrap=True)
        for run in shared:
            if run.error:
                console.print(f"{run.name}: {run.error}\n{''.join(run.printed)[-2000:]}")
    return 0 if len(rows) == len(NOTEBOOKS) and all(r.outcome == "done" for r in rows) else 1


def _phase(
    client: HorusClient, runs: Sequence[KernelRun], console: Console, title: str
) -> Sequence[KernelRun]:
    """Start the runs, show the broker's view until all have ended."""
    console.print(f"\n{title}")
    for run in runs:
        run.start()
    told: dict[str, tuple[str, str]] = {}
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        while any(run.running for run in runs):
            with contextlib.suppress(HorusError, queue.Empty):
                states, jobs = client.devices(), client.jobs()
                _tell(jobs, states, told, live.console)
                if console.is_terminal:
                    current = [job for job in jobs if not job.state.ended]
                    names = tables.device_names(states)
                    live.update(
                        Text(
                            tables.devices_table(states).text()
                            + "\n"
                            + tables.jobs_table(current, names, title="Now").text()
                        )
                    )
            time.sleep(0.5)
    with contextlib.suppress(HorusError):
        _tell(client.jobs(), client.devices(), told, console)
    return runs


def _tell(
    jobs: Sequence[Job],
    states: Sequence[DeviceState],
    told: dict[str, tuple[str, str]],
    console: Console,
) -> None:
    """Print a line for each job whose state or reason changed."""
    names = tables.device_names(states)
    for job in sorted(jobs, key=lambda job: job.submitted_at):
        reason = job.reason.sentence if job.reason and job.state is JobState.QUEUED else ""
        # Changing numbers are not news.
        key = (wording.state_text(job), re.sub(r"[0-9.]+", "#", reason.split("; expected")[0]))
        if told.get(job.id) == key or (job.id not in told and job.state.ended):
            continue
        told[job.id] = key
        where = (
            " on " + ", ".join(names.get(s.device_uuid, s.device_uuid) for s in job.lease.slots)
            if job.lease and not job.state.ended
            else ""
        )
        stamp = time.strftime("%H:%M:%S")
        console.print(
            f"  {stamp}  {job.request.name:<14} {key[0]}{where}  {reason}".rstrip(), soft_wrap=True
        )


def _solo_rates(client: HorusClient) -> dict[str, float]:
    """Steps per second alone, by graph hash, of the exclusive runs."""
    rates = {}
    for job in client.history().jobs:
        rate = job.measured.steps_per_second_alone
        if job.request.constraints.exclusive and job.request.features is not None and rate:
            rates[job.request.features.graph_hash] = rate
    return rates


def _rows(client: HorusClient, alone: dict[str, float]) -> list[Row]:
    names = tables.device_names(client.devices())
    simulated = {s.device.uuid: s.device.simulated for s in client.devices()}
    rows = []
    jobs = [job for job in client.history().jobs if not job.request.constraints.exclusive]
    for job in sorted(jobs, key=lambda job: job.submitted_at):
        slot = job.lease.slots[0] if job.lease else None
        uuid = slot.device_uuid if slot else next(iter(job.predictions), "")
        prediction = job.predictions.get(uuid)
        waited = job.granted_at - job.submitted_at if job.granted_at is not None else None
        rows.append(
            Row(
                job=job.id,
                notebook=Path(job.request.notebook).name or job.request.name,
                device=names.get(uuid, "none"),
                simulated=simulated.get(uuid, False),
                predicted_utilization=wording.percent_range(
                    prediction.utilization if prediction else None
                ),
                measured_utilization=wording.percent_text(job.measured.utilization),
                predicted_memory=wording.bytes_range(
                    prediction.memory_bytes if prediction else None
                ),
                measured_memory=wording.bytes_text(job.measured.memory_peak_bytes),
                waited="no" if waited is not None and waited < 1 else wording.duration_text(waited),
                neighbours=len(job.lease.neighbours) if job.lease else 0,
                predicted_slowdown=wording.slowdown_range(slot.slowdown if slot else None),
                measured_slowdown=_measured_slowdown(job, alone),
                outcome=job.state.value,
            )
        )
    return rows


def _measured_slowdown(job: Job, alone: dict[str, float]) -> str:
    """Against the run alone afterwards; else against the job's own time alone; else unknown."""
    shared = job.measured.steps_per_second_shared
    features = job.request.features
    rate = alone.get(features.graph_hash) if features is not None else None
    if rate and shared:
        return wording.slowdown_text(max(1.0, rate / shared))
    if shared is None and job.measured.steps_per_second_alone is not None:
        return "was alone"
    return wording.slowdown_text(job.measured.slowdown)


def _result_table(rows: Sequence[Row]) -> str:
    mark = " (SIM: simulated devices)" if any(row.simulated for row in rows) else ""
    return tables.Table(
        title=f"\nPredicted and measured{mark}",
        columns=(
            "job",
            "notebook",
            "device",
            "busy pred.",
            "meas.",
            "memory pred.",
            "meas.",
            "waited",
            "neighbours",
            "slowdown pred.",
            "meas.",
            "outcome",
        ),
        rows=tuple(
            (
                row.job,
                row.notebook,
                row.device,
                row.predicted_utilization,
                row.measured_utilization,
                row.predicted_memory,
                row.measured_memory,
                row.waited,
                str(row.neighbours),
                row.predicted_slowdown,
                row.measured_slowdown,
                row.outcome,
            )
            for row in rows
        ),
        note="neighbours: when it was granted; slowdown measured against the same model alone",
        empty="No notebook came as far as a job.",
    ).text()
