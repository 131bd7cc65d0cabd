"""Capture, ask, wait, heartbeat, release: shared by every framework's hook.

A hook makes one `Admission` for one training run. It never breaks the training: without a broker,
or with a model that cannot be captured, it says so in one sentence and the training goes on.
Only what the user must decide is raised: a run that can never fit, a wait that was cancelled, a
device this kernel cannot use.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from horus_lab import handover
from horus_lab.client import (
    HeldLease,
    HorusClient,
    acquire,
    kernel_id,
    notebook_name,
    this_process,
)
from horus_lab.client.lease import Outcome
from horus_lab.errors import (
    OUT_OF_REACH,
    BrokerUnavailable,
    HorusError,
    JobCancelled,
)
from horus_lab.notebook.display import WaitingDisplay
from horus_lab.notebook.wording import bytes_text, summary_text
from horus_lab.records import (
    Constraints,
    DeclaredNeeds,
    DeviceKind,
    DeviceState,
    GraphFeatures,
    Job,
    JobRequest,
)

_UNKNOWN_BASE_BYTES = 4 * 2**30
_ADAM_BYTES_PER_PARAMETER = 16


class HorusWarning(UserWarning):
    """Horus could not do its part; the training goes on without it."""


class AdmissionCancelled(JobCancelled):
    """The wait for a slot was cancelled, by an interrupt or from outside.

    Lightning answers a `KeyboardInterrupt` by ending the process and ignoring later interrupts;
    this error ends the cell and leaves the kernel as it was.
    """

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: somebody who cancelled needs no traceback.
        return [f"Horus: {self}"]


class Needs(Struct, frozen=True, kw_only=True):
    """What one training run asks for.

    Attributes:
        capture: makes the graph features; may raise whatever the user's code raises.
        parameters: number of parameters, for the conservative guess where capture fails.
        device_type: torch's type of the device that the trainer was made for: `cpu` or `cuda`.
        steps: optimizer steps, where known.
    """

    name: str
    capture: Callable[[], GraphFeatures]
    parameters: int = 0
    declared: DeclaredNeeds | None = None
    constraints: Constraints = Constraints()
    devices: int = 1
    device_type: str = "cpu"
    steps: int | None = None


class Admission:
    """One run's way through the broker. `enter` before anything touches a device, then `leave`."""

    def __init__(
        self,
        *,
        client: HorusClient | None = None,
        display: WaitingDisplay | None = None,
        quiet: bool = False,
    ) -> None:
        self._client = client
        self._quiet = quiet
        self._display = display or WaitingDisplay(quiet=quiet)
        self._lease: HeldLease | None = None
        self._names: dict[str, str] = {}
        self.features: GraphFeatures | None = None
        self.job: Job | None = None

    @property
    def lease(self) -> HeldLease | None:
        """The lease while it is held."""
        return self._lease

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked the run to stop."""
        return self._lease is not None and self._lease.cancelled.is_set()

    def enter(self, needs: Needs) -> str | None:
        """Ask for a slot and wait for it.

        Returns:
            torch's name of the granted device, or `None` where the training goes on without a
            slot (no broker, or no device of the trainer's type there).

        Raises:
            NeverFits: no device here could hold the run.
            AdmissionCancelled: the wait was interrupted or cancelled.
            DeviceNotVisible: the granted device cannot be used by this kernel.
        """
        try:
            client = self._client or HorusClient.discover()
            states = client.devices()
        except BrokerUnavailable as error:
            _warn(f"no broker was found, so this run is not coordinated with others. {error}")
            return None
        except HorusError as error:
            _warn(f"the broker could not be used, so this run is not coordinated. {error}")
            return None
        usable = _usable(states, needs.device_type)
        if not usable:
            _warn(
                f"the broker has no device for a trainer on {needs.device_type!r}, "
                "so this run needs no slot."
            )
            return None
        self._names = {s.device.uuid: s.device.name for s in states}
        self.features = self._captured(needs)
        request = self._request(needs, usable, everything=len(usable) == len(states))
        return self._wait(client, request, states)

    def report(self, *, steps: int, allocator_peak_bytes: int | None = None) -> None:
        """Tell the broker how far the run is. Cheap; sent with the next heartbeat."""
        if self._lease is not None:
            self._lease.report(steps, allocator_peak_bytes)

    def leave(self, outcome: Outcome, message: str = "") -> Job | None:
        """Give the slot back, exactly once. Returns the job with its measurements."""
        lease, self._lease = self._lease, None
        if lease is None:
            return None
        job = lease.release(outcome, message)
        if job is not None:
            self.job = job
            if not self._quiet:
                WaitingDisplay().say(summary_text(job, self._names))
        return job

    def _captured(self, needs: Needs) -> GraphFeatures | None:
        try:
            return needs.capture()
        except Exception as error:  # noqa: BLE001 - it runs the user's code, which may raise anything
            if needs.declared is None:
                guess = bytes_text(_conservative(needs).memory_bytes)
                _warn(
                    f"the model could not be captured ({_first_line(error)}); a device of its own "
                    f"with {guess} is asked for. Declare memory_bytes to ask for less."
                )
            return None

    def _request(
        self, needs: Needs, usable: Sequence[DeviceState], *, everything: bool
    ) -> JobRequest:
        declared = needs.declared
        if self.features is None and declared is None:
            declared = _conservative(needs)
        constraints = needs.constraints
        if not constraints.device_uuids:
            visible = handover.allowed_uuids(handover.look()) if needs.device_type != "cpu" else ()
            if not visible and not everything:
                visible = tuple(state.device.uuid for state in usable)
            constraints = Constraints(
                exclusive=constraints.exclusive,
                max_slowdown=constraints.max_slowdown,
                priority=constraints.priority,
                device_uuids=visible,
            )
        return JobRequest(
            request_id=uuid.uuid4().hex,
            name=needs.name[:200] or "training",
            process=this_process(),
            features=self.features,
            declared=declared,
            devices=needs.devices,
            constraints=constraints,
            steps=needs.steps,
            notebook=notebook_name()[:200],
            kernel_id=kernel_id()[:200],
        )

    def _wait(
        self, client: HorusClient, request: JobRequest, states: Sequence[DeviceState]
    ) -> str | None:
        try:
            with self._display:
                lease = acquire(client, request, on_update=self._display.update)
        except KeyboardInterrupt:
            self._display.say(f"Horus: {request.name} was cancelled while it waited.")
            raise AdmissionCancelled("The wait was interrupted and the job cancelled.") from None
        except JobCancelled as error:
            self._display.say(f"Horus: {error.message}")
            raise AdmissionCancelled(error.message, hint=error.hint) from None
        except OUT_OF_REACH as error:
            _warn(f"the broker went away while this run waited, so it goes on alone. {error}")
            return None
        self._lease = lease
        self.job = lease.job
        try:
            uuids = [slot.device_uuid for slot in lease.lease.slots]
            device = next(s.device for s in states if s.device.uuid == uuids[0])
            plan = handover.plan_handover(device, handover.look())
            handover.apply(plan)
        except BaseException as error:
            self.leave("failed", f"hand-over: {_first_line(error)}")
            raise
        self._display.granted(lease.job, self._names)
        return plan.device


def _usable(states: Sequence[DeviceState], device_type: str) -> tuple[DeviceState, ...]:
    """The devices that a trainer of this type can use; simulated ones play along on the CPU."""
    if device_type == "cuda":
        kinds = {DeviceKind.NVIDIA, DeviceKind.MIG}
    else:
        kinds = {DeviceKind.CPU, DeviceKind.SIMULATED}
    return tuple(state for state in states if state.device.kind in kinds)


def _conservative(needs: Needs) -> DeclaredNeeds:
    """What is reserved for a run about which only its parameters are known.

    Parameters, gradients and Adam's two moments in 32 bits are 16 bytes a parameter; twice that,
    and 4 GiB for activations. Its utilization stays unknown, so it gets no neighbours.
    """
    return DeclaredNeeds(
        memory_bytes=_UNKNOWN_BASE_BYTES + 2 * _ADAM_BYTES_PER_PARAMETER * needs.parameters
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def _warn(text: str) -> None:
    warnings.warn(f"Horus: {text}", HorusWarning, stacklevel=4)


def describe(job: Job | None) -> dict[str, Any]:
    """A finished job's numbers, for a logger: waited seconds, neighbours, slowdown."""
    if job is None:
        return {}
    numbers: dict[str, Any] = {}
    if job.granted_at is not None:
        numbers["horus/waited_seconds"] = job.granted_at - job.submitted_at
    if job.lease is not None:
        numbers["horus/neighbours"] = len(job.lease.neighbours)
    if job.measured.slowdown is not None:
        numbers["horus/slowdown"] = job.measured.slowdown
    return numbers
