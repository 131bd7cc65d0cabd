"""One training step on fake tensors: forward, loss, backward, optimizer."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.stateless import _reparametrize_module

from horus_lab.graph import fakes
from horus_lab.graph.leaving import LeavingTorch
from horus_lab.graph.recorder import Recorder
from horus_lab.graph.representative import Representative
from horus_lab.graph.untouched import untouched_module, untouched_process
from horus_lab.records import (
    CaptureMethod,
    GraphFeatures,
    OperationStatistics,
    Phase,
)

_AUTOCAST = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class FakeStep:
    """What a driver of a step is given: the recorder's phases, and the made optimizers.

    Attributes:
        batch: the batch with stand-ins.
        optimizers: the optimizers over the stand-ins, in the user's order.
        stand_ins: the parameters' stand-ins by the parameters' ids.
    """

    def __init__(
        self,
        recorder: Recorder,
        batch: Any,
        *,
        stand_ins: dict[int, torch.Tensor],
        base: set[int],
        precision: str,
    ) -> None:
        self.recorder = recorder
        self.batch = batch
        self.stand_ins = stand_ins
        self.optimizers: list[torch.optim.Optimizer] = []
        self.saved_bytes = 0
        self.backward_done = False
        self._precision = precision
        self._base = base
        self._saved: dict[int, int] = {}

    def forward(self) -> contextlib.AbstractContextManager[None]:
        """Where the forward pass and the loss belong: mixed precision casts in here alone."""
        return _autocast(self._precision)

    def backward(self, loss: torch.Tensor, *arguments: Any, **named: Any) -> None:
        """Go back from the loss; what the forward pass saved is settled before."""
        self.saved_bytes = max(self.saved_bytes, sum(self._saved.values()))
        self.recorder.phase = Phase.BACKWARD
        loss.backward(*arguments, **named)  # type: ignore[no-untyped-call]
        self.backward_done = True
        self._saved.clear()
        self.recorder.phase = Phase.FORWARD

    def step(self, optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
        """One optimizer step; the closure's work counts as its own phases."""
        original: Callable[..., Any] = type(optimizer).step
        if needs_closure(optimizer):
            result = original(optimizer, self._in_its_phases(closure))
        else:
            result = None
            if closure is not None:
                with torch.enable_grad():
                    result = closure()
            self.recorder.phase = Phase.OPTIMIZER
            original(optimizer)
        self.recorder.phase = Phase.FORWARD
        return result

    def _in_its_phases(self, closure: Any) -> Callable[[], Any]:
        def evaluate() -> Any:
            self.recorder.phase = Phase.FORWARD
            with torch.enable_grad():
                loss = closure()
            self.recorder.phase = Phase.OPTIMIZER
            return loss

        return evaluate

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A saved-tensors hook: what backward needs besides parameters, buffers and batch."""
        if tensor.layout is not torch.strided:
            return tensor
        key = tensor.untyped_storage()._cdata
        if key not in self._base:
            self._saved[key] = tensor.untyped_storage().nbytes()
        return tensor


Driver = Callable[[FakeStep], None]


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer evaluates the loss itself, as LBFGS does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def run(
    module: nn.Module,
    batch: Any,
    drive: Driver,
    *,
    precision: str,
    deadline: float,
    micro_batches: int = 1,
    notes: Iterable[str] = (),
    representative: Representative | None = None,
    prepare: Callable[[], None] | None = None,
) -> GraphFeatures:
    """Drive one step and gather its features.

    Args:
        prepare: builds what the module still lacks, on stand-ins, before its tensors are read.
        representative: answers what depends on data.
        deadline: on the monotonic clock.
        drive: runs forward, `step.backward` and `step.step` on the stand-ins. The module's
            parameters and buffers are replaced while it runs.
        micro_batches: forward and backward passes for one optimizer step.

    Raises:
        CaptureFailed: a parameter without a shape.
        Exception: whatever the user's code raises on stand-ins.
    """
    started = time.monotonic()
    with untouched_process(), untouched_module(module):
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        answers = representative or Representative()
        recorder = Recorder(answers, deadline=deadline)
        with fake, contextlib.ExitStack() as finishing:
            finishing.callback(recorder.finish)
            if prepare is not None:
                with LeavingTorch(answers):
                    prepare()
            originals = dict(module.named_parameters(remove_duplicate=False))
            stand_ins = fakes.module_tensors(module, precision)
            fake_batch = fakes.batch_of(batch, precision)
            distinct = {id(tensor): tensor for tensor in stand_ins.values()}
            base: set[int] = set()
            for tensor in (*distinct.values(), *fakes.tensors_in(fake_batch)):
                recorder.hold(tensor)
                base.add(tensor.untyped_storage()._cdata)
            for tensor in fakes.replace_attributes(module):
                recorder.hold(tensor)
            step = FakeStep(
                recorder,
                fake_batch,
                stand_ins={id(real): stand_ins[name] for name, real in originals.items()},
                base=base,
                precision=precision,
            )
            with (
                recorder,
                LeavingTorch(answers),
                _reparametrize_module(module, stand_ins),
                torch.autograd.graph.saved_tensors_hooks(step.keep, lambda tensor: tensor),
            ):
                drive(step)
            parameters = [t for t in distinct.values() if isinstance(t, nn.Parameter)]
            buffers = [t for t in distinct.values() if not isinstance(t, nn.Parameter)]
            gradients = sum(_size(p.grad) for p in parameters if p.grad is not None)
            state = sum(_state_bytes(optimizer) for optimizer in step.optimizers)
            peak = recorder.peak_live_bytes
    found = list(notes)
    if answers.guesses:
        found.append(f"{answers.guesses} data-dependent values or sizes were made up.")
    operations = _statistics(recorder, micro_batches)
    return GraphFeatures(
        method=CaptureMethod.FAKE_STEP if step.backward_done else CaptureMethod.FAKE_FORWARD,
        confidence=_confidence(answers.guesses, step.backward_done),
        graph_hash=recorder.structure(),
        module_name=type(module).__name__[:200],
        samples=fakes.samples_in(batch),
        operations=operations,
        flops=sum(one.flops for one in operations),
        bytes_moved=sum(one.bytes_moved for one in operations),
        launches=sum(one.launches for one in operations),
        dtype_flops={name: f * micro_batches for name, f in recorder.dtype_flops.items()},
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(_size(p) for p in parameters),
        gradient_bytes=gradients,
        optimizer_state_bytes=state,
        buffer_bytes=sum(_size(b) for b in buffers),
        input_bytes=fakes.bytes_in(batch),
        saved_activation_bytes=step.saved_bytes,
        peak_live_bytes=peak,
        precision=precision,
        capture_seconds=time.monotonic() - started,
        notes=tuple(found[:20]),
    )


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the tensors that an optimizer keeps for each parameter, scalars' counters too."""
    return sum(
        _size(value)
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def _statistics(recorder: Recorder, micro_batches: int) -> tuple[OperationStatistics, ...]:
    def times(phase: Phase) -> int:
        return 1 if phase is Phase.OPTIMIZER else micro_batches

    return tuple(
        OperationStatistics(
            operation=kind,
            phase=phase,
            launches=totals.launches * times(phase),
            flops=totals.flops * times(phase),
            bytes_moved=totals.bytes_moved * times(phase),
        )
        for (kind, phase), totals in sorted(recorder.totals.items())
    )


def _confidence(guesses: int, whole: bool) -> float:
    """Sure of a whole step; less of one with made-up sizes; much less of a forward alone."""
    if not whole:
        return 0.5
    return 0.95 if guesses == 0 else 0.8


@contextlib.contextmanager
def _autocast(precision: str) -> Iterator[None]:
    dtype = _AUTOCAST.get(precision)
    if dtype is None:
        yield
        return
    with torch.autocast("cpu", dtype=dtype, cache_enabled=True):
        yield
