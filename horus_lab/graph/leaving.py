"""Where a step leaves torch, or names a device: answered without values and without devices."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from horus_lab.graph import values
from horus_lab.graph.packed import PackedSequences
from horus_lab.graph.representative import Representative


class LeavingTorch(TorchFunctionMode):
    """Answers what leaves torch, and keeps every tensor on the CPU's stand-ins.

    `.numpy()` and `.tolist()` give the batch's own values, or ones of the right shape. A device
    that the code names is read as the CPU, so that none is touched, and autocast for it as
    autocast here. Packed sequences, whose kernels read lengths, become padded ones.
    """

    def __init__(self, representative: Representative) -> None:
        super().__init__()
        self._representative = representative
        self._packed = PackedSequences(representative)

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        del types
        named = named or {}
        if function in _LEAVING:
            return self._values(function, arguments[0])
        if function in _MOVING:
            return arguments[0]
        if function is torch.Tensor.to:
            arguments = (arguments[0], *[_here(one) for one in arguments[1:]])
        if named.get("device") is not None:
            named = {**named, "device": _here(named["device"])}
        result = self._packed.answer(function, arguments)
        if result is not NotImplemented:
            return result
        with _autocast_of_devices():
            result = function(*arguments, **named)
        values.follow(function, arguments, named, result)
        return result

    def _values(self, function: Any, tensor: torch.Tensor) -> Any:
        real = values.known(tensor)
        if real is not None:
            with _disable_current_modes():
                array = real.detach().float() if real.dtype is torch.bfloat16 else real.detach()
                found = array.numpy().copy()
        else:
            self._representative.guesses += 1
            dtype = str(tensor.dtype).removeprefix("torch.")
            found = np.ones(tuple(tensor.shape), dtype if dtype != "bfloat16" else "float32")
        return found.tolist() if function is torch.Tensor.tolist else found


def _here(value: Any) -> Any:
    """The CPU in place of any device that would have to be touched."""
    if isinstance(value, torch.device):
        return value if value.type in ("cpu", "meta") else torch.device("cpu")
    if isinstance(value, str):
        return value if value in ("cpu", "meta") else "cpu"
    if isinstance(value, int) and not isinstance(value, bool):
        return "cpu"
    return value


def on_cpu(named: dict[str, Any]) -> dict[str, Any]:
    """An operator's named arguments without a device to be touched."""
    if named.get("device") is None:
        return named
    return {**named, "device": _here(named["device"])}


def _autocast_of_devices() -> Any:
    if torch.is_autocast_enabled("cuda") and not torch.is_autocast_enabled("cpu"):
        return torch.autocast("cpu", dtype=torch.get_autocast_dtype("cuda"))
    return contextlib.nullcontext()


_LEAVING = (torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist)
_MOVING = (torch.Tensor.cuda, torch.Tensor.pin_memory)
