"""Values that are known although tensors are stand-ins: a batch's, and what small integers become.

Lengths, labels and masks decide shapes. They are followed from the batch through the functions
below, so that `int(lengths.max())` or `x[y > 0]` has the size that it will have in training.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

_REAL_VALUE = "_horus_real_value"
_MOST_ELEMENTS = 2**16


def with_value(stand_in: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Let a stand-in tell the value that its tensor has now, where that lies on the CPU."""
    if real.device.type == "cpu" and not isinstance(real, FakeTensor):
        setattr(stand_in, _REAL_VALUE, (real, stand_in._version))
    return stand_in


def known(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor's value; `None` where it is not known, or was written over since."""
    if not isinstance(tensor, FakeTensor):
        return tensor if tensor.device.type == "cpu" else None
    kept = getattr(tensor, _REAL_VALUE, None)
    if kept is None or kept[1] != tensor._version:
        return None
    real: torch.Tensor = kept[0]
    return real


def follow(function: Any, arguments: Any, named: Any, result: Any) -> None:
    """Note the result's value where the function is followed and its arguments are known."""
    if function not in _FOLLOWED:
        return
    leaves, _ = tree_flatten((arguments, named))
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    makes = function in _MAKING
    if (not given and not makes) or not all(_is_followed(one) for one in given):
        return
    # What the function refuses on values, it has refused on stand-ins before.
    with contextlib.suppress(Exception), _disable_current_modes():
        real = function(*tree_map(_value, arguments), **tree_map(_value, named))
        for made, value in zip(tree_flatten(result)[0], tree_flatten(real)[0], strict=True):
            if isinstance(made, FakeTensor) and _is_small(value):
                with_value(made, value)


def _value(leaf: Any) -> Any:
    return known(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _is_followed(tensor: torch.Tensor) -> bool:
    real = known(tensor)
    return real is not None and _is_small(real)


def _is_small(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not value.dtype.is_floating_point
        and not value.dtype.is_complex
        and value.numel() <= _MOST_ELEMENTS
    )


_MAKING = (torch.tensor, torch.as_tensor)
_OPERATORS = (
    "add", "and", "eq", "floordiv", "ge", "getitem", "gt", "invert", "le", "lt", "mod", "mul",
    "ne", "or", "radd", "rmul", "rsub", "sub",
)  # fmt: skip
_METHODS = (
    "argmax", "bool", "clone", "cpu", "detach", "int", "long", "reshape", "select", "squeeze", "t",
    "to", "transpose", "view",
)  # fmt: skip
_FUNCTIONS = (
    "add", "all", "amax", "amin", "any", "argsort", "cumsum", "eq", "flatten", "ge", "gt",
    "index_select", "le", "lt", "max", "min", "mul", "ne", "sort", "sub", "sum", "unsqueeze",
)  # fmt: skip
_FOLLOWED = frozenset(
    (
        *_MAKING,
        torch.cat,
        torch.stack,
        *(getattr(torch.Tensor, f"__{name}__") for name in _OPERATORS),
        *(getattr(torch.Tensor, name) for name in (*_METHODS, *_FUNCTIONS)),
        *(getattr(torch, name) for name in _FUNCTIONS),
    )
)
