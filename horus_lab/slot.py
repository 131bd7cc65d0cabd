"""`horus_lab.slot`: a granted slot for plain PyTorch, as a context manager.

with horus_lab.slot(model, batch, optimizer=optimizer, loss=loss) as slot:
    model.to(slot.device)
    for batch in loader:
        ...
        slot.step()
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

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
from horus_lab.errors import OUT_OF_REACH, HorusError, InvalidRequest
from horus_lab.notebook.display import WaitingDisplay
from horus_lab.notebook.wording import parse_bytes, summary_text
from horus_lab.records import (
    Constraints,
    DeclaredNeeds,
    Device,
    GraphFeatures,
    Job,
    JobRequest,
)


class Slot:
    """A slot while its `with` block runs.

    Attributes:
        device: torch's name of the device to use (`cpu`, `cuda:0`); `None` where there was no
            broker, and the choice stays with the caller.
        job: the job as last seen; `None` without a broker.
    """

    def __init__(
        self,
        request: Callable[[], JobRequest],
        *,
        client: HorusClient | None,
        quiet: bool,
    ) -> None:
        self._make_request = request
        self._client = client
        self._quiet = quiet
        self._lease: HeldLease | None = None
        self._names: dict[str, str] = {}
        self._steps = 0
        self.device: str | None = None
        self.job: Job | None = None

    def __enter__(self) -> Slot:
        display = WaitingDisplay(quiet=self._quiet)
        try:
            client = self._client or HorusClient.discover()
            states = client.devices()
            devices: dict[str, Device] = {s.device.uuid: s.device for s in states}
            self._names = {uuid: device.name for uuid, device in devices.items()}
            with display:
                lease = acquire(client, self._make_request(), on_update=display.update)
        except OUT_OF_REACH as error:
            warnings.warn(
                f"Horus: there is no working broker, so this block is not coordinated with others. "
                f"{error}",
                stacklevel=2,
            )
            return self
        self._lease = lease
        self.job = lease.job
        try:
            device = devices[lease.lease.slots[0].device_uuid]
            plan = handover.plan_handover(device, handover.look())
            handover.apply(plan)
        except BaseException:
            self._release("failed", "hand-over")
            raise
        self.device = plan.device
        display.granted(lease.job, self._names)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._release("done", "")
        elif issubclass(kind, KeyboardInterrupt):
            self._release("cancelled", "interrupted")
        else:
            self._release("failed", kind.__name__)

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked this block to stop."""
        return self._lease is not None and self._lease.cancelled.is_set()

    def step(self, count: int = 1) -> None:
        """Tell Horus that `count` optimizer steps were done. Cheap."""
        self._steps += count
        if self._lease is not None:
            self._lease.report(self._steps)

    def _release(self, outcome: Outcome, message: str) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        job = lease.release(outcome, message)
        if job is not None:
            self.job = job
            if not self._quiet:
                WaitingDisplay().say(summary_text(job, self._names))


def slot(
    model: Any = None,
    batch: Any = None,
    *,
    optimizer: Any = None,
    loss: Any = None,
    memory: int | str | None = None,
    utilization: float | None = None,
    name: str = "",
    exclusive: bool = False,
    max_slowdown: float = 1.25,
    priority: int = 0,
    devices: int = 1,
    device_uuids: tuple[str, ...] = (),
    steps: int | None = None,
    client: HorusClient | None = None,
    quiet: bool = False,
) -> Slot:
    """A slot for one training run, from a model and a batch, or from declared needs.

    Args:
        model: the module; captured with `batch`, `optimizer` and `loss` as `capture` does.
        memory: declared bytes, or text like `"4GiB"`; needed where there is no model, and where
            the capture may fail.
        utilization: declared, 0-1. Without it (and without a model) nobody may join.

    Raises:
        InvalidRequest: neither a model with a batch nor declared memory.
        CaptureFailed: the model could not be captured and no memory is declared.
        NeverFits: no device here could hold the run (on entering).
    """
    if model is None and memory is None:
        raise InvalidRequest(
            "A slot needs a model with a batch, or declared memory.",
            hint='Write horus_lab.slot(model, batch) or horus_lab.slot(memory="4GiB").',
        )
    declared = None
    if memory is not None:
        amount = parse_bytes(memory) if isinstance(memory, str) else int(memory)
        declared = DeclaredNeeds(memory_bytes=amount, utilization=utilization)

    def request() -> JobRequest:
        features: GraphFeatures | None = None
        if model is not None:
            from horus_lab.graph import capture

            try:
                features = capture(model, batch, optimizer=optimizer, loss=loss)
            except HorusError as error:
                if declared is None:
                    raise
                warnings.warn(f"Horus: only the declared needs are used. {error}", stacklevel=3)
        allowed = device_uuids or handover.allowed_uuids(handover.look())
        return JobRequest(
            request_id=uuid.uuid4().hex,
            name=(name or (type(model).__name__ if model is not None else "slot"))[:200],
            process=this_process(),
            features=features,
            declared=declared,
            devices=devices,
            constraints=Constraints(
                exclusive=exclusive,
                max_slowdown=max_slowdown,
                priority=priority,
                device_uuids=allowed,
            ),
            steps=steps,
            notebook=notebook_name()[:200],
            kernel_id=kernel_id()[:200],
        )

    return Slot(request, client=client, quiet=quiet)
