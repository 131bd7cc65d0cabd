"""Fake stand-ins for a module's tensors and a batch's. They have shapes and no memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from horus_lab.errors import CaptureFailed
from horus_lab.graph.values import with_value

_HALF = {"16-true": torch.float16, "bf16-true": torch.bfloat16}


def like(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A fake tensor of the same shape on the CPU. To be called under a `FakeTensorMode`.

    The stand-in lies on the CPU wherever the tensor lies, so that no device is touched. `dtype`
    replaces floating-point ones.
    """
    chosen = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    fake = torch.empty(tuple(tensor.shape), dtype=chosen, device="cpu")
    return fake.requires_grad_(tensor.requires_grad) if _differentiable(fake) else fake


def module_tensors(module: nn.Module, precision: str) -> dict[str, torch.Tensor]:
    """Stand-ins for the parameters and buffers by their names; shared ones stay shared.

    Raises:
        CaptureFailed: a parameter has no shape yet.
    """
    dtype = _HALF.get(precision)
    made: dict[int, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if is_lazy(parameter):
            raise CaptureFailed(
                f"The parameter {name} gets its shape only in the first forward pass.",
                hint="Run the model once on the CPU before training, or declare the memory.",
            )
        if id(parameter) not in made:
            made[id(parameter)] = nn.Parameter(
                like(parameter.detach(), dtype), requires_grad=parameter.requires_grad
            )
        found[name] = made[id(parameter)]
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if is_lazy(buffer):
            raise CaptureFailed(f"The buffer {name} gets its shape only in the first forward pass.")
        if id(buffer) not in made:
            made[id(buffer)] = like(buffer.detach(), dtype)
        found[name] = made[id(buffer)]
    return found


def replace_attributes(module: nn.Module) -> list[torch.Tensor]:
    """Put stand-ins in place of tensors that are plain attributes, alone or in containers.

    To be called inside `untouched_module`, which puts the attributes back.
    """
    made: list[torch.Tensor] = []

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        made.append(like(tensor.detach(), None).requires_grad_(tensor.requires_grad))
        return made[-1]

    for each in module.modules():
        attributes = vars(each)
        for name, value in list(attributes.items()):
            if not name.startswith("_") and isinstance(value, torch.Tensor | list | tuple | dict):
                attributes[name] = mapped(value, stand_in)
    return made


def batch_of(batch: Any, precision: str) -> Any:
    """The batch with stand-ins for its tensors; other values as they are."""
    dtype = _HALF.get(precision)
    return mapped(batch, lambda tensor: with_value(like(tensor, dtype), tensor))


def mapped(nest: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A nest of containers with its tensors changed. Containers are new, of the same kinds."""
    if isinstance(nest, torch.Tensor):
        return change(nest)
    if isinstance(nest, tuple):
        items = [mapped(item, change) for item in nest]
        return type(nest)(*items) if hasattr(nest, "_fields") else type(nest)(items)
    if isinstance(nest, list):
        return [mapped(item, change) for item in nest]
    if isinstance(nest, dict):
        values = {key: mapped(value, change) for key, value in nest.items()}
        try:
            return type(nest)(values)
        except TypeError:
            return values
    if hasattr(nest, "data") and type(nest).__name__ in ("BatchEncoding", "BatchFeature"):
        return type(nest)(mapped(dict(nest.data), change))
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        changed = {
            each.name: mapped(getattr(nest, each.name), change)
            for each in dataclasses.fields(nest)
            if each.init
        }
        return dataclasses.replace(nest, **changed)
    return nest


def tensors_in(nest: Any) -> list[torch.Tensor]:
    """Every tensor in a nest, in order; a model's output too."""
    found: list[torch.Tensor] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    if hasattr(nest, "to_tuple"):
        nest = nest.to_tuple()
    mapped(nest, look)
    return found


def samples_in(batch: Any) -> int | None:
    """The batch size: the first dimension of the first tensor that has one."""
    found: list[int] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() > 0 and tensor.shape[0] > 0:
            found.append(int(tensor.shape[0]))
        return tensor

    mapped(batch, look)
    return found[0] if found else None


def bytes_in(batch: Any) -> int:
    """Bytes of the batch's tensors."""
    sizes: list[int] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    mapped(batch, look)
    return sum(sizes)


def _differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
