"""A broker of one job over real HTTP, which a test can stop, start and make fail."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from horus_lab.client import HorusClient, this_process
from horus_lab.errors import HorusError, StaleFence, UnknownJob
from horus_lab.records import (
    Confirm,
    DeclaredNeeds,
    ErrorReply,
    Heartbeat,
    Job,
    JobRequest,
    JobState,
    Lease,
    Release,
    Slot,
    decode,
    encode,
)

BASE = "/user/x/horus/api/v1/"


class ScriptedBroker:
    """Plays the API for one job; the test moves the job on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.job: Job | None = None
        self.submissions: list[JobRequest] = []
        self.beats: list[Heartbeat] = []
        self.releases: list[Release] = []
        self.cancels = 0
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.ports: list[int] = []  # the caller's, by request: one for each connection
        self.before: Callable[[str, str], HorusError | bytes | None] = lambda method, path: None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/user/x/"

    def client(self, **options: Any) -> HorusClient:
        return HorusClient(self.url, "secret", **options)

    def start(self) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler())
        server.daemon_threads = True
        self._port = server.server_address[1]
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        with self._changed:
            self._changed.notify_all()

    def change(self, **fields: Any) -> None:
        with self._changed:
            assert self.job is not None
            self.job = msgspec.structs.replace(self.job, revision=self.job.revision + 1, **fields)
            self._changed.notify_all()

    def grant(self, fence: int = 7) -> None:
        lease = Lease(
            fence=fence,
            slots=(Slot(device_uuid="GPU-1", reserved_bytes=2**30),),
            granted_at=time.time(),
        )
        self.change(state=JobState.GRANTED, lease=lease)

    def until(self, true: Callable[[], Any], seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.01)

    # --- the API ----------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> bytes:
        if (method, path) == ("POST", "jobs"):
            request = decode(body, JobRequest)
            self.submissions.append(request)
            if self.job is None:
                self.job = Job(
                    id="job-1",
                    owner="ada",
                    request=request,
                    state=JobState.QUEUED,
                    revision=1,
                    submitted_at=time.time(),
                )
            return encode(self.job)
        if self.job is None or not path.startswith("jobs/job-1"):
            raise UnknownJob("No job has this id.")
        action = path.removeprefix("jobs/job-1").lstrip("/")
        if method == "GET":
            self._wait(int(query.get("after_revision", -1)), float(query.get("wait_seconds", 0)))
        elif method == "DELETE":
            self.cancels += 1
            if self.job.state is JobState.QUEUED:
                self.change(state=JobState.CANCELLED, outcome="by its owner")
            else:
                self.change(cancel_requested=True)
        elif action == "confirm":
            self._check(decode(body, Confirm).fence)
            self.change(state=JobState.RUNNING)
        elif action == "heartbeat":
            beat = decode(body, Heartbeat)
            self._check(beat.fence)
            self.beats.append(beat)
        elif action == "release":
            release = decode(body, Release)
            self._check(release.fence)
            self.releases.append(release)
            self.change(state=JobState(release.outcome))
        return encode(self.job)

    def _check(self, fence: int) -> None:
        assert self.job is not None
        if self.job.lease is None or self.job.lease.fence != fence:
            raise StaleFence("The grant was withdrawn.")

    def _wait(self, after: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._server is None or self.job is None or self.job.revision > after,
                seconds,
            )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        broker = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None: ...

            def _handle(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = parts.path.removeprefix(BASE)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                broker.requests.append(f"{self.command} {path}")
                broker.headers.append(dict(self.headers))
                broker.ports.append(self.client_address[1])
                status = 200
                try:
                    said = broker.before(self.command, path)
                    if isinstance(said, HorusError):
                        raise said
                    answer = said or broker.answer(self.command, path, query, body)
                except HorusError as error:
                    status = error.status
                    answer = encode(
                        ErrorReply(code=error.code, message=error.message, hint=error.hint)
                    )
                if broker._server is None:  # stopped meanwhile: the connection just breaks
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # an interrupted caller is gone
                    self.wfile.write(answer)

            do_GET = do_POST = do_DELETE = _handle

        return Handler


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    yield scripted
    scripted.stop()


@pytest.fixture
def request_() -> JobRequest:
    return JobRequest(
        request_id="request-1",
        name="training",
        process=this_process(),
        declared=DeclaredNeeds(memory_bytes=2**30, utilization=0.5),
    )
