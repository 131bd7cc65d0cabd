"""From a request to a held lease: submit, wait, confirm."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from horus_lab.client.http import HorusClient, repeat_while_unreachable
from horus_lab.client.lease import HEARTBEAT_SECONDS, HeldLease
from horus_lab.errors import (
    HorusError,
    InvalidTransition,
    JobCancelled,
    NeverFits,
    StaleFence,
    UnknownJob,
)
from horus_lab.records import Job, JobRequest, JobState, Release

WAIT_PATIENCE_SECONDS = 300.0

_POLL_SECONDS = 20.0
_LEAST_POLL_SECONDS = 1.0
_CANCEL_PATIENCE_SECONDS = 2.0
_CANCEL_LOOK_SECONDS = 0.2
_RESUBMISSIONS = 3

_log = logging.getLogger("horus_lab.client")


def acquire(
    client: HorusClient,
    request: JobRequest,
    *,
    on_update: Callable[[Job], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
    on_cancel: Callable[[], None] | None = None,
    cancel_event: threading.Event | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    patience_seconds: float = WAIT_PATIENCE_SECONDS,
) -> HeldLease:
    """A slot for `request`; waits in the broker's queue until it is granted.

    The place in the queue is the broker's: the wait goes on across lost connections and restarts
    of the server. Interrupting it (Ctrl-C) cancels the job and raises `KeyboardInterrupt` again.

    Args:
        on_update: told of the job once it is submitted and at every change (place, reason,
            expected time, grant).
        on_notice: told in a sentence when the contact with the broker is lost, and when it is
            back; without it the sentences are logged.
        on_cancel: called from the heartbeat thread when the running job is asked to stop.
        cancel_event: set it from anywhere to give up waiting.
        patience_seconds: how long the broker may be out of reach.

    Raises:
        NeverFits: no device here could ever hold the job.
        JobCancelled: the job was cancelled while it waited.
        InvalidTransition: the job ended in another way before it could start.
        BrokerUnavailable: the broker stayed out of reach.
    """
    waiting = _Waiting(client, request, on_update, on_notice, patience_seconds)
    try:
        with _cancelling(cancel_event, waiting.cancel):
            job = waiting.confirmed()
            return HeldLease(client, job, heartbeat_seconds=heartbeat_seconds, on_cancel=on_cancel)
    except (KeyboardInterrupt, SystemExit):
        waiting.cancel()
        raise


class _Waiting:
    """One request on its way through the queue."""

    def __init__(
        self,
        client: HorusClient,
        request: JobRequest,
        on_update: Callable[[Job], None] | None,
        on_notice: Callable[[str], None] | None,
        patience_seconds: float,
    ) -> None:
        self._client = client
        self._request = request
        self._on_update = on_update
        self._on_notice = on_notice
        self._patience_seconds = patience_seconds
        self._job: Job | None = None
        self._out_of_reach = False
        self._submitting = False

    def confirmed(self) -> Job:
        """The job once it runs under a fence of ours."""
        job = self._submit()
        resubmissions = 0
        while True:
            if job.state is JobState.RUNNING:
                return job
            if job.state.ended:
                raise _ended_early(job)
            try:
                if job.state is JobState.GRANTED and job.lease is not None:
                    job = self._confirm(job, job.lease.fence)
                else:
                    job = self._next(job)
            except UnknownJob:
                # The broker came back without its store; the place is gone, the wish is not.
                resubmissions += 1
                if resubmissions > _RESUBMISSIONS:
                    raise
                job = self._submit()

    def cancel(self) -> None:
        """Leave the queue, whatever the broker does."""
        if self._job is None and not self._submitting:
            return
        try:
            if self._job is None:
                # Interrupted inside the submission: it may have arrived. The same request id
                # finds the job, or makes one to be cancelled.
                self._job = self._client.submit(self._request)
            job = self._client.cancel(self._job.id, patience_seconds=_CANCEL_PATIENCE_SECONDS)
            if job.state.holds and job.lease is not None:
                # The grant, or our confirmation of it, came first: nothing trains under it.
                self._client.release(
                    job.id,
                    Release(fence=job.lease.fence, outcome="cancelled", message="interrupted"),
                    patience_seconds=_CANCEL_PATIENCE_SECONDS,
                )
        except InvalidTransition:
            _log.debug("The job had ended before it was cancelled")
        except HorusError as error:
            _log.warning("Horus could not be told to cancel %s: %s", self._request.name, error)

    def _submit(self) -> Job:
        # A first submission to a broker that is not there is told at once.
        patience = self._client.patience_seconds if self._job is None else self._patience_seconds
        self._submitting = True
        job = self._reach(lambda: self._client.submit(self._request), patience)
        self._told(job)
        return job

    def _next(self, job: Job) -> Job:
        asked_at = time.monotonic()
        newer = self._reach(
            lambda: self._client.job(
                job.id, after_revision=job.revision, wait_seconds=_POLL_SECONDS
            ),
            self._patience_seconds,
        )
        if newer.revision != job.revision:
            self._told(newer)
        elif time.monotonic() - asked_at < _LEAST_POLL_SECONDS:
            # A server with too many waiters answers at once; asking at once again helps nobody.
            time.sleep(_LEAST_POLL_SECONDS)
        return newer

    def _confirm(self, job: Job, fence: int) -> Job:
        try:
            running = self._reach(
                lambda: self._client.confirm(job.id, fence), self._patience_seconds
            )
        except (StaleFence, InvalidTransition):
            # Withdrawn in between: the job's own state says what comes now.
            running = self._reach(lambda: self._client.job(job.id), self._patience_seconds)
        self._told(running)
        return running

    def _told(self, job: Job) -> None:
        self._job = job
        if self._on_update is not None:
            try:
                self._on_update(job)
            except Exception:  # noqa: BLE001 - the caller's display; it must not cost the slot
                _log.exception("The display of a waiting job failed")

    def _reach(self, call: Callable[[], Job], patience_seconds: float) -> Job:
        def lost(error: HorusError) -> None:
            self._out_of_reach = True
            self._notice(
                "The broker cannot be reached; the job keeps its place there, and this goes on "
                f"asking for up to {patience_seconds:.0f} s. ({error.message})"
            )

        job = repeat_while_unreachable(call, patience_seconds, on_trouble=lost)
        if self._out_of_reach:
            self._out_of_reach = False
            self._notice("The broker answers again.")
        return job

    def _notice(self, text: str) -> None:
        if self._on_notice is not None:
            self._on_notice(text)
        else:
            _log.warning("%s", text)


@contextmanager
def _cancelling(event: threading.Event | None, cancel: Callable[[], None]) -> Iterator[None]:
    """Call `cancel` from a thread when `event` is set inside the block."""
    if event is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if event.wait(_CANCEL_LOOK_SECONDS):
                if not over.is_set():
                    cancel()
                return

    thread = threading.Thread(target=watch, name="horus-cancel", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _ended_early(job: Job) -> HorusError:
    why = job.outcome or (job.reason.sentence if job.reason else "")
    if job.state is JobState.CANCELLED:
        return JobCancelled(
            f"Job {job.id} was cancelled while it waited{': ' + why if why else ''}.",
            hint="Run it again to ask for a new place.",
        )
    if job.state is JobState.REJECTED:
        return NeverFits(why or f"Job {job.id} was rejected: no device here could hold it.")
    return InvalidTransition(
        f"Job {job.id} ended as {job.state.value} before it could start"
        f"{': ' + why if why else ''}.",
        hint="Its story says what happened: `%horus why " + job.id + "`.",
    )
