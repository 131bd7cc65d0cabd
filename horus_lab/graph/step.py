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

from horus_lab.errors import CaptureFailed
from horus_lab.graph import fakes
from horus_lab.graph.recorder import Recorder, ValuesAreMadeUp
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
    """

    def __init__(self, recorder: Recorder, batch: Any, base: set[int]) -> None:
        self.recorder = recorder
        self.batch = batch
        self.optimizers: list[torch.optim.Optimizer] = []
        self.saved_bytes = 0
        self.backward_done = False
        self._base = base
        self._saved: dict[int, int] = {}

    def backward(self, loss: torch.Tensor, *arguments: Any, **named: Any) -> None:
        """Go back from the loss; what the forward pass saved is settled before."""
        self.saved_bytes = max(self.saved_bytes, sum(self._saved.values()))
        self.recorder.phase = Phase.BACKWARD
        loss.backward(*arguments, **named)  # type: ignore[no-untyped-call]
        self.backward_done = True
        self._saved.clear()
        self.recorder.phase = Phase.FORWARD

    def step(self, optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
        """One optimizer step."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        self.recorder.phase = Phase.OPTIMIZER
        original = type(optimizer).step
        result = original(optimizer)
        self.recorder.phase = Phase.FORWARD
        return result

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A saved-tensors hook: what backward needs besides parameters, buffers and batch."""
        if tensor.layout is not torch.strided:
            return tensor
        key = tensor.untyped_storage()._cdata
        if key not in self._base:
            self._saved[key] = tensor.untyped_storage().nbytes()
        return tensor


Driver = Callable[[FakeStep], None]


def run(
    module: nn.Module,
    batch: Any,
    drive: Driver,
    *,
    precision: str,
    time_limit_seconds: float,
    micro_batches: int = 1,
    notes: Iterable[str] = (),
) -> GraphFeatures:
    """Drive one step and gather its features.

    Args:
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
        recorder = Recorder(deadline=started + time_limit_seconds)
        with fake:
            stand_ins = fakes.module_tensors(module, precision)
            fake_batch = fakes.batch_of(batch, precision)
            distinct = {id(tensor): tensor for tensor in stand_ins.values()}
            base: set[int] = set()
            for tensor in (*distinct.values(), *_tensors(fake_batch)):
                recorder.hold(tensor)
                base.add(tensor.untyped_storage()._cdata)
            for tensor in fakes.replace_attributes(module):
                recorder.hold(tensor)
            step = FakeStep(recorder, fake_batch, base)
            with (
                recorder,
                ValuesAreMadeUp(recorder),
                _reparametrize_module(module, stand_ins),
                torch.autograd.graph.saved_tensors_hooks(step.keep, lambda tensor: tensor),
                _autocast(precision),
            ):
                drive(step)
            parameters = [t for t in distinct.values() if isinstance(t, nn.Parameter)]
            buffers = [t for t in distinct.values() if not isinstance(t, nn.Parameter)]
            gradients = sum(_size(p.grad) for p in parameters if p.grad is not None)
            state = sum(_state_bytes(optimizer) for optimizer in step.optimizers)
            peak = recorder.peak_live_bytes
            recorder.finish()
    found = list(notes)
    if recorder.guesses:
        found.append(f"{recorder.guesses} data-dependent values or sizes were made up.")
    operations = _statistics(recorder, micro_batches)
    return GraphFeatures(
        method=CaptureMethod.FAKE_STEP if step.backward_done else CaptureMethod.FAKE_FORWARD,
        confidence=_confidence(recorder.guesses, step.backward_done),
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


def plain_driver(
    module: nn.Module, *, loss: Any, optimizer: Any, step: Any, train: bool = True
) -> Driver:
    """Forward, loss, backward and optimizer step of a plain module."""

    def drive(one: FakeStep) -> None:
        optimizers = make_optimizers(module, optimizer)
        one.optimizers = optimizers
        if train and not module.training:
            module.train()
        if step is not None:
            value = step(module, one.batch)
        else:
            value = _loss_of(_forward(module, one.batch), one.batch, loss)
        if not isinstance(value, torch.Tensor):
            raise CaptureFailed(
                f"The step gave a {type(value).__name__} in place of a loss.",
                hint="Return the loss as a scalar tensor, or pass loss=… .",
            )
        if value.requires_grad:
            one.backward(value if value.dim() == 0 else value.sum())
            for each in optimizers:
                one.step(each)

    return drive


def make_optimizers(module: nn.Module, optimizer: Any) -> list[torch.optim.Optimizer]:
    """The user's optimizer over the module's current (fake) parameters.

    `optimizer` is an instance (its class and hyperparameters are taken over), a class or a
    factory of parameters, or `None` for Adam.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained:
        return []
    if optimizer is None:
        return [torch.optim.Adam(trained)]
    if isinstance(optimizer, torch.optim.Optimizer):
        return [_same_kind(optimizer, trained)]
    made = optimizer(trained)
    return [made] if isinstance(made, torch.optim.Optimizer) else list(made)


def _same_kind(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    accepted = inspect.signature(type(optimizer).__init__).parameters
    options = {
        name: value
        for name, value in optimizer.param_groups[0].items()
        if name in accepted and name != "params"
    }
    return type(optimizer)(parameters, **options)


def _forward(module: nn.Module, batch: Any) -> Any:
    """Call the module with the batch as people call it.

    A mapping gives keyword arguments, a pair (inputs, targets) its inputs where the module takes
    one argument, a longer tuple as many positions as the module has.
    """
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        accepted = _positions(module)
        if accepted is not None and len(accepted) == 1 and next(iter(accepted)) not in batch:
            return module(batch)
        return module(**dict(batch))
    if isinstance(batch, list | tuple):
        accepted = _positions(module)
        count = len(batch) if accepted is None else min(len(accepted), len(batch))
        return module(*batch[: max(1, count)])
    return module(batch)


def _positions(module: nn.Module) -> dict[str, Any] | None:
    """The forward's parameters that can be filled by position; `None` where any number may."""
    parameters = inspect.signature(module.forward).parameters
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return None
    required = {
        name: p
        for name, p in parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    }
    return required or dict(list(parameters.items())[:1])


def _loss_of(output: Any, batch: Any, loss: Any) -> Any:
    if loss is not None:
        accepted = len(
            inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
        )
        target = batch
        if isinstance(loss, nn.Module) or _is_functional(loss):
            # nn.CrossEntropyLoss() and its like compare with the target alone.
            target = batch[-1] if isinstance(batch, list | tuple) else batch
        return loss(output) if accepted == 1 else loss(output, target)
    found = getattr(output, "loss", None)
    if found is None and isinstance(output, dict):
        found = output.get("loss")
    if found is not None:
        return found
    floating = [t for t in _tensors(output) if t.is_floating_point()]
    if not floating:
        raise CaptureFailed(
            "The model's output has no floating-point tensor to make a loss of.",
            hint="Pass loss=…, a function of the output and the batch.",
        )
    return torch.stack([t.float().sum() for t in floating]).sum()


def _is_functional(loss: Any) -> bool:
    return getattr(loss, "__module__", "").startswith("torch.nn.functional")


def _tensors(nest: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    if hasattr(nest, "to_tuple"):
        nest = nest.to_tuple()
    fakes.mapped(nest, look)
    return found


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
