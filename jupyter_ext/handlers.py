"""The REST API under `horus/api/v1`: decode, call, encode."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec
from jupyter_server.auth import AllowAllAuthorizer, Authorizer, User
from jupyter_server.auth.decorator import authorized
from tornado import web

from horus_lab.errors import Forbidden, HorusError, InvalidRequest, TooLarge, UnknownJob
from horus_lab.records import (
    Confirm,
    Heartbeat,
    JobRequest,
    JobState,
    PredictRequest,
    Release,
    decode,
)
from jupyter_ext.access import shown_capability
from jupyter_ext.answers import RecordAnswers
from jupyter_ext.backend import Backend, Caller
from jupyter_ext.wiring import Wiring

API_PATH = "/horus/api/v1"
AUTH_RESOURCE = "horus"
MAX_BODY_BYTES = 2**20
MAX_WAIT_SECONDS = 30.0
MAX_LIMIT = 1000

_JOB_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_KERNELS_MAY = AllowAllAuthorizer()

T = TypeVar("T", bound=msgspec.Struct)


@web.stream_request_body
class HorusHandler(RecordAnswers):
    """What every route shares: who calls, a bounded body, the broker."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, wiring: Wiring) -> None:
        """Take what the extension wired."""
        self._wiring = wiring
        self._kernel: Caller | None = None
        self._chunks: list[bytes] = []
        self._received = 0
        self._refusal: HorusError | web.HTTPError | None = None
        self._call: asyncio.Future[Any] | None = None
        self._gone = False

    async def prepare(self) -> None:  # type: ignore[override] # as in APIHandler itself
        """Find out who is calling before anything else happens.

        A refusal waits until the body is read, and is all that the request's method then does:
        an answer that comes earlier makes Tornado break the connection, and whoever is still
        sending, or sends the next request over it, never reads the reason.
        """
        try:
            await self._identify()
        except (HorusError, web.HTTPError) as error:
            self._refusal = error
            assert self.request.method is not None
            setattr(self, self.request.method.lower(), self._refuse)

    async def _identify(self) -> None:
        if shown_capability(self.request.headers) is not None:
            self._identify_kernel()
            return
        try:
            await super().prepare()
        except web.HTTPError as error:
            if error.status_code == 404:  # how Jupyter hides itself from other sites' pages
                raise Forbidden(
                    "A page of another site may not use this server.",
                    hint="Set c.ServerApp.allow_origin if it should.",
                ) from None
            raise

    def _identify_kernel(self) -> None:
        if not self.check_host():
            raise Forbidden(
                f"The server does not answer for the host {self.request.host!r}.",
                hint="Call it at the address in HORUS_URL.",
            )
        # The capability lies in no browser, so no other site can make one send it: neither
        # XSRF nor origins are asked.
        self._kernel = self._wiring.access.kernel(self.request.headers)
        self.current_user = User(username=self._wiring.access.owner)

    async def _refuse(self, **_path: str) -> None:
        assert self._refusal is not None
        raise self._refusal

    def data_received(self, chunk: bytes) -> None:
        """Gather the body; what is too much, or nobody's, is dropped as it comes."""
        self._received += len(chunk)
        if self._received > MAX_BODY_BYTES or self._refusal is not None:
            self._chunks.clear()
        else:
            self._chunks.append(chunk)

    def on_connection_close(self) -> None:
        """The client is gone: stop waiting for it."""
        super().on_connection_close()
        self._gone = True
        if self._call is not None:
            self._call.cancel()

    @property
    def authorizer(self) -> Authorizer:
        """Jupyter's authorizer for people; a capability is itself the permission."""
        return _KERNELS_MAY if self._kernel is not None else super().authorizer

    @property
    def caller(self) -> Caller:
        """Who is asking."""
        return self._kernel or self._wiring.access.user()

    async def backend(self) -> Backend:
        """The broker.

        Raises:
            BrokerUnavailable: there is none, with the reason.
        """
        return await self._wiring.backend()

    def body(self, kind: type[T]) -> T:
        """The body as a record.

        Raises:
            TooLarge: it is past the bound.
            InvalidRequest: it is no such record.
        """
        if self._received > MAX_BODY_BYTES:
            raise TooLarge(
                f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB.",
                hint="Send graph features, not the model.",
            )
        return decode(b"".join(self._chunks), kind)

    def whole(self, name: str, default: int | None, *, most: int = 2**53) -> int | None:
        """A whole number of the query, from 0 to `most`."""
        text = self.get_query_argument(name, None)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,16}", text) or int(text) > most:
            raise _bad_argument(name, text, f"a whole number from 0 to {most}")
        return int(text)

    def seconds(self, name: str, *, most: float) -> float:
        """Seconds of the query, from 0 to `most`; 0 without."""
        text = self.get_query_argument(name, "0")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0.0 <= value <= most:
            raise _bad_argument(name, text, f"seconds from 0 to {most:g}")
        return value

    def limit(self, default: int) -> int:
        """How many records to answer with."""
        limit = self.whole("limit", default, most=MAX_LIMIT)
        return default if limit is None else limit

    async def while_connected(self, call: Awaitable[T]) -> T | None:
        """The call's result; the call is dropped, and this is `None`, when the client goes."""
        self._call = asyncio.ensure_future(call)
        if self._gone:
            self._call.cancel()
        try:
            result: T = await self._call
        except asyncio.CancelledError:
            if self._gone:
                return None
            raise
        return result


class HealthHandler(HorusHandler):
    """`GET health`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """What the broker is and whether it is well."""
        self.answer(await (await self.backend()).health())


class DevicesHandler(HorusHandler):
    """`GET devices`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Every device with its last reading and its residents."""
        self.answer(await (await self.backend()).devices())


class JobsHandler(HorusHandler):
    """`GET jobs`, `POST jobs`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Jobs, all or of some states."""
        states, limit = self._states(), self.limit(200)
        self.answer(await (await self.backend()).jobs(states=states, limit=limit))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Submit: 201 for a new job, 200 for the same request again."""
        request = self.body(JobRequest)
        job, new = await (await self.backend()).submit(self.caller, request)
        self.set_header("Location", f"{self.request.path.rstrip('/')}/{job.id}")
        self.answer(job, 201 if new else 200)

    def _states(self) -> frozenset[JobState] | None:
        text = self.get_query_argument("state", None)
        if text is None:
            return None
        try:
            return frozenset(JobState(name.strip()) for name in text.split(","))
        except ValueError:
            known = ", ".join(state.value for state in JobState)
            raise _bad_argument(
                "state", text, f"states, separated by commas, of: {known}"
            ) from None


class JobHandler(HorusHandler):
    """`GET jobs/{id}`, `DELETE jobs/{id}`."""

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        """The job, at once or when it has changed."""
        after = self.whole("after_revision", None)
        wait = self.seconds("wait_seconds", most=MAX_WAIT_SECONDS)
        backend = await self.backend()
        job = await self.while_connected(
            backend.job(self.caller, _checked(job_id), after_revision=after, wait_seconds=wait)
        )
        if job is not None:
            self.answer(job)

    @web.authenticated
    @authorized
    async def delete(self, job_id: str) -> None:
        """Cancel: leave the queue, or ask the running job to stop."""
        self.answer(await (await self.backend()).cancel(self.caller, _checked(job_id)))


class StoryHandler(HorusHandler):
    """`GET jobs/{id}/story`."""

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        """What happened to the job."""
        self.answer(await (await self.backend()).story(_checked(job_id)))


class ConfirmHandler(HorusHandler):
    """`POST jobs/{id}/confirm`."""

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        """Take the grant."""
        confirm = self.body(Confirm)
        self.answer(await (await self.backend()).confirm(self.caller, _checked(job_id), confirm))


class HeartbeatHandler(HorusHandler):
    """`POST jobs/{id}/heartbeat`."""

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        """The job lives, and is this far."""
        beat = self.body(Heartbeat)
        self.answer(await (await self.backend()).heartbeat(self.caller, _checked(job_id), beat))


class ReleaseHandler(HorusHandler):
    """`POST jobs/{id}/release`."""

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        """The training ended."""
        release = self.body(Release)
        self.answer(await (await self.backend()).release(self.caller, _checked(job_id), release))


class PredictHandler(HorusHandler):
    """`POST predict`."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Where would it fit, what would it use, how long would it wait?"""
        request = self.body(PredictRequest)
        self.answer(await (await self.backend()).predict(self.caller, request))


class HistoryHandler(HorusHandler):
    """`GET history`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Ended jobs, newest first, and how the predictions did."""
        limit = self.limit(50)
        self.answer(await (await self.backend()).history(limit=limit))


class NoSuchRouteHandler(HorusHandler):
    """Everything else below `horus/api/`: authenticated like the rest, then 404."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """No such route."""
        raise web.HTTPError(404)

    post = put = patch = delete = get


Route = tuple[str, type[web.RequestHandler], dict[str, Any]]

_JOB = r"/jobs/(?P<job_id>[^/]+)"

ROUTES: tuple[tuple[str, type[HorusHandler]], ...] = (
    (r"/health", HealthHandler),
    (r"/devices", DevicesHandler),
    (r"/jobs", JobsHandler),
    (_JOB, JobHandler),
    (_JOB + r"/story", StoryHandler),
    (_JOB + r"/confirm", ConfirmHandler),
    (_JOB + r"/heartbeat", HeartbeatHandler),
    (_JOB + r"/release", ReleaseHandler),
    (r"/predict", PredictHandler),
    (r"/history", HistoryHandler),
)


def rest_routes(wiring: Wiring) -> list[Route]:
    """The routes for `ExtensionApp.handlers`, without the server's `base_url`."""
    given = {"wiring": wiring}
    return [(API_PATH + pattern, handler, given) for pattern, handler in ROUTES]


def other_routes(wiring: Wiring) -> list[Route]:
    """What catches everything that no route has taken; registered last."""
    return [(r"/horus/api(?:/.*)?", NoSuchRouteHandler, {"wiring": wiring})]


def _checked(job_id: str) -> str:
    if not _JOB_ID.fullmatch(job_id):
        raise UnknownJob(
            "No job has this id: it is none that Horus gives.",
            hint="Take the id from the list of jobs.",
        )
    return job_id


def _bad_argument(name: str, text: str, expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name}={text[:100]!r} cannot be used: expected {expected}.",
        hint="Correct the query and send it again.",
    )
