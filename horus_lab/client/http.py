"""The API as typed calls. Thread-safe; usable after a fork."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from horus_lab import errors
from horus_lab.client.discovery import CA_FILE_VARIABLE, Endpoint, discover, parse_url
from horus_lab.errors import BrokerUnavailable, HorusError, InvalidRequest, StoreUnavailable
from horus_lab.records import (
    Confirm,
    DeviceState,
    ErrorReply,
    HealthReport,
    Heartbeat,
    History,
    Job,
    JobRequest,
    JobState,
    PredictReply,
    PredictRequest,
    Release,
    StoryEntry,
    encode,
)

API_PATH = "horus/api/v1/"
MAX_WAIT_SECONDS = 30.0

_CONNECT_SECONDS = 2.0
_READ_SECONDS = 15.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

T = TypeVar("T")

_ERRORS_BY_CODE: dict[str, type[HorusError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HorusError)
}


class HorusClient:
    """Calls one broker.

    Every method raises the same `HorusError` that the broker raised, or `BrokerUnavailable`
    where it did not answer. All calls may be repeated safely (a submission carries its own id),
    so a call that meets a broken connection is repeated for `patience_seconds`.

    Args:
        endpoint: the broker's address, or an URL.
        capability: proves that a kernel is calling; only with an URL.
        token: a Jupyter token instead, for a person's program; only with an URL.
        patience_seconds: how long a call is repeated while the broker cannot be reached.
    """

    def __init__(
        self,
        endpoint: Endpoint | str,
        capability: str = "",
        *,
        token: str = "",
        patience_seconds: float = 3.0,
    ) -> None:
        if isinstance(endpoint, str):
            endpoint = parse_url(
                endpoint,
                capability=capability,
                token=token,
                ca_file=os.environ.get(CA_FILE_VARIABLE, ""),
                found_by="the given address",
            )
        self.endpoint = endpoint
        self.patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._http: httpx.Client | None = None
        self._pid = 0

    @classmethod
    def discover(cls, url: str | None = None, capability: str | None = None) -> HorusClient:
        """A client of the broker that `horus_lab.client.discover` finds.

        Raises:
            BrokerUnavailable: no broker is named anywhere; lists what was tried.
        """
        return cls(discover(url, capability))

    def __repr__(self) -> str:
        return f"HorusClient({self.endpoint.url!r})"

    def close(self) -> None:
        """Close the connections. The client opens new ones if it is used again."""
        with self._lock:
            http, self._http = self._http, None
            mine = self._pid == os.getpid()
        if http is not None and mine:
            http.close()

    # --- questions --------------------------------------------------------------------------

    def health(self) -> HealthReport:
        """What the broker is and whether it is well."""
        return self._call("GET", "health", HealthReport)

    def devices(self) -> tuple[DeviceState, ...]:
        """Every device with its last reading and its residents."""
        return self._call("GET", "devices", tuple[DeviceState, ...])

    def jobs(
        self, states: Iterable[JobState] | None = None, *, limit: int = 200
    ) -> tuple[Job, ...]:
        """Jobs: the queue in its order, then those that hold slots, then ended ones."""
        parameters = {"limit": str(limit)}
        if states is not None:
            parameters["state"] = ",".join(sorted(state.value for state in states))
        return self._call("GET", "jobs", tuple[Job, ...], parameters=parameters)

    def job(self, job_id: str, after_revision: int | None = None, wait_seconds: float = 0.0) -> Job:
        """The job; held back until its revision passes `after_revision`, 30 s at most."""
        wait_seconds = min(max(wait_seconds, 0.0), MAX_WAIT_SECONDS)
        parameters = {"wait_seconds": f"{wait_seconds:g}"}
        if after_revision is not None:
            parameters["after_revision"] = str(after_revision)
        return self._call(
            "GET", _job_path(job_id), Job, parameters=parameters, extra_seconds=wait_seconds
        )

    def story(self, job_id: str) -> tuple[StoryEntry, ...]:
        """What happened to the job, oldest first."""
        return self._call("GET", _job_path(job_id, "story"), tuple[StoryEntry, ...])

    def predict(self, request: PredictRequest) -> PredictReply:
        """Where it would fit, what it would use, how long it would wait. Queues nothing."""
        return self._call("POST", "predict", PredictReply, body=request)

    def history(self, limit: int = 50) -> History:
        """Ended jobs, newest first, and how the predictions did."""
        return self._call("GET", "history", History, parameters={"limit": str(limit)})

    # --- a job's life -----------------------------------------------------------------------

    def submit(self, request: JobRequest) -> Job:
        """Ask for a slot. The same request again gives the same job."""
        return self._call("POST", "jobs", Job, body=request)

    def confirm(self, job_id: str, fence: int) -> Job:
        """Take the grant with this fence.

        Raises:
            StaleFence: the grant was withdrawn; the job may be queued again.
        """
        return self._call("POST", _job_path(job_id, "confirm"), Job, body=Confirm(fence=fence))

    def heartbeat(
        self, job_id: str, heartbeat: Heartbeat, *, patience_seconds: float | None = None
    ) -> Job:
        """Say that the job lives, and how far it is."""
        return self._call(
            "POST",
            _job_path(job_id, "heartbeat"),
            Job,
            body=heartbeat,
            patience_seconds=patience_seconds,
        )

    def release(
        self, job_id: str, release: Release, *, patience_seconds: float | None = None
    ) -> Job:
        """Give the slot back."""
        return self._call(
            "POST",
            _job_path(job_id, "release"),
            Job,
            body=release,
            patience_seconds=patience_seconds,
        )

    def cancel(self, job_id: str, *, patience_seconds: float | None = None) -> Job:
        """Leave the queue; a running job is asked to stop."""
        return self._call("DELETE", _job_path(job_id), Job, patience_seconds=patience_seconds)

    # --- one call ---------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        parameters: dict[str, str] | None = None,
        body: msgspec.Struct | None = None,
        extra_seconds: float = 0.0,
        patience_seconds: float | None = None,
    ) -> T:
        """One call, repeated while the broker cannot be reached and patience lasts."""
        patience = self.patience_seconds if patience_seconds is None else patience_seconds
        content = encode(body) if body is not None else None

        def once() -> T:
            reply = self._send(method, path, parameters, content, extra_seconds)
            return self._decoded(reply, kind)

        return repeat_while_unreachable(once, patience)

    def _send(
        self,
        method: str,
        path: str,
        parameters: dict[str, str] | None,
        content: bytes | None,
        extra_seconds: float,
    ) -> httpx.Response:
        headers = {"Content-Type": "application/json"} if content is not None else {}
        timeout = httpx.Timeout(_READ_SECONDS + extra_seconds, connect=_CONNECT_SECONDS)
        try:
            return self._connections().request(
                method, path, params=parameters, content=content, headers=headers, timeout=timeout
            )
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise BrokerUnavailable(
                f"The broker at {self.endpoint.url} (from {self.endpoint.found_by}) did not "
                f"answer: {_cause(error)}.",
                hint="See whether the Jupyter server that started this kernel still runs.",
            ) from error

    def _decoded(self, reply: httpx.Response, kind: type[T]) -> T:
        if reply.is_success:
            try:
                return msgspec.json.decode(reply.content, type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BrokerUnavailable(
                    f"{reply.url} answered with something else than Horus's record: {error}.",
                    hint="See that client and server have the same version of horus-lab.",
                ) from error
        try:
            said = msgspec.json.decode(reply.content, type=ErrorReply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BrokerUnavailable(
                f"{reply.request.method} {reply.url.copy_with(query=None)} answered "
                f"{reply.status_code} without Horus's own explanation.",
                hint="See that the address is a Jupyter server with Horus Lab enabled "
                "(`jupyter server extension list`).",
            ) from None
        raise _ERRORS_BY_CODE.get(said.code, HorusError)(said.message, hint=said.hint)

    def _connections(self) -> httpx.Client:
        """This process's connections: a forked child must not share its parent's sockets."""
        with self._lock:
            if self._http is None or self._pid != os.getpid():
                self._http = _connect(self.endpoint)
                self._pid = os.getpid()
            return self._http


def repeat_while_unreachable(
    call: Callable[[], T],
    patience_seconds: float,
    *,
    on_trouble: Callable[[HorusError], None] | None = None,
) -> T:
    """`call`'s result; repeated with growing pauses while the broker cannot be reached.

    Args:
        patience_seconds: how long to go on after the first failure.
        on_trouble: told of the first failure only.

    Raises:
        BrokerUnavailable: still not reachable when patience ended (`StoreUnavailable` alike).
    """
    deadline: float | None = None
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return call()
        except (BrokerUnavailable, StoreUnavailable) as error:
            now = time.monotonic()
            if deadline is None:
                deadline = now + patience_seconds
                if on_trouble is not None:
                    on_trouble(error)
            if now + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _connect(endpoint: Endpoint) -> httpx.Client:
    host = urlsplit(endpoint.url).hostname or ""
    local = bool(endpoint.socket_path) or host in _LOOPBACK
    headers = {"Accept": "application/json"}
    if endpoint.capability:
        headers["Authorization"] = f"Horus {endpoint.capability}"
    elif endpoint.token:
        headers["Authorization"] = f"token {endpoint.token}"
    return httpx.Client(
        base_url=endpoint.url + API_PATH,
        headers=headers,
        transport=httpx.HTTPTransport(uds=endpoint.socket_path) if endpoint.socket_path else None,
        verify=_trust(endpoint.ca_file, local=local),
        # A proxy from the environment never stands between a kernel and its own machine.
        trust_env=not local,
        follow_redirects=False,
    )


def _trust(ca_file: str, *, local: bool) -> ssl.SSLContext | bool:
    """Trust the server's own certificate where the server named it.

    On the loopback interface the certificate's host name is not compared: it is made out to the
    machine's public name, and the file itself says which certificate is meant.
    """
    if not ca_file:
        return True
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"The broker's certificate file {ca_file} cannot be used: {error}.",
            hint="Correct HORUS_CA_FILE, or unset it to trust the system's certificates.",
        ) from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = not local
    return context


def _job_path(job_id: str, *rest: str) -> str:
    if not job_id or job_id in (".", ".."):
        raise InvalidRequest(
            f"{job_id!r} is not a job's id.", hint="Take the id from `%horus jobs`."
        )
    return "/".join(("jobs", quote(job_id, safe=""), *rest))


def _cause(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
