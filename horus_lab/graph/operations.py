"""What one operator is, what it costs: its class, its FLOPs, the bytes it moves.

FLOPs count a multiply-add as two. Matrix products, convolutions and attention use torch's own
formulas (`torch.utils.flop_counter`); the others are stated here: an elementwise operator one per
output element, a reduction one per input element, a normalization five per element forward (mean,
variance, subtraction, division, affine) and eight backward, a pooling one per window element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from horus_lab.graph.kernels import grouped_product_flops
from horus_lab.records import OperationClass

_NORMALIZATION_FORWARD = 5
_NORMALIZATION_BACKWARD = 8
_RNN_STEP_LAUNCHES = 6

# Never a kernel: they read or change how a tensor is looked at.
_FREE = frozenset(
    {
        "prim::device",
        "aten::detach",
        "aten::lift_fresh",
        "aten::alias",
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::_local_scalar_dense",
        "aten::set_",
        "aten::resize_",
        "aten::is_same_size",
        "aten::_unsafe_view",
    }
)
_LINEAR = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "ger",
        "linear",
        "_grouped_mm",
    }
)
_LOSS = (
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1",
    "huber_loss",
    "binary_cross_entropy",
    "kl_div",
    "ctc_loss",
    "log_softmax",
    "margin",
    "soft_margin",
)
_ACTIVATION = (
    "relu",
    "gelu",
    "silu",
    "sigmoid",
    "tanh",
    "softmax",
    "elu",
    "hardtanh",
    "hardswish",
    "threshold",
    "mish",
    "softplus",
    "glu",
    "softshrink",
)
_REDUCTION = frozenset(
    {
        "sum",
        "mean",
        "amax",
        "amin",
        "argmax",
        "argmin",
        "max",
        "min",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "prod",
        "any",
        "all",
        "cumsum",
        "cumprod",
        "logsumexp",
        "linalg_vector_norm",
        "norm",
        "topk",
        "sort",
        "median",
    }
)
_COPY = frozenset(
    {
        "copy_",
        "_to_copy",
        "clone",
        "cat",
        "stack",
        "index",
        "index_put",
        "index_put_",
        "_unsafe_index",
        "index_select",
        "index_add",
        "index_add_",
        "gather",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "scatter_reduce",
        "slice_backward",
        "select_backward",
        "slice_scatter",
        "select_scatter",
        "constant_pad_nd",
        "repeat",
        "repeat_interleave",
        "fill_",
        "fill",
        "zero_",
        "zeros",
        "zeros_like",
        "ones",
        "ones_like",
        "full",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "arange",
        "roll",
        "flip",
        "masked_fill",
        "masked_fill_",
        "nonzero",
        "masked_select",
        "tril",
        "triu",
        "im2col",
        "col2im",
    }
)


def name_of(operator: Any) -> str:
    """`aten::addmm`: the operator without its overload."""
    return str(operator._schema.name)


def starts_kernel(operator: Any) -> bool:
    """Whether calling it does work on a device."""
    name = name_of(operator)
    if name in _FREE or name.startswith(("profiler::", "prim::")):
        return False
    return not operator.is_view


def classify(operator: Any) -> OperationClass:
    """The operator's class, whatever the phase."""
    name = name_of(operator).split("::")[1]
    base = name.removesuffix("_backward")
    if "attention" in name:
        return OperationClass.ATTENTION
    if "convolution" in name or "conv2d" in name or "conv3d" in name or "conv_tbc" in name:
        return OperationClass.CONVOLUTION
    if name in _LINEAR or "scaled_mm" in name:
        return OperationClass.LINEAR
    if any(part in name for part in ("lstm", "gru", "rnn")):
        return OperationClass.RECURRENT
    if base in _REDUCTION:
        return OperationClass.REDUCTION
    if "norm" in name:
        return OperationClass.NORMALIZATION
    if any(part in name for part in _LOSS):
        return OperationClass.LOSS
    if any(part in name for part in _ACTIVATION):
        return OperationClass.ACTIVATION
    if "pool" in name or "upsample" in name:
        return OperationClass.POOLING
    if "embedding" in name:
        return OperationClass.EMBEDDING
    if name in _COPY:
        return OperationClass.COPY
    if torch.Tag.pointwise in operator.tags or "dropout" in name:
        return OperationClass.ELEMENTWISE
    return OperationClass.OTHER


def launches_of(operator: Any, arguments: Sequence[Any]) -> int:
    """Kernels that one call starts. A fused recurrent layer still works step by step."""
    if "rnn_layer" in name_of(operator):
        return _RNN_STEP_LAUNCHES * int(arguments[0].shape[0])
    return 1


def flops_of(operator: Any, arguments: Sequence[Any], named: dict[str, Any], result: Any) -> float:
    """FLOPs of one call, from the shapes."""
    packet = operator._overloadpacket
    if packet is torch.ops.aten.convolution_backward:
        return _convolution_backward(*arguments)
    if name_of(operator) == "aten::_grouped_mm":
        return grouped_product_flops(arguments, result)
    if packet in flop_registry:
        formula: Any = flop_registry[packet]
        return float(formula(*arguments, **named, out_val=result))
    name = name_of(operator).split("::")[1]
    kind = classify(operator)
    if kind is OperationClass.ATTENTION:
        return _attention(name, arguments)
    if kind is OperationClass.RECURRENT and "rnn_layer" in name:
        return _recurrent(name, arguments)
    if kind is OperationClass.LINEAR:
        return _product(name, arguments)
    if kind in (OperationClass.COPY, OperationClass.EMBEDDING):
        return 0.0
    if kind is OperationClass.NORMALIZATION:
        per = _NORMALIZATION_BACKWARD if "backward" in name else _NORMALIZATION_FORWARD
        return float(per * _largest(arguments))
    if kind in (OperationClass.REDUCTION, OperationClass.LOSS):
        return float(_largest(arguments))
    if kind is OperationClass.POOLING:
        return _pooling(arguments, result)
    return float(sum(tensor.numel() for tensor in tensors(result)))


def bytes_of(arguments: Sequence[Any], named: dict[str, Any], result: Any) -> int:
    """Bytes read and written: each distinct tensor argument once, each result once."""
    seen: dict[int, int] = {}
    for tensor in (*tensors(arguments), *tensors(named), *tensors(result)):
        seen[id(tensor)] = tensor.numel() * tensor.element_size()
    return sum(seen.values())


def tensors(nest: Any) -> list[torch.Tensor]:
    """The tensors in arguments or results."""
    if isinstance(nest, torch.Tensor):
        return [nest]
    if isinstance(nest, list | tuple):
        return [tensor for item in nest for tensor in tensors(item)]
    if isinstance(nest, dict):
        return [tensor for item in nest.values() for tensor in tensors(item)]
    return []


def _largest(arguments: Sequence[Any]) -> int:
    return max((tensor.numel() for tensor in tensors(arguments)), default=0)


def _convolution_backward(
    gradient: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *rest: Any,
) -> float:
    """The forward pass's cost for each of the two gradients asked for.

    torch's own formula counts a grouped convolution's weight gradient as if it had no groups.
    """
    del bias_sizes, stride, padding, dilation
    positions = inputs.numel() if transposed else gradient.numel()
    forward = 2.0 * positions * float(math.prod(weight.shape[1:]))
    _, _, wanted = rest
    return forward * (bool(wanted[0]) + bool(wanted[1]))


def _product(name: str, arguments: Sequence[Any]) -> float:
    shapes = [tuple(tensor.shape) for tensor in tensors(arguments)]
    if name in ("dot", "vdot", "ger"):
        return 2.0 * math.prod(shapes[0]) * (shapes[1][0] if name == "ger" else 1)
    matrix = next((shape for shape in shapes if len(shape) >= 2), (0,))
    return 2.0 * float(math.prod(matrix))


def _recurrent(name: str, arguments: Sequence[Any]) -> float:
    """Every step multiplies by the input's and the hidden state's weights; backward twice."""
    steps, samples = arguments[0].shape[:2]
    weights = arguments[1].numel() + arguments[2].numel()
    forward = 2.0 * float(steps * samples * weights)
    return 2.0 * forward if "backward" in name else forward


def _attention(name: str, arguments: Sequence[Any]) -> float:
    """Two products forward (scores, values); five backward (torch recomputes the scores)."""
    found = [tensor for tensor in tensors(arguments) if tensor.dim() == 4]
    if "backward" in name:
        found = found[1:]
    if len(found) < 3:
        return 0.0
    query, key, value = found[:3]
    samples, heads, length, width = query.shape
    score = 2.0 * samples * heads * length * key.shape[2] * width
    weighted = 2.0 * samples * heads * length * key.shape[2] * value.shape[3]
    return 3 * score + 2 * weighted if "backward" in name else score + weighted


def _pooling(arguments: Sequence[Any], result: Any) -> float:
    """Each output element looks at its window; adaptive pooling looks at every input once."""
    window = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], list | tuple) else []
    outputs = tensors(result)
    if not outputs:
        return 0.0
    if window and all(isinstance(size, int) for size in window):
        return float(outputs[0].numel() * math.prod(window))
    return float(_largest(arguments))
