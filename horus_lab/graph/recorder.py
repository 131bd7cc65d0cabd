"""Watches every operator of a step on fake tensors: costs, lifetimes, structure.

Nothing is computed and nothing of the tensors' sizes is allocated; what depends on data is
answered with a representative value, and counted in `guesses`.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from horus_lab.graph import operations
from horus_lab.graph.fakes import like, mapped
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
        guesses: how often a data-dependent value or size was made up.
    """

    def __init__(self, *, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = Phase.FORWARD
        self.totals: dict[tuple[OperationClass, Phase], Totals] = {}
        self.dtype_flops: dict[str, float] = {}
        self.live_bytes = 0
        self.peak_live_bytes = 0
        self.guesses = 0
        self._deadline = deadline
        self._clock = clock
        self._hash = hashlib.sha256()
        self._stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._storages: dict[int, weakref.finalize[..., Any]] = {}

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
        """Stop following lifetimes."""
        for following in list(self._storages.values()):
            following.detach()
        self._storages.clear()

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
        guess = _GUESSES.get(operations.name_of(operator))
        if guess is not None:
            answer = guess(operator, arguments, named)
            if answer is not NotImplemented:
                # An optimizer reading its own step counter is no guess about the data.
                self.guesses += self.phase is not Phase.OPTIMIZER
                self._note(operator, arguments, named, answer)
                return answer
        result = operator(*arguments, **named)
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
        inputs = operations.tensors(arguments)
        if flops:
            floating = next((t for t in (*inputs, *results) if t.is_floating_point()), None)
            name = str(floating.dtype).removeprefix("torch.") if floating is not None else "other"
            self.dtype_flops[name] = self.dtype_flops.get(name, 0.0) + flops
        self._hash.update(operations.name_of(operator).encode())
        for tensor in (*inputs, *results):
            self._hash.update(f"{tuple(tensor.shape)}{tensor.dtype};".encode())


class ValuesAreMadeUp(TorchFunctionMode):
    """Leaving torch (`.numpy()`, `.tolist()`) gives zeros of the right shape."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        del types
        tensor: Any = arguments[0] if arguments else None
        if function in (torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist):
            self._recorder.guesses += 1
        if function in (torch.Tensor.numpy, torch.Tensor.__array__):
            dtype = str(tensor.dtype).removeprefix("torch.")
            return np.zeros(tuple(tensor.shape), dtype if dtype != "bfloat16" else "float32")
        if function is torch.Tensor.tolist:
            return np.zeros(tuple(tensor.shape)).tolist()
        return function(*arguments, **(named or {}))


def _scalar(operator: Any, arguments: Any, named: Any) -> Any:
    del operator, named
    dtype = arguments[0].dtype
    if dtype is torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else 1


def _nonzero(operator: Any, arguments: Any, named: Any) -> Any:
    del operator, named
    mask = arguments[0]
    return torch.zeros((_half(mask), mask.dim()), dtype=torch.int64)


def _masked_select(operator: Any, arguments: Any, named: Any) -> Any:
    del operator, named
    return arguments[0].new_empty((_half(arguments[0]),))


def _unique(operator: Any, arguments: Any, named: Any) -> Any:
    del named
    values = arguments[0]
    flat = values.new_empty((values.numel(),))
    index = torch.zeros(values.shape, dtype=torch.int64)
    counts = torch.zeros((values.numel(),), dtype=torch.int64)
    return (flat, index, counts)[: len(operator._schema.returns)]


def _repeat_interleave(operator: Any, arguments: Any, named: Any) -> Any:
    del named
    if operator._schema.overload_name != "Tensor":
        return NotImplemented
    return torch.zeros((2 * arguments[0].numel(),), dtype=torch.int64)


def _index(operator: Any, arguments: Any, named: Any) -> Any:
    """Indexing with a mask: as with the indices that half of the mask would give."""
    masks = [index for index in arguments[1] if index is not None]
    if not any(index.dtype in (torch.bool, torch.uint8) for index in masks):
        return NotImplemented
    indices: list[Any] = []
    for index in arguments[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            chosen = torch.zeros((_half(index),), dtype=torch.int64)
            indices += [chosen] * index.dim()
        else:
            indices.append(index)
    return operator(arguments[0], indices, **named)


def _half(mask: torch.Tensor) -> int:
    return max(1, mask.numel() // 2)


_GUESSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "aten::_local_scalar_dense": _scalar,
    "aten::nonzero": _nonzero,
    "aten::masked_select": _masked_select,
    "aten::_unique2": _unique,
    "aten::unique_dim": _unique,
    "aten::unique_consecutive": _unique,
    "aten::repeat_interleave": _repeat_interleave,
    "aten::index": _index,
}
