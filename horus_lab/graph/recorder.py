"""Watches every operator of a step on fake tensors: costs, lifetimes, structure.

Nothing is computed and nothing of the tensors' sizes is allocated; what depends on data is
answered by a `Representative`.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from horus_lab.graph import operations
from horus_lab.graph.fakes import like, mapped
from horus_lab.graph.kernels import stand_in_result
from horus_lab.graph.leaving import on_cpu
from horus_lab.graph.representative import Representative, expect
from horus_lab.records import OperationClass, Phase


class TimeLimitReached(Exception):
    """The capture took longer than it may."""


class Totals:
    """Launches, FLOPs and bytes of one class in one phase."""

    __slots__ = ("bytes_moved", "flops", "launches")

    def __init__(self) -> None:
        self.launches = 0
        self.flops = 0.0
        self.bytes_moved = 0


class Recorder(TorchDispatchMode):
    """Sits above a `FakeTensorMode`.

    Attributes:
        phase: set by the driver as the step goes on.
        totals: by (class, phase).
        dtype_flops: FLOPs by the dtype of the first floating-point argument.
        peak_live_bytes: the most bytes alive at once among everything seen.
        representative: answers what depends on data, and counts it.
    """

    def __init__(
        self,
        representative: Representative,
        *,
        deadline: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = Phase.FORWARD
        self.totals: dict[tuple[OperationClass, Phase], Totals] = {}
        self.dtype_flops: dict[str, float] = {}
        self.live_bytes = 0
        self.peak_live_bytes = 0
        self.representative = representative
        self._deadline = deadline
        self._clock = clock
        self._hash = hashlib.sha256()
        self._stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._storages: dict[int, weakref.finalize[..., Any]] = {}
        self._outside: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def structure(self) -> str:
        """Hex digest of the operators with their shapes and dtypes, in order."""
        return self._hash.hexdigest()[:32]

    def hold(self, tensor: torch.Tensor) -> None:
        """Count the tensor's storage as alive until it is gone."""
        if tensor.layout is not torch.strided:
            # A sparse tensor keeps its bytes in the strided ones it was made of.
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        size = storage.nbytes()
        self.live_bytes += size
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)

        def gone() -> None:
            if self._storages.pop(key, None) is not None:
                self.live_bytes -= size

        self._storages[key] = weakref.finalize(storage, gone)

    def finish(self) -> None:
        """Stop following lifetimes, and put back the gradients of tensors outside the module."""
        for following in list(self._storages.values()):
            following.detach()
        self._storages.clear()
        for tensor, gradient in self._outside.values():
            tensor.grad = gradient

    def __torch_dispatch__(
        self,
        operator: Any,
        types: Any,
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        if operator.namespace == "prim":
            # torch asks for a tensor's device where no exception may pass: one ends the process.
            return operator(*arguments, **named)
        if self._clock() > self._deadline:
            raise TimeLimitReached
        if operator._schema.is_mutable:
            # A tensor from outside the module (a global, a closure's) is never written to.
            arguments = mapped(arguments, self._stand_in)
            named = mapped(named, self._stand_in)
        named = on_cpu(named)
        name = operations.name_of(operator)
        result = self.representative.answer(
            name, operator, arguments, named, counted=self.phase is not Phase.OPTIMIZER
        )
        if result is NotImplemented:
            result = stand_in_result(name, operator, arguments, named)
        if result is NotImplemented:
            result = operator(*arguments, **named)
            expect(name, arguments, result)
        self._note(operator, arguments, named, result)
        return result

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        kept = self._stand_ins.get(id(tensor))
        if kept is None:
            # The real one is kept beside it, so that its id stays its own.
            kept = (tensor, like(tensor.detach(), None))
            self._stand_ins[id(tensor)] = kept
        return kept[1]

    def _note(
        self, operator: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> None:
        results = operations.tensors(result)
        for tensor in results:
            self.hold(tensor)
        inputs = operations.tensors(arguments)
        for tensor in inputs:
            if tensor.requires_grad and not isinstance(tensor, FakeTensor) and tensor.is_leaf:
                # A parameter of something else than the module: backward would reach it.
                self._outside.setdefault(id(tensor), (tensor, tensor.grad))
        if not operations.starts_kernel(operator):
            return
        kind = operations.classify(operator)
        if self.phase is Phase.OPTIMIZER:
            kind = OperationClass.OPTIMIZER
        totals = self.totals.setdefault((kind, self.phase), Totals())
        flops = operations.flops_of(operator, arguments, named, result)
        totals.launches += operations.launches_of(operator, arguments)
        totals.flops += flops
        totals.bytes_moved += operations.bytes_of(arguments, named, result)
        if flops:
            floating = next((t for t in (*inputs, *results) if t.is_floating_point()), None)
            name = str(floating.dtype).removeprefix("torch.") if floating is not None else "other"
            self.dtype_flops[name] = self.dtype_flops.get(name, 0.0) + flops
        self._hash.update(operations.name_of(operator).encode())
        for tensor in (*inputs, *results):
            self._hash.update(f"{tuple(tensor.shape)}{tensor.dtype};".encode())
