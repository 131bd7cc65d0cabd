"""A granted slot while it is held: heartbeats from a thread, one release."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from horus_lab.client.http import HorusClient
from horus_lab.errors import (
    BrokerUnavailable,
    HorusError,
    InvalidTransition,
    StaleFence,
    StoreUnavailable,
    UnknownJob,
)
from horus_lab.records import Heartbeat, Job, Lease, Release

Outcome = Literal["done", "failed", "cancelled"]

HEARTBEAT_SECONDS = 5.0

_RELEASE_PATIENCE_SECONDS = 2.0
_MAX_MESSAGE = 2000

_log = logging.getLogger("horus_lab.client")


class HeldLease:
    """A lease kept alive by heartbeats until it is released, exactly once.

    A broker that dies never breaks the training: heartbeats go on quietly, one warning is
    logged, and the release is tried for about two seconds. A forked child (a data loader's
    worker) shares the object and does nothing with it: it neither beats nor releases.

    As a context manager it releases as `done`, on `KeyboardInterrupt` as `cancelled`, on another
    exception as `failed`.

    Attributes:
        cancelled: set once somebody asked the job to stop.
    """

    def __init__(
        self,
        client: HorusClient,
        job: Job,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        on_cancel: Callable[[], None] | None = None,
    ) -> None:
        if job.lease is None:
            raise InvalidTransition(f"Job {job.id} has no lease to hold: it is {job.state.value}.")
        self.cancelled = threading.Event()
        self._client = client
        self._job = job
        self._lease = job.lease
        self._heartbeat_seconds = heartbeat_seconds
        self._on_cancel = on_cancel
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._released = False
        self._warned = False
        self._progress = StepRate()
        self._allocator_peak_bytes: int | None = None
        self._sequence = 0
        self._thread = threading.Thread(
            target=self._beat_until_released, name=f"horus-heartbeat-{job.id}", daemon=True
        )
        atexit.register(self._release_at_exit)
        self._thread.start()

    @property
    def job(self) -> Job:
        """The job as the broker last told it."""
        return self._job

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._job.id

    @property
    def lease(self) -> Lease:
        """The lease with its fence and slots, as it was confirmed."""
        return self._lease

    @property
    def held(self) -> bool:
        """Whether this process holds the lease: not released, and not a forked child."""
        return not self._released and os.getpid() == self._pid

    def report(self, steps: int, allocator_peak_bytes: int | None = None) -> None:
        """Say how far the training is. Cheap, from any thread; sent with the next heartbeat.

        Args:
            steps: optimizer steps done so far, in all.
            allocator_peak_bytes: the framework's own peak of allocated bytes, where known.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._progress.report(steps, time.monotonic())
            if allocator_peak_bytes is not None:
                peak = self._allocator_peak_bytes or 0
                self._allocator_peak_bytes = max(peak, allocator_peak_bytes)

    def report_steps(self, steps: int) -> None:
        """`report` with nothing but the steps done so far."""
        self.report(steps)

    def release(self, outcome: Outcome = "done", message: str = "") -> Job | None:
        """Give the slot back.

        Returns:
            The job with its measurements; `None` where the lease was already released, the
            broker could not be told, or this is a forked child.
        """
        if os.getpid() != self._pid:
            return None
        with self._lock:
            if self._released:
                return None
            self._released = True
        self._stop.set()
        atexit.unregister(self._release_at_exit)
        told = Release(
            fence=self._lease.fence,
            outcome=outcome,
            message=message[:_MAX_MESSAGE],
            steps=self._progress.steps,
            allocator_peak_bytes=self._allocator_peak_bytes,
        )
        try:
            job = self._client.release(
                self.job_id, told, patience_seconds=_RELEASE_PATIENCE_SECONDS
            )
        except HorusError as error:
            _log.warning(
                "Horus could not be told that job %s ended as %s: %s", self.job_id, outcome, error
            )
            return None
        self._job = job
        return job

    def __enter__(self) -> HeldLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.release("done")
        elif issubclass(kind, KeyboardInterrupt):
            self.release("cancelled", "interrupted")
        else:
            self.release("failed", f"{kind.__name__}: {error}")

    def _release_at_exit(self) -> None:
        self.release("cancelled", "The process ended while it held the slot.")

    def _beat_until_released(self) -> None:
        while not self._stop.wait(self._heartbeat_seconds):
            try:
                job = self._client.heartbeat(self.job_id, self._next_beat(), patience_seconds=0.0)
            except (BrokerUnavailable, StoreUnavailable) as error:
                self._warn_once(f"the broker did not answer; training goes on: {error}")
                continue
            except (StaleFence, InvalidTransition, UnknownJob) as error:
                if not self._stop.is_set():
                    self._warn_once(f"the slot is no longer held; training goes on: {error}")
                return
            except HorusError as error:
                self._warn_once(f"a heartbeat was refused; training goes on: {error}")
                continue
            if self._stop.is_set():
                return
            self._job = job
            if job.cancel_requested:
                self._tell_cancelled()

    def _next_beat(self) -> Heartbeat:
        with self._lock:
            self._sequence += 1
            return Heartbeat(
                fence=self._lease.fence,
                sequence=self._sequence,
                steps=self._progress.steps,
                steps_per_second=self._progress.take_rate(),
                allocator_peak_bytes=self._allocator_peak_bytes,
            )

    def _tell_cancelled(self) -> None:
        if self.cancelled.is_set():
            return
        self.cancelled.set()
        if self._on_cancel is not None:
            try:
                self._on_cancel()
            except Exception:  # noqa: BLE001 - the caller's code; the heartbeats outlive it
                _log.exception("The callback for a cancelled job failed")

    def _warn_once(self, text: str) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        _log.log(level, "Horus job %s: %s", self.job_id, text)


class StepRate:
    """Steps per second between heartbeats, measured from step to step.

    The rate of a beat is the steps since the last beat that saw any, over the time between the
    last step of then and the last step of now: right for steps longer than a heartbeat too. A
    beat without a new step has no rate, which is not a rate of zero.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._last_at: float | None = None
        self._taken_steps = 0
        self._taken_at: float | None = None

    def report(self, steps: int, at: float) -> None:
        """`steps` done so far at the monotonic instant `at`; a smaller count is ignored."""
        if steps <= self.steps and self._last_at is not None:
            return
        if self._taken_at is None:
            # What came before the first report has no start to measure from.
            self._taken_at = at
            self._taken_steps = steps
        self.steps = max(steps, self.steps)
        self._last_at = at

    def take_rate(self) -> float | None:
        """The rate since the last one taken; `None` where there was no new step."""
        if self._last_at is None or self._taken_at is None:
            return None
        steps = self.steps - self._taken_steps
        seconds = self._last_at - self._taken_at
        if steps <= 0 or seconds <= 0.0:
            return None
        self._taken_steps, self._taken_at = self.steps, self._last_at
        return steps / seconds
