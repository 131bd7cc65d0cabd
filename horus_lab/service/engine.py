"""Everything that happens in the broker's thread: callers' requests, news, time.

Knows no thread itself: the service calls it from one thread, and tests call it from theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec.structs import replace

from horus_lab.broker import events
from horus_lab.broker.machine import Broker
from horus_lab.errors import (
    Conflict,
    Forbidden,
    HorusError,
    InvalidTransition,
    StoreUnavailable,
    UnknownJob,
)
from horus_lab.records import (
    BrokerEvent,
    Device,
    DeviceState,
    DeviceUse,
    Job,
    JobRequest,
    JobState,
    Observation,
    Prediction,
    PredictReply,
    PredictRequest,
    ProcessIdentity,
)
from horus_lab.service import asking
from horus_lab.service.driver import Driver
from horus_lab.service.event_stream import EventStream
from horus_lab.service.learning import observation_of
from horus_lab.service.parts import Parts
from horus_lab.service.predictions import PredictionDesk
from horus_lab.service.settings import ServiceSettings
from horus_lab.store.protocol import StoredState

SNAPSHOT_ENDED = 50
NEWS_AFTER_FAILURE_SECONDS = 3.0

_logger = logging.getLogger(__name__)


class Engine:
    """One broker with its driver, its event stream and its predictions.

    Args:
        epoch: as the store gave it to this broker.
        devices: as they are at the start.
        wake_sampler: asks for a fresh look at the devices.

    Attributes:
        open_jobs: every job that has not ended, as of the last event; other threads may read it.
        uses: the last look at the devices.
        graphs_learned: graphs that a run has just taught something about.
    """

    def __init__(
        self,
        parts: Parts,
        settings: ServiceSettings,
        epoch: int,
        devices: tuple[Device, ...],
        wake_sampler: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._clock = parts.clock
        self._epoch = epoch
        self._devices = devices
        self._wake_sampler = wake_sampler
        self._events = 0
        self._untold: dict[str, tuple[int, ...]] = {}
        self._devices_untold = False
        self._news_after = 0.0
        self._next_tick = 0.0
        self._next_flush = 0.0
        self._graphs_learned: set[str] = set()
        self._desk = PredictionDesk(parts.predictor)
        self._driver = Driver(parts.store, epoch, self._build, self, failpoint=parts.failpoint)
        self.stream = EventStream(epoch, keep=settings.limits.resumable_events)
        self.open_jobs: tuple[Job, ...] = ()
        self.uses: tuple[DeviceUse, ...] = ()

    def start(self) -> None:
        """Take up what is stored, and watch every open job's process.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        stored = self._driver.start(self._clock.now())
        for observation in stored.observations:
            self._desk.learn(observation)
        self._publish()

    def _build(self, stored: StoredState, now: float) -> Broker:
        return Broker(
            self._devices,
            self._parts.policy,
            self._parts.interference,
            self._settings.broker,
            jobs=tuple(self._predicted_everywhere(job) for job in stored.jobs),
            next_fence=stored.next_fence,
            now=now,
        )

    @property
    def broker(self) -> Broker:
        """The state machine, as it is on disk."""
        return self._driver.broker

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong now, for people."""
        return tuple(text for text in (self._driver.trouble, self._desk.notice) if text)

    # --- callers --------------------------------------------------------------------------------

    def submit(self, owner: str, request: JobRequest) -> tuple[Job, bool]:
        """The owner's new job, or the one that this very request made before."""
        broker = self.broker
        earlier = broker.find_request(owner, request)
        if earlier is None:
            earlier = self._parts.store.find_request(owner, request.request_id)
            if earlier is not None and earlier.request != request:
                raise Conflict(
                    f"The request id {request.request_id!r} was used for another request.",
                    hint="Make a new id for a new request.",
                )
        if earlier is not None:
            return (earlier if earlier.state.ended else self.poll(earlier.id)), False
        job_id = self._parts.new_id()
        self._handle(
            events.Submitted(
                event_id=self._event_id(),
                job_id=job_id,
                owner=owner,
                request=request,
                predictions=self._predictions(request),
            )
        )
        self._wake_sampler()
        return self.broker.job(job_id), True

    def poll(self, job_id: str) -> Job:
        """The job, whose own client asks for it."""
        job = self.known(job_id)
        if job.state.ended:
            return job
        self._handle(events.Polled(event_id=self._event_id(), job_id=job_id))
        return self.broker.job(job_id)

    def change(
        self, job_id: str, event: Callable[[str], events.Event], by: str | None, admin: bool
    ) -> Job:
        """One event about one job, made with an event id; the job as it is afterwards."""
        job = self.known(job_id)
        if by is not None and by != job.owner and not admin:
            raise Forbidden(
                f"The job {job_id} is not {by}'s.", hint="Ask its owner, or an administrator."
            )
        if job_id not in self.broker.jobs:
            raise InvalidTransition(
                f"The job {job_id} has ended: it is {job.state.value}.",
                hint="Submit a new request.",
            )
        self._handle(event(self._event_id()))
        return self.broker.job(job_id)

    def known(self, job_id: str) -> Job:
        """The job, ended ones included."""
        job = self.broker.jobs.get(job_id) or self._parts.store.job(job_id)
        if job is None:
            raise UnknownJob(
                f"There is no job {job_id!r}.", hint="`%horus jobs --all` lists the known ones."
            )
        return job

    def predict(self, owner: str, request: PredictRequest) -> PredictReply:
        """Where the request would fit, what it would use, how long it would wait."""
        devices = self.broker.devices
        held = asking.held(self._parts.table, self.uses, devices, request.process)
        predictions = self._desk.predict(request.features, request.declared, devices.values(), held)
        # What the process holds under a slot is that job's, and not free use of this one.
        counted = {} if asking.holds_already(self.open_jobs, request.process) else held
        now = self._clock.now()
        asked = asking.asked(owner, request, predictions, counted, now)
        return self.broker.forecast(asked, now)

    def jobs(self, states: frozenset[JobState] | None, limit: int) -> tuple[Job, ...]:
        """The queue in its order, then holders, then ended jobs, the latest first."""
        holders = [job for job in self.broker.jobs.values() if job.state.holds]
        holders.sort(key=lambda job: job.lease.fence if job.lease else 0)
        found = [*self.broker.queue(), *holders, *self._ended()]
        return tuple(job for job in found if states is None or job.state in states)[:limit]

    def device_states(self) -> tuple[DeviceState, ...]:
        """Each device with its last reading and its residents."""
        return self.broker.device_states(self._clock.now())

    def snapshot(self) -> BrokerEvent:
        """Everything as it is, under the latest number."""
        jobs = self.jobs(None, len(self.open_jobs) + SNAPSHOT_ENDED)
        return self.stream.snapshot(jobs, self.device_states(), self._clock.now())

    # --- news -----------------------------------------------------------------------------------

    def process_ended(self, job_id: str, survivors: tuple[int, ...]) -> None:
        """A job's process is proven gone; these pids of its tree live on."""
        self._untold[job_id] = survivors
        self._tell_ended()

    def sampled(self, uses: tuple[DeviceUse, ...]) -> None:
        """The devices were looked at."""
        self.uses = uses
        self._news(events.Measured(event_id=self._event_id(), uses=uses))
        self.stream.devices(self.device_states(), self._clock.now())

    def devices_changed(self, devices: tuple[Device, ...]) -> None:
        """A device came or went."""
        self._devices, self._devices_untold = devices, True
        self._tell_devices()

    def pass_time(self) -> None:
        """Do what is due: the broker's time limits, what is still untold or unwritten."""
        now = self._clock.monotonic()
        if self._graphs_learned and self._predict_again(self._learned_of):
            self._graphs_learned.clear()
        if now < self._next_tick:
            return
        self._next_tick = now + self._settings.pace.tick
        self._news(events.Tick(event_id=self._event_id()))
        self._tell_ended()
        self._tell_devices()
        if now >= self._next_flush:
            self._next_flush = now + self._settings.pace.flush
            self.write_down()

    def seconds_to_tick(self) -> float:
        """How long nothing is due."""
        return max(0.0, self._next_tick - self._clock.monotonic())

    def write_down(self, *, everything: bool = False) -> None:
        """Write what was measured and is still unwritten; if it fails it stays so."""
        try:
            self._driver.flush(everything=everything)
        except StoreUnavailable as error:
            _logger.warning("Horus could not write measurements down: %s", error)

    # --- what the driver does once a step is committed ------------------------------------------

    def watch(self, job_id: str, process: ProcessIdentity) -> None:
        """Watch the process for the job."""
        self._parts.watcher.watch(job_id, process)

    def unwatch(self, job_id: str) -> None:
        """Watch it no more."""
        self._untold.pop(job_id, None)
        self._parts.watcher.unwatch(job_id)

    def announce(self, job: Job) -> None:
        """Tell the event stream."""
        self.stream.job(job, self._clock.now())

    def observe(self, job: Job) -> Observation | None:
        """What an ended job teaches."""
        slots = job.lease.slots if job.lease else ()
        device = self.broker.devices.get(slots[0].device_uuid) if slots else None
        return observation_of(job, device, self._clock.now())

    def learn(self, observation: Observation) -> None:
        """Teach the predictor; jobs that wait with the same graph are predicted again soon."""
        self._desk.learn(observation)
        self._graphs_learned.add(observation.graph_hash)

    # --- inside ---------------------------------------------------------------------------------

    def _handle(self, event: events.Event) -> None:
        try:
            self._driver.handle(event, self._clock.now())
        finally:
            self._publish()

    def _news(self, event: events.Event) -> bool:
        """Handle what nobody waits for the answer of; whether it was taken in.

        After a failure news waits for a while: a store that makes every write wait for its
        time-out would else hold up everyone who only asks.
        """
        now = self._clock.monotonic()
        if now < self._news_after:
            return False
        try:
            self._handle(event)
        except HorusError as error:
            self._news_after = now + NEWS_AFTER_FAILURE_SECONDS
            _logger.warning("Horus could not take in %s: %s", type(event).__name__, error)
            return False
        return True

    def _tell_ended(self) -> None:
        """Tell the broker of ended processes, again and again until it is on disk."""
        for job_id, survivors in list(self._untold.items()):
            ended = events.ProcessEnded(
                event_id=self._event_id(), job_id=job_id, survivors=survivors
            )
            if self._news(ended):
                self._untold.pop(job_id, None)
                self._wake_sampler()

    def _tell_devices(self) -> None:
        """Tell the broker of other devices: what waiting jobs would use of them goes first."""
        if not self._devices_untold or not self._predict_again(lambda _job: True):
            return
        changed = events.DevicesChanged(event_id=self._event_id(), devices=self._devices)
        self._devices_untold = not self._news(changed)

    def _learned_of(self, job: Job) -> bool:
        features = job.request.features
        return features is not None and features.graph_hash in self._graphs_learned

    def _predict_again(self, concerns: Callable[[Job], bool]) -> bool:
        """Tell the broker of better predictions; whether all of them were taken in."""
        for job in self.open_jobs:
            if job.state is not JobState.QUEUED or not concerns(job):
                continue
            fresh = self._predictions(job.request)
            if fresh == job.predictions:
                continue
            better = events.Predicted(event_id=self._event_id(), job_id=job.id, predictions=fresh)
            if not self._news(better):
                return False
        return True

    def _predictions(self, request: JobRequest) -> dict[str, Prediction]:
        devices = self._known_devices()
        held = asking.held(self._parts.table, self.uses, devices, request.process)
        return self._desk.predict(request.features, request.declared, devices.values(), held)

    def _predicted_everywhere(self, job: Job) -> Job:
        """A stored job that waits, with predictions for devices that came since."""
        if job.state is not JobState.QUEUED or {d.uuid for d in self._devices} <= set(
            job.predictions
        ):
            return job
        return replace(job, predictions={**self._predictions(job.request), **job.predictions})

    def _known_devices(self) -> dict[str, Device]:
        return {device.uuid: device for device in self._devices}

    def _publish(self) -> None:
        jobs = self.broker.jobs.values()
        self.open_jobs = tuple(job for job in jobs if not job.state.ended)

    def _ended(self) -> list[Job]:
        ended = [job for job in self.broker.jobs.values() if job.state.ended]
        return sorted(ended, key=lambda job: job.ended_at or 0.0, reverse=True)

    def _event_id(self) -> str:
        self._events += 1
        return f"{self._epoch}.{self._events}"
