"""A broker in this process: one thread decides, commits and answers; futures carry the answers."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import horus_lab
from horus_lab.broker import events
from horus_lab.errors import (
    BrokerUnavailable,
    HorusError,
)
from horus_lab.records import (
    BrokerEvent,
    Confirm,
    Device,
    DeviceState,
    DeviceUse,
    HealthReport,
    Heartbeat,
    History,
    Job,
    JobRequest,
    JobState,
    PredictReply,
    PredictRequest,
    Release,
)
from horus_lab.service import asking
from horus_lab.service.engine import Engine
from horus_lab.service.event_stream import Receive, Subscription
from horus_lab.service.learning import track_record
from horus_lab.service.mailbox import Mailbox
from horus_lab.service.parts import Parts
from horus_lab.service.sampler import Sampler
from horus_lab.service.settings import ServiceSettings

T = TypeVar("T")

TRACK_RECORD_JOBS = 1000

_logger = logging.getLogger(__name__)


class BrokerService:
    """The broker that one server runs. Every question returns a future; none blocks.

    Futures fail with `HorusError`s: `StoreUnavailable` where nothing could be written (and
    nothing was acknowledged), `BrokerUnavailable` before `start` and after `stop`.
    """

    def __init__(self, parts: Parts, settings: ServiceSettings) -> None:
        self._parts = parts
        self._settings = settings.checked()
        self._broker_id = secrets.token_hex(8)
        self._mailbox = Mailbox(settings.limits.waiting_calls)
        self._sampler = Sampler(
            parts.probe,
            parts.table,
            parts.attribute,
            parts.clock,
            interval=settings.pace.sample,
            idle_interval=settings.pace.idle_sample,
            timeout=settings.pace.probe_timeout,
        )
        self._epoch = 0
        self._started_at = 0.0
        self._thread: threading.Thread | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._stopping = threading.Event()
        self._life = threading.RLock()  # a stop waits for a start, and a failed start stops
        self._stopped = False
        self._started: Engine | None = None

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the devices, take over the store, look once, and begin to answer.

        Jobs that wait keep their places; running ones are watched again; those whose process is
        gone are told so.

        Raises:
            HorusError: it cannot start, with the reason; everything is closed again.
        """
        with self._life:
            try:
                if self._stopped:
                    raise _stopped()
                self._start()
            except BaseException:
                self.stop()
                raise

    def _start(self) -> None:
        devices = self._sampler.open()
        self._started_at = self._parts.clock.now()
        self._epoch = self._parts.store.claim(self._broker_id, self._started_at)
        engine = Engine(self._parts, self._settings, self._epoch, devices, self._sampler.wake)
        self._parts.watcher.start(self.process_ended)
        engine.start()
        engine.sampled(self._sampler.look(engine.open_jobs))
        self._started = engine
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="horus-history")
        self._thread = threading.Thread(
            target=self._run, args=(engine,), name="horus-broker", daemon=True
        )
        self._thread.start()
        self._sampler.start(self)

    def stop(self) -> None:
        """Write everything down, let everyone go, free the store. Running jobs run on.

        Safe to call twice, from any thread but the broker's own.
        """
        with self._life:
            if self._stopped:
                return
            self._stopped = True
            self._mailbox.close(_stopped())
            self._stopping.set()
            self._parts.watcher.close()
            self._sampler.stop()
            if self._thread is not None:
                self._thread.join(10.0)
            if self._readers is not None:
                self._readers.shutdown(wait=True, cancel_futures=True)
            if self._started is not None:
                self._started.stream.close()
            self._parts.store.close()

    def _run(self, engine: Engine) -> None:
        while not self._stopping.is_set():
            work = self._mailbox.take(min(self._settings.pace.tick, engine.seconds_to_tick()))
            try:
                engine.pass_time()
            except Exception:
                # The thread must live on: callers still wait for their answers.
                _logger.exception("Horus failed on what was due")
            if work is not None:
                work()
        engine.write_down(everything=True)

    # --- what callers ask -----------------------------------------------------------------------

    def submit(self, owner: str, request: JobRequest) -> Future[tuple[Job, bool]]:
        """The owner's new job and `True`, or the one this very request made before and `False`.

        Fails with `Conflict` (the request id was used for another body) or `TooManyJobs`.
        """
        return self._call(lambda engine: engine.submit(owner, request))

    def poll(self, job_id: str) -> Future[Job]:
        """The job, asked for by its own client: it is there and can take a grant."""
        return self._call(lambda engine: engine.poll(job_id))

    def confirm(
        self, job_id: str, confirm: Confirm, by: str | None = None, admin: bool = False
    ) -> Future[Job]:
        """The client takes its grant. `by`: who asks; `None`: the caller was checked already."""

        def event(name: str) -> events.Event:
            return events.Confirmed(event_id=name, job_id=job_id, fence=confirm.fence)

        return self._call(lambda engine: engine.change(job_id, event, by, admin))

    def heartbeat(
        self, job_id: str, heartbeat: Heartbeat, by: str | None = None, admin: bool = False
    ) -> Future[Job]:
        """The training process lives, and is this far."""

        def event(name: str) -> events.Event:
            return events.Beat(event_id=name, job_id=job_id, heartbeat=heartbeat)

        return self._call(lambda engine: engine.change(job_id, event, by, admin))

    def release(
        self, job_id: str, release: Release, by: str | None = None, admin: bool = False
    ) -> Future[Job]:
        """The training ended. The same release again is answered the same."""

        def event(name: str) -> events.Event:
            return events.Released(event_id=name, job_id=job_id, release=release)

        return self._call(lambda engine: engine.change(job_id, event, by, admin))

    def cancel(self, job_id: str, by: str, admin: bool = False) -> Future[Job]:
        """Leave the queue, or ask the running job to stop.

        Fails with `Forbidden` where `by` is neither the owner nor an admin.
        """

        def event(name: str) -> events.Event:
            return events.Cancelled(event_id=name, job_id=job_id, by=by)

        return self._call(lambda engine: engine.change(job_id, event, by, admin))

    def predict(self, owner: str, request: PredictRequest) -> Future[PredictReply]:
        """Where it would fit, what it would use, how long it would wait. Queues nothing."""
        return self._call(lambda engine: engine.predict(owner, request))

    def job(self, job_id: str) -> Future[Job]:
        """The job, ended ones included."""
        return self._call(lambda engine: engine.known(job_id))

    def jobs(
        self, states: frozenset[JobState] | None = None, limit: int = 200
    ) -> Future[tuple[Job, ...]]:
        """Jobs: the queue in its order, then holders, then ended ones, the latest first."""
        return self._call(lambda engine: engine.jobs(states, limit))

    def devices(self) -> Future[tuple[DeviceState, ...]]:
        """Each device with its last reading and its residents."""
        return self._call(lambda engine: engine.device_states())

    def history(self, limit: int = 50) -> Future[History]:
        """Ended jobs, the latest first, and how the predictions did over the last 1,000."""

        def answer() -> History:
            jobs = self._parts.store.history(max(limit, TRACK_RECORD_JOBS))
            return History(jobs=jobs[:limit], track_record=track_record(jobs, asking.is_simulated))

        readers = self._readers
        if readers is None or self._stopping.is_set():
            return self._call(lambda _engine: answer())
        try:
            return readers.submit(answer)
        except RuntimeError:  # it was shut down this very moment
            return self._call(lambda _engine: answer())

    def health(self) -> Future[HealthReport]:
        """What the broker is and whether it is well. Answers even where the broker hangs."""
        engine = self._started
        troubles = (self._sampler.notice, *(engine.troubles if engine else ()))
        answer: Future[HealthReport] = Future()
        answer.set_result(
            HealthReport(
                version=horus_lab.__version__,
                broker_id=self._broker_id,
                epoch=self._epoch,
                started_at=self._started_at,
                devices=len(engine.broker.devices) if engine else 0,
                probe=self._parts.probe.name,
                notices=(*self._parts.notices, *(text for text in troubles if text)),
                store=self._parts.store.description,
            )
        )
        return answer

    # --- the event stream -----------------------------------------------------------------------

    def subscribe(
        self,
        receive: Receive,
        after: int | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Future[Subscription]:
        """Have `receive` called with every event numbered above `after`, in order.

        A snapshot comes first where `after` is absent or too old. Each reader has a thread and a
        bounded buffer of its own; see `Subscription`.
        """

        def answer(engine: Engine) -> Subscription:
            missed = None if after is None else engine.stream.since(after)
            reader = Subscription(receive, on_lost=on_lost)
            engine.stream.add(reader, (engine.snapshot(),) if missed is None else missed)
            self._sampler.wake()
            return reader

        return self._call(answer)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Let the reader go. Returns at once."""
        if self._started is not None:
            self._started.stream.remove(subscription)

    def snapshot(self) -> Future[BrokerEvent]:
        """Everything as it is, under the latest number."""
        return self._call(Engine.snapshot)

    def events_since(self, after: int) -> Future[tuple[BrokerEvent, ...] | None]:
        """What came after this number, or `None` where some of it is no longer kept."""
        return self._call(lambda engine: engine.stream.since(after))

    # --- news from the inside, each from the thread of its part ---------------------------------

    def process_ended(self, job_id: str, survivors: tuple[int, ...]) -> None:
        """A job's process is proven gone; these pids of its tree live on."""
        self._tell(f"process {job_id}", lambda engine: engine.process_ended(job_id, survivors))

    def sampled(self, uses: tuple[DeviceUse, ...]) -> None:
        """The devices were looked at."""
        self._tell("sample", lambda engine: engine.sampled(uses))

    def devices_changed(self, devices: tuple[Device, ...]) -> None:
        """A device came or went."""
        self._tell("devices", lambda engine: engine.devices_changed(devices))

    def open_jobs(self) -> tuple[Job, ...]:
        """Every job that has not ended."""
        return self._started.open_jobs if self._started else ()

    def idle(self) -> bool:
        """Whether nobody watches and no job waits or runs."""
        engine = self._started
        return engine is None or not (engine.open_jobs or engine.stream.watched)

    # --- to the broker's thread -----------------------------------------------------------------

    def _call(self, work: Callable[[Engine], T]) -> Future[T]:
        if self._started is None:
            refused: Future[T] = Future()
            refused.set_exception(BrokerUnavailable("The broker has not started."))
            return refused
        engine = self._started

        def guarded() -> T:
            try:
                answer = work(engine)
            except HorusError:
                raise
            except Exception as error:
                _logger.exception("Horus failed on a request")
                raise HorusError(
                    f"The broker failed: {type(error).__name__}.",
                    hint="The server's log has the details.",
                ) from error
            self._parts.failpoint("before_answer")
            return answer

        return self._mailbox.call(guarded)

    def _tell(self, key: str, work: Callable[[Engine], None]) -> None:
        def guarded() -> None:
            engine = self._started
            if engine is None:
                return
            try:
                work(engine)
            except Exception:
                # News has no one to answer; the next look or tick finds what this one missed.
                _logger.exception("Horus failed on news: %s", key)

        self._mailbox.tell(key, guarded)


def _stopped() -> BrokerUnavailable:
    return BrokerUnavailable("The broker has stopped.", hint="Start the server again.")
