"""The ordered chain of methods from a module and a batch to graph features."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import nn

from horus_lab.errors import CaptureFailed
from horus_lab.graph import fakes
from horus_lab.graph.lazy import has_lazy, shaped_copy
from horus_lab.graph.lightning import builders, is_lightning, lightning_driver
from horus_lab.graph.plain import plain_driver
from horus_lab.graph.representative import Representative
from horus_lab.graph.step import Driver, FakeStep, run
from horus_lab.graph.walk import walk
from horus_lab.records import GraphFeatures, OperationStatistics, Phase

TIME_LIMIT_SECONDS = 20.0

# The backward pass costs about twice the forward pass: one product each for the gradients of the
# inputs and of the weights.
_BACKWARD_FACTOR = 2


def capture_step(
    module: nn.Module,
    batch: Any,
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    step: Callable[[nn.Module, Any], Any] | None = None,
    precision: str = "32-true",
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> GraphFeatures:
    """The features of one training step of a plain module.

    Args:
        batch: any nest of tensors, shaped as in training.
        loss: a function of the output, or of the output and the target; without it the output's
            own `.loss`, else the sum of the output.
        optimizer: an optimizer, its class, or a factory of parameters; Adam where it is `None`.
        step: gives the loss from module and batch, in place of forward and `loss`.
        precision: Lightning's name for it: `32-true`, `bf16-mixed`, `16-mixed`, `bf16-true`, ….

    Raises:
        CaptureFailed: the module and batch do not fit together, or no method succeeded.
    """
    _check(module, batch)
    notes = [] if optimizer is not None else ["No optimizer was given; Adam is assumed."]

    def forward_only(one: FakeStep) -> None:
        plain_driver(module, loss=_detached, optimizer=optimizer, step=None)(one)

    whole = module
    if isinstance(loss, nn.Module) and next(loss.parameters(), None) is not None:
        # A loss with parameters of its own is trained too.
        whole = nn.ModuleList([module, loss])
    return _chain(
        whole,
        batch,
        lambda target: plain_driver(
            target if whole is module else target[0],
            loss=loss if whole is module else target[1],
            optimizer=optimizer,
            step=step,
        ),
        last=forward_only,
        precision=precision,
        notes=notes,
        time_limit_seconds=time_limit_seconds,
        micro_batches=1,
        name=type(module).__name__,
    )


def capture_lightning(
    module: nn.Module,
    batch: Any,
    *,
    precision: str = "32-true",
    accumulate: int = 1,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> GraphFeatures:
    """The features of one optimizer step of a LightningModule.

    Args:
        accumulate: batches for one optimizer step.

    Raises:
        CaptureFailed: no method succeeded.
    """
    _check(module, batch)
    return _chain(
        module,
        batch,
        lightning_driver,
        builds=builders(module),
        precision=precision,
        notes=[],
        time_limit_seconds=time_limit_seconds,
        micro_batches=max(1, accumulate),
    )


def capture(
    module: nn.Module,
    batch: Any,
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    step: Callable[[nn.Module, Any], Any] | None = None,
    precision: str = "32-true",
) -> GraphFeatures:
    """The features of one training step of any module; see `capture_step`.

    A LightningModule brings its own step and optimizers.

    Raises:
        CaptureFailed: the module and batch do not fit together, or no method succeeded.
    """
    if is_lightning(module) and loss is None and step is None and _has_training_step(module):
        return capture_lightning(module, batch, precision=precision)
    return capture_step(
        module, batch, loss=loss, optimizer=optimizer, step=step, precision=precision
    )


class _Attempt(NamedTuple):
    """One way to drive a step: what is built before, and what conditions are answered with."""

    build: Callable[[], None] | None
    truth: bool


def _chain(
    module: nn.Module,
    batch: Any,
    driver_of: Callable[[Any], Driver],
    *,
    precision: str,
    notes: list[str],
    time_limit_seconds: float,
    micro_batches: int,
    builds: Sequence[Callable[[], None] | None] = (None,),
    last: Driver | None = None,
    name: str = "",
) -> GraphFeatures:
    """Try one method after the other, all within the time limit."""
    deadline = time.monotonic() + time_limit_seconds
    options: dict[str, Any] = {"precision": precision, "micro_batches": micro_batches}
    name = name or type(module).__name__
    failure, mismatch = "", None
    forward: GraphFeatures | None = None
    if has_lazy(module):
        try:
            module = shaped_copy(module, batch, driver_of, deadline=deadline)
        except Exception as error:  # noqa: BLE001 - a copy runs the user's code, which may raise anything
            return walk(module, batch, precision=precision, why=_failed(error))
        notes = [*notes, "Lazy layers got their shapes on a copy."]
        builds, last = (None,), None
    attempts = [_Attempt(build, truth=True) for build in builds]
    while attempts:
        attempt = attempts.pop(0)
        answers = Representative(truth=attempt.truth)
        try:
            features = run(
                module,
                batch,
                driver_of(module),
                deadline=deadline,
                notes=notes,
                representative=answers,
                prepare=attempt.build,
                **options,
            )
        except Exception as error:  # noqa: BLE001 - the user's code runs on stand-ins, and may raise anything
            failure = failure or _failed(error)
            if not answers.guesses and _is_mismatch(error):
                mismatch = error
        else:
            if _went_back(features) or not _trains(module):
                return replace(features, module_name=name[:200])
            forward = forward or features
        if answers.conditions and attempt.truth:
            # The data may well go the other way: `if not done: return None`.
            attempts.insert(0, attempt._replace(truth=False))
    if mismatch is not None and forward is None:
        raise CaptureFailed(
            f"The model does not take this batch: {_line(mismatch)}.",
            hint="Pass a batch with the shapes and types that training uses.",
        ) from mismatch
    if forward is None and last is not None:
        with contextlib.suppress(Exception):
            forward = run(
                module, batch, last, deadline=deadline, notes=[*notes, failure], **options
            )
    if forward is not None:
        return _with_backward(replace(forward, module_name=name[:200]))
    return walk(module, batch, precision=precision, why=failure)


def _failed(error: BaseException) -> str:
    return f"The step on fake tensors failed: {_line(error)}."


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _check(module: Any, batch: Any) -> None:
    if not isinstance(module, nn.Module):
        raise CaptureFailed(
            f"A {type(module).__name__} is not a torch module.",
            hint="Pass the model itself, an instance of torch.nn.Module.",
        )
    if fakes.samples_in(batch) is None:
        raise CaptureFailed(
            "There is no tensor with a first dimension in the batch.",
            hint="Pass a batch as the loader gives it: next(iter(loader)).",
        )


def _is_mismatch(error: Exception) -> bool:
    """Whether the model and the batch contradict each other, which training would hit too."""
    if not isinstance(error, RuntimeError | ValueError | IndexError):
        return False
    text = str(error).lower()
    return any(
        part in text
        for part in (
            "shapes cannot be multiplied",
            "must match the size",
            "size mismatch",
            "expected input batch_size",
            "to have the same reduction dim",
            "channels, but got",
            "expected 2d or 3d",
            "expected 3d or 4d",
            "must have same reduction dim",
            "the size of tensor a",
            "expected more than 1 value per channel",
            "mat1 and mat2 must have the same dtype",
            "not aligned",
        )
    )


def _went_back(features: GraphFeatures) -> bool:
    return any(one.phase is not Phase.FORWARD for one in features.operations)


def _with_backward(features: GraphFeatures) -> GraphFeatures:
    """A forward pass with the backward and optimizer passes added by rule."""
    added: list[OperationStatistics] = list(features.operations)
    for one in features.operations:
        added.append(
            OperationStatistics(
                operation=one.operation,
                phase=Phase.BACKWARD,
                launches=_BACKWARD_FACTOR * one.launches,
                flops=_BACKWARD_FACTOR * one.flops,
                bytes_moved=_BACKWARD_FACTOR * one.bytes_moved,
            )
        )
    gradients = features.gradient_bytes or features.parameter_bytes
    state = features.optimizer_state_bytes or 2 * gradients
    return replace(
        features,
        operations=tuple(added),
        flops=sum(one.flops for one in added),
        bytes_moved=sum(one.bytes_moved for one in added),
        launches=sum(one.launches for one in added),
        dtype_flops={
            name: flops * (1 + _BACKWARD_FACTOR) for name, flops in features.dtype_flops.items()
        },
        gradient_bytes=gradients,
        optimizer_state_bytes=state,
        peak_live_bytes=features.peak_live_bytes + gradients + state,
    )


def _detached(output: Any) -> torch.Tensor:
    outputs = output if isinstance(output, list | tuple) else [output]
    tensor = next((one for one in outputs if isinstance(one, torch.Tensor)), None)
    return tensor.detach() if tensor is not None else torch.zeros(())


def _has_training_step(module: nn.Module) -> bool:
    step = getattr(type(module), "training_step", None)
    return step is not None and "LightningModule" not in getattr(step, "__qualname__", "")


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (
        f"{type(error).__name__}: {lines[0][:300].rstrip('.')}" if lines else type(error).__name__
    )
