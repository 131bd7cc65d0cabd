"""One thread looks at the devices for everybody, and survives a driver that hangs or fails."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol, TypeVar

from horus_lab.devices.probe import Probe, ProcessTable
from horus_lab.errors import DeviceUnavailable, HorusError
from horus_lab.records import (
    Device,
    DeviceReading,
    DeviceUse,
    Health,
    Job,
    JobState,
    Prediction,
    ProcessIdentity,
)
from horus_lab.service.clock import Clock

T = TypeVar("T")
Trees = Mapping[str, frozenset[int]]
Attribute = Callable[[tuple[DeviceReading, ...], Trees], tuple[DeviceUse, ...]]

_PLAYED = frozenset({JobState.RUNNING, JobState.SUSPECT, JobState.FENCED})
_LIST_EVERY = 10
_LEAST_REST = 0.2

_logger = logging.getLogger(__name__)


class Audience(Protocol):
    """Whom the sampler serves. Called from its thread."""

    def open_jobs(self) -> tuple[Job, ...]:
        """Every job that has not ended."""
        ...

    def idle(self) -> bool:
        """Whether nobody would notice a slower pace."""
        ...

    def sampled(self, uses: tuple[DeviceUse, ...]) -> None:
        """The devices were looked at."""
        ...

    def devices_changed(self, devices: tuple[Device, ...]) -> None:
        """A device came or went."""
        ...


class Sampler:
    """Reads the probe every `interval` seconds, and every `idle_interval` while nobody cares.

    The probe is called in a thread of its own. A call that takes longer than `timeout` is left
    there; until it comes back every device's use is unknown, with the reason, so nothing is
    granted, and the rest of the service goes on.

    Attributes:
        notice: what is wrong with the devices now, for people; empty where nothing is.
    """

    def __init__(
        self,
        probe: Probe,
        table: ProcessTable,
        attribute: Attribute,
        clock: Clock,
        *,
        interval: float = 1.0,
        idle_interval: float = 5.0,
        timeout: float = 10.0,
    ) -> None:
        self._probe = probe
        self._table = table
        self._attribute = attribute
        self._clock = clock
        self._interval = interval
        self._idle_interval = max(interval, idle_interval)
        self._timeout = timeout
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._hanging: Future[object] | None = None
        self._devices: tuple[Device, ...] = ()
        self._looks = 0
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._asker = threading.Thread(target=self._ask_all, name="horus-probe", daemon=True)
        self._thread: threading.Thread | None = None
        self.notice = ""

    def open(self) -> tuple[Device, ...]:
        """Open the probe and list its devices.

        Raises:
            DeviceUnavailable: it cannot be opened, or does not answer.
        """
        self._asker.start()
        self._ask(self._probe.open)
        self._devices = self._ask(self._probe.devices)
        return self._devices

    def start(self, audience: Audience) -> None:
        """Look at the devices from now on."""
        self._thread = threading.Thread(
            target=self._run, args=(audience,), name="horus-sampler", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Look now, whatever the pace."""
        self._wake.set()

    def stop(self, timeout: float = 2.0) -> None:
        """Stop looking and close the probe; a hanging call is left behind. Safe to call twice."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
        if self._asker.is_alive():
            self._asked.put(self._close_probe)
            self._asked.put(None)
            self._asker.join(timeout)

    def look(self, jobs: tuple[Job, ...]) -> tuple[DeviceUse, ...]:
        """One look at every device, attributed to the jobs; unknown where the probe fails."""
        now = self._clock.now()
        try:
            trees = self._trees(jobs)
            set_residents = getattr(self._probe, "set_residents", None)
            if set_residents is not None:
                residents = _played(jobs)
                self._ask(lambda: set_residents(residents))
            readings = self._ask(lambda: self._probe.read(now, trees))
            uses = self._attribute(readings, trees)
        except HorusError as error:
            return self._unknown(now, str(error))
        except Exception as error:
            _logger.exception("Horus could not look at the devices")
            return self._unknown(now, f"{type(error).__name__}: {error}")
        self.notice = ""
        seen = {use.reading.uuid for use in uses}
        silent = tuple(device for device in self._devices if device.uuid not in seen)
        return uses + _unknown_uses(silent, now, "the probe gave no reading of it")

    def _run(self, audience: Audience) -> None:
        while not self._stopped.is_set():
            # However often it is woken, it rests a little: a burst of submissions is one occasion.
            self._stopped.wait(_LEAST_REST)
            pace = self._idle_interval if audience.idle() else self._interval
            self._wake.wait(pace - _LEAST_REST)
            self._wake.clear()
            if self._stopped.is_set():
                return
            self._list(audience)
            audience.sampled(self.look(audience.open_jobs()))

    def _list(self, audience: Audience) -> None:
        """Now and then, see whether devices came or went."""
        self._looks += 1
        if self._looks % _LIST_EVERY:
            return
        try:
            devices = self._ask(self._probe.devices)
        except Exception as error:  # noqa: BLE001 - the reading that follows says what is wrong
            self.notice = f"The devices cannot be listed: {error}"
            return
        if devices != self._devices:
            self._devices = devices
            audience.devices_changed(devices)

    def _trees(self, jobs: tuple[Job, ...]) -> dict[str, frozenset[int]]:
        found: dict[ProcessIdentity, frozenset[int]] = {}
        # A kernel may hold one slot and wait for another: its bytes are those of the slot.
        jobs = tuple(sorted(jobs, key=lambda job: not job.state.holds))
        for job in jobs:
            process = job.request.process
            if process not in found:
                found[process] = self._table.tree(process)
        return {job.id: found[job.request.process] for job in jobs}

    def _unknown(self, now: float, why: str) -> tuple[DeviceUse, ...]:
        self.notice = f"The devices cannot be read, so nothing is granted: {why}"
        return _unknown_uses(self._devices, now, why)

    # --- the probe's own thread -----------------------------------------------------------------

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask the probe, and wait for a bounded time.

        Raises:
            DeviceUnavailable: it does not answer, or an earlier question still hangs.
        """
        if self._hanging is not None:
            if not self._hanging.done():
                raise self._silence()
            self._hanging = None
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001 - the future carries it to the asker
                answer.set_exception(error)

        self._asked.put(run)
        try:
            return answer.result(self._timeout)
        except TimeoutError:
            if answer.done():  # the probe's own TimeoutError
                raise
            self._hanging = answer  # type: ignore[assignment]  # only ever asked whether it is done
            raise self._silence() from None

    def _silence(self) -> DeviceUnavailable:
        return DeviceUnavailable(
            f"The {self._probe.name} probe has not answered for {self._timeout:g} s.",
            hint="Look whether the driver's own tool (nvidia-smi) hangs too.",
        )

    def _ask_all(self) -> None:
        while (question := self._asked.get()) is not None:
            question()

    def _close_probe(self) -> None:
        try:
            self._probe.close()
        except Exception:
            # The service stops all the same.
            _logger.exception("Horus could not close the %s probe", self._probe.name)


def _played(jobs: tuple[Job, ...]) -> dict[str, dict[str, Prediction]]:
    """For a probe that plays residents itself: who trains where, and with what prediction."""
    playing: dict[str, dict[str, Prediction]] = {}
    for job in jobs:
        if job.state not in _PLAYED or job.lease is None:
            continue
        for slot in job.lease.slots:
            prediction = job.predictions.get(slot.device_uuid)
            if prediction is not None:
                playing.setdefault(slot.device_uuid, {})[job.id] = prediction
    return playing


def _unknown_uses(devices: tuple[Device, ...], now: float, why: str) -> tuple[DeviceUse, ...]:
    missing = dict.fromkeys(("utilization", "memory_utilization", "memory_used_bytes"), why)
    return tuple(
        DeviceUse(
            reading=DeviceReading(
                uuid=device.uuid, read_at=now, health=Health.DEGRADED, unknown=missing
            )
        )
        for device in devices
    )
