"""Operators whose stand-in torch does not know, or knows without the memory that they keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# oneDNN keeps the gates and states of every step for the backward pass: 15.2 to 15.9 values for
# each hidden value, measured on five shapes.
_KEPT_BY_RECURRENCE = 16


def stand_in_result(name: str, operator: Any, arguments: Any, named: Any) -> Any:
    """The operator's result on fake tensors, or `NotImplemented` to ask torch."""
    make = _RESULTS.get(name)
    return NotImplemented if make is None else make(operator, arguments, named)


def _recurrent_layer(operator: Any, arguments: Any, named: Any) -> Any:
    result = operator(*arguments, **named)
    if not arguments[-1]:
        return result
    output, hidden, cell, workspace = result
    size = _KEPT_BY_RECURRENCE * output.numel() * output.element_size()
    return output, hidden, cell, workspace.new_empty((size,), dtype=torch.uint8)


def _grouped_product(operator: Any, arguments: Any, named: Any) -> Any:
    """Rows grouped by offsets, each group with its own matrix: what experts do."""
    del operator, named
    left, right = arguments[:2]
    if left.dim() == 2 and right.dim() == 2:
        groups = arguments[2].shape[0]
        return left.new_empty((groups, left.shape[0], right.shape[1]))
    return left.new_empty((*left.shape[:-1], right.shape[-1]))


def grouped_product_flops(arguments: Any, result: torch.Tensor) -> float:
    """Each row meets one group's matrix; with two plain matrices the rows are what is summed."""
    left, right = arguments[:2]
    if left.dim() == 2 and right.dim() == 2:
        return 2.0 * float(left.numel() * right.shape[1])
    return 2.0 * float(result.numel() * left.shape[-1])


_RESULTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "aten::mkldnn_rnn_layer": _recurrent_layer,
    "aten::_grouped_mm": _grouped_product,
}
