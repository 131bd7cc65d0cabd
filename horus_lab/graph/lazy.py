"""Lazy layers get their shapes in a first pass over a copy; the user's own stay as they are."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

from horus_lab.errors import CaptureFailed
from horus_lab.graph import fakes
from horus_lab.graph.leaving import LeavingTorch
from horus_lab.graph.recorder import Recorder
from horus_lab.graph.representative import Representative
from horus_lab.graph.step import Driver, FakeStep
from horus_lab.graph.untouched import untouched_process


def has_lazy(module: nn.Module) -> bool:
    """Whether a parameter or buffer has no shape yet."""
    return any(is_lazy(t) for t in (*module.parameters(), *module.buffers()))


def shaped_copy(
    module: nn.Module, batch: Any, drive: Callable[[nn.Module], Driver], *, deadline: float
) -> nn.Module:
    """A copy on stand-ins whose lazy layers have met the batch once.

    Args:
        drive: makes a driver of the copy.
        deadline: on the monotonic clock.

    Raises:
        CaptureFailed: a layer was not reached.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with untouched_process():
        made = _copied(module, fake)
    with untouched_process(), fake:
        for owner in made.modules():
            for kind in (owner._parameters, owner._buffers):
                for name, tensor in kind.items():
                    if tensor is not None and is_lazy(tensor):
                        vars(tensor)["materialize"] = _materializer(kind, name, tensor)
        recorder = Recorder(Representative(), deadline=deadline)
        step = FakeStep(
            recorder, fakes.batch_of(batch, "32-true"), stand_ins={}, base=set(), precision=""
        )
        # What fails after the layers have their shapes, fails again where it is reported.
        with recorder, LeavingTorch(recorder.representative), contextlib.suppress(Exception):
            drive(made)(step)
        recorder.finish()
    if has_lazy(made):
        raise CaptureFailed(
            "A layer gets its shape only in the first forward pass, and that pass failed.",
            hint="Run the model once on the CPU before training, or declare the memory.",
        )
    return made


# Its signature stands in no stub.
_uninitialized_buffer: Any = UninitializedBuffer


def _copied(module: nn.Module, fake: FakeTensorMode) -> nn.Module:
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        if is_lazy(parameter):
            memo[id(parameter)] = UninitializedParameter(
                parameter.requires_grad, dtype=parameter.dtype
            )
            continue
        with fake:
            memo[id(parameter)] = nn.Parameter(
                fakes.like(parameter.detach(), None), requires_grad=parameter.requires_grad
            )
    for buffer in module.buffers():
        if is_lazy(buffer):
            memo[id(buffer)] = _uninitialized_buffer(dtype=buffer.dtype)
            continue
        with fake:
            memo[id(buffer)] = fakes.like(buffer.detach(), None)
    for each in module.modules():
        for name in ("_trainer", "_fabric"):
            if (value := vars(each).get(name)) is not None:
                memo[id(value)] = value
    return copy.deepcopy(module, memo)


def _materializer(kind: dict[str, Any], name: str, lazy: torch.Tensor) -> Callable[..., None]:
    def materialize(shape: Any, device: Any = None, dtype: Any = None) -> None:
        del device
        tensor = torch.empty(shape, dtype=dtype or lazy.dtype)
        kind[name] = (
            nn.Parameter(tensor, requires_grad=lazy.requires_grad)
            if isinstance(lazy, nn.Parameter)
            else tensor
        )

    return materialize
