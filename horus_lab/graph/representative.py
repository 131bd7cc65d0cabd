"""What depends on data, answered with a representative value.

Under fake tensors no value is known. `x.item()`, a mask's size or `x.numpy()` is answered here so
that the step goes on; each answer is counted, and makes the capture less sure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from horus_lab.graph import values

_SAME_ANSWERS = 100
_EXPECTED = "_horus_expected"


class Representative:
    """Answers, and how often each kind was asked for.

    Attributes:
        truth: what a condition is answered with; after a hundred answers every second one is
            the opposite, so that `while (x > 0).any()` ends.
        guesses: answers that the data might have given otherwise.
        conditions: those among them that were conditions.
    """

    def __init__(self, *, truth: bool = True) -> None:
        self.truth = truth
        self.guesses = 0
        self.conditions = 0

    def answer(self, name: str, operator: Any, arguments: Any, named: Any, *, counted: bool) -> Any:
        """The operator's result where it depends on data; else `NotImplemented`.

        `counted` is false in the optimizer, which reads its own counters and asks whether it is
        done: it is not.
        """
        if name == "aten::_local_scalar_dense":
            return self._scalar(operator, arguments[0], counted=counted)
        guess = _GUESSES.get(name)
        if guess is None:
            return NotImplemented
        result = guess(operator, arguments, named)
        if result is not NotImplemented:
            self.guesses += counted and not _is_sure(name, arguments)
        return result

    def _scalar(self, operator: Any, tensor: torch.Tensor, *, counted: bool) -> Any:
        real = values.known(tensor)
        if real is not None:
            with _disable_current_modes():
                return operator(real)
        if not isinstance(tensor, FakeTensor) or tensor.constant is not None:
            return NotImplemented
        expected = getattr(tensor, _EXPECTED, None)
        self.guesses += counted
        if tensor.dtype is torch.bool:
            if expected is not None:
                return expected
            if not counted:
                return False
            self.conditions += 1
            flipped = self.conditions > _SAME_ANSWERS and self.conditions % 2 == 0
            return self.truth is not flipped
        if tensor.dtype.is_complex:
            return complex(1.0)
        if tensor.dtype.is_floating_point:
            return 1.0
        return 1 if expected is None else expected


def expect(name: str, arguments: Any, result: Any) -> None:
    """Note on the result what its value most likely is: no NaN anywhere, half of each mask set."""
    if not isinstance(result, torch.Tensor):
        return
    first = arguments[0] if arguments else None
    if name in ("aten::isnan", "aten::isinf"):
        setattr(result, _EXPECTED, False)
    elif not isinstance(first, torch.Tensor):
        return
    elif name == "aten::sum" and first.dtype is torch.bool and result.dim() == 0:
        setattr(result, _EXPECTED, _half(first))
    elif name in ("aten::logical_not", "aten::bitwise_not"):
        known = getattr(first, _EXPECTED, None)
        if known is not None:
            setattr(result, _EXPECTED, not known)
    elif name in _KEEPS_EXPECTED:
        known = getattr(first, _EXPECTED, None)
        if known is not None:
            setattr(result, _EXPECTED, known)


_KEEPS_EXPECTED = frozenset(
    f"aten::{name}"
    for name in (
        "any", "all", "view", "reshape", "detach", "alias", "clone", "_to_copy", "logical_or",
        "bitwise_or", "logical_and", "bitwise_and", "squeeze", "unsqueeze",
    )
)  # fmt: skip


def _nonzero(operator: Any, arguments: Any, named: Any) -> Any:
    del operator, named
    mask = arguments[0]
    return torch.zeros((_half(mask), mask.dim()), dtype=torch.int64)


def _masked_select(operator: Any, arguments: Any, named: Any) -> Any:
    del operator, named
    return arguments[0].new_empty((_half(arguments[1]),))


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


def _bincount(operator: Any, arguments: Any, named: Any) -> Any:
    """As many bins as asked for at least, else one for each value."""
    del operator
    weights = arguments[1] if len(arguments) > 1 else named.get("weights")
    least = arguments[2] if len(arguments) > 2 else named.get("minlength", 0)
    dtype = torch.int64 if weights is None else torch.float64
    return torch.zeros((least or max(1, arguments[0].numel()),), dtype=dtype)


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
    return operator(arguments[0], indices, *arguments[2:], **named)


def _half(mask: torch.Tensor) -> int:
    real = values.known(mask)
    if real is not None:
        with _disable_current_modes():
            return int(torch.count_nonzero(real))
    return max(1, mask.numel() // 2)


def _is_sure(name: str, arguments: Any) -> bool:
    """Whether the size followed from masks whose values are known."""
    if name == "aten::nonzero":
        masks = [arguments[0]]
    elif name == "aten::masked_select":
        masks = [arguments[1]]
    elif name == "aten::index":
        masks = [one for one in arguments[1] if one is not None]
        masks = [one for one in masks if one.dtype in (torch.bool, torch.uint8)]
    else:
        return False
    return all(values.known(mask) is not None for mask in masks)


_GUESSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "aten::nonzero": _nonzero,
    "aten::masked_select": _masked_select,
    "aten::_unique2": _unique,
    "aten::unique_dim": _unique,
    "aten::unique_consecutive": _unique,
    "aten::repeat_interleave": _repeat_interleave,
    "aten::bincount": _bincount,
    "aten::index": _index,
}
